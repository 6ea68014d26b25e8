"""One table to its board, the same for `rollonce score` and `rollonce.score`; and a row of it to a baseline.

What only given or saved baselines need (the audit, the tuner, rich) is imported with them: its import takes as long as
a dozen rows of a small board.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollonce.baselines import Baseline
from rollonce.errors import InputError
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, Score, score_rollouts
from rollonce.scoring.rows import choose_board_rows, fit_row_for_saving

QUICK_BATCHES, QUICK_RESAMPLES = 300, 30


class BoardSettings(NamedTuple):
    """How a board is computed.

    Attributes:
        batch_size, window, n_batches, resamples, seed, held_out: See `score_rollouts`.
        given: Baselines to put on it as well: files, names, ``module:name``, or objects (a fitted baseline as it is).
        only: Names of rows, or parts of their labels; all without any.
        exponent: Of the surprisal, see `score_rollouts`.
        quick: Few batches and resamples, and only what is fitted on prompts alone.
    """

    batch_size: int = 32
    window: int = 512
    n_batches: int = 2000
    resamples: int = 100
    seed: int = 0
    held_out: float = 0.0
    given: Sequence[str | Baseline] = ()
    exponent: float | None = None
    only: Sequence[str] = ()
    quick: bool = False


class _Rows(NamedTuple):
    """What goes on a board: to be fitted on the table, as it was fitted, and the labels of those that were given."""

    unfitted: list[Baseline]
    fitted: list[Baseline]
    given_labels: list[str]


def make_baseline_board(
    table: Rollouts, settings: BoardSettings, tell: Callable[[str | Score, int, int], None] = lambda *_: None
) -> Board:
    """The board of one table.

    Args:
        table: The rollouts.
        settings: How.
        tell: Called with (label that begins or score that is there, rows done, rows in all).

    Raises:
        InputError: as `score_rollouts`; a baseline that is given is not there; or no row has a name that is asked for.
    """
    rows = _choose_board_rows(table, settings)
    total = len(rows.unfitted) + len(rows.fitted)
    done = 0

    def report_begun_row(label: str, n: int, _: int) -> None:
        nonlocal done
        done = n
        tell(label, n, total)

    board = score_rollouts(
        table,
        baselines=rows.unfitted,
        fitted=rows.fitted,
        batch_size=settings.batch_size,
        window=settings.window,
        n_batches=min(settings.n_batches, QUICK_BATCHES) if settings.quick else settings.n_batches,
        resamples=min(settings.resamples, QUICK_RESAMPLES) if settings.quick else settings.resamples,
        seed=settings.seed,
        held_out=settings.held_out,
        exponent=settings.exponent,
        leave_out=not settings.only,
        progress=report_begun_row,
        on_score=lambda score: tell(score, done + 1, total),
    )
    board.settings["given"] = rows.given_labels
    if settings.quick:
        board.notes.append(
            f"A quick look: {QUICK_BATCHES} batches and {QUICK_RESAMPLES} resamples at most, without boosted trees and "
            "self-tuning. The board without --quick has them, and narrower intervals."
        )
    for baseline in rows.fitted:
        from rollonce.reports.check import format_provenance_lines

        lines = format_provenance_lines(baseline.provenance)
        board.notes.append(
            f"{baseline.label} was scored as it was fitted. "
            + ("; ".join(lines)[:300] if lines else "Nothing says what it was tuned on.")
            + " If that was on these very tasks, its score flatters it."
        )
    return board


def baseline_of_board_row(
    board: Board, table: Rollouts, settings: BoardSettings, row: str | None, command: str
) -> Baseline:
    """A row of a board, fitted on its table, with where it comes from as its provenance.

    Args:
        board, table, settings: The board, and what it was made from.
        row: A name or label; the best row by default.
        command: What made it, for the file to say.

    Raises:
        InputError: see `fit_row_for_saving`; or if nothing could be ranked.
    """
    from rollonce.tuning.provenance import provenance_of_board_row

    rows = _choose_board_rows(table, settings)
    best = next((s for s in board.scores if math.isfinite(s.ratio.value)), None)
    if row is None and best is None:
        raise InputError("no row could be ranked, so there is no best one to save", file=table.source)
    label = row or best.label  # type: ignore[union-attr]
    baseline = fit_row_for_saving(table, label, [*rows.unfitted, *rows.fitted], settings.seed)
    score = next((s for s in [*board.scores, *board.apart] if s.label == baseline.label), None)
    baseline.provenance = provenance_of_board_row(board, table, score, command)
    return baseline


def check_board_settings(table: Rollouts, settings: BoardSettings) -> None:
    """Refuse names of rows and given baselines that are not there, before anything is computed."""
    _choose_board_rows(table, settings._replace(quick=False))


def _choose_board_rows(table: Rollouts, settings: BoardSettings) -> _Rows:
    given: list[Baseline] = []
    if settings.given:
        from rollonce.testing.given import load_given_baseline

        given = [load_given_baseline(what) for what in settings.given]
    unfitted = choose_board_rows(table, settings.window, settings.only, settings.quick, settings.exponent)
    unfitted += [baseline for baseline in given if not baseline.keeps_existing_fit]
    unfitted = list({row.label: row for row in unfitted}.values())
    return _Rows(unfitted, [b for b in given if b.keeps_existing_fit], [b.label for b in given])
