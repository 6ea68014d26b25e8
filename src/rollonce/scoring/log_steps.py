"""A log's rollouts as the steps that they were, whole or while it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollonce.baselines import Batch
from rollonce.rollouts import Rollouts, Tasks

if TYPE_CHECKING:
    from rollonce.readers.follow import Rows

ROWS_OF_A_STEP = 32
"""Where the log does not say."""


def split_into_steps(rollouts: Rollouts, batch_size: int | None = None) -> Iterator[Batch]:
    """The rollouts of a log as steps, in order: by its step column, or in runs of ``batch_size`` rows of the file."""
    order = (
        np.argsort(rollouts.order_R, kind="stable") if rollouts.order_R is not None else np.arange(rollouts.n_rollouts)
    )
    task_of = rollouts.task_of_R
    if rollouts.steps_R is not None and batch_size is None:
        step = rollouts.steps_R[order]
        groups: Iterable[np.ndarray] = [order[step == s] for s in np.unique(step)]
    else:
        size = batch_size or ROWS_OF_A_STEP
        groups = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    for rows in groups:
        log_probs_B = rollouts.log_probs_R[rows] if rollouts.log_probs_R is not None else None
        yield Batch(rollouts.tasks.take(task_of[rows]), rollouts.rewards_R[rows], log_probs_B=log_probs_B)


def steps_as_they_come(stream: Iterable[Rows], batch_size: int | None = None) -> Iterator[Batch]:
    """Steps of a growing log: a step is complete when the next one begins, or the stream ends; without steps of its own
    every ``batch_size`` rows."""
    waiting: list[Any] = []  # (step, prompt, id, reward, log-probability, columns ...)
    names: list[str] = []

    def batch_from_rows(rows: Sequence[Any]) -> Batch:
        columns = {name: [r[5 + k] for r in rows] for k, name in enumerate(names)}
        return Batch(
            Tasks([r[1] for r in rows], [r[2] for r in rows], columns),
            np.array([r[3] for r in rows], dtype=np.float64),
            log_probs_B=np.array([r[4] for r in rows], dtype=np.float64),
        )

    for rows in stream:
        names = list(rows.columns)
        steps = [None] * len(rows.prompts) if rows.steps_B is None else rows.steps_B.tolist()
        fields = (steps, rows.prompts, rows.task_ids, rows.rewards_B.tolist(), rows.log_probs_B.tolist())
        waiting += zip(*fields, *rows.columns.values(), strict=True)
        own_steps = waiting[0][0] is not None and batch_size is None
        size = batch_size or ROWS_OF_A_STEP
        while waiting:
            if own_steps:
                end = next((i for i, row in enumerate(waiting) if row[0] != waiting[0][0]), None)
            else:
                end = size if len(waiting) >= size else None
            if end is None:
                break
            yield batch_from_rows(waiting[:end])
            waiting = waiting[end:]
    if waiting and waiting[0][0] is not None and batch_size is None:
        yield batch_from_rows(waiting)


__all__ = ["ROWS_OF_A_STEP", "split_into_steps", "steps_as_they_come"]
