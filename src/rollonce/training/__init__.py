"""Training: one readable loop (`rollonce.training.loop`), and the arms that it compares.

Importing this loads no torch; the loop does (extra ``train``). What is said about runs afterwards is
`rollonce.comparison`, without torch.
"""

from __future__ import annotations

import importlib

from rollonce.errors import MissingExtraError


def check_training_extra() -> None:
    """See that what training needs is installed, before anything else is done.

    Raises:
        MissingExtraError: naming the package.
    """
    for package in ("torch", "transformers", "safetensors"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError("training", package, "train") from error
