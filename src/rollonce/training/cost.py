"""What a comparison will take, before it is run: rollouts and tokens counted, hours and memory from a measured step.

A step of each arm is measured here, with the policy, the tasks and the lengths of its first rollouts; or a throughput
is given, for another machine. Responses grow longer or shorter as the policy learns, so this says what to expect, not
what will be: `Pace` holds the first minutes of the run against it.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rollonce.files import write_json_file
from rollonce.run_directory import COST_FILE
from rollonce.tasks import TaskSplits
from rollonce.training.config import ExperimentConfig, RunConfig
from rollonce.training.loading import list_comparison_runs

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
    """What all runs of an arm take together: ``hours`` of one device, None where nothing was measured or given.
    ``memory`` is that of one run, in bytes."""

    arm: str
    runs: int
    rollouts: int
    tokens: float
    hours: float | None
    memory: int | None


class ComparisonCost(NamedTuple):
    """What a comparison takes.

    Attributes:
        arms: One by one.
        places: Runs at once.
        hours: From start to end, with so many at once; None where nothing was measured or given.
        seconds_per_step: Mean over arms, for `Pace`.
        how: Where the figures come from, in a sentence.
    """

    arms: list[ArmCost]
    places: int
    hours: float | None
    seconds_per_step: float | None
    how: str


def measure_step_costs(config: ExperimentConfig, tell: Callable[[str], None] | None = None) -> dict[str, StepCost]:
    """Two steps of each arm, of which the second counts, and some held-out answers; nothing is written.

    Raises:
        InputError: what cannot be run, with the arm's name.
    """
    from rollonce.training.learners import make_configured_learner
    from rollonce.training.rolling import load_configured_tasks

    splits = load_configured_tasks(config.tasks)
    costs: dict[str, StepCost] = {}
    for run in _one_run_per_arm(config):
        if tell is not None:
            tell(run.name)
        _reset_peak_memory()
        learner = make_configured_learner(run)
        try:
            costs[run.name.partition("@")[0]] = _measure_step_of_run(run, splits, learner)
        finally:
            learner.close()
    return costs


def _measure_step_of_run(run: RunConfig, splits: TaskSplits, learner: Any) -> StepCost:
    from rollonce.training.arms.make import make_configured_arm
    from rollonce.training.evaluation import evaluate_items
    from rollonce.training.loop import RunUnderWay, count_step_or_end_run, take_training_step
    from rollonce.training.shadow import Shadow

    shadow = Shadow(run.train.shadow, splits.train.as_feature_tasks())
    under_way = RunUnderWay(run, Path(), splits, learner, make_configured_arm(run, learner, splits.train), shadow)
    seconds = tokens = 0.0
    for _ in range(min(2, run.train.steps)):
        start = time.perf_counter()
        taken = take_training_step(under_way)
        seconds, tokens = time.perf_counter() - start, float(taken.record["tokens"])
        count_step_or_end_run(under_way, taken)
    held_out = list(splits.holdout or splits.test)[:_MEASURED_ROWS]
    start = time.perf_counter()
    answers = list(evaluate_items(learner, held_out, run, split="holdout", mode="sampled", repeats=1, step=0))
    n = max(1, len(answers))
    return StepCost(
        seconds=seconds,
        tokens=tokens,
        seconds_per_answer=(time.perf_counter() - start) / n,
        tokens_per_answer=sum(a["tokens"] for a in answers) / n,
        memory=_peak_memory_in_use(),
    )


def step_costs_from_throughput(
    config: ExperimentConfig, tokens_per_second: float, response_tokens: float
) -> dict[str, StepCost]:
    """Each arm's step at a throughput that is known: response tokens per second of one device, over sampling, grading
    and update together."""
    tokens = config.train.rollouts * response_tokens
    step = StepCost(tokens / tokens_per_second, tokens, response_tokens / tokens_per_second, response_tokens, None)
    return {run.name.partition("@")[0]: step for run in _one_run_per_arm(config)}


def estimate_comparison_cost(
    config: ExperimentConfig, splits: TaskSplits, steps: dict[str, StepCost], *, places: int, how: str
) -> ComparisonCost:
    """The cost of all runs, from that of a step of each arm.

    Args:
        config: The comparison.
        splits: Its tasks: how many are evaluated.
        steps: By the arms' names without a rate; an arm that is not there has no hours.
        places: Runs at once.
        how: See `ComparisonCost`.
    """
    arms: dict[str, ArmCost] = {}
    all_runs = list_comparison_runs(config)
    for run in all_runs:
        base = run.name.partition("@")[0]
        old = arms.get(base, ArmCost(base, 0, 0, 0.0, 0.0, None))
        rollouts, answers = (
            run.train.steps * run.train.rollouts,
            count_evaluation_answers(run, len(splits.holdout), len(splits.test)),
        )
        step = steps.get(base)
        tokens = 0.0 if step is None else run.train.steps * step.tokens + answers * step.tokens_per_answer
        hours = None
        if step is not None and old.hours is not None:
            hours = old.hours + (run.train.steps * step.seconds + answers * step.seconds_per_answer) / 3600
        memory = None if step is None else step.memory
        arms[base] = ArmCost(base, old.runs + 1, old.rollouts + rollouts, old.tokens + tokens, hours, memory)
    known = [arm.hours for arm in arms.values() if arm.hours is not None]
    at_once = min(places, len(all_runs))
    hours = None
    if len(known) == len(arms):
        longest_run = max(arm.hours / arm.runs for arm in arms.values() if arm.hours is not None)
        hours = max(sum(known) / at_once, longest_run)
    mean = sum(step.seconds for step in steps.values()) / len(steps) if steps else None
    return ComparisonCost(list(arms.values()), at_once, hours, mean, how)


def count_evaluation_answers(run: RunConfig, n_holdout: int, n_test: int) -> int:
    """Answers to held-out tasks in a run: before it, on the way, and at its end."""
    settings, steps = run.evaluation, run.train.steps
    on_the_way = (steps - 1) // settings.every if settings.every else 0
    whole = n_holdout * settings.repeats + n_test * (settings.test_repeats + settings.greedy)
    return 2 * whole + on_the_way * n_holdout * settings.repeats


class Pace:
    """Holds a comparison's first minutes against what was expected of it.

    Args:
        out: The comparison's directory, where ``compare --check`` left its figures.
        after: Seconds.
    """

    def __init__(self, out: Path, after: float = 300.0) -> None:
        self.after, self.start, self.first = after, time.monotonic(), -1
        self.expected: dict[str, Any] | None = None
        try:
            self.expected = json.loads((out / COST_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # not checked before, or not with this version

    def sentence_when_due(self, steps_done: int) -> str:
        """What to say once, when the time has come; else nothing. ``steps_done``: of all runs."""
        if self.first < 0:
            self.first = steps_done
        seconds = time.monotonic() - self.start
        per_step = (self.expected or {}).get("seconds_per_step")
        if not per_step or seconds < self.after:
            return ""
        found, wanted = (steps_done - self.first) / seconds, self.expected["places"] / per_step  # type: ignore[index]
        self.expected = None
        return (
            f"after {seconds / 60:.0f} minutes: {60 * found:.3g} steps a minute, where --check expected "
            f"{60 * wanted:.3g}; what remains will take {wanted / found:.2g} times as long as it said"
            if found
            else f"after {seconds / 60:.0f} minutes: no step is done yet, where --check expected {seconds * wanted:.0f}"
        )


def save_comparison_cost(cost: ComparisonCost, out: Path) -> None:
    """Leave the figures for `Pace`."""
    write_json_file(out / COST_FILE, cost, make_parents=True)


def _one_run_per_arm(config: ExperimentConfig) -> list[RunConfig]:
    first: dict[str, RunConfig] = {}
    for run in list_comparison_runs(config):
        first.setdefault(run.name.partition("@")[0], run)
    return list(first.values())


def _reset_peak_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_memory_in_use() -> int:
    """Largest number of bytes that were in use: of the GPU, else of this process."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
