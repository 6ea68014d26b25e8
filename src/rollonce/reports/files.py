"""Boards as JSON and CSV."""

from __future__ import annotations

import csv
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollonce import __version__
from rollonce.errors import InputError
from rollonce.reports.words import verdict
from rollonce.scoring import Board

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
    """One row a set and baseline, in the order of the board; ``rank`` is empty for what stands apart (``needs`` says
    why).

    Raises:
        InputError: if the file cannot be written.
    """
    try:
        with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as f:
            writer = csv.writer(f)
            writer.writerow(CSV_COLUMNS)
            for board in boards:
                m = board.moments
                for rank, s in [*enumerate(board.scores, 1), *(("", s) for s in board.apart)]:
                    row = [
                        board.name,
                        board.batch_size,
                        rank,
                        s.label,
                        s.needs,
                        *s.b_eff,
                        *s.ratio,
                        s.mse,
                        s.advantage_variance,
                        s.explained,
                    ]
                    row += [
                        s.dead,
                        s.window,
                        s.window_asked,
                        s.method,
                        s.scored_as,
                        s.n_batches,
                        m.n_tasks,
                        m.n_rollouts,
                        m.snr.value,
                    ]
                    writer.writerow(["" if isinstance(v, float) and not math.isfinite(v) else v for v in row])
    except OSError as error:
        raise cannot_write(path, error) from None


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: if it cannot be written.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=Path(path).parent, prefix=".", suffix=Path(path).suffix)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as f:
                f.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise cannot_write(path, error) from None


def check_writable(*paths: str | None) -> None:
    """Refuse an output file in a folder that is not there, or that is one, before an hour is spent on computing it.

    Raises:
        InputError: naming the file.
    """
    for path in filter(None, paths):
        folder = Path(path).expanduser().parent
        if not folder.is_dir():
            raise InputError(f"cannot be written: there is no directory {folder}", file=path)
        if Path(path).is_dir():
            raise InputError("cannot be written: it is a directory; name a file in it", file=path)
        if not os.access(folder, os.W_OK):
            raise InputError(f"cannot be written: no permission in {folder}", file=path)


def cannot_write(path: str, error: OSError) -> InputError:
    """The sentence for a failed write."""
    return InputError(f"cannot be written: {error.strerror or error}", file=path)
