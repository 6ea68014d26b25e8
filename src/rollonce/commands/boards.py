"""Tables to boards, several at once in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from rollonce.commands.saved import load_saved
from rollonce.commands.terminal import Bars
from rollonce.errors import InputError
from rollonce.reports.check import provenance_lines
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, check_scorable, score_rollouts

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_messages: Any = None


class BoardSettings(NamedTuple):
    """How boards are computed; ``saved`` are baseline files to put on each, ``exponent`` is of the surprisal."""

    batch_size: int = 32
    window: int = 512
    n_batches: int = 2000
    resamples: int = 100
    seed: int = 0
    held_out: float = 0.0
    saved: tuple[str, ...] = ()
    exponent: float | None = None


def score_tables(tables: Sequence[Rollouts], settings: BoardSettings, jobs: int | None, bars: Bars) -> list[Board]:
    """A board for each table, in order.

    Args:
        tables: What to score.
        settings: How.
        jobs: Processes; by default one a core, at most one a table. With one, no process is started.
        bars: Where progress goes.

    Raises:
        InputError: if a table cannot be scored (before any is), or a baseline file cannot be read.
    """
    if len(tables) > 1:  # so that no table is scored before one that cannot be is refused
        for table in tables:
            check_scorable(table, settings.batch_size)
    for path in settings.saved:
        load_saved(path)
    jobs = min(jobs or _cores(), len(tables))
    if jobs == 1:
        return [
            score_table(t, settings, lambda what, done, total, name=t.name: bars.tell(name, what, done, total))
            for t in tables
        ]
    return _in_processes(tables, settings, jobs, bars)


def score_table(table: Rollouts, settings: BoardSettings, tell: Callable[[str, int, int], None]) -> Board:
    """The board of one table."""
    saved = [load_saved(path) for path in settings.saved]
    board = score_rollouts(
        table,
        fitted=saved,
        batch_size=settings.batch_size,
        window=settings.window,
        n_batches=settings.n_batches,
        resamples=settings.resamples,
        seed=settings.seed,
        held_out=settings.held_out,
        exponent=settings.exponent,
        progress=tell,
    )
    for path, baseline in zip(settings.saved, saved, strict=True):
        lines = provenance_lines(baseline.provenance)
        board.notes.append(
            f"{baseline.label} is {path}, scored as it was fitted. "
            + ("; ".join(lines)[:300] if lines else "The file does not say what it was tuned on.")
            + " If that was on these very tasks, its score flatters it."
        )
    return board


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(tables: Sequence[Rollouts], settings: BoardSettings, jobs: int, bars: Bars) -> list[Board]:
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
            _pass_on(messages, bars)
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


def _pass_on(messages: Any, bars: Bars) -> None:
    while True:
        try:
            bars.tell(*messages.get_nowait())
        except queue.Empty:
            return


def _start(messages: Any) -> None:
    global _messages
    _messages = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer


def _work(table: Rollouts, settings: BoardSettings) -> Board:
    def tell(what: str, done: int, total: int) -> None:
        _messages.put((table.name, what, done, total))

    try:
        return score_table(table, settings, tell)
    except InputError as error:
        raise InputError(str(error)) from None  # plain, so that it survives the way between processes
