"""Boards as JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from rollonce import __version__
from rollonce.files import write_whole_file
from rollonce.reports.columns import COLUMNS, CSV_FIELDS, STEP_COLUMNS
from rollonce.reports.decision import Decision, decide_on_board
from rollonce.reports.words import verdict
from rollonce.scoring import Board, Score


def boards_json(boards: Sequence[Board], command: str, decisions: Sequence[Decision] | None = None) -> dict[str, Any]:
    """What ``--json`` prints: ``{"rollonce", "command", "boards": [...]}``; each board has its ``verdict`` in words and
    its ``decision``."""
    decisions = decisions or [decide_on_board(board, command) for board in boards]
    return {
        "rollonce": __version__,
        "command": command,
        "boards": [
            board.to_dict() | {"verdict": verdict(board)._asdict(), "decision": decision}
            for board, decision in zip(boards, decisions, strict=True)
        ],
    }


def write_csv(path: str, boards: Sequence[Board]) -> None:
    """One row for each set and baseline, in the order of the board; ``rank`` is empty for what stands apart (``needs``
    says why).

    Raises:
        InputError: if the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_FIELDS)
    for board in boards:
        for rank, score in [*enumerate(board.scores, 1), *(("", s) for s in board.apart)]:
            others = _beside_the_score(board, rank, score)
            row = [others[name] if name in others else getattr(score, name) for name in CSV_FIELDS]
            writer.writerow(["" if isinstance(v, float) and not math.isfinite(v) else v for v in row])
    write_whole_file(path, text.getvalue())


def _beside_the_score(board: Board, rank: int | str, score: Score) -> dict[str, Any]:
    moments = board.moments
    return {
        "set": board.name,
        "batch_size": board.batch_size,
        "rank": rank,
        "baseline": score.label,
        **{
            f"{column.field}{end}": value
            for column in (*COLUMNS, *STEP_COLUMNS)
            for end, value in zip(("", "_low", "_high"), column.of(score), strict=True)
        },
        "n_tasks": moments.n_tasks,
        "n_rollouts": moments.n_rollouts,
        "snr": moments.snr.value,
    }
