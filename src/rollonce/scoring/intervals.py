"""Intervals on the log scale, by Student's t."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rollonce.rollouts import FloatArray
from rollonce.scoring.moments import Estimate


@lru_cache(maxsize=256)
def student_t_quantile(degrees_of_freedom: float) -> float:
    """The 97.5% quantile of Student's t.

    For whole degrees of freedom the distribution is a finite sum, and scipy, whose import takes longer than many a row
    of a board, is not needed. Source: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4.
    """
    n = int(degrees_of_freedom)
    if n != degrees_of_freedom or not 1 <= n <= 10_000:
        import scipy.special

        return float(scipy.special.stdtrit(degrees_of_freedom, 0.975))
    # Of the t with its angle theta = atan(t / sqrt(n)): P(|T| < t) is a sum over powers of cos theta, and its
    # derivative in theta is the last term's coefficient times cos^(n - 1).
    k = np.arange(1 + n % 2, n - 1, 2)
    coefficients = np.cumprod(np.append(1.0, k / (k + 1)))
    exponents = n % 2 + 2 * np.arange(len(coefficients))
    scale, steepness = (2 / np.pi, 2 / np.pi) if n % 2 else (1.0, 1.0)
    steepness *= float(coefficients[-1]) * (n - 1 if n > 1 else 1)
    theta = np.arctan(2.0 / np.sqrt(n))
    for _ in range(50):
        within = scale * np.sin(theta) * float(coefficients @ np.cos(theta) ** exponents)
        if n % 2:
            within = scale * theta + (within if n > 1 else 0.0)
        step = (0.95 - within) / (steepness * np.cos(theta) ** (n - 1))
        theta += np.clip(step, -theta / 2, (np.pi / 2 - theta) / 2)
        if abs(step) < 1e-15:
            break
    return float(np.sqrt(n) * np.tan(theta))


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
