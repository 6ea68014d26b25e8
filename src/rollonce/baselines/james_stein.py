"""Group means shrunk towards the mean of all tasks (James & Stein), with everything about a task's shrinkage learned
from the other tasks of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.groups import task_group_codes
from rollonce.baselines.tags import Tags
from rollonce.component import register


@register
@dataclass
class JamesStein(Baseline):
    """``b_i = (1 - a) RLOO_i + a m``: the mean of the group's others, pulled towards the mean ``m`` of other groups.

    With ``s2`` the within-group variance of rewards and ``tau2`` the variance of tasks' true means, the mean of G - 1
    rollouts has the noise ``v = s2 / (G - 1)``, and ``a = v / (v + tau2)`` has the least squared error. Both are
    estimated from the *other* groups of the batch: s2 without bias, tau2 as the variance of their means less what of it
    is noise, at least 0. So neither the own reward nor the group's moves ``a`` or ``m``, and b is leave-one-out; the
    paper's batch-wide coefficient lets the own reward into ``a``. With fewer than two other groups ``a`` is 0: RLOO.

    Source: Zeng et al. 2025 (arXiv 2511.03710); James & Stein 1961; Efron & Morris 1973 (the estimate of a).
    """

    type: ClassVar[str] = "james_stein"
    source: ClassVar[str] = "Zeng et al. 2025; James & Stein 1961"

    @property
    def tags(self) -> Tags:
        """Needs groups; follows shifts and scales."""
        return Tags(needs_groups=True)

    def describe(self) -> str:
        return "James-Stein"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The shrunken mean of the group's others (B,)."""
        codes = task_group_codes(batch, "james_stein")
        centre = batch.rewards_B[0] if len(batch) else 0.0
        r = batch.rewards_B - centre
        size, total, squares = np.bincount(codes), np.bincount(codes, r), np.bincount(codes, r * r)
        mean = total / np.maximum(size, 1)
        within = np.maximum(squares - size * mean**2, 0.0)
        out = np.empty(len(batch))
        for c in range(len(size)):
            mine, others = codes == c, np.arange(len(size)) != c
            rloo = (total[c] - r[mine]) / (size[c] - 1)
            shrunk = 0.0
            if others.sum() >= 2:
                s2 = within[others].sum() / (size[others] - 1).sum()
                tau2 = max(0.0, float(mean[others].var(ddof=1)) - s2 * float((1 / size[others]).mean()))
                noise = s2 / (size[c] - 1)
                shrunk = noise / (noise + tau2) if noise > 0 else 0.0
            out[mine] = rloo + shrunk * (total[others].sum() / max(1, size[others].sum()) - rloo)
        return Prediction.of(batch, centre + out)


__all__ = ["JamesStein"]
