"""What a comparison will take, before it is run: rollouts and tokens counted, hours and memory from a measured step.

A step of each arm is measured here, with the policy, the tasks and the lengths of its first rollouts; or a throughput is
given, for another machine. The policy's responses will grow longer or shorter as it learns, so this says what to
expect, not what will be: `Pace` holds the first minutes of the run against it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rollonce.tasks import TaskSplits
from rollonce.training.config import ExperimentConfig, RunConfig
from rollonce.training.loading import runs_of

_MEASURED_ROWS = 32  # answers to held-out tasks


class StepCost(NamedTuple):
    """What one step of an arm, and one answer to a held-out task, take on one device.

    Attributes:
        seconds, tokens: Of a step, its response tokens.
        seconds_per_answer, tokens_per_answer: Of an evaluation.
        memory: Largest number of bytes in use: of the GPU, or of the process on a CPU; None where nothing was measured.
    """

    seconds: float
    tokens: float
    seconds_per_answer: float
    tokens_per_answer: float
    memory: int | None


class ArmCost(NamedTuple):
    """What all runs of one arm take together; ``hours`` of one device. ``memory`` is that of one run (bytes)."""

    arm: str
    runs: int
    rollouts: int
    tokens: float
    hours: float
    memory: int | None


class ComparisonCost(NamedTuple):
    """What a comparison takes.

    Attributes:
        arms: One by one.
        places: Runs at once.
        hours: From start to end, with so many at once.
        seconds_per_step: Mean over arms, for `Pace`.
        how: Where the figures come from, in a sentence.
    """

    arms: list[ArmCost]
    places: int
    hours: float
    seconds_per_step: float
    how: str


def measure_steps(config: ExperimentConfig, tell: Callable[[str], None] | None = None) -> dict[str, StepCost]:
    """Two steps of each arm, of which the second counts, and some held-out answers; nothing is written.

    Raises:
        InputError: what cannot be run, with the arm's name.
    """
    from rollonce.training.learners import make_learner
    from rollonce.training.rolling import tasks_of

    splits = tasks_of(config.tasks)
    costs: dict[str, StepCost] = {}
    for run in _one_run_per_arm(config):
        if tell is not None:
            tell(run.name)
        _reset_memory()
        learner = make_learner(run)
        try:
            costs[run.name] = _measured(run, splits, learner)
        finally:
            learner.close()
    return costs


def _measured(run: RunConfig, splits: TaskSplits, learner: Any) -> StepCost:
    from rollonce.training.arms.make import make_arm
    from rollonce.training.evaluation import evaluate_items
    from rollonce.training.loop import RunUnderWay, settle, take_step
    from rollonce.training.shadow import Shadow

    shadow = Shadow(run.train.shadow, splits.train.as_tasks())
    under_way = RunUnderWay(run, run_directory_of_nothing, splits, learner, make_arm(run, learner, splits.train), shadow)
    seconds = tokens = 0.0
    for _ in range(min(2, run.train.steps)):
        start = time.perf_counter()
        record = take_step(under_way).record
        seconds, tokens = time.perf_counter() - start, float(record["tokens"])
        settle(under_way, record)
    held_out = list(splits.holdout or splits.test)[:_MEASURED_ROWS]
    start = time.perf_counter()
    answers = list(evaluate_items(learner, held_out, run, split="holdout", mode="sampled", repeats=1, step=0))
    n = max(1, len(answers))
    return StepCost(
        seconds=seconds,
        tokens=tokens,
        seconds_per_answer=(time.perf_counter() - start) / n,
        tokens_per_answer=sum(a["tokens"] for a in answers) / n,
        memory=_memory(),
    )
