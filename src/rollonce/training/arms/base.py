"""What an arm is asked for at each step of the loop.

Shapes: ``_B`` rollouts of a step, ``_T`` response tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from rollonce.baselines import Batch
from rollonce.policies.critic import CriticValues
from rollonce.policies.samples import Samples
from rollonce.rollouts import FloatArray


class StepAdvantages(NamedTuple):
    """What an arm makes of one step's rollouts.

    Attributes:
        advantages: One per rollout (B,) or per token (B, T), float64: what the policy is trained with.
        baseline_B: The baseline of each rollout (B,): at its first token for a token-level critic.
        values: What a token-level critic saw and said, for `Arm.learn_from_step`; None for other arms.
    """

    advantages: FloatArray
    baseline_B: FloatArray
    values: CriticValues | None = None


class Arm(ABC):
    """One way of getting advantages. The loop calls `prepare_for_step`, `advantages_of_step` and, after the policy's
    update, `learn_from_step`."""

    part: ClassVar[str] = "advantage"
    """Which of `rollonce.run_directory.PARTS` its time counts as."""

    def prepare_for_step(self, step: int) -> None:  # noqa: B027 - most arms prepare nothing
        """Prepare for a step (from 1), outside the rollouts and the time that are counted."""

    @abstractmethod
    def advantages_of_step(self, batch: Batch, samples: Samples) -> StepAdvantages:
        """What each of the batch's rollouts was worth, from this batch and what was learned before it."""

    def learn_from_step(self, batch: Batch, samples: Samples, judged: StepAdvantages) -> float | None:
        """Learn from the step, of which `advantages` said ``judged``. A critic returns its loss before learning."""
        return None

    def largest_self_weight(self, batch: Batch) -> float | None:
        """The largest weight that a rollout's own reward has in its baseline: 0, or an error; None without weights."""
        return None

    def moves_policy_at_step(self, step: int) -> bool:
        """False while a critic warms up."""
        return True

    @abstractmethod
    def checkpoint_state(self) -> dict[str, Any]:
        """All that a resumed run needs, as tensors and plain values."""

    @abstractmethod
    def restore_checkpoint_state(self, state: dict[str, Any]) -> None:
        """Put back what `checkpoint_state` gave."""
