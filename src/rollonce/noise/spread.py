"""How sure ratios of progress are: standard errors from replications over weighted tasks and halvings of them
(`rollonce.noise.resampling`).

Shapes: ``_R`` replications, ``_H`` halvings, ``_A`` contenders, ``_S`` stretches of the parameters.
"""

from __future__ import annotations

import numpy as np
import scipy.stats

from rollonce.noise.resampling import SHIFT
from rollonce.rollouts import FloatArray
from rollonce.scoring import Estimate

LEAST_SHARE = 0.25
"""At least this share of the variance over replications counts as that over tasks, whatever halvings explain of it."""


class Spread:
    """Standard errors of linear combinations of the contenders' log progress."""

    def __init__(self, totals: FloatArray, mean_A: FloatArray, left_out: float) -> None:
        safe_A = np.where(np.abs(mean_A) > 0, mean_A, np.nan)
        self.relative_RHA = totals.sum(axis=3) / safe_A
        self.stretches_SA = (totals.mean(axis=(0, 1)) / safe_A[:, None]).T
        self.degrees = len(totals) // 2  # replications come in mirrored pairs
        self.left_out = left_out

    def total_standard_error(self, weights_A: FloatArray) -> float:
        """Standard error of ``sum_a weights_a log(progress_a)`` by the delta method."""
        return float(np.hypot(self.error_over_tasks(weights_A), self.error_over_parameters(weights_A)))

    def error_over_tasks(self, weights_A: FloatArray) -> float:
        """The part of it from the sample of tasks, and from the draw of halves and batches."""
        used = weights_A != 0
        z_RH = self.relative_RHA[:, :, used] @ weights_A[used]
        n_replications, n_halves = z_RH.shape
        within = float(z_RH.var(axis=1, ddof=1).mean())
        between = float(z_RH.mean(axis=1).var(ddof=1))
        tasks = max(between - within / n_halves, LEAST_SHARE * between) / SHIFT**2
        return float(np.sqrt(tasks + within / (n_replications * n_halves)))

    def error_over_parameters(self, weights_A: FloatArray) -> float:
        """The part from the choice of D of P parameters: a jackknife over stretches of them."""
        used = weights_A != 0
        part_S = self.stretches_SA[:, used] @ weights_A[used]
        n = len(part_S)
        return float(np.sqrt(((part_S - part_S.mean()) ** 2).sum() * n / (n - 1) * self.left_out))

    def ratio_with_interval(self, value: float, weights_A: FloatArray) -> Estimate:
        """A ratio with its interval, symmetric on the log scale."""
        se = self.total_standard_error(weights_A)
        if not (np.isfinite(se) and value > 0):
            return Estimate(float(value), np.nan, np.nan)
        factor = float(np.exp(min(float(scipy.stats.t.ppf(0.975, self.degrees)) * se, 700.0)))
        return Estimate(float(value), float(value / factor), float(value * factor))


def contrast_weights(n: int, plus: int, minus: int) -> FloatArray:
    """Weights of n log values: one of them less another."""
    out = np.zeros(n)
    out[plus] += 1
    out[minus] -= 1
    return out


__all__ = ["Spread", "contrast_weights"]
