"""An arm at work: a baseline's advantages, a token-level critic's, or the oracle's.

Shapes: ``_B`` rollouts of a step, ``_T`` response tokens.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from rollonce.baselines import Baseline, Batch, LinearSmoother, Oracle
from rollonce.policies.critic import gae
from rollonce.policies.samples import Samples
from rollonce.rollouts import FloatArray, Tasks
from rollonce.tasks import TaskSet
from rollonce.training.arms import ORACLE, make_baseline
from rollonce.training.config import OracleConfig, RunConfig
from rollonce.training.learner import Learner, LocalLearner
from rollonce.training.rolling import roll, step_tasks

_STREAM = 12  # seed of the oracle's own rollouts


class Arm:
    """The one thing in which arms differ.

    Args:
        config: The run.
        learner: Whose rollouts it judges.
        train: The tasks trained on.
        all_tasks: The same as features read them: what a baseline is fitted on.
    """

    def __init__(self, config: RunConfig, learner: Learner, train: TaskSet, all_tasks: Tasks) -> None:
        self.config, self.learner, self.train = config, learner, train
        self.baseline: Baseline | None = make_baseline(config.arm, all_tasks)
        self.oracle = Oracle() if config.arm.baseline == ORACLE else None
        self.critic = learner.critic if isinstance(learner, LocalLearner) else None
        self._values_BT: torch.Tensor | None = None

    def before(self, step: int) -> None:
        """The oracle's extra rollouts for the steps to come; outside the rollouts and the time that are counted."""
        settings = self.config.arm.oracle or OracleConfig()
        every, extra = settings.every, settings.rollouts
        if self.oracle is None or ((step - 1) % every and self.oracle.means):
            return
        ahead = range(step, min(step + every - (step - 1) % every, self.config.train.steps + 1))
        self.oracle.means = {}
        for s in ahead:
            tasks = [
                t for t in step_tasks(self.train, self.config.tasks_per_step, s, self.config.seed) for _ in range(extra)
            ]
            rewards_B = roll(self.learner, tasks, self.config, [self.config.seed, _STREAM, step, s]).rewards_B
            for k in range(0, len(tasks), extra):
                self.oracle.means[tasks[k].id] = float(rewards_B[k : k + extra].mean())

    def advantages(self, batch: Batch, samples: Samples) -> tuple[FloatArray, FloatArray]:
        """Advantages (B,) or (B, T), and the baseline of each rollout (B,): at its first token for a critic."""
        if self.critic is not None:
            c = self.config.arm.critic
            assert c is not None
            self._values_BT = self.critic.values(samples)
            rewards_B = torch.from_numpy(batch.rewards_B).float()
            adv_BT, _ = gae(
                rewards_B, self._values_BT, samples.response_mask_BT, discount=c.discount, gae_lambda=c.gae_lambda
            )
            return adv_BT.double().numpy(), self._values_BT[:, 0].double().numpy()
        source = self.oracle if self.oracle is not None else self.baseline
        assert source is not None
        prediction = source.predict(batch)
        return prediction.advantages_B, prediction.baseline_B

    def self_weight_max(self, batch: Batch) -> float | None:
        """The largest weight that a rollout's own reward has in its baseline: 0, or an error; None where there are no
        weights."""
        if not isinstance(self.baseline, LinearSmoother):
            return None
        return float(np.abs(np.diagonal(self.baseline.weights(batch)[:, : len(batch)])).max())

    def learn(self, batch: Batch, samples: Samples) -> float | None:
        """After the update: what the step taught. Returns a critic's loss before learning."""
        if self.baseline is not None:
            self.baseline.observe(batch)
        if self.critic is None:
            return None
        c = self.config.arm.critic
        assert c is not None
        assert self._values_BT is not None
        if not self.critic.started:
            mean = float(batch.rewards_B.mean())
            self.critic.start(mean)
            # What it now says everywhere: clipping and targets are about a change from that, not from the zeros before.
            self._values_BT = mean * samples.response_mask_BT.float()
        rewards_B = torch.from_numpy(batch.rewards_B).float()
        _, targets_BT = gae(
            rewards_B, self._values_BT, samples.response_mask_BT, discount=c.discount, gae_lambda=c.gae_lambda
        )
        return self.critic.learn(samples, self._values_BT, targets_BT)

    def policy_stands_still(self, step: int) -> bool:
        """True while a critic warms up."""
        return self.config.arm.critic is not None and step <= self.config.arm.critic.warmup

    def state(self) -> dict[str, Any]:
        """For the checkpoint (a critic's tensors are with the learner's)."""
        return {
            "baseline": None if self.baseline is None else json.dumps(self.baseline.state_dict()),
            "oracle": {} if self.oracle is None else dict(self.oracle.means),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        if self.baseline is not None:
            self.baseline.load_state_dict(json.loads(state["baseline"]))
        if self.oracle is not None:
            self.oracle.means = state["oracle"]
