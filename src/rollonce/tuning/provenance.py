"""What a tuned baseline's file says of where it comes from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rollonce import __version__
from rollonce.tuning.tune import TuneResult


def provenance(result: TuneResult, files: Sequence[str | PathLike[str]], command: str) -> dict[str, Any]:
    """Command, files with hashes, settings, and what was reported, for ``Baseline.save``.

    Args:
        result: What `tune` returned.
        files: The files that its rollouts were read from.
        command: The command as it was typed.
    """
    reported = result.judged.score
    return {
        "command": command,
        "tuned_on": result.name,
        "source": result.source,
        "file_sha256": {Path(f).name: hashlib.sha256(Path(f).read_bytes()).hexdigest()[:16] for f in files},
        "tasks": result.settings["n_tasks"],
        "rollouts": result.settings["n_rollouts"],
        "rollouts_hash": result.settings["rollouts_hash"],
        "settings": {name: value for name, value in result.settings.items() if name != "space"},
        "reported_ratio_to_loo": [_rounded(x) for x in reported.ratio],
        "reported_b_eff": [_rounded(x) for x in reported.b_eff],
        "reported_how": "cross-fitted procedure" if result.cross_fitted else "held-out report part",
        "tuned_ratio_to_loo": _rounded(result.tuned),
        "fell_back_to_loo": result.is_loo,
        "versions": {"rollonce": __version__, "numpy": np.__version__},
    }


def _rounded(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
