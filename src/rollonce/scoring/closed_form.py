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
from rollonce.kernels.base import FULL_MATRIX_UP_TO
from rollonce.rollouts import FloatArray, IntArray, Tasks
from rollonce.scoring.recipe import CHUNK_ENTRIES
from rollonce.scoring.visibility import visible_blocks

# Weights in a table are exp(log w - row maximum); with a larger spread than this a batch could see only underflowed
# ones.
_TABLE_SPREAD = 300.0


# Sums may be reordered (that is what lets them run in vector registers); infinities and NaNs keep their meaning.
@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _table_errors(
    table: np.ndarray,
    uniform: bool,
    columns_KM: np.ndarray,
    n_rows: int,
    key_N: np.ndarray,
    factor_M: np.ndarray,
    shrinkage: float,
    mean_N: np.ndarray,
    v_N: np.ndarray,
) -> np.ndarray:
    """E_i without the noise correction (K, B), weights looked up pair by pair in an N x N table (or all 1). What a row
    may see is that of `visibility.visible_blocks`."""
    n_batches, m = columns_KM.shape
    out = np.empty((n_batches, n_rows))
    w, p = np.empty(m), np.empty(m)
    mean, v = np.empty(m), np.empty(m)
    for k in range(n_batches):
        column = columns_KM[k]
        for j in range(m):
            mean[j], v[j] = mean_N[column[j]], v_N[column[j]]
        for i in range(n_rows):
            a = column[i]
            row = table[0] if uniform else table[a]
            for j in range(n_rows):
                p[j] = 0.0 if column[j] == a else factor_M[j]
            for j in range(n_rows, m):
                p[j] = 0.0 if key_N[column[j]] == key_N[a] else factor_M[j]
            plain = 0.0
            if uniform or shrinkage != 0.0:
                for j in range(m):
                    plain += p[j]
            total, first, second = 0.0, 0.0, 0.0
            if uniform:
                for j in range(m):
                    first += p[j] * mean[j]
                    second += p[j] * p[j] * v[j]
                total = plain
            else:
                for j in range(m):
                    x = p[j] * row[column[j]]
                    w[j] = x
                    total += x
                    first += x * mean[j]
                    second += x * x * v[j]
            if total > 0.0 and (uniform or shrinkage == 0.0):
                bias = first / total - mean[i]
                out[k, i] = bias * bias + second / (total * total)
                continue
            plain = 0.0
            for j in range(m):
                plain += p[j]
            if plain == 0.0:
                out[k, i] = np.nan
                continue
            kernel_share = (1.0 - shrinkage) / total if total > 0.0 else 0.0
            loo_share = (shrinkage if total > 0.0 else 1.0) / plain
            bias, spread = -mean[i], 0.0
            for j in range(m):
                x = (w[j] * kernel_share if not uniform else 0.0) + p[j] * loo_share
                bias += x * mean[j]
                spread += x * x * v[j]
            out[k, i] = bias * bias + spread
    return out


def smoother_errors(
    baseline: LinearSmoother,
    tasks: Tasks,
    columns_KM: IntArray,
    n_rows: int,
    ages_M: IntArray,
    mean_N: FloatArray,
    v_N: FloatArray,
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

    NaN where a row sees no other task.
    """
    keys = tasks.prompt_keys
    fast = _table_of(baseline, tasks)
    if fast is not None:
        table, shrinkage, decay = fast
        factor_M = decay ** ages_M.astype(np.float64)
        uniform = table is None
        return _table_errors(
            np.ones((1, 1)) if table is None else table,
            uniform,
            columns_KM,
            n_rows,
            keys,
            factor_M,
            shrinkage,
            mean_N,
            v_N,
        )
    out = np.empty((len(columns_KM), n_rows))
    chunk = max(1, CHUNK_ENTRIES // (columns_KM.shape[1] * n_rows))
    for start in range(0, len(columns_KM), chunk):
        columns = columns_KM[start : start + chunk]
        visible = visible_blocks(keys, columns, n_rows)
        w = baseline.weight_blocks(tasks, columns, n_rows, visible, ages_M)
        bias = np.einsum("kbm,km->kb", w, mean_N[columns]) - mean_N[columns[:, :n_rows]]
        spread = np.einsum("kbm,kbm,km->kb", w, w, v_N[columns])
        out[start : start + chunk] = np.where(visible.any(axis=2), bias**2 + spread, np.nan)
    return out


def _table_of(baseline: LinearSmoother, tasks: Tasks) -> tuple[FloatArray | None, float, float] | None:
    """(N x N weights or None for all-equal, shrinkage, decay) where weights depend on the pair alone; None
    otherwise."""
    if isinstance(baseline, LeaveOneOut):
        return None, 0.0, baseline.decay
    if not isinstance(baseline, KernelBaseline) or not baseline.kernel.pairwise or len(tasks) > FULL_MATRIX_UP_TO:
        return None
    every = np.arange(len(tasks))[None]
    log_w = baseline.kernel.log_weights(tasks, every, every, np.ones((1, len(tasks), len(tasks)), dtype=bool))[0]
    off = ~np.eye(len(tasks), dtype=bool)
    finite = np.isfinite(log_w) & off
    if not finite.any():
        return np.zeros_like(log_w), baseline.shrinkage, baseline.decay
    top = np.where(finite, log_w, -np.inf).max(axis=1, keepdims=True)
    low = np.where(finite, log_w, np.inf).min(axis=1, keepdims=True)
    if np.nanmax(np.where(np.isfinite(top), top - low, 0.0)) > _TABLE_SPREAD:
        return None
    return np.exp(log_w - np.where(np.isfinite(top), top, 0.0)), baseline.shrinkage, baseline.decay
