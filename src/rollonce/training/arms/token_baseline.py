"""The arm with the optimal token baseline: one number for every response token, weighted by how much gradient each
rollout has gathered so far.

With ``W_t = sum_{s <= t} |score of token s|^2`` the baseline of least variance at token t is ``E[r W_t] / E[W_t]``.
The squared score of a token's logits is ``1 - 2 p + sum_v p_v^2``, p the probability of what was sampled: the
logit-gradient proxy, from forward passes alone. Where the sum over the vocabulary is not at hand, p stands for it,
whose expectation it is.

Shapes: ``_B`` rollouts of a step, ``_T`` response tokens.

Source: Optimal Token Baseline (arXiv 2602.07078); verl's ``compute_optimal_token_baseline_advantage``, which
`optimal_token_baseline` equals on its inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollonce.baselines import Batch
from rollonce.baselines.groups import task_group_codes
from rollonce.kernels.base import BoolArray
from rollonce.policies.samples import Samples
from rollonce.rollouts import FloatArray, IntArray
from rollonce.training.arms.base import Arm, StepAdvantages

_EPSILON = 1e-8  # of the denominator, as in verl


class TokenBaselineArm(Arm):
    """``A_t = r - b_t``: over the task's group, own rollout included, as published, or over the other rollouts of the
    batch, for one rollout per task."""

    def __init__(self, *, over_groups: bool) -> None:
        self.over_groups = over_groups

    def advantages_of_step(self, batch: Batch, samples: Samples) -> StepAdvantages:
        """See `Arm.advantages_of_step`: one per token."""
        mask_BT = samples.response_mask_BT.numpy()
        energy_BT = gathered_energy(samples.log_probs_BT.double().numpy(), mask_BT)
        if self.over_groups:
            b_BT = optimal_token_baseline(batch.rewards_B, energy_BT, mask_BT, task_group_codes(batch, "otb"))
        else:
            b_BT = others_token_baseline(batch.rewards_B, energy_BT)
        return StepAdvantages((batch.rewards_B[:, None] - b_BT) * mask_BT, b_BT[:, 0].copy())

    def checkpoint_state(self) -> dict[str, Any]:
        """Nothing: it learns from the step alone."""
        return {}

    def restore_checkpoint_state(self, state: dict[str, Any]) -> None:
        pass


def gathered_energy(
    log_probs_BT: FloatArray, mask_BT: BoolArray, sum_of_squares_BT: FloatArray | None = None
) -> FloatArray:
    """``W_t`` (B, T): the squared scores of the logits up to each token; behind the end it stays as it was.

    Args:
        log_probs_BT: Of the tokens sampled.
        mask_BT: True where there is a token.
        sum_of_squares_BT: ``sum_v p_v^2`` over the vocabulary; without it p stands for it.
    """
    p_BT = np.exp(log_probs_BT)
    squares_BT = p_BT if sum_of_squares_BT is None else sum_of_squares_BT
    return np.cumsum((1 - 2 * p_BT + squares_BT) * mask_BT, axis=1)


def optimal_token_baseline(
    rewards_B: FloatArray, energy_BT: FloatArray, mask_BT: BoolArray, groups_B: IntArray
) -> FloatArray:
    """``b_t = sum_j r_j W_jt / sum_j W_jt`` (B, T) over the rollouts of the group that have a token t, the own
    included; 0 where the own is the only one left, as in verl."""
    out = np.zeros(energy_BT.shape)
    for code in np.unique(groups_B):
        rows = np.flatnonzero(groups_B == code)
        if len(rows) == 1:
            continue
        w_GT, there_GT = energy_BT[rows] * mask_BT[rows], mask_BT[rows]
        b_T = rewards_B[rows] @ w_GT / (w_GT.sum(axis=0) + _EPSILON)
        out[rows] = np.where(there_GT.sum(axis=0) > 1, b_T, 0.0)
    return out * mask_BT


def others_token_baseline(rewards_B: FloatArray, energy_BT: FloatArray) -> FloatArray:
    """The same over the *other* rollouts of the batch (B, T); one that has ended counts with all that it gathered.

    Nothing of a rollout itself moves its baseline. Where the others have gathered nothing it is their mean; alone,
    a rollout has 0.
    """
    n = len(rewards_B)
    if n < 2:
        return np.zeros(energy_BT.shape)
    out = np.empty(energy_BT.shape)
    for i in range(n):
        others = np.arange(n) != i
        w_JT, r_J = energy_BT[others], rewards_B[others]
        total_T = w_JT.sum(axis=0)
        out[i] = np.divide(r_J @ w_JT, total_T, out=np.full(len(total_T), r_J.mean()), where=total_T > _EPSILON)
    return out


__all__ = ["TokenBaselineArm", "gathered_energy", "optimal_token_baseline", "others_token_baseline"]
