"""The tasks of each step, and one rollout of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rollonce.errors import InputError
from rollonce.policies.samples import Samples
from rollonce.rollouts import FloatArray, Tasks
from rollonce.run_directory import RolloutRecord
from rollonce.tasks import Grades, Task, TaskSet, TaskSplits, grade, load_tasks
from rollonce.training.config import RunConfig, TasksConfig
from rollonce.training.learners.base import Learner
from rollonce.training.metrics import Stopwatch


def load_configured_tasks(config: TasksConfig) -> TaskSplits:
    """The tasks that a configuration names: train, hold-out, test."""
    options: dict[str, Any] = {
        "train": config.train,
        "holdout": config.holdout,
        "test": config.test,
        "seed": config.seed,
    }
    splits = load_tasks(config.source, grader=config.grader, columns=config.columns, **options)
    if not len(splits.train):
        raise InputError(f"tasks.source {config.source!r} has no task to train on")
    return splits


def choose_step_tasks(tasks: TaskSet, per_step: int, step: int, seed: int) -> TaskSet:
    """The tasks of a step (from 1): an order drawn anew by the seed for each pass, every pass cut to whole steps."""
    if per_step > len(tasks):
        raise InputError(f"a step takes {per_step} different tasks, but there are only {len(tasks)} to train on")
    per_pass = len(tasks) // per_step
    turn, place = divmod(step - 1, per_pass)
    order = np.random.default_rng([seed, turn]).permutation(len(tasks))
    return tasks.take(order[place * per_step : (place + 1) * per_step].tolist())


class Rolled(NamedTuple):
    """Rollouts and their rewards (B,)."""

    rewards_B: FloatArray
    samples: Samples
    grades: Grades

    @property
    def log_prob_B(self) -> FloatArray:
        """Summed log-probability of each response under the policy that sampled it (B,), in nats."""
        return self.samples.log_probs_BT.double().sum(dim=1).numpy()


def sample_and_grade(
    learner: Learner, tasks: Sequence[Task], config: RunConfig, seed: Sequence[int], watch: Stopwatch | None = None
) -> Rolled:
    """One rollout for each of ``tasks`` (a task stands there once for each rollout of its group), sampled and
    graded."""
    watch = watch or Stopwatch()
    with watch.time_step_part("sample"):
        samples = learner.sample_rollouts(
            [t.prompt for t in tasks],
            max_new_tokens=learner.max_new_tokens,
            temperature=config.train.temperature,
            seed=seed,
            behaviour=True,
        )
    with watch.time_step_part("grade"):
        grades = grade(tasks, samples.texts, truncated=samples.truncated_B.tolist(), time_limit=config.tasks.time_limit)
    return Rolled(np.asarray(grades.rewards, np.float64), samples, grades)


def rollout_records(step: int, tasks: Sequence[Task], rolled: Rolled) -> list[RolloutRecord]:
    """A step's rollouts, for the log. Log-probabilities to a ten-thousandth of a nat: they are sums of float32."""
    rows = zip(tasks, rolled.rewards_B, rolled.log_prob_B, rolled.samples.lengths_B.tolist(), strict=True)
    return [
        {
            "step": step,
            "task_id": task.id,
            "prompt": task.prompt,
            "reward": float(reward),
            "log_prob": round(float(log_prob), 4),
            "response_tokens": tokens,
        }
        for task, reward, log_prob, tokens in rows
    ]


def build_feature_tasks(tasks: Sequence[Task]) -> Tasks:
    """What features may see of a step's rollouts: one row each, a group's rows under one task id."""
    names = dict.fromkeys(name for t in tasks for name in t.columns)
    return Tasks(
        [t.prompt for t in tasks], [t.id for t in tasks], {name: [t.columns.get(name) for t in tasks] for name in names}
    )
