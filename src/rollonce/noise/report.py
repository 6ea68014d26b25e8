"""What `rollonce.noise.measure` finds: rows, groups, approximations, the effect of a lag."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollonce.scoring import Estimate


class NoiseRow(NamedTuple):
    """One baseline at one rollout per task. Noise ratios: below 1 is *less* noise than the in-batch LOO mean.

    Attributes:
        label: What it is called.
        ratio: Measured noise over the LOO mean's.
        predicted: What ``E[A^2]`` says of it, on the same batches: the ratio of mean squared advantages.
        predicted_closed: The same with the draw of rollouts integrated out (B_eff of LOO over its B_eff); NaN where
            there is no such form.
        gap: ``ratio / predicted`` (paired).
        norm: ``E[A^2 |g|^2] / (E[A^2] E[|g|^2])``: 1 where score norms have nothing to do with advantages.
        norm_to_loo: Its ratio to LOO's: the part of the gap that comes from it.
        cross: Covariance of different rollouts of a batch beyond the true gradient's, as a share of the noise.
        noise: V itself, in squared gradient units.
        b_eff: Predicted, ``B s2 / E[A^2]``.
        b_eff_measured: ``B`` times the oracle's noise over its own; NaN for groups below 3.
        window, window_asked: Rows of other tasks it used, and wanted.
        scored_as: The leave-one-out twin that stood in, or "".
        note: What the reader must know of this row.
    """

    label: str
    ratio: Estimate
    predicted: Estimate
    predicted_closed: float
    gap: Estimate
    norm: Estimate
    norm_to_loo: Estimate
    cross: Estimate
    noise: float
    b_eff: float
    b_eff_measured: Estimate
    window: int = 0
    window_asked: int = 0
    scored_as: str = ""
    note: str = ""


class NoiseGroup(NamedTuple):
    """Groups of G at the same number of rollouts: RLOO, or centred GRPO, whose constant (G - 1) / G a learning rate
    absorbs.

    Attributes:
        group_size: G.
        tasks_per_step: B / G.
        ratio: Measured noise over that of the LOO mean at one rollout per task.
        predicted: From g2_between and g2_within: ``between / K + within (1 + 1 / (G - 1)) / B`` over LOO's measured
            noise.
        ratio_none: Measured, without any baseline, at the same B / G tasks.
        dead: Groups whose rewards are all equal.
    """

    group_size: int
    tasks_per_step: float
    ratio: Estimate
    predicted: Estimate
    ratio_none: Estimate
    dead: float


class Approximations(NamedTuple):
    """The four approximations, each on its own, at the in-batch LOO mean.

    Attributes:
        cross: Share of the batch's noise that is covariance of different rollouts beyond the true gradient's.
        norm: ``E[A^2 |g|^2] / (E[A^2] E[|g|^2])``.
        norm_good_to_bad: Mean ``|g|^2`` of rollouts above the mean reward over that of the others.
        norm_reward_correlation: Correlation over rollouts of ``|g|^2`` and reward.
        norm_top_share: Share of all ``|g|^2`` that the hundredth of the rollouts with the largest ones has: 0.01 if all
            are alike. Where it is large, a few rollouts decide, and intervals are wide.
        signal: ``|mu|^2`` over the noise of a batch of B.
        signal_per_rollout: ``|mu|^2`` over B times it.
        g2_between, g2_within, rho: Variance over tasks of the task's own gradient; a rollout's within-task variance
            under the perfect baseline; their ratio. In units of LOO's noise times B. NaN for groups below 3.
        denominator_cv: Standard deviation over mean of a batch's token count: what is left out by taking one
            denominator for all batches.
    """

    cross: Estimate
    norm: Estimate
    norm_good_to_bad: float
    norm_reward_correlation: float
    norm_top_share: float
    signal: Estimate
    signal_per_rollout: Estimate
    g2_between: Estimate
    g2_within: Estimate
    rho: Estimate
    denominator_cv: float


class NoiseReport(NamedTuple):
    """All rows, least noise first; groups; approximations; and what was done."""

    rows: list[NoiseRow]
    groups: list[NoiseGroup]
    approximations: Approximations
    batch_size: int
    n_tasks: int
    group_size: int
    n_batches: int
    mean_reward: float
    s2: float
    loo_noise: Estimate
    notes: list[str]

    @property
    def winner(self) -> str:
        """Least measured noise at this budget among what one can use: baselines at one rollout per task, and groups."""
        usable = [(r.ratio.value, r.label) for r in self.rows if not r.note.startswith("ceiling")]
        usable += [(g.ratio.value, f"groups of {g.group_size}") for g in self.groups]
        return min(usable)[1]

    @property
    def predicted_winner(self) -> str:
        """The same by the predictions."""
        usable = [(r.predicted.value, r.label) for r in self.rows if not r.note.startswith("ceiling")]
        usable += [
            (g.predicted.value, f"groups of {g.group_size}") for g in self.groups if np.isfinite(g.predicted.value)
        ]
        return min(usable)[1]


class Lag(NamedTuple):
    """What another sampler than the policy being trained does.

    Attributes:
        noise: LOO's noise with the lagged sampler over that on-policy, at the same tasks.
        cosine: Between the two true gradients, unbiased in numerator and squared norms (it may leave [-1, 1] by noise).
    """

    noise: float
    cosine: Estimate


__all__ = ["Approximations", "Lag", "NoiseGroup", "NoiseReport", "NoiseRow"]
