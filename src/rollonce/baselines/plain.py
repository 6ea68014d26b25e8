"""Baselines that need no features: none, a constant, the batch mean, and the whitened batch mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.kernel import LeaveOneOut
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray
from rollonce.rounding import estimate_rounding_size, rewards_are_equal


@register
@dataclass
class NoBaseline(Baseline):
    """``b = 0``: plain REINFORCE."""

    type: ClassVar[str] = "none"
    source: ClassVar[str] = "Williams 1992"

    @property
    def tags(self) -> Tags:
        """Knows nothing, so it follows no shift."""
        return Tags(shift_equivariant=False, neutral=False)

    def describe(self) -> str:
        return "REINFORCE without a baseline"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        return Prediction.of(batch, np.zeros(len(batch)))


@register
@dataclass
class Constant(Baseline):
    """``b = value``, chosen beforehand (0.5 suits rewards in {0, 1})."""

    type: ClassVar[str] = "constant"
    value: float = 0.5

    def __post_init__(self) -> None:
        if not np.isfinite(self.value):
            raise InputError(f"a constant baseline must be finite, not {self.value}")

    @property
    def tags(self) -> Tags:
        """Follows neither shift nor scale."""
        return Tags(shift_equivariant=False, scale_equivariant=False, neutral=False)

    def describe(self) -> str:
        return f"constant {self.value:g}"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        return Prediction.of(batch, np.full(len(batch), float(self.value)))


@register
@dataclass
class FlashReinforce(Baseline):
    """The batch mean *including* the own reward, not scaled: ``A = (B - 1) / B * A_LOO``, so all-equal rewards give no
    advantage.

    Source: FlashREINFORCE, Hu et al. 2026. Its leave-one-out twin, the LOO mean, is what it is scored by.
    """

    type: ClassVar[str] = "flashreinforce"
    source: ClassVar[str] = "FlashREINFORCE, Hu et al. 2026"

    @property
    def tags(self) -> Tags:
        """Includes the own reward by definition."""
        return Tags(leave_one_out=False, self_inclusive=True)

    def describe(self) -> str:
        return "FlashREINFORCE batch mean"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The mean reward of the batch (B,); the prior for a batch of one, which has no other rollout to go by."""
        if len(batch) <= 1:
            return Prediction.of(batch, np.full(len(batch), self.prior), np.ones(len(batch), dtype=bool))
        centre = batch.rewards_B[0]
        return Prediction.of(batch, np.full(len(batch), centre + (batch.rewards_B - centre).mean()))

    def twin(self) -> Baseline:
        return LeaveOneOut()

    def twin_advantage_factor(self, batch: Batch) -> float:
        """Its advantage over the twin's: ``(B - 1) / B``."""
        return (len(batch) - 1) / len(batch)


@register
@dataclass
class ReinforcePlusPlus(FlashReinforce):
    """The batch mean, then advantages divided by their deviation over the batch (whitening).

    The factor to the LOO twin, ``(B - 1) / (B * std_B)``, is random and depends on the own reward, so the gradient is
    slightly biased (in direction, over batches; unlike FlashREINFORCE's constant factor). Deviation with ddof=0; a
    batch of equal rewards gives zeros.

    Source: REINFORCE++, Hu et al. 2025.
    """

    type: ClassVar[str] = "reinforce++"
    source: ClassVar[str] = "REINFORCE++, Hu et al. 2025"

    def describe(self) -> str:
        return "REINFORCE++ (whitened)"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The batch mean; advantages ``(r - mean) / std``, zeros where the rewards are equal but for rounding."""
        centred = super().predict(batch, history)
        return replace(centred, advantages_B=scale_by_std(centred.advantages_B, batch.rewards_B))

    def twin_advantage_factor(self, batch: Batch) -> float:
        """``(B - 1) / (B * std_B)``."""
        std = float(batch.rewards_B.std())
        return (len(batch) - 1) / len(batch) / std if not rewards_are_equal(batch.rewards_B) else 0.0


def scale_by_std(advantages: FloatArray, rewards: FloatArray, spread_of: FloatArray | None = None) -> FloatArray:
    """Divide by the deviation (ddof=0) of the rewards, or of ``spread_of``; zeros where that is the rewards' rounding
    and no more."""
    values = rewards if spread_of is None else spread_of
    std = float(values.std()) if len(values) else 0.0
    if std <= max(1e-8 * max(1.0, float(np.abs(values).max(initial=0.0))), estimate_rounding_size(rewards)):
        return np.zeros_like(advantages)
    return advantages / std
