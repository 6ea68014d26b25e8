"""Baseline files among other baselines: as they were fitted, under their file's name."""

from __future__ import annotations

from pathlib import Path

from rollonce.baselines import Baseline


def load_saved(path: str) -> Baseline:
    """The baseline of a file, whose ``fit`` does nothing more (its vocabulary stays that of the file) and whose label
    is the file's stem.

    Raises:
        InputError: if it is no baseline file.
    """
    return Baseline.load(path).named(Path(path).stem, keep_fit=True)
