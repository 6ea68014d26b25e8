"""Group baselines beside one rollout per task: never on the same list, since G rollouts of a task buy fewer tasks.

K tasks x G rollouts give the gradient the variance ``g2_between / K + g2_within (1 + MSE / s2) / (K G)``
(docs/mathematics.md, "Effective batch size"). At B = K G rollouts, in units of ``g2_within / B`` and with ``rho =
g2_between / g2_within``:

    one rollout per task:   rho + B / B_eff          RLOO, centred GRPO:   rho G + G / (G - 1)

(GRPO's own mean shrinks its advantages by the constant (G - 1) / G, which a learning rate absorbs.) rho is not known
from rewards; it can be measured on a starting policy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollonce.rollouts import FloatArray, Rollouts


class GroupScore(NamedTuple):
    """RLOO or centred GRPO with groups of G at a budget of B rollouts a step.

    Attributes:
        group_size: G.
        tasks_per_step: B / G.
        b_eff: ``B (G - 1) / G``: of the baseline alone; it says nothing of the B - B / G tasks not seen.
        variance: Predicted gradient variance at ``rho = 0`` in units of ``g2_within / B``: ``G / (G - 1)``. Each unit
            of rho adds G.
        crossing: The rho above which one rollout per task with the given baseline has the smaller predicted variance; 0
            if it always has.
        dead_groups: Fraction of groups whose rewards are all equal, which teach nothing; NaN if no task has G rollouts.
    """

    group_size: int
    tasks_per_step: float
    b_eff: float
    variance: float
    crossing: float
    dead_groups: float


def score_group_baselines(
    rollouts: Rollouts, batch_size: int, b_eff: float, group_sizes: tuple[int, ...] = (2, 4, 8, 16)
) -> list[GroupScore]:
    """Group baselines at ``batch_size`` rollouts, against one rollout per task at ``b_eff``."""
    out = []
    for g in group_sizes:
        if g > batch_size // 2:
            continue
        variance = g / (g - 1)
        crossing = max(0.0, (batch_size / b_eff - variance) / (g - 1)) if b_eff > 0 else np.nan
        out.append(
            GroupScore(
                g, batch_size / g, batch_size * (g - 1) / g, variance, crossing, dead_group_fraction(rollouts, g)
            )
        )
    return out


def dead_group_fraction(rollouts: Rollouts, group_size: int) -> float:
    """Chance that ``group_size`` rollouts of a task all earn the same, averaged over tasks with that many: unbiased.

    NaN where no task has so many.
    """
    groups = [rollouts.group(int(n)) for n in np.flatnonzero(rollouts.group_sizes_N >= group_size)]
    return float(np.mean([chance_of_equal_rewards(group, group_size) for group in groups])) if groups else np.nan


def chance_of_equal_rewards(rewards_G: FloatArray, n_drawn: int) -> float:
    """Chance that ``n_drawn`` of these G rewards, drawn without replacement, are all the same; NaN if there are fewer.

    With ``c_v`` rewards of v it is ``sum_v C(c_v, n) / C(G, n)``.
    """
    if len(rewards_G) < n_drawn:
        return np.nan
    counts = np.unique(rewards_G, return_counts=True)[1]
    steps = np.arange(n_drawn)
    return float(np.prod((np.maximum(counts[:, None] - steps, 0)) / (len(rewards_G) - steps), axis=1).sum())


def chance_of_a_pass(passed_G: NDArray[np.bool_], n_drawn: int) -> float:
    """pass@k: chance that of ``n_drawn`` of these G rollouts, drawn without replacement, one passed at least,
    ``1 - C(G - c, k) / C(G, k)`` with c passed ones; NaN if there are fewer (Chen et al. 2021)."""
    if len(passed_G) < n_drawn:
        return np.nan
    failed, steps = len(passed_G) - int(passed_G.sum()), np.arange(n_drawn)
    return 1.0 - float(np.prod(np.maximum(failed - steps, 0) / (len(passed_G) - steps)))
