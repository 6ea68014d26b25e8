"""Errors of what krige, straight from residual precisions, without a table of weights.

With P the residual precision of what a batch sees (`rollonce.baselines.kriging_solver`), task means m and their
rewards' variances v, the weights of a row i that leaves out its own task are ``-P_ij / P_ii``, so that

    bias_i = -(P m)_i / P_ii,     spread_i = sum_{j != i} P_ij^2 v_j / P_ii^2.

Copies of a task (bootstrap) are one row of P with so much less noise. P does not depend on the order of the columns:
batches that see the same tasks share it, as all do whose window is all other tasks.

A ridge critic's weights are those of Kriging with the whole batch S left out, ``W = -A P_SH`` with ``A = P_SS^-1`` and
H the window. With ``R = P diag(v) P``

    bias = -A (P m)_S,     spread = diag(A R_SS A) - v_S:

a system of the batch's size, however long the window. (Ridge with an unpenalised intercept is Kriging with an unknown
mean, its penalty the noise.)

Source: Rasmussen and Williams 2006, section 5.4.2; Dubrule 1983 (groups).
"""

from __future__ import annotations

import numpy as np

from rollonce.baselines import Kriging, LinearSmoother, Ridge, SelfTuning
from rollonce.baselines.kriging_solver import EXACT_UP_TO, residual_precision, rows_of_precision
from rollonce.baselines.positive_definite import inverses_of_stack
from rollonce.kernels.base import FULL_MATRIX_UP_TO, BoolArray, look_up_pair_blocks
from rollonce.rollouts import FloatArray, IntArray, Tasks
from rollonce.scoring.pair_sums import SeenColumns, runs_of_equal_sets

_SMALL = 64  # columns up to which many systems are solved at once
_ENTRIES_AT_ONCE = 200_000  # what fits the processor's cache
_NOTHING_LEFT = 1e-6


def kriging_squared_errors(
    baseline: LinearSmoother, tasks: Tasks, seen: SeenColumns, ages_M: IntArray, wanted_KB: BoolArray | None
) -> FloatArray | None:
    """E_i without the noise correction (K, B), NaN where a row sees no other task; None where weights are needed: with
    decay or shrinkage, or very many columns. With a window, errors of tasks whose prompt another task has are wrong:
    from them a window hides more than their own id.

    Args:
        baseline: Any smoother; None of others than Kriging, self-tuning and ridge themselves.
        tasks: The N tasks.
        seen: What the batches see.
        ages_M: Steps ago that a column was sampled.
        wanted_KB: Rows whose errors are asked for, all without it.
    """
    n_columns, n_window = seen.columns_KM.shape[1], seen.window_KH.shape[1]
    if (
        type(baseline) not in (Kriging, SelfTuning, Ridge)
        or baseline.decay != 1
        or baseline.shrinkage != 0
        or n_columns > EXACT_UP_TO
        or len(tasks) > FULL_MATRIX_UP_TO
    ):
        return None
    # P takes a constant out; taken out beforehand it costs no digits.
    seen = seen._replace(mean_N=seen.mean_N - seen.mean_N.mean())
    if isinstance(baseline, Ridge):
        return _errors_without_batch(baseline.gram_of_all(tasks), baseline.penalty, seen) if n_window else None
    assert isinstance(baseline, Kriging | SelfTuning)
    noise = float(baseline.noise_of_columns(ages_M[:1])[0])
    errors = _errors_of_small_sets if n_columns <= _SMALL else _errors_of_large_sets
    return errors(baseline.covariance_of_all(tasks), noise, seen, wanted_KB)


# ---------------------------------------------------------------------- leaving out the own task


def _errors_of_small_sets(c_NN: FloatArray, noise: float, seen: SeenColumns, _: BoolArray | None) -> FloatArray:
    """A system for each batch, many at a time. A copy of a task that came before is a row of its own that nothing
    depends on."""
    first_U, run_K = runs_of_equal_sets(seen.columns_KM, len(seen.key_N))
    chunk = max(1, _ENTRIES_AT_ONCE // seen.columns_KM.shape[1] ** 2)
    out = np.empty(seen.rows_KB.shape)
    for start in range(0, len(first_U), chunk):
        task_UM = seen.columns_KM[first_U[start : start + chunk]]
        at = np.arange(task_UM.shape[1])
        c_UMM = look_up_pair_blocks(c_NN, task_UM, task_UM)
        count_UM = np.ones(task_UM.shape)
        is_first_UM = np.ones(task_UM.shape, dtype=bool)
        sorted_UM = np.sort(task_UM, axis=1)
        copies = np.flatnonzero((sorted_UM[:, 1:] == sorted_UM[:, :-1]).any(axis=1))
        if len(copies):
            same = task_UM[copies, :, None] == task_UM[copies, None, :]
            count_UM[copies], is_first_UM[copies] = same.sum(axis=2), ~np.tril(same, -1).any(axis=2)
            own = is_first_UM[copies]
            c_UMM[copies] *= own[:, :, None] & own[:, None, :]
        c_UMM[:, at, at] += noise / count_UM
        inverse = inverses_of_stack(c_UMM)
        inverse[:, at, at] *= is_first_UM  # and P is that of the first copies alone
        s_UM = (inverse @ is_first_UM[:, :, None])[:, :, 0] * is_first_UM
        p_UMM = inverse - s_UM[:, :, None] * (s_UM / s_UM.sum(axis=1)[:, None])[:, None, :]
        sees_any_UM = is_first_UM & (is_first_UM.sum(axis=1, keepdims=True) > 1)
        error_UM = _errors_from_precision(
            p_UMM, p_UMM[:, at, at], seen.mean_N[task_UM], seen.v_N[task_UM] / count_UM, sees_any_UM
        )
        value_UN = np.empty((len(task_UM), len(seen.key_N)))
        block, place = np.nonzero(is_first_UM)
        value_UN[block, task_UM[block, place]] = error_UM[block, place]
        blocks = slice(*np.searchsorted(run_K, [start, start + len(task_UM)]))
        out[blocks] = value_UN[(run_K[blocks] - start)[:, None], seen.rows_KB[blocks]]
    return out


def _errors_from_precision(
    p_KnM: FloatArray, own_Kn: FloatArray, mean_KM: FloatArray, v_KM: FloatArray, counts_Kn: BoolArray
) -> FloatArray:
    """E_i (K, n) from rows of P whose own tasks have the mean and variance of the first n columns."""
    n = p_KnM.shape[1]
    moved_Kn = (p_KnM @ mean_KM[:, :, None])[:, :, 0]
    spread_Kn = (p_KnM**2 @ v_KM[:, :, None])[:, :, 0] - own_Kn**2 * v_KM[:, :n]
    return np.divide(moved_Kn**2 + spread_Kn, own_Kn**2, out=np.full(own_Kn.shape, np.nan), where=counts_Kn)


def _errors_of_large_sets(c_NN: FloatArray, noise: float, seen: SeenColumns, wanted_KB: BoolArray | None) -> FloatArray:
    """A system for each run of batches that see the same tasks, solved for the rows that are asked for."""
    n_batches = len(seen.columns_KM)
    first_U, run_K = runs_of_equal_sets(seen.columns_KM, len(seen.key_N))
    bounds = np.searchsorted(run_K, np.arange(len(first_U) + 1))
    out = np.full((n_batches, seen.n_rows), np.nan)
    value_N = np.full(len(seen.key_N), np.nan)
    for u, first in enumerate(first_U):
        blocks = slice(bounds[u], bounds[u + 1])
        rows = seen.rows_KB[blocks] if wanted_KB is None else seen.rows_KB[blocks][wanted_KB[blocks]]
        task_M, count_M = np.unique(seen.columns_KM[first], return_counts=True)
        at_n = np.searchsorted(task_M, np.unique(rows))
        if not len(at_n) or len(task_M) < 2:
            continue
        # Rows that are asked for come first.
        rest = np.ones(len(task_M), dtype=bool)
        rest[at_n] = False
        order = np.concatenate([at_n, np.flatnonzero(rest)])
        task_M, count_M = task_M[order], count_M[order]
        c_MM = look_up_pair_blocks(c_NN, task_M[None], task_M[None])[0]
        at = np.arange(len(task_M))
        c_MM[at, at] += noise / count_M
        n = len(at_n)
        p_nM = rows_of_precision(c_MM, at[:n])
        error_n = _errors_from_precision(
            p_nM[None],
            p_nM[at[:n], at[:n]][None],
            seen.mean_N[task_M][None],
            (seen.v_N[task_M] / count_M)[None],
            np.ones((1, n), dtype=bool),
        )[0]
        value_N[task_M[:n]] = error_n
        out[blocks] = value_N[seen.rows_KB[blocks]]
        value_N[task_M[:n]] = np.nan
    return out


# ---------------------------------------------------------------------- leaving out the whole batch


def _errors_without_batch(gram_NN: FloatArray, penalty: float, seen: SeenColumns) -> FloatArray | None:
    """Errors of ridge; None where a row's window holds hardly anything but copies of it."""
    first_U, run_K = runs_of_equal_sets(seen.columns_KM, len(seen.key_N))
    if 2 * len(first_U) > len(run_K):
        parts = [_errors_of_window(gram_NN, penalty, seen, k) for k in range(len(run_K))]
    else:
        bounds = np.searchsorted(run_K, np.arange(len(first_U) + 1))
        parts = [
            _errors_of_shared_set(gram_NN, penalty, seen._replace(columns_KM=seen.columns_KM[start:stop]))
            for start, stop in zip(bounds, bounds[1:], strict=False)
        ]
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _errors_of_window(gram_NN: FloatArray, penalty: float, seen: SeenColumns, k: int) -> FloatArray | None:
    """Errors (1, B) of one batch, by a system of its window's size."""
    row_B = seen.rows_KB[k]
    task_H, count_H = np.unique(seen.window_KH[k], return_counts=True)
    c_HH, cross_BH = (look_up_pair_blocks(gram_NN, some[None], task_H[None])[0] for some in (task_H, row_B))
    at = np.arange(len(task_H))
    c_HH[at, at] += penalty / count_H
    solved_H = np.linalg.solve(c_HH, np.concatenate([cross_BH, np.ones((1, len(task_H)))]).T).T
    of_rows, of_ones = solved_H[:-1], solved_H[-1]
    w_BH = of_rows + (1 - of_rows.sum(axis=1))[:, None] * (of_ones / of_ones.sum())
    w_BH[row_B[:, None] == task_H] = 0.0
    total_B = w_BH.sum(axis=1)
    if (np.abs(total_B) < _NOTHING_LEFT).any():
        return None
    w_BH /= total_B[:, None]
    return ((w_BH @ seen.mean_N[task_H] - seen.mean_N[row_B]) ** 2 + w_BH**2 @ (seen.v_N[task_H] / count_H))[None]


def _errors_of_shared_set(gram_NN: FloatArray, penalty: float, seen: SeenColumns) -> FloatArray | None:
    """Errors (K, B) of batches that see the same columns, batch and window together, by systems of the batch's size."""
    task_M = np.sort(seen.columns_KM[0])
    n_columns, at = len(task_M), np.arange(len(task_M))
    c_MM = look_up_pair_blocks(gram_NN, task_M[None], task_M[None])
    c_MM[:, at, at] += penalty
    p_MM = residual_precision(c_MM)[0]
    mean_M, v_M = seen.mean_N[task_M], seen.v_N[task_M]
    r_MM, moved_M = (p_MM * v_M) @ p_MM, p_MM @ mean_M
    # Where the batch's rows stand among the columns, a place of its own for each copy of a task.
    order_KM = np.argsort(seen.columns_KM, axis=1, kind="stable")
    place_KM = np.empty_like(order_KM)
    np.put_along_axis(place_KM, order_KM, np.broadcast_to(at, order_KM.shape), axis=1)
    out = []
    chunk = max(1, _ENTRIES_AT_ONCE // seen.n_rows**2)
    for start in range(0, len(place_KM), chunk):
        place_KB = place_KM[start : start + chunk, : seen.n_rows]
        a_KBB = inverses_of_stack(look_up_pair_blocks(p_MM, place_KB, place_KB))
        m_KB, v_KB = mean_M[place_KB], v_M[place_KB]
        bias_KB = -(a_KBB @ moved_M[place_KB][:, :, None])[:, :, 0]
        spread_KB = np.einsum("kij,kij->ki", a_KBB @ look_up_pair_blocks(r_MM, place_KB, place_KB), a_KBB) - v_KB
        # Copies of a row's own task in the window, all of one weight: it is taken out of the sums.
        in_batch_KM = np.zeros((len(place_KB), n_columns + 1), dtype=bool)
        np.put_along_axis(in_batch_KM, place_KB, True, axis=1)
        begin_KB, end_KB = (np.searchsorted(task_M, task_M[place_KB], side=side) for side in ("left", "right"))
        next_KM = np.minimum.accumulate(np.where(in_batch_KM, n_columns, np.arange(n_columns + 1))[:, ::-1], axis=1)
        copy_KB = np.take_along_axis(next_KM[:, ::-1], begin_KB, axis=1)
        has_copy_KB = copy_KB < end_KB
        if has_copy_KB.any():
            before_KM = np.cumsum(~in_batch_KM, axis=1) - ~in_batch_KM
            copies_KB = np.where(
                has_copy_KB, np.subtract(*(np.take_along_axis(before_KM, at, axis=1) for at in (end_KB, begin_KB))), 0
            )
            to_copy_KBB = look_up_pair_blocks(p_MM, place_KB, np.where(has_copy_KB, copy_KB, 0))
            w_KB = -np.einsum("kij,kji->ki", a_KBB, to_copy_KBB)
            total_KB = 1 - copies_KB * w_KB
            if (np.abs(total_KB) < _NOTHING_LEFT).any():
                return None
            bias_KB = (bias_KB + m_KB - copies_KB * w_KB * m_KB) / total_KB - m_KB
            spread_KB = (spread_KB - copies_KB * w_KB**2 * v_KB) / total_KB**2
        out.append(bias_KB**2 + spread_KB)
    return np.concatenate(out)


__all__ = ["kriging_squared_errors"]
