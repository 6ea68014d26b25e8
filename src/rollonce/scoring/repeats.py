"""Baselines that need what one rollout per task does not give: the task's own earlier rollouts (trackers), or extra
ones (the oracle). They are ceilings, not choices."""

from __future__ import annotations

import numpy as np

from rollonce.baselines import Baseline, Batch, History, Oracle
from rollonce.rollouts import FloatArray, Rollouts


def tracker_squared_errors(baseline: Baseline, rollouts: Rollouts) -> FloatArray:
    """``E[(b - r)^2] - s2_i`` per task (N,) of a baseline that learns from the task's own earlier rollouts.

    Each rollout in turn is the new one and the group's others, in order, are its past: the new one is independent of
    what b used. Groups of one give NaN. O(R G).
    """
    out = np.full(rollouts.n_tasks, np.nan)
    for n in map(int, np.flatnonzero(rollouts.group_sizes_N > 1)):
        group = rollouts.group(n)
        one = rollouts.tasks.take([n])
        g = len(group)
        errors = []
        for held in range(g):
            past = np.delete(np.arange(g), held)
            history = History(rollouts.tasks.take(np.full(g - 1, n)), group[past], np.arange(g - 1, 0, -1))
            b = baseline.predict(Batch(one, group[held : held + 1]), history).baseline_B
            errors.append((float(b[0]) - group[held]) ** 2)
        out[n] = np.mean(errors) - rollouts.variances_N[n]
    return out


def errors_needing_repeats(baseline: Baseline, rollouts: Rollouts) -> tuple[FloatArray, str, str]:
    """Squared errors per task (N,), how they were computed, and what the baseline needs."""
    if isinstance(baseline, Oracle):
        return np.zeros(rollouts.n_tasks), "analytic", "extra rollouts"
    return tracker_squared_errors(baseline, rollouts), "closed form", "repeats"
