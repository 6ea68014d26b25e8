"""The final evaluation: greedy, item by item on disk, resumable at every item.

An item that is not answered in time is asked again, alone. One that stays unanswered is recorded as such and never as
wrong: `rollonce.experiments.decision` then lets the verdict stand only if it is the same whatever the answer was.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rollonce.errors import InputError
from rollonce.experiments.engine import Answer, Engine
from rollonce.experiments.ledger import Ledger
from rollonce.rollouts import FloatArray
from rollonce.tasks import Task, TaskSet

ROWS = 64
T = TypeVar("T")
UNANSWERED = "unanswered"


def evaluate_items(
    engine: Engine,
    checkpoint: str,
    tasks: TaskSet,
    *,
    ledger: Ledger,
    name: str,
    item_seconds: float,
    item_tries: int,
    progress: Callable[[str, int, int], None],
) -> list[dict[str, Any]]:
    """Ask every task once; what is in the file ``name`` already is not asked again.

    A chunk of tasks is answered at once. If it takes longer than ``item_seconds``, its tasks are asked one by one, each
    up to ``item_tries`` times. The row of one that was never answered has reward None.

    Raises:
        InputError: the file holds an item that is no task of this evaluation, or nothing at all is answered any more:
            the run goes on from here when it is.
    """
    (ledger.directory / name).parent.mkdir(parents=True, exist_ok=True)
    done = {row["task_id"]: row for row in ledger.read_noted_lines(name)}
    known = {t.id for t in tasks}
    if odd := [i for i in done if i not in known]:
        raise InputError(
            f"holds the item {odd[0]!r}, which is no task of this evaluation", file=ledger.directory / name
        )
    left = [t for t in tasks if t.id not in done]
    progress("items", len(done), len(tasks))
    for start in range(0, len(left), ROWS):
        chunk = left[start : start + ROWS]
        for task, answer in zip(
            chunk, _collect_answers_in_time(engine, checkpoint, chunk, item_seconds, item_tries), strict=True
        ):
            row = {"reward": None, "failure": UNANSWERED} if answer is None else answer._asdict()
            done[task.id] = {"task_id": task.id, "truncated": False, "tokens": 0, "prompt_tokens": 0, **row}
            ledger.append_noted_line(name, done[task.id])
        progress("items", len(done), len(tasks))
    return [done[t.id] for t in tasks]


def _collect_answers_in_time(
    engine: Engine, checkpoint: str, chunk: Sequence[Task], seconds: float, tries: int
) -> list[Answer | None]:
    together = run_within_seconds(seconds, lambda: engine.answer_greedily(checkpoint, chunk))
    if together is not None:
        return list(together)
    answers: list[Answer | None] = []
    for task in chunk:
        one = None
        for _ in range(tries):
            one = one or run_within_seconds(seconds, lambda task=task: engine.answer_greedily(checkpoint, [task]))
        answers.append(None if one is None else one[0])
    if all(a is None for a in answers):
        raise InputError(
            f"none of {len(chunk)} evaluation items was answered, each asked {tries} times for {seconds:g} s: the "
            "policy or its service is stalled. Nothing was marked wrong; give the same command when it answers again"
        )
    return answers


def run_within_seconds(seconds: float, work: Callable[[], T]) -> T | None:
    """What ``work`` gives, or None if it is not done in time; then it is left to itself, in a thread that ends with the
    process."""
    answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def put_result_or_error() -> None:
        try:
            answers.put((True, work()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=put_result_or_error, daemon=True).start()
    try:
        fine, value = answers.get(timeout=seconds)
    except queue.Empty:
        return None
    if not fine:
        raise value
    return value


def read_row_grades(rows: Sequence[dict[str, Any]]) -> FloatArray:
    """Rewards in the order of the evaluation (n,), NaN where an item was never answered."""
    return np.array([np.nan if row["reward"] is None else row["reward"] for row in rows], dtype=np.float64)
