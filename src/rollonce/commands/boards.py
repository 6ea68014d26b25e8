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

import numpy as np

from rollonce.baselines import SelfTuning
from rollonce.baselines.catalogue import board_baselines
from rollonce.commands.saved import load_saved
from rollonce.commands.terminal import Bars
from rollonce.errors import InputError
from rollonce.reports.check import provenance_lines
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, check_scorable, group_scores, score_rollouts
from rollonce.tuning.crossfit import crossfit_score

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_messages: Any = None
_FOLDS = 5


class Settings(NamedTuple):
    """How boards are computed; ``saved`` are baseline files to put on each."""

    batch_size: int = 32
    window: int = 512
    n_batches: int = 2000
    resamples: int = 100
    seed: int = 0
    held_out: float = 0.0
    saved: tuple[str, ...] = ()


def score_tables(tables: Sequence[Rollouts], settings: Settings, jobs: int | None, bars: Bars) -> list[Board]:
    """A board for each table, in order.

    Args:
        tables: What to score.
        settings: How.
        jobs: Processes; by default one a core, at most one a table. With one, no process is started.
        bars: Where progress goes.

    Raises:
        InputError: if a table cannot be scored (before any is), or a baseline file cannot be read.
    """
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


def score_table(table: Rollouts, settings: Settings, tell: Callable[[str, int, int], None]) -> Board:
    """The board of one table."""
    baselines, notes = None, []
    if settings.saved:
        saved = [load_saved(path) for path in settings.saved]
        baselines = [*board_baselines(table.tasks, settings.window), *saved]
        for path, baseline in zip(settings.saved, saved, strict=True):
            lines = provenance_lines(baseline.provenance)
            notes.append(
                f"{baseline.label} is {path}, scored as it was fitted. "
                + ("; ".join(lines)[:300] if lines else "The file does not say what it was tuned on.")
                + " If that was on these very tasks, its score flatters it."
            )
    board = score_rollouts(
        table,
        baselines=baselines,
        batch_size=settings.batch_size,
        window=settings.window,
        n_batches=settings.n_batches,
        resamples=settings.resamples,
        seed=settings.seed,
        held_out=settings.held_out,
        progress=tell,
    )
    board.notes += notes
    _add_self_tuning(board, table, settings, tell)
    return board


def _add_self_tuning(board: Board, table: Rollouts, settings: Settings, tell: Callable[[str, int, int], None]) -> None:
    """Put the self-tuning baseline on the board, in batch and with the window, cross-fitted over tasks.

    It learns from rewards, so it cannot be scored as it stands: what a task is scored with is fitted on other tasks'
        rewards.
    """
    if settings.held_out or len(np.unique(table.tasks.prompt_keys)) < 2 * _FOLDS or np.ptp(table.rewards_R) == 0:
        return
    for i, window in enumerate(dict.fromkeys((0, settings.window))):
        tell("self-tuning, cross-fitted", i, 2)
        score = crossfit_score(
            SelfTuning,
            table,
            batch_size=settings.batch_size,
            window=window,
            folds=_FOLDS,
            n_batches=min(settings.n_batches, 600),
            resamples=min(settings.resamples, 24),
            seed=settings.seed,
        )
        board.scores.append(score)
    board.scores.sort(key=lambda s: -s.ratio.value if np.isfinite(s.ratio.value) else np.inf)
    best = next((s for s in board.scores if np.isfinite(s.b_eff.value)), None)
    if best is not None and board.groups:
        board.groups = group_scores(table, settings.batch_size, best.b_eff.value)
    board.notes.append(
        "The self-tuning baseline was cross-fitted: a task is scored with what single rollouts of other tasks taught "
        "it."
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(tables: Sequence[Rollouts], settings: Settings, jobs: int, bars: Bars) -> list[Board]:
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


def _work(table: Rollouts, settings: Settings) -> Board:
    def tell(what: str, done: int, total: int) -> None:
        _messages.put((table.name, what, done, total))

    try:
        return score_table(table, settings, tell)
    except InputError as error:
        raise InputError(str(error)) from None  # plain, so that it survives the way between processes
