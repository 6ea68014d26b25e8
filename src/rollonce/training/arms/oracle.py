"""The arm with each task's true mean as its baseline, measured with extra rollouts: a ceiling, not a method."""

from __future__ import annotations

from typing import Any

from rollonce.baselines import Batch, Oracle
from rollonce.policies.samples import Samples
from rollonce.tasks import TaskSet
from rollonce.training.arms.base import Arm, StepAdvantages
from rollonce.training.config import OracleConfig, RunConfig
from rollonce.training.learners.base import Learner
from rollonce.training.rolling import choose_step_tasks, sample_and_grade

_STREAM = 12  # seed of the oracle's own rollouts


class OracleArm(Arm):
    """``A = r - mean of the task's extra rollouts``; `rollonce.training.config.OracleConfig` says how many, how
    often."""

    def __init__(self, config: RunConfig, learner: Learner, train: TaskSet) -> None:
        self.config, self.learner, self.train = config, learner, train
        self.settings = config.arm.oracle or OracleConfig()
        self.oracle = Oracle()

    def prepare_for_step(self, step: int) -> None:
        """Measure the tasks of the steps up to the next measurement."""
        every, extra, config = self.settings.every, self.settings.rollouts, self.config
        if (step - 1) % every and self.oracle.means:
            return
        until = min(step + every - (step - 1) % every, config.train.steps + 1)
        self.oracle.means = {}
        for ahead in range(step, until):
            distinct = choose_step_tasks(self.train, config.tasks_per_step, ahead, config.seed)
            tasks = [task for task in distinct for _ in range(extra)]
            rewards_B = sample_and_grade(self.learner, tasks, config, [config.seed, _STREAM, step, ahead]).rewards_B
            for k, mean in enumerate(rewards_B.reshape(-1, extra).mean(axis=1)):
                self.oracle.means[tasks[k * extra].id] = float(mean)

    def advantages_of_step(self, batch: Batch, samples: Samples) -> StepAdvantages:
        prediction = self.oracle.predict(batch)
        return StepAdvantages(prediction.advantages_B, prediction.baseline_B)

    def checkpoint_state(self) -> dict[str, Any]:
        """The means measured so far."""
        return {"oracle": dict(self.oracle.means)}

    def restore_checkpoint_state(self, state: dict[str, Any]) -> None:
        self.oracle.means = state["oracle"]
