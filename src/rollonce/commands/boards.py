"""Tables to boards, several at once in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from rollonce.boards import BoardSettings, check_board_settings, make_baseline_board
from rollonce.commands.terminal import Bars, print_remark
from rollonce.errors import InputError
from rollonce.reports.table import describe_board_row, describe_leader_so_far, make_partial_board
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, Score, check_can_be_scored

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_messages: Any = None


def separate_scorable_tables(tables: Sequence[Rollouts], batch_size: int) -> tuple[list[Rollouts], list[str]]:
    """The tables that can be scored, and a sentence for each of the others.

    Raises:
        InputError: the first such sentence, if none can be.
    """
    good: list[Rollouts] = []
    errors: list[InputError] = []
    for table in tables:
        try:
            check_can_be_scored(table, batch_size)
            good.append(table)
        except InputError as error:
            errors.append(error)
    if not good and errors:
        raise errors[0]
    return good, [str(error) for error in errors]


def score_all_tables(tables: Sequence[Rollouts], settings: BoardSettings, jobs: int | None, bars: Bars) -> list[Board]:
    """A board for each table, in order.

    Args:
        tables: What to score.
        settings: How.
        jobs: Processes; by default one per core, at most one per table. With one, no process is started.
        bars: Where progress goes, and the first rows.

    Raises:
        InputError: if a table cannot be scored (see `separate_scorable_tables`), a baseline file cannot be read, or no
            row has a name that is asked for.
    """
    for table in tables:
        check_board_settings(table, settings)
    jobs = min(jobs or _count_usable_cores(), len(tables))
    watching = _Watching(bars)
    if jobs == 1:
        return [
            make_baseline_board(table, settings, partial(watching.report_row_progress, table.name)) for table in tables
        ]
    return _score_in_processes(tables, settings, jobs, watching)


class _Watching:
    """Progress of several boards: in a terminal the rows of the one that moved last, above the bars; elsewhere a line
    for each row as it comes."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.scores: dict[str, list[Score]] = {}

    def report_row_progress(self, name: str, what: str | Score, done: int, total: int) -> None:
        """A row has begun (its label), or is there (its score)."""
        scores = self.scores.setdefault(name, [])
        if not self.bars.stderr_console.is_terminal:
            if isinstance(what, Score):
                print_remark(f"{name}: {done} of {total}, {describe_board_row(what)}")
            else:
                self.bars.report_progress(name, what, done, total)
            return
        if isinstance(what, Score):
            scores.append(what)
            self.bars.show_above_bars(make_partial_board(self.bars.stderr_console, name, scores))
        self.bars.report_progress(name, describe_leader_so_far(scores) or str(what), done, total)


def _count_usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _score_in_processes(
    tables: Sequence[Rollouts], settings: BoardSettings, jobs: int, watching: _Watching
) -> list[Board]:
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # read by the children when they load numpy
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare_child_process, initargs=(messages,))
    try:
        # Largest first, so that the last one to finish is a small one.
        order = sorted(range(len(tables)), key=lambda i: -tables[i].n_tasks)
        futures: dict[int, Future[Board]] = {
            i: pool.submit(_score_in_child_process, tables[i], settings) for i in order
        }
        left = set(futures.values())
        while left:
            done, left = wait(left, timeout=0.2, return_when="FIRST_EXCEPTION")
            for future in done:
                future.result()
            _pass_messages_on(messages, watching)
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


def _pass_messages_on(messages: Any, watching: _Watching) -> None:
    while True:
        try:
            watching.report_row_progress(*messages.get_nowait())
        except queue.Empty:
            return


def _prepare_child_process(messages: Any) -> None:
    global _messages
    _messages = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer


def _score_in_child_process(table: Rollouts, settings: BoardSettings) -> Board:
    def send_row_progress(what: str | Score, done: int, total: int) -> None:
        _messages.put((table.name, what, done, total))

    try:
        return make_baseline_board(table, settings, send_row_progress)
    except InputError as error:
        raise InputError(str(error)) from None  # plain, so that it survives the way between processes
