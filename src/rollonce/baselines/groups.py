"""Baselines from several rollouts of the same task in one batch: GRPO and RLOO. Rows with equal ``task_ids`` form a
group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.plain import scale_by_std
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.rollouts import IntArray


def task_group_codes(batch: Batch, name: str) -> IntArray:
    """An integer per row, equal within a group (B,).

    Raises:
        InputError: if a group has a single rollout: its advantage would silently be zero.
    """
    ids, codes, counts = np.unique([str(t) for t in batch.tasks.task_ids], return_inverse=True, return_counts=True)
    if len(batch) and counts.min() < 2:
        alone = str(ids[int(counts.argmin())])
        raise InputError(
            f"{name} needs at least two rollouts of every task, but task {alone!r} has one in this batch: "
            "its advantage would always be 0. "
            "Sample groups (G >= 2), or use a baseline for one rollout a task (loo, kernel, kriging)"
        )
    return codes


@register
@dataclass
class Grpo(Baseline):
    """The mean reward of the task's group including the own: ``A = r - mean(group)``, as the stock cookbook's group
    mean.

    Args:
        scale: ``none`` (centred only) or ``group`` (divided by the group's deviation, ddof=0, as in the GRPO paper;
            biased).

    Source: GRPO, Shao et al. 2024; centred only as Dr. GRPO, Liu et al. 2025.
    """

    type: ClassVar[str] = "grpo"
    source: ClassVar[str] = "GRPO, Shao et al. 2024"
    scale: Literal["none", "group"] = "none"

    def __post_init__(self) -> None:
        if self.scale not in ("none", "group"):
            raise InputError(f"grpo scale must be 'none' or 'group', not {self.scale!r}")

    @property
    def tags(self) -> Tags:
        """Includes the own reward; needs groups."""
        return Tags(leave_one_out=False, self_inclusive=True, needs_groups=True)

    def describe(self) -> str:
        return "GRPO" if self.scale == "none" else "GRPO (std)"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The group's mean (B,); advantages ``r - mean``, over the group's deviation where ``scale="group"``."""
        codes = task_group_codes(batch, "grpo")
        out = np.empty(len(batch))
        for c in np.unique(codes):
            r = batch.rewards_B[codes == c]
            out[codes == c] = r[0] + (r - r[0]).mean()
        prediction = Prediction.of(batch, out)
        if self.scale == "group":
            a = prediction.advantages_B
            for c in np.unique(codes):
                a[codes == c] = scale_by_std(a[codes == c], batch.rewards_B[codes == c])
        return prediction

    def twin(self) -> Baseline:
        """RLOO: ``G / (G - 1)`` times the centred GRPO advantage."""
        return Rloo()


@register
@dataclass
class Rloo(Baseline):
    """The mean reward of the *other* rollouts of the task: ``MSE = s2 / (G - 1)``, so ``B_eff = B (G - 1) / G``, over B
    / G tasks.

    Source: Kool et al. 2019; Ahmadian et al. 2024.
    """

    type: ClassVar[str] = "rloo"
    source: ClassVar[str] = "Kool et al. 2019; Ahmadian et al. 2024"

    @property
    def tags(self) -> Tags:
        return Tags(needs_groups=True)

    def describe(self) -> str:
        return "RLOO"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The mean of the group's others (B,)."""
        codes = task_group_codes(batch, "rloo")
        out = np.empty(len(batch))
        for c in np.unique(codes):
            r = batch.rewards_B[codes == c] - batch.rewards_B[codes == c][0]
            out[codes == c] = batch.rewards_B[codes == c][0] + (r.sum() - r) / (len(r) - 1)
        return Prediction.of(batch, out)
