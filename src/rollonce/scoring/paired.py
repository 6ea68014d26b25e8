"""Two baselines on common batches and common resamples of the tasks: how far apart, and how sure that is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollonce.rollouts import FloatArray
from rollonce.scoring.intervals import variance_over_tasks


class PairedErrors(NamedTuple):
    """Mean squared errors of two baselines, and what the logarithms of their levels rest on.

    Attributes:
        mse, mse_other: Means over the common batches; may be below 0 by noise.
        se_level: Standard error of ``log(s2 / E[A^2])`` of the first.
        se_ratio: Standard error of the logarithm of the ratio of the two ``E[A^2]``.
        degrees_of_freedom: Of both.
    """

    mse: float
    mse_other: float
    se_level: float
    se_ratio: float
    degrees_of_freedom: float


def compare_paired_errors(
    errors: tuple[FloatArray, FloatArray],
    resampled: tuple[FloatArray, FloatArray] | None,
    *,
    s2: float | None,
    s2_R: FloatArray,
    n_tasks: int,
) -> PairedErrors:
    """Compare two baselines.

    Args:
        errors: Of each, on the K common batches (K, B), NaN where a row is no target.
        resampled: Of each, on the batches of R resamples (R, k, B); None for no intervals.
        s2: Within-task variance, None where no task has repeats: errors are terms of E[A^2] then.
        s2_R: The same in each resample (R,).
        n_tasks: N.
    """
    e, e_other = errors
    mse, mse_other = mean_of_known_values(e), mean_of_known_values(e_other)
    if resampled is None:
        return PairedErrors(mse, mse_other, np.nan, np.nan, 1.0)
    er, er_other = resampled
    resamples, per = er.shape[:2]
    level_R = s2_R if s2 is not None else np.zeros(resamples)
    a2_R = level_R + known_means_of_last_axis(er.reshape(resamples, -1))
    a2_other_R = level_R + known_means_of_last_axis(er_other.reshape(resamples, -1))
    used = np.flatnonzero((a2_R > 0) & (a2_other_R > 0))
    a2_R, a2_other_R, s2_R = a2_R[used], a2_other_R[used], s2_R[used]
    per_batch_Rk = known_means_of_last_axis(er[used]) / a2_R[:, None]
    difference_Rk = per_batch_Rk - known_means_of_last_axis(er_other[used]) / a2_other_R[:, None]
    with_level = (s2_R > 0) & (s2 is not None)
    log_level_R = np.log(s2_R[with_level]) - np.log(a2_R[with_level])
    own, own_other = (s2 or 0.0) + mse, (s2 or 0.0) + mse_other
    known = own > 0 and own_other > 0
    mc_level = np.nanvar(known_means_of_last_axis(e)) / own**2 / len(e) if own > 0 else np.nan
    mc_ratio = (
        np.nanvar(known_means_of_last_axis(e) / own - known_means_of_last_axis(e_other) / own_other) / len(e)
        if known
        else np.nan
    )
    var_level = variance_over_tasks(log_level_R, np.nanvar(per_batch_Rk, axis=1) / per, n_tasks)
    var_ratio = variance_over_tasks(np.log(a2_other_R) - np.log(a2_R), np.nanvar(difference_Rk, axis=1) / per, n_tasks)
    return PairedErrors(
        mse=mse,
        mse_other=mse_other,
        se_level=float(np.sqrt(var_level + mc_level)),
        se_ratio=float(np.sqrt(var_ratio + mc_ratio)),
        degrees_of_freedom=float(max(min(n_tasks, len(used)) - 1, 1)),
    )


def mean_of_known_values(e: FloatArray) -> float:
    """The mean of what is known, NaN for nothing."""
    return float(np.nanmean(e)) if np.isfinite(e).any() else np.nan


def known_means_of_last_axis(e: FloatArray) -> FloatArray:
    """Means over the last axis, NaN where nothing is known (a batch without targets), without numpy's warning."""
    known = np.isfinite(e)
    count = known.sum(axis=-1)
    total = np.where(known, e, 0.0).sum(axis=-1)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
