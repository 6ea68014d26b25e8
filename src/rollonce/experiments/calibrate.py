"""Calibration rollouts of the starting policy: a few tasks that no arm trains on, G sampled rollouts each; resumable,
under a time cap."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rollonce.experiments.engine import Engine, StageFailed
from rollonce.experiments.files import append_line, read_lines
from rollonce.tasks import TaskSet

CHUNK = 8


class Calibration(NamedTuple):
    """One list of G rewards a task, in the order of the tasks, and what it took."""

    rewards: list[list[float]]
    truncated: float
    seconds: float


def calibrate(
    engine: Engine,
    tasks: TaskSet,
    group_size: int,
    seed: int,
    file: Path,
    minutes: float,
    progress: Callable[[int, int], None],
) -> Calibration:
    """Sample, or go on sampling.

    ``file`` gets a line a task: ``task_id, prompt, rewards, truncated, tokens, seconds``. The cap counts the time spent
    in all sittings. Each chunk of tasks has a seed of its own, so a resumed calibration draws what the first would
    have.

    Raises:
        StageFailed: the cap came before the end. A gate is not scored on the tasks that happened to be quick.
    """
    rows = read_lines(file, mend=True)
    done: dict[str, dict[str, Any]] = {row["task_id"]: row for row in rows}
    spent = sum(row["seconds"] for row in done.values())
    progress(len(done), len(tasks))
    for start in range(0, len(tasks), CHUNK):
        chunk = list(tasks[start : start + CHUNK])
        if all(t.id in done for t in chunk):
            continue
        if spent > 60 * minutes:
            raise StageFailed(
                f"the cap of {minutes:g} minutes came after {len(done)} of {len(tasks)} calibration tasks; the gate is "
                "not scored"
            )
        began = time.monotonic()
        answers = engine.sample(chunk, group_size, seed * 1_000_003 + start)
        seconds = (time.monotonic() - began) / len(chunk)
        spent += seconds * len(chunk)
        for task, group in zip(chunk, answers, strict=True):
            if task.id in done:
                continue
            row = {"task_id": task.id, "prompt": task.prompt, "rewards": [a.reward for a in group]}
            row |= {
                "truncated": [a.truncated for a in group],
                "tokens": [a.tokens for a in group],
                "seconds": round(seconds, 4),
            }
            done[task.id] = row
            append_line(file, row)
        progress(len(done), len(tasks))
    ordered = [done[t.id] for t in tasks]
    cut = [c for row in ordered for c in row["truncated"]]
    return Calibration([row["rewards"] for row in ordered], sum(cut) / len(cut), spent)
