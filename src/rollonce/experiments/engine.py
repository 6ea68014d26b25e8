"""What an experiment asks of whatever trains and samples: a handful of calls. ``engines/loop.py`` (our own loop, here
or on a service) and ``engines/cookbook.py`` (tinker-cookbook's recipe) answer them.

Shapes: ``_B`` rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from rollonce.experiments.ledger import Ledger
from rollonce.experiments.spec import ArmSpec
from rollonce.tasks import Task, TaskSet

Progress = Callable[[str, str, int, int], None]
"""(name, what is counted, done, total)."""


class StageFailed(Exception):
    """A stage came to an end that the specification does not allow: recorded, and the run stops with exit code 1."""


class ExperimentTasks(NamedTuple):
    """What the arms train on, what the gate is measured on, and what is graded at the end.

    Attributes:
        train: Every training task (the vocabulary is fitted to their prompts).
        used: The tasks that some arm trains on within the specified steps (a subset of ``train``).
        calibration: Hold-out tasks that the gate is measured on; no arm trains on them, and none is in ``test``.
        test: The evaluation, in the order in which it is graded.
        labels: Graded sample for the audit: (task, a response that is known to be right), as many as there are.
        selection: Hold-out tasks by which arms of a group are chosen; empty where there is nothing to choose.
        train_rows, test_rows: Rows of the sets as they came, repeated questions counted; None where tasks are drawn.
    """

    train: TaskSet
    used: TaskSet
    calibration: TaskSet
    test: TaskSet
    labels: list[tuple[Task, str]]
    selection: TaskSet = TaskSet([], "none")
    train_rows: int | None = None
    test_rows: int | None = None


class StepLog(NamedTuple):
    """One training step as it was executed. Lists are of B rollouts; tokens are of all of them."""

    step: int
    task_ids: list[str]
    rewards: list[float]
    baselines: list[float]
    advantages: list[float]
    group_size: int
    learning_rate: float
    seconds: float
    self_weight_max: float | None = None
    response_tokens: int = 0
    prompt_tokens: int = 0


class StartPolicy(NamedTuple):
    """What every arm must start from: log-probabilities of a fixed text, and how far a client may lie from them."""

    prompts: list[str]
    log_probs: list[list[float]]
    atol: float


class TrainedArm(NamedTuple):
    """An arm that was trained.

    Attributes:
        steps: What was executed, from the logs.
        checkpoint: What is evaluated: a path, or a service's address.
        command: How it was started, for readers.
        remarks: For the report.
        optimizer: The parameters that the optimizer was really given, each with every value that was seen.
        start_difference: Largest difference of this arm's own client from the `StartPolicy` before its first update;
            None where it was not measured.
        files: Paths beside the logs that the record must hold a hash of (the checkpoint).
    """

    steps: list[StepLog]
    checkpoint: str
    command: str
    remarks: list[str]
    optimizer: dict[str, list[Any]] = {}
    start_difference: float | None = None
    files: list[str] = []


class Answer(NamedTuple):
    """One greedy (or, in calibration, sampled) response, graded. ``failure`` as in `rollonce.tasks.Grades`."""

    reward: float
    truncated: bool
    tokens: int
    failure: str = ""
    prompt_tokens: int = 0


def largest_difference(log_probs: list[list[float]], other: list[list[float]]) -> float | None:
    """Of two lists of rows; None where they have not the same shape, or a number is not finite."""
    if [len(r) for r in log_probs] != [len(r) for r in other]:
        return None
    a, b = (np.array([x for row in rows for x in row], dtype=np.float64) for rows in (log_probs, other))
    largest = float(np.abs(a - b).max(initial=0.0))
    return largest if np.isfinite(largest) else None


class FreshClient(NamedTuple):
    """A fresh training client: log-probabilities of a fixed text, token by token, and the LoRA rank and seed that it
    was asked for with."""

    log_probs: list[list[float]]
    asked_for: dict[str, Any]


class Probe(NamedTuple):
    """One small batch through a fresh training client: sampled, one ``forward_backward``, one ``optim_step``.

    Attributes:
        rollouts, tokens: Sampled.
        loss: Of the batch, importance sampling.
        largest_ratio_error: Largest |ratio - 1| of a token: does the trainer agree with the sampler?
        optimizer: What the optimizer was given.
        moved: Largest change of a log-probability of the batch by the step.
    """

    rollouts: int
    tokens: int
    loss: float
    largest_ratio_error: float
    optimizer: dict[str, Any]
    moved: float


class Engine(Protocol):
    name: str
    path: Any

    def describe_identity(self) -> dict[str, Any]:
        """What results depend on beside the specification: packages, weights, address of the service. No secrets."""
        ...

    def load_experiment_tasks(self) -> ExperimentTasks: ...

    def sample_task_groups(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[list[Answer]]:
        """``group_size`` sampled and graded rollouts per task from the starting policy."""
        ...

    def count_prompt_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each prompt as the policy reads it."""
        ...

    def measure_fresh_client(self, arm: ArmSpec, prompts: Sequence[str]) -> FreshClient:
        """Log-probabilities of the prompts' own tokens through a fresh training client of this arm."""
        ...

    def probe_arm_training(self, arm: ArmSpec, tasks: Sequence[Task]) -> Probe:
        """One small batch through a fresh training client, thrown away afterwards."""
        ...

    def train_or_resume_arm(
        self,
        arm: ArmSpec,
        steps: int,
        directory: Path,
        *,
        progress: Progress,
        ledger: Ledger,
        start: StartPolicy | None,
    ) -> TrainedArm:
        """Train in this directory; called again after a kill it goes on where it was, no step twice.

        Args:
            arm: Which.
            steps: How many.
            directory: Within the run's.
            progress: Called at least once a step; it may end the training by raising.
            ledger: Notes what a later sitting reads.
            start: What its client is compared with before the first update; None where the check is switched off.

        Raises:
            StageFailed: another start, or a run that ended early.
        """
        ...

    def discard_weights(self, directory: Path) -> None:
        """Throw away what was trained in a directory; its logs stay."""
        ...

    def answer_greedily(self, checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        """Greedy, graded answers of a checkpoint."""
        ...
