"""What a baseline's file says of where it comes from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rollonce import __version__
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, Score
from rollonce.tuning.fingerprints import hash_rollout_table
from rollonce.tuning.tune import TuneResult


def provenance_of_tuning(result: TuneResult, files: Sequence[str | PathLike[str]], command: str) -> dict[str, Any]:
    """Command, files with hashes, settings, and what was reported, for ``Baseline.save``.

    Args:
        result: What `tune` returned.
        files: The files that its rollouts were read from.
        command: The command as it was typed.
    """
    reported = result.judged.score
    of_step = (
        {} if reported.progress is None else {"reported_progress": [_rounded_or_none(x) for x in reported.progress]}
    )
    return {
        "command": command,
        "tuned_on": result.name,
        "source": result.source,
        "file_sha256": {Path(f).name: hashlib.sha256(Path(f).read_bytes()).hexdigest()[:16] for f in files},
        "tasks": result.settings["n_tasks"],
        "rollouts": result.settings["n_rollouts"],
        "rollouts_hash": result.settings["rollouts_hash"],
        "settings": {name: value for name, value in result.settings.items() if name != "space"},
        "reported_ratio_to_loo": [_rounded_or_none(x) for x in reported.ratio],
        "reported_b_eff": [_rounded_or_none(x) for x in reported.b_eff],
        **of_step,
        "reported_how": "cross-fitted procedure" if result.cross_fitted else "held-out report part",
        "tuned_ratio_to_loo": _rounded_or_none(result.tuned),
        "fell_back_to_loo": result.is_loo,
        "versions": {"rollonce": __version__, "numpy": np.__version__},
    }


def provenance_of_board_row(board: Board, rollouts: Rollouts, score: Score | None, command: str) -> dict[str, Any]:
    """The same for a row of a board, fitted on the whole table."""
    return {
        "command": command,
        "scored_on": board.name,
        "source": board.source,
        "tasks": rollouts.n_tasks,
        "rollouts": rollouts.n_rollouts,
        "rollouts_hash": hash_rollout_table(rollouts),
        "settings": {"batch_size": board.batch_size, **board.settings},
        "reported_ratio_to_loo": [_rounded_or_none(x) for x in score.ratio] if score else [],
        "reported_b_eff": [_rounded_or_none(x) for x in score.b_eff] if score else [],
        "reported_how": f"a board of {len(board.scores)} rows on these very tasks; the best of many flatters itself",
        "versions": {"rollonce": __version__, "numpy": np.__version__},
    }


def _rounded_or_none(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
