"""Estimates from common batches that know how far each task moved them, so that any ratio of two of them has a paired
interval.

The tasks are the sample. A quantity is the mean of a per-batch value over K random batches of B of the N tasks, or of a
per-task value, or made of such by arithmetic; errors are carried to first order (delta method), so whatever two
quantities share cancels between them. For per-batch values the influence of a task is its covariance with being in the
batch: the infinitesimal jackknife of subsampling,

    psi_n = N (N - 1) / (N - B) * Cov_k([n in batch k], z_k),      Var = sum_n psi_n^2 / (N (N - 1)),

which is exactly ``var(ddof=1) / N`` where z is a mean over the batch. No task ever meets a copy of itself, as in a
bootstrap it would.

Source: Efron 2014; Wager and Athey 2018, eq. 8.

Shapes: ``_K`` batches, ``_B`` rollouts of one, ``_N`` tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollonce.rollouts import FloatArray, IntArray
from rollonce.scoring.intervals import student_t_quantile
from rollonce.scoring.moments import Estimate


@dataclass(frozen=True, eq=False)
class Design:
    """Which tasks each batch holds.

    Args:
        tasks_KB: Positions of the tasks, distinct within a batch.
        n_tasks: N, above B. With fewer than 2 B who is in a batch says little about a task's influence, and intervals
            are rough.
    """

    tasks_KB: IntArray
    n_tasks: int

    def mean_over_batches(self, values_K: FloatArray) -> Quantity:
        """The mean of a per-batch value."""
        return Quantity(self, float(values_K.mean()), values_K - values_K.mean(), np.zeros(self.n_tasks))

    def mean_over_tasks(self, values_N: FloatArray) -> Quantity:
        """The mean of a per-task value."""
        return Quantity(self, float(values_N.mean()), np.zeros(len(self.tasks_KB)), values_N - values_N.mean())

    def mean_over_pairs(self, table_NN: FloatArray) -> Quantity:
        """The mean of a symmetric table over pairs of *different* tasks: a U-statistic, its influence twice the row's
        mean."""
        n = self.n_tasks
        rows = (table_NN.sum(axis=1) - np.diag(table_NN)) / (n - 1)
        return Quantity(self, float(rows.mean()), np.zeros(len(self.tasks_KB)), 2 * (rows - rows.mean()))

    def influence_of_tasks(self, values_K: FloatArray) -> FloatArray:
        """psi (N,) of the mean of a per-batch value."""
        k, b = self.tasks_KB.shape
        centred = values_K - values_K.mean()
        # sum_k (N_kn - p) z_k is sum_k N_kn z_k, since the z sum to 0.
        total_N = np.bincount(self.tasks_KB.ravel(), weights=np.repeat(centred, b), minlength=self.n_tasks)
        n = self.n_tasks
        if n == b:
            return np.full(n, np.nan)
        return total_N / k * n * (n - 1) / (n - b)


@dataclass(frozen=True, eq=False)
class Quantity:
    """A value with its first-order dependence on batches and tasks. ``+ - * /`` work with numbers and with each other.

    Attributes:
        design: The common batches.
        value: The estimate.
        batches_K: Deviation of each batch's value.
        tasks_N: Influence of each task that is known exactly, beside what comes through the batches.
    """

    design: Design
    value: float
    batches_K: FloatArray
    tasks_N: FloatArray

    def _combined_linearly(
        self, value: float, mine: float, other: Quantity | None = None, its: float = 0.0
    ) -> Quantity:
        batches_K, tasks_N = mine * self.batches_K, mine * self.tasks_N
        if other is not None:
            batches_K, tasks_N = batches_K + its * other.batches_K, tasks_N + its * other.tasks_N
        return Quantity(self.design, value, batches_K, tasks_N)

    def __add__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            return self._combined_linearly(self.value + other.value, 1.0, other, 1.0)
        return self._combined_linearly(self.value + other, 1.0)

    def __sub__(self, other: Quantity | float) -> Quantity:
        return self + other * -1.0

    def __mul__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            return self._combined_linearly(self.value * other.value, other.value, other, self.value)
        return self._combined_linearly(self.value * other, other)

    def __truediv__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            if other.value == 0:
                return self._combined_linearly(np.nan, np.nan)
            ratio = self.value / other.value
            return self._combined_linearly(ratio, 1 / other.value, other, -ratio / other.value)
        return self._combined_linearly(self.value / other, 1 / other)

    @property
    def standard_error(self) -> float:
        """Over tasks, with the Monte-Carlo error of the batches: taken out of the influences, added to the value."""
        d, n = self.design, self.design.n_tasks
        k, b = d.tasks_KB.shape
        if n == b:  # every batch holds all tasks: what another sample of them would give cannot be seen
            return np.nan
        psi_N = self.tasks_N + d.influence_of_tasks(self.batches_K)
        raw = float((psi_N**2).sum()) / (n * (n - 1))
        of_value = float(self.batches_K.var(ddof=1)) / k if k > 1 else 0.0
        # Each psi^2 is too large by the variance of a covariance of K draws; over the tasks that adds up to this.
        of_influences = of_value * b * (n - 1) / (n - b)
        return float(np.sqrt(max(raw - of_influences, 0.1 * raw) + of_value))

    def estimate_with_interval(self, log: bool = True) -> Estimate:
        """With its 95% interval by Student's t: symmetric on the log scale (``log``, for ratios and variances), or as
        it is."""
        se = self.standard_error
        half = student_t_quantile(self.design.n_tasks - 1) * se
        if not np.isfinite(self.value) or not np.isfinite(se):
            return Estimate(self.value, np.nan, np.nan)
        if not log:
            return Estimate(self.value, self.value - half, self.value + half)
        if self.value <= 0:
            return Estimate(self.value, np.nan, np.nan)
        factor = float(np.exp(min(half / self.value, 700.0)))
        return Estimate(self.value, self.value / factor, self.value * factor)


__all__ = ["Design", "Quantity"]
