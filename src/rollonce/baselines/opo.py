"""OPO: the mean reward weighted by response length, the optimal baseline where squared gradient norms go as lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.groups import task_group_codes
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray


@register
@dataclass
class Opo(Baseline):
    """``b_i = sum_j l_j r_j / sum_j l_j`` with ``l_j`` the length of response j.

    It estimates ``E[l r] / E[l]``, which is the baseline of least gradient variance as far as a response's squared
    gradient norm is in proportion to its length. Lengths are known after the rollout only; the published form includes
    the own row, so that its own length and reward move its baseline.

    Args:
        over: ``group``: the rollouts of the same task, as published. ``batch``: all of the batch, for one rollout per
            task.
        own: Whether the own row is in the mean (as published). Without it the baseline is leave-one-out.

    Rows whose length is unknown (NaN) do not count. Where no length is known all rows count alike.

    >>> import dataclasses
    >>> batch = Batch.of(["a", "b", "c"], [1.0, 0.0, 1.0], response_lengths=[10, 30, 10])
    >>> Opo(over="batch", own=False).predict(batch).baseline_B.tolist()
    [0.25, 1.0, 0.25]
    >>> Opo(over="batch").predict(batch).baseline_B.tolist()
    [0.4, 0.4, 0.4]

    Source: Hao et al. 2025 (arXiv 2505.23585), equation 6; verl's ``compute_opo_outcome_advantage``.
    """

    type: ClassVar[str] = "opo"
    source: ClassVar[str] = "OPO, Hao et al. 2025"
    over: Literal["group", "batch"] = "group"
    own: bool = True

    def __post_init__(self) -> None:
        if self.over not in ("group", "batch"):
            raise InputError(f"opo takes its mean over 'group' or 'batch', not {self.over!r}")

    @property
    def tags(self) -> Tags:
        """Leave-one-out without the own row; follows shifts and scales of the rewards, not neutral (lengths count)."""
        return Tags(
            leave_one_out=not self.own,
            self_inclusive=self.own,
            neutral=False,
            needs_groups=self.over == "group",
            uses_lengths=True,
        )

    def describe(self) -> str:
        return f"OPO{'' if self.own else ' leave-one-out'}{'' if self.over == 'group' else ' over the batch'}"

    def twin(self) -> Baseline:
        """The same without the own row: the advantage is ``1 - l_i / sum_j l_j`` times the twin's."""
        return Opo(over=self.over, own=False) if self.own else self

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The weighted mean (B,); the prior for a batch of one."""
        n = len(batch)
        codes = task_group_codes(batch, "opo") if self.over == "group" else np.zeros(n, np.int64)
        lengths_B = np.full(n, np.nan) if batch.response_lengths_B is None else batch.response_lengths_B
        out, nothing_B = np.full(n, self.prior), np.zeros(n, dtype=bool)
        for c in np.unique(codes):
            at = np.flatnonzero(codes == c)
            if len(at) == 1:
                nothing_B[at] = True
                continue
            centre = batch.rewards_B[at[0]]
            out[at] = centre + _length_weighted_means(batch.rewards_B[at] - centre, lengths_B[at], self.own)
        return Prediction.of(batch, out, nothing_B)


def _length_weighted_means(rewards_G: FloatArray, lengths_G: FloatArray, own: bool) -> FloatArray:
    """Of each row's visible rows, by length where one of them has one (G,)."""
    visible_GG = np.ones((len(rewards_G), len(rewards_G))) - (0.0 if own else np.eye(len(rewards_G)))
    w_GG = visible_GG * np.nan_to_num(lengths_G)
    w_GG = np.where(w_GG.sum(axis=1, keepdims=True) > 0, w_GG, visible_GG)
    return w_GG @ rewards_G / w_GG.sum(axis=1)


__all__ = ["Opo"]
