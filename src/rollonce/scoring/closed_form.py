"""Mean squared error of a linear smoother with the draw of rollouts integrated out.

Given a batch's tasks, weights ``w`` (rows sum to 1) and each task's mean ``m_j`` and *biased* variance ``v_j`` over its
G rollouts,

    E_i = (sum_j w_ij m_j - m_i)^2 + sum_j w_ij^2 v_j - s2_i / G

is unbiased for the MSE of b_i (docs/mathematics.md, "Effective batch size"). Nothing is sampled but the batches.
"""

from __future__ import annotations

import numpy as np

from rollonce.baselines import KernelBaseline, LeaveOneOut, LinearSmoother
from rollonce.kernels.base import FULL_MATRIX_UP_TO, BoolArray, Kernel
from rollonce.rollouts import FloatArray, IntArray, Tasks
from rollonce.scoring.kriging_errors import kriging_squared_errors
from rollonce.scoring.pair_sums import PairSums, SeenColumns, runs_of_equal_sets, sums_from_table, sums_of_equal_weights
from rollonce.scoring.recipe import count_blocks_at_once
from rollonce.scoring.visibility import make_visibility_blocks

# Weights in a table are exp(log w - row maximum); with a larger spread than this a batch could see only underflowed
# ones.
_TABLE_SPREAD = 300.0


def _errors_from_sums(sums: PairSums, shrinkage: float, seen: SeenColumns, plain: PairSums | None = None) -> FloatArray:
    """E_i without the noise correction (K, B), where weights depend on the pair alone. ``plain`` are the sums with
    equal weights, where they are at hand."""
    own_KB = seen.mean_N[seen.rows_KB]
    if shrinkage == 0 and (sums.total > 0).all():
        return (sums.first / sums.total - own_KB) ** 2 + sums.second / sums.total**2
    plain = sums_of_equal_weights(seen) if plain is None else plain
    with np.errstate(invalid="ignore", divide="ignore"):
        of_kernel = np.where(sums.total > 0, (1 - shrinkage) / sums.total, 0.0)
        of_mean = np.where(sums.total > 0, shrinkage, 1.0) / plain.total
        spread = of_kernel**2 * sums.second + of_mean**2 * plain.second
        if shrinkage:  # w and the plain factor p both hold the factor, so that w p v is f^2 w v
            spread += 2 * of_kernel * of_mean * sums.mixed
        out = (of_kernel * sums.first + of_mean * plain.first - own_KB) ** 2 + spread
    return np.where(plain.total > 0, out, np.nan)


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
    # Tasks chosen from a larger table keep its numbers; what counts by prompt wants them below N.
    keys = np.unique(tasks.prompt_keys, return_inverse=True)[1]
    factor_M = baseline.decay ** ages_M.astype(np.float64)
    seen = SeenColumns(columns_KM, n_rows, keys, factor_M, mean_N, v_N)
    if isinstance(baseline, LeaveOneOut | KernelBaseline):
        shared = _errors_by_set(baseline, tasks, seen)
        if shared is not None:
            return shared
    if isinstance(baseline, LeaveOneOut):
        sums = sums_of_equal_weights(seen)
        return _errors_from_sums(sums, 0.0, seen, sums)
    # From a task whose prompt another one has a window hides more than its own copies.
    by_weights_KB = (np.bincount(keys)[keys] > 1)[seen.rows_KB] & (columns_KM.shape[1] > n_rows)
    if isinstance(baseline, KernelBaseline):
        class_KM = baseline.kernel.classes_of_columns(tasks, columns_KM)
        table_NN = _weights_of_pairs(baseline.kernel, tasks) if class_KM is None else None
        if class_KM is not None:
            sums = sums_of_equal_weights(seen, class_KM)
        elif table_NN is not None:
            sums = sums_from_table(table_NN, seen, baseline.shrinkage > 0)
            by_weights_KB[:] = False
        else:
            return _errors_from_weights(baseline, tasks, seen, ages_M, wanted_KB)
        errors_KB = _errors_from_sums(sums, baseline.shrinkage, seen)
        if baseline.decay != 1:  # where the kernel has no weight, it falls back to a mean without recency
            by_weights_KB |= sums.total <= 0
    else:
        errors_KB = kriging_squared_errors(baseline, tasks, seen, ages_M, wanted_KB)
        if errors_KB is None:
            return _errors_from_weights(baseline, tasks, seen, ages_M, wanted_KB)
    if wanted_KB is not None:
        by_weights_KB &= wanted_KB
    blocks = by_weights_KB.any(axis=1)
    if blocks.any():
        part = seen._replace(columns_KM=columns_KM[blocks])
        by_weights = _errors_from_weights(baseline, tasks, part, ages_M, by_weights_KB[blocks])
        errors_KB[blocks] = np.where(by_weights_KB[blocks], by_weights, errors_KB[blocks])
    return errors_KB


def _errors_by_set(baseline: LinearSmoother, tasks: Tasks, seen: SeenColumns) -> FloatArray | None:
    """E_i (K, B) where many batches see the same tasks, as all do whose window is all other tasks: the errors of these
    tasks as one batch. None where that is no less work, or where it matters which of the tasks came in the batch: to
    recency, and to prompts that several tasks have."""
    n_batches, n_columns = seen.columns_KM.shape
    if n_columns == seen.n_rows or (seen.factor_M != 1).any() or seen.prompts_repeat:
        return None
    first_U, run_K = runs_of_equal_sets(seen.columns_KM, len(tasks))
    if len(first_U) * n_columns > n_batches * seen.n_rows:
        return None
    set_UM, ages_M = seen.columns_KM[first_U], np.zeros(n_columns, np.int64)
    errors_UM = smoother_squared_errors(baseline, tasks, set_UM, n_columns, ages_M, seen.mean_N, seen.v_N)
    errors_UN = np.empty((len(first_U), len(tasks)))
    np.put_along_axis(errors_UN, set_UM, errors_UM, axis=1)
    return errors_UN[run_K[:, None], seen.rows_KB]


def _errors_from_weights(
    baseline: LinearSmoother, tasks: Tasks, seen: SeenColumns, ages_M: IntArray, wanted_KB: BoolArray | None
) -> FloatArray:
    """E_i without the noise correction (K, B), from a table of weights."""
    n_rows, out = seen.n_rows, np.empty(seen.rows_KB.shape)
    chunk = count_blocks_at_once(baseline, n_rows, seen.columns_KM.shape[1])
    for start in range(0, len(out), chunk):
        columns = seen.columns_KM[start : start + chunk]
        visible = make_visibility_blocks(seen.key_N, columns, n_rows)
        if wanted_KB is not None:
            visible &= wanted_KB[start : start + chunk, :, None]
        w = baseline.compute_weight_blocks(tasks, columns, n_rows, visible, ages_M)
        bias = np.einsum("kbm,km->kb", w, seen.mean_N[columns]) - seen.mean_N[columns[:, :n_rows]]
        spread = np.einsum("kbm,kbm,km->kb", w, w, seen.v_N[columns])
        out[start : start + chunk] = np.where(visible.any(axis=2), bias**2 + spread, np.nan)
    return out


def _weights_of_pairs(kernel: Kernel, tasks: Tasks) -> FloatArray | None:
    """Weights of pairs (N, N), up to a factor for each row, where they depend on the pair alone; None otherwise."""
    n = len(tasks)
    if not kernel.pairwise or n > FULL_MATRIX_UP_TO:
        return None
    every = np.arange(n)[None]
    log_w = kernel.log_weights(tasks, every, every, np.ones((1, n, n), dtype=bool))[0]
    own = np.eye(n, dtype=bool)  # what no row sees
    finite = np.isfinite(log_w) & ~own
    if not finite.any():
        return np.zeros_like(log_w)
    top = np.where(finite, log_w, -np.inf).max(axis=1, keepdims=True)
    low = np.where(finite, log_w, np.inf).min(axis=1, keepdims=True)
    if np.nanmax(np.where(np.isfinite(top), top - low, 0.0)) > _TABLE_SPREAD:
        return None
    return np.exp(np.where(own, -np.inf, log_w - np.where(np.isfinite(top), top, 0.0)))
