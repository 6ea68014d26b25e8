"""Boards as JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from rollonce import __version__
from rollonce.files import write_whole_file
from rollonce.reports.words import verdict
from rollonce.scoring import Board, Score

CSV_COLUMNS = (
    "set",
    "batch_size",
    "rank",
    "baseline",
    "needs",
    "b_eff",
    "b_eff_low",
    "b_eff_high",
    "ratio",
    "ratio_low",
    "ratio_high",
    "mse",
    "advantage_variance",
    "explained",
    "dead",
    "window",
    "window_asked",
    "method",
    "scored_as",
    "n_batches",
    "n_tasks",
    "n_rollouts",
    "snr",
)


def boards_json(boards: Sequence[Board], command: str) -> dict[str, Any]:
    """What ``--json`` prints: ``{"rollonce", "command", "boards": [...]}``; each board has its ``verdict`` in words."""
    return {
        "rollonce": __version__,
        "command": command,
        "boards": [board.to_dict() | {"verdict": verdict(board)._asdict()} for board in boards],
    }


def write_csv(path: str, boards: Sequence[Board]) -> None:
    """One row for each set and baseline, in the order of the board; ``rank`` is empty for what stands apart (``needs``
    says why).

    Raises:
        InputError: if the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for board in boards:
        for rank, score in [*enumerate(board.scores, 1), *(("", s) for s in board.apart)]:
            others = _beside_the_score(board, rank, score)
            row = [others[name] if name in others else getattr(score, name) for name in CSV_COLUMNS]
            writer.writerow(["" if isinstance(v, float) and not math.isfinite(v) else v for v in row])
    write_whole_file(path, text.getvalue())


def _beside_the_score(board: Board, rank: int | str, score: Score) -> dict[str, Any]:
    moments = board.moments
    return {
        "set": board.name,
        "batch_size": board.batch_size,
        "rank": rank,
        "baseline": score.label,
        **{f"b_eff{end}": v for end, v in zip(("", "_low", "_high"), score.b_eff, strict=True)},
        **{f"ratio{end}": v for end, v in zip(("", "_low", "_high"), score.ratio, strict=True)},
        "n_tasks": moments.n_tasks,
        "n_rollouts": moments.n_rollouts,
        "snr": moments.snr.value,
    }
