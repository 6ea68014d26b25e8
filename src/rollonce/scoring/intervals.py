"""Intervals on the log scale, by Student's t."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.special  # not scipy.stats, whose import takes most of a second

from rollonce.rollouts import FloatArray
from rollonce.scoring.moments import Estimate


def student_t_quantile(degrees_of_freedom: float) -> float:
    """The 97.5% quantile of Student's t."""
    return float(scipy.special.stdtrit(degrees_of_freedom, 0.975))


def log_scale_interval(value: float, se_of_log: float, degrees_of_freedom: float) -> Estimate:
    """A 95% interval symmetric on the log scale, by Student's t; NaN bounds where it cannot be told."""
    if not (np.isfinite(value) and value > 0 and np.isfinite(se_of_log)):
        return Estimate(float(value), np.nan, np.nan)
    half = student_t_quantile(degrees_of_freedom) * se_of_log
    return Estimate(float(value), float(value * np.exp(-half)), float(value * np.exp(half)))


def jackknife_standard_error(leave_one_out_values: FloatArray) -> float:
    """Standard error from the values with one part left out each (NaN for parts that do not count); NaN for none."""
    if not np.isfinite(leave_one_out_values).any():
        return np.nan
    n, mean = len(leave_one_out_values), np.nanmean(leave_one_out_values)
    return float(np.sqrt((n - 1) / n * np.nansum((leave_one_out_values - mean) ** 2)))


def variance_over_tasks(
    values: Sequence[float] | FloatArray, monte_carlo: Sequence[float] | FloatArray, n_tasks: int
) -> float:
    """Variance over resamples of the tasks, less what the batches within a resample add, with the bootstrap's
    ``n / (n - 1)``; NaN for fewer than four resamples."""
    if len(values) < 4:
        return np.nan
    total = float(np.var(values, ddof=1))
    return max(total - float(np.mean(monte_carlo)), 0.1 * total) * n_tasks / (n_tasks - 1)


def leave_one_out_means(values: FloatArray) -> FloatArray:
    """The mean of the other known values for each (N,); NaN where there is no other."""
    known = np.isfinite(values)
    count = known.sum() - known
    return np.divide(
        np.nansum(values) - np.where(known, values, 0.0), count, out=np.full(len(values), np.nan), where=count > 0
    )
