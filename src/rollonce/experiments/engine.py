"""What an experiment asks of whatever trains and samples: a handful of calls. ``engines/local.py`` and
``engines/tinker.py`` answer them.

Shapes: ``_B`` rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rollonce.experiments.spec import ArmSpec
from rollonce.tasks import Task, TaskSet

Progress = Callable[[str, int, int], None]


class StageFailed(Exception):
    """A stage came to an end that the specification does not allow: recorded, and the run stops with exit code 1."""


class ExperimentTasks(NamedTuple):
    """What the arms train on, what the gate is measured on, and what is graded at the end.

    Attributes:
        train: Every training task (the vocabulary is fitted to their prompts).
        used: The tasks that some arm trains on within the specified steps (a subset of ``train``).
        calibration: Tasks that no arm trains on; not in ``test``.
        test: The evaluation, in the order in which it is graded.
        labels: Graded sample for the audit: (task, a response that is known to be right), as many as there are.
    """

    train: TaskSet
    used: TaskSet
    calibration: TaskSet
    test: TaskSet
    labels: list[tuple[Task, str]]


class StepLog(NamedTuple):
    """One training step as it was executed. Lists are of B rollouts."""

    step: int
    task_ids: list[str]
    rewards: list[float]
    baselines: list[float]
    advantages: list[float]
    group_size: int
    learning_rate: float
    seconds: float
    self_weight_max: float | None = None


class Trained(NamedTuple):
    """A finished (part of a) run: its steps, what was left to evaluate, and remarks for the report."""

    steps: list[StepLog]
    checkpoint: str
    command: str
    remarks: list[str]


class Answer(NamedTuple):
    """One greedy (or, in calibration, sampled) response, graded. ``failure`` as in `rollonce.tasks.Grades`."""

    reward: float
    truncated: bool
    tokens: int
    failure: str = ""


class Fresh(NamedTuple):
    """A fresh training client: log-probabilities of a fixed text, token by token, and what its optimizer was given."""

    log_probs: list[list[float]]
    optimizer: dict[str, Any]


class Engine(Protocol):
    """See the module."""

    name: str
    path: Any

    def identity(self) -> dict[str, Any]:
        """What results depend on beside the specification: packages, weights, address of the service. No secrets."""
        ...

    def tasks(self) -> ExperimentTasks:
        """All tasks."""
        ...

    def sample(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[list[Answer]]:
        """``group_size`` sampled and graded rollouts a task from the starting policy."""
        ...

    def fresh(self, arm: ArmSpec, prompts: Sequence[str]) -> Fresh:
        """Log-probabilities of the prompts' own tokens through a fresh training client of this arm."""
        ...

    def train(self, arm: ArmSpec, steps: int, directory: Path, progress: Progress) -> Trained:
        """Train in this directory; called again after a kill it goes on where it was, no step twice."""
        ...

    def discard(self, directory: Path) -> None:
        """Throw away what was trained in a directory; its logs stay."""
        ...

    def answer(self, checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        """Greedy, graded answers of a checkpoint."""
        ...
