"""Mean squared error of a linear smoother with the draw of rollouts integrated out.

Given a batch's tasks, weights ``w`` (rows sum to 1) and each task's mean ``m_j`` and *biased* variance ``v_j`` over its
G rollouts,

    E_i = (sum_j w_ij m_j - m_i)^2 + sum_j w_ij^2 v_j - s2_i / G

is unbiased for the MSE of b_i (docs/mathematics.md, "Effective batch size"). Nothing is sampled but the batches.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rollonce.baselines import KernelBaseline, LeaveOneOut, LinearSmoother
from rollonce.kernels.base import FULL_MATRIX_UP_TO, BoolArray
from rollonce.rollouts import FloatArray, IntArray, Tasks
from rollonce.scoring.recipe import count_blocks_at_once
from rollonce.scoring.visibility import make_visibility_blocks

# Weights in a table are exp(log w - row maximum); with a larger spread than this a batch could see only underflowed
# ones.
_TABLE_SPREAD = 300.0


# Sums may be reordered (that is what lets them run in vector registers); infinities and NaNs keep their meaning.
@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _sums_over_pairs(
    table: np.ndarray,
    columns_KM: np.ndarray,
    n_rows: int,
    key_N: np.ndarray,
    factor_M: np.ndarray,
    mean_N: np.ndarray,
    v_N: np.ndarray,
) -> np.ndarray:
    """``sum_j w``, ``sum_j w m_j`` and ``sum_j w^2 v_j`` over what each row may see (K, B, 3), with ``w`` the factor of
    the column times the weight of the pair in an N x N table, or in a table of one row for all.

    What a row may see is that of `visibility.make_visibility_blocks`.
    """
    n_batches, m = columns_KM.shape
    out = np.empty((n_batches, n_rows, 3))
    for k in range(n_batches):
        column = columns_KM[k]
        for i in range(n_rows):
            a = column[i]
            row = table[a if len(table) > 1 else 0]
            total, first, second = 0.0, 0.0, 0.0
            for j in range(m):
                c = column[j]
                hidden = c == a if j < n_rows else key_N[c] == key_N[a]
                x = 0.0 if hidden else factor_M[j] * row[c]
                total += x
                first += x * mean_N[c]
                second += x * x * v_N[c]
            out[k, i, 0], out[k, i, 1], out[k, i, 2] = total, first, second
    return out


def _errors_from_table(
    table: FloatArray,
    shrinkage: float,
    columns_KM: IntArray,
    n_rows: int,
    key_N: IntArray,
    factor_M: FloatArray,
    mean_N: FloatArray,
    v_N: FloatArray,
) -> FloatArray:
    """E_i without the noise correction (K, B), where weights depend on the pair alone."""

    def weighted_sums_of(pairs: FloatArray) -> FloatArray:
        return np.moveaxis(_sums_over_pairs(pairs, columns_KM, n_rows, key_N, factor_M, mean_N, v_N), 2, 0)

    columns_KM = np.ascontiguousarray(columns_KM)  # or the loop is compiled once more
    own_KB = mean_N[columns_KM[:, :n_rows]]
    total, first, second = weighted_sums_of(table)
    if shrinkage == 0 and (total > 0).all():
        return (first / total - own_KB) ** 2 + second / total**2
    plain, plain_first, plain_second = weighted_sums_of(np.ones((1, len(key_N))))
    with np.errstate(invalid="ignore", divide="ignore"):
        of_kernel = np.where(total > 0, (1 - shrinkage) / total, 0.0)
        of_mean = np.where(total > 0, shrinkage, 1.0) / plain
        spread = of_kernel**2 * second + of_mean**2 * plain_second
        if shrinkage:  # w and the plain factor p both hold the factor, so that w p v is f^2 w v
            spread += 2 * of_kernel * of_mean * weighted_sums_of(np.sqrt(table))[2]
        out = (of_kernel * first + of_mean * plain_first - own_KB) ** 2 + spread
    return np.where(plain > 0, out, np.nan)


def smoother_squared_errors(
    baseline: LinearSmoother,
    tasks: Tasks,
    columns_KM: IntArray,
    n_rows: int,
    ages_M: IntArray,
    mean_N: FloatArray,
    v_N: FloatArray,
    wanted_KB: BoolArray | None = None,
) -> FloatArray:
    """E_i of every row of every batch, without the noise correction ``s2_i / G`` (K, B).

    Args:
        baseline: A linear smoother.
        tasks: The N tasks.
        columns_KM: Positions that each batch sees, its own rows first. Entries may repeat a task (bootstrap). What a
            row may see of them says `rollonce.scoring.visibility`.
        n_rows: B.
        ages_M: Steps ago that a column was sampled, 0 for the batch.
        mean_N, v_N: Mean and biased variance of each task's rollouts.
        wanted_KB: Rows whose errors are asked for, all without it. Others may come out NaN; Kriging spares their work.

    NaN where a row sees no other task.
    """
    keys = tasks.prompt_keys
    fast = _weights_of_pairs(baseline, tasks)
    if fast is not None:
        table, shrinkage = fast
        factor_M = baseline.decay ** ages_M.astype(np.float64)
        return _errors_from_table(table, shrinkage, columns_KM, n_rows, keys, factor_M, mean_N, v_N)
    out = np.empty((len(columns_KM), n_rows))
    chunk = count_blocks_at_once(baseline, n_rows, columns_KM.shape[1])
    for start in range(0, len(columns_KM), chunk):
        columns = columns_KM[start : start + chunk]
        visible = make_visibility_blocks(keys, columns, n_rows)
        if wanted_KB is not None:
            visible &= wanted_KB[start : start + chunk, :, None]
        w = baseline.compute_weight_blocks(tasks, columns, n_rows, visible, ages_M)
        bias = np.einsum("kbm,km->kb", w, mean_N[columns]) - mean_N[columns[:, :n_rows]]
        spread = np.einsum("kbm,kbm,km->kb", w, w, v_N[columns])
        out[start : start + chunk] = np.where(visible.any(axis=2), bias**2 + spread, np.nan)
    return out


def _weights_of_pairs(baseline: LinearSmoother, tasks: Tasks) -> tuple[FloatArray, float] | None:
    """(Weights of pairs, shrinkage) where weights depend on the pair alone; None otherwise."""
    n = len(tasks)
    if isinstance(baseline, LeaveOneOut):
        return np.ones((1, n)), 0.0
    if not isinstance(baseline, KernelBaseline) or not baseline.kernel.pairwise or n > FULL_MATRIX_UP_TO:
        return None
    every = np.arange(n)[None]
    log_w = baseline.kernel.log_weights(tasks, every, every, np.ones((1, n, n), dtype=bool))[0]
    finite = np.isfinite(log_w) & ~np.eye(n, dtype=bool)
    if not finite.any():
        return np.zeros_like(log_w), baseline.shrinkage
    top = np.where(finite, log_w, -np.inf).max(axis=1, keepdims=True)
    low = np.where(finite, log_w, np.inf).min(axis=1, keepdims=True)
    if np.nanmax(np.where(np.isfinite(top), top - low, 0.0)) > _TABLE_SPREAD:
        return None
    return np.exp(log_w - np.where(np.isfinite(top), top, 0.0)), baseline.shrinkage
