"""Boards as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollonce import __version__
from rollonce.files import write_whole_file
from rollonce.reports.board_rows import format_csv_value, make_board_records, render_board_markdown
from rollonce.reports.columns import CSV_FIELDS
from rollonce.reports.decision import Decision, decide_on_board
from rollonce.reports.words import make_board_verdict
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board
from rollonce.scoring.groups import chance_of_a_pass, chance_of_equal_rewards


def make_boards_json(
    boards: Sequence[Board], command: str, decisions: Sequence[Decision] | None = None
) -> dict[str, Any]:
    """What ``--json`` prints: ``{"rollonce", "command", "boards": [...]}``; each board has its ``verdict`` in words and
    its ``decision``."""
    decisions = decisions or [decide_on_board(board, command) for board in boards]
    return {
        "rollonce": __version__,
        "command": command,
        "boards": [
            board.to_dict() | {"verdict": make_board_verdict(board)._asdict(), "decision": decision}
            for board, decision in zip(boards, decisions, strict=True)
        ],
    }


def write_boards_csv(path: str, boards: Sequence[Board]) -> None:
    """One row for each set and baseline, in the order of the board; ``rank`` is empty for what stands apart (``needs``
    says why).

    Raises:
        InputError: if the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_FIELDS)
    for board in boards:
        writer.writerows([format_csv_value(v) for v in record.values()] for record in make_board_records(board))
    write_whole_file(path, text.getvalue())


def write_boards_markdown(path: str, boards: Sequence[Board], decisions: Sequence[Decision]) -> None:
    """The boards under each other, as Markdown.

    Raises:
        InputError: if the file cannot be written.
    """
    write_whole_file(path, "\n".join(map(render_board_markdown, boards, decisions)))


def write_tasks_csv(path: str, tables: Sequence[Rollouts]) -> None:
    """One row for each task: its columns, rollouts, mean and deviation (ddof=1), pass@k (the chance that one of k
    rollouts has the full reward, unbiased) and dead@G (that G rollouts all earn the same), for groups large enough.

    Full reward is the largest of the table; with rewards of 0 and 1 it is 1.

    Raises:
        InputError: if the file cannot be written.
    """
    sizes = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= max(int(t.group_sizes_N.max()) for t in tables)]
    columns = list(dict.fromkeys(name for table in tables for name in table.tasks.column_names))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    passes, deads = [f"pass@{k}" for k in sizes], [f"dead@{g}" for g in sizes[1:]]
    writer.writerow(["set", "task_id", *columns, "n", "mean", "sd", *passes, *deads, "prompt"])
    for table in tables:
        full, sds = float(table.rewards_R.max()), np.sqrt(table.variances_N)
        values = {name: table.tasks.column(name) for name in table.tasks.column_names}
        for n, (task, prompt) in enumerate(zip(table.tasks.task_ids, table.tasks.prompts, strict=True)):
            group = table.group(n)
            row = [
                *(values[name][n] if name in values else "" for name in columns),
                len(group),
                float(table.means_N[n]),
                float(sds[n]),
                *(chance_of_a_pass(group >= full, k) for k in sizes),
                *(chance_of_equal_rewards(group, g) for g in sizes[1:]),
            ]
            plain = [format_csv_value(value) for value in row]
            writer.writerow([table.name, task, *plain, " ".join(prompt.split())[:200]])
    write_whole_file(path, text.getvalue())
