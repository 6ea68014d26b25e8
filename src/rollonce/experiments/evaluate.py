"""The final evaluation: greedy, item by item on disk, resumable at every item, with a time limit that only the guilty
item pays for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rollonce.errors import InputError
from rollonce.experiments.engine import Answer, Engine
from rollonce.experiments.files import append_line, read_lines
from rollonce.rollouts import FloatArray
from rollonce.tasks import Task, TaskSet

ROWS = 64
T = TypeVar("T")
TOO_SLOW = "time limit"


def evaluate_items(
    engine: Engine,
    checkpoint: str,
    tasks: TaskSet,
    file: Path,
    item_seconds: float,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Grade every task once; what is in ``file`` already is not graded again.

    A chunk of tasks is answered at once. If it takes longer than ``item_seconds``, its tasks are asked one by one, and
    one that alone takes longer counts as wrong, with the reason on record.

    Raises:
        InputError: the file holds an item that is no task of this evaluation.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    done = {row["task_id"]: row for row in read_lines(file, mend=True)}
    known = {t.id for t in tasks}
    if odd := [i for i in done if i not in known]:
        raise InputError(f"holds the item {odd[0]!r}, which is no task of this evaluation", file=file)
    left = [t for t in tasks if t.id not in done]
    progress(len(done), len(tasks))
    for start in range(0, len(left), ROWS):
        chunk = left[start : start + ROWS]
        for task, answer in zip(chunk, _answers(engine, checkpoint, chunk, item_seconds), strict=True):
            done[task.id] = {"task_id": task.id, **answer._asdict()}
            append_line(file, done[task.id])
        progress(len(done), len(tasks))
    return [done[t.id] for t in tasks]


def _answers(engine: Engine, checkpoint: str, chunk: Sequence[Task], seconds: float) -> list[Answer]:
    found = within(seconds, lambda: engine.answer(checkpoint, chunk))
    if found is not None:
        return found
    out = []
    for task in chunk:
        one = within(seconds, lambda task=task: engine.answer(checkpoint, [task]))
        out.append(Answer(0.0, True, 0, TOO_SLOW) if one is None else one[0])
    return out


def within(seconds: float, work: Callable[[], T]) -> T | None:
    """What ``work`` gives, or None if it is not done in time; then it is left to itself, in a thread that ends with the
    process."""
    answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def body() -> None:
        try:
            answers.put((True, work()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=body, daemon=True).start()
    try:
        fine, value = answers.get(timeout=seconds)
    except queue.Empty:
        return None
    if not fine:
        raise value
    return value


def grades_of(rows: Sequence[dict[str, Any]]) -> FloatArray:
    """Rewards in the order of the evaluation (n,)."""
    return np.array([row["reward"] for row in rows], dtype=np.float64)
