"""Tables to boards, several at once in processes of one thread each."""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, NamedTuple

from rollonce.baselines import Baseline
from rollonce.commands.saved import load_given
from rollonce.commands.terminal import Bars
from rollonce.errors import InputError
from rollonce.reports.check import provenance_lines
from rollonce.reports.table import ahead_so_far, board_so_far
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, Score, check_scorable, score_rollouts
from rollonce.scoring.rows import chosen_rows, fitted_row
from rollonce.tuning.provenance import row_provenance

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_messages: Any = None


class BoardSettings(NamedTuple):
    """How boards are computed.

    Attributes:
        batch_size, window, n_batches, resamples, seed, held_out: See `score_rollouts`.
        saved: Baselines to put on each: files, names, or ``module:name``.
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
    saved: tuple[str, ...] = ()
    exponent: float | None = None
    only: tuple[str, ...] = ()
    quick: bool = False


QUICK_BATCHES, QUICK_RESAMPLES = 300, 30


def scorable(tables: Sequence[Rollouts], batch_size: int) -> tuple[list[Rollouts], list[str]]:
    """The tables that can be scored, and a sentence for each of the others.

    Raises:
        InputError: the first such sentence, if none can be.
    """
    good: list[Rollouts] = []
    errors: list[InputError] = []
    for table in tables:
        try:
            check_scorable(table, batch_size)
            good.append(table)
        except InputError as error:
            errors.append(error)
    if not good and errors:
        raise errors[0]
    return good, [str(error) for error in errors]


def score_tables(tables: Sequence[Rollouts], settings: BoardSettings, jobs: int | None, bars: Bars) -> list[Board]:
    """A board for each table, in order.

    Args:
        tables: What to score.
        settings: How.
        jobs: Processes; by default one per core, at most one per table. With one, no process is started.
        bars: Where progress goes, and the first rows.

    Raises:
        InputError: if a table cannot be scored (see `scorable`), a baseline file cannot be read, or no row has a name
            that is asked for.
    """
    for table in tables:
        chosen_rows(table, settings.window, settings.only, exponent=settings.exponent)
    for path in settings.saved:
        load_given(path)
    jobs = min(jobs or _cores(), len(tables))
    watching = _Watching(bars)
    if jobs == 1:
        return [score_table(table, settings, partial(watching.tell, table.name)) for table in tables]
    return _in_processes(tables, settings, jobs, watching)


class _Watching:
    """Progress of several boards, and the rows of the one that moved last."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.scores: dict[str, list[Score]] = {}

    def tell(self, name: str, what: str | Score, done: int, total: int) -> None:
        """A row has begun (its label), or is there (its score)."""
        scores = self.scores.setdefault(name, [])
        if isinstance(what, Score):
            scores.append(what)
            self.bars.show(board_so_far(self.bars.console, name, scores))
        self.bars.tell(name, ahead_so_far(scores) or str(what), done, total)


def score_table(table: Rollouts, settings: BoardSettings, tell: Callable[[str | Score, int, int], None]) -> Board:
    """The board of one table."""
    rows, saved, given = _rows(table, settings)
    done = 0

    def begun(label: str, n: int, total: int) -> None:
        nonlocal done
        done = n
        tell(label, n, total)

    board = score_rollouts(
        table,
        baselines=rows,
        fitted=list(saved.values()),
        batch_size=settings.batch_size,
        window=settings.window,
        n_batches=min(settings.n_batches, QUICK_BATCHES) if settings.quick else settings.n_batches,
        resamples=min(settings.resamples, QUICK_RESAMPLES) if settings.quick else settings.resamples,
        seed=settings.seed,
        held_out=settings.held_out,
        exponent=settings.exponent,
        leave_out=not settings.only,
        progress=begun,
        on_score=lambda score: tell(score, done + 1, len(rows) + len(saved)),
    )
    board.settings["given"] = given
    if settings.quick:
        board.notes.append(
            f"A quick look: {QUICK_BATCHES} batches and {QUICK_RESAMPLES} resamples at most, without boosted trees and "
            "self-tuning. The board without --quick has them, and narrower intervals."
        )
    for path, baseline in saved.items():
        lines = provenance_lines(baseline.provenance)
        board.notes.append(
            f"{baseline.label} is {path}, scored as it was fitted. "
            + ("; ".join(lines)[:300] if lines else "The file does not say what it was tuned on.")
            + " If that was on these very tasks, its score flatters it."
        )
    return board


def _rows(table: Rollouts, settings: BoardSettings) -> tuple[list[Baseline], dict[str, Baseline], list[str]]:
    """What is fitted on the table, by its file what is scored as it was fitted, and the labels of what was given."""
    given = {what: load_given(what) for what in settings.saved}
    rows = chosen_rows(table, settings.window, settings.only, settings.quick, settings.exponent)
    rows += [baseline for baseline in given.values() if not baseline.keeps_fit]
    saved = {what: baseline for what, baseline in given.items() if baseline.keeps_fit}
    return list({row.label: row for row in rows}.values()), saved, [baseline.label for baseline in given.values()]


def save_row(board: Board, table: Rollouts, settings: BoardSettings, row: str | None, path: str, command: str) -> str:
    """Fit a row of a board on its table and write it; returns its label.

    Args:
        board, table, settings: The board, and what it was made from.
        row: A name or label; the best row by default.
        path: The file.
        command: As it was typed, for the file to say.

    Raises:
        InputError: see `fitted_row`; or if nothing could be ranked.
    """
    rows, saved, _ = _rows(table, settings)
    best = next((s for s in board.scores if math.isfinite(s.ratio.value)), None)
    if row is None and best is None:
        raise InputError("no row could be ranked, so there is no best one to save", file=table.source)
    baseline = fitted_row(table, row or best.label, [*rows, *saved.values()], settings.seed)  # type: ignore[union-attr]
    score = next((s for s in [*board.scores, *board.apart] if s.label == baseline.label), None)
    baseline.save(path, row_provenance(board, table, score, command))
    return baseline.label


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(tables: Sequence[Rollouts], settings: BoardSettings, jobs: int, watching: _Watching) -> list[Board]:
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # read by the children when they load numpy
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(messages,))
    try:
        # Largest first, so that the last one to finish is a small one.
        order = sorted(range(len(tables)), key=lambda i: -tables[i].n_tasks)
        futures: dict[int, Future[Board]] = {i: pool.submit(_work, tables[i], settings) for i in order}
        left = set(futures.values())
        while left:
            done, left = wait(left, timeout=0.2, return_when="FIRST_EXCEPTION")
            for future in done:
                future.result()
            _pass_on(messages, watching)
        return [futures[i].result() for i in range(len(tables))]
    except BrokenProcessPool:
        raise InputError(
            "a process that scored a set was killed, most likely for memory; try --jobs 1 or a smaller --window"
        ) from None
    finally:
        children = multiprocessing.active_children()
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.terminate()
        messages.cancel_join_thread()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _pass_on(messages: Any, watching: _Watching) -> None:
    while True:
        try:
            watching.tell(*messages.get_nowait())
        except queue.Empty:
            return


def _start(messages: Any) -> None:
    global _messages
    _messages = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer


def _work(table: Rollouts, settings: BoardSettings) -> Board:
    def tell(what: str | Score, done: int, total: int) -> None:
        _messages.put((table.name, what, done, total))

    try:
        return score_table(table, settings, tell)
    except InputError as error:
        raise InputError(str(error)) from None  # plain, so that it survives the way between processes
