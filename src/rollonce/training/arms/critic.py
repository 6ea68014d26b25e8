"""The arm with a token-level critic: a value for every response token, and generalised advantage estimation.

Shapes: ``_B`` rollouts of a step, ``_T`` response tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rollonce.baselines import Batch
from rollonce.errors import InputError
from rollonce.policies.critic import generalised_advantages
from rollonce.policies.samples import Samples
from rollonce.tasks import TaskSet
from rollonce.training.arms.base import Arm, StepAdvantages
from rollonce.training.config import RunConfig
from rollonce.training.learners.base import Learner


class CriticArm(Arm):
    """GAE(lambda) on the values of `rollonce.policies.critic.TokenCritic`, which learns from each step afterwards."""

    part: ClassVar[str] = "critic"

    def __init__(self, config: RunConfig, learner: Learner, train: TaskSet) -> None:
        assert config.arm.critic is not None
        self.settings = config.arm.critic
        self.critic = learner.make_token_critic(self.settings)

    def advantages_of_step(self, batch: Batch, samples: Samples) -> StepAdvantages:
        """See `Arm.advantages_of_step`: one per token."""
        values = self.critic.predict_token_values(samples)
        advantages_BT, _ = self._estimate_advantages(batch, values.values_BT, samples)
        return StepAdvantages(advantages_BT.double().numpy(), values.values_BT[:, 0].double().numpy(), values)

    def learn_from_step(self, batch: Batch, samples: Samples, judged: StepAdvantages) -> float:
        values = judged.values
        assert values is not None
        if not self.critic.started:
            mean = float(batch.rewards_B.mean())
            self.critic.start_at_mean_reward(mean)
            # What it now says everywhere: clipping and targets are about a change from that, not from the zeros before.
            values = values._replace(values_BT=mean * samples.response_mask_BT.float())
        _, targets_BT = self._estimate_advantages(batch, values.values_BT, samples)
        return self.critic.learn_from_targets(samples, values, targets_BT)

    def _estimate_advantages(self, batch: Batch, values_BT: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
        return generalised_advantages(
            torch.from_numpy(batch.rewards_B).float(),
            values_BT,
            samples.response_mask_BT,
            discount=self.settings.discount,
            gae_lambda=self.settings.gae_lambda,
        )

    def moves_policy_at_step(self, step: int) -> bool:
        """False while the critic warms up."""
        return step > self.settings.warmup

    def checkpoint_state(self) -> dict[str, Any]:
        """The critic's tensors and its optimizer's."""
        return {"critic": self.critic.state_dict()}

    def restore_checkpoint_state(self, state: dict[str, Any]) -> None:
        """See `Arm.restore_checkpoint_state`.

        Raises:
            InputError: a checkpoint of a version that kept the critic elsewhere.
        """
        if "critic" not in state:
            raise InputError(
                "the checkpoint has no critic in it: an earlier version of rollonce wrote it; let that one finish the "
                "run, or move its directory away to start it anew"
            )
        self.critic.load_state_dict(state["critic"])
