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

import itertools

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
_DROWNING = 1e15


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
        return (
            _errors_without_batch(_centred(baseline.gram_of_all(tasks)), baseline.penalty, seen) if n_window else None
        )
    assert isinstance(baseline, Kriging | SelfTuning)
    noise = float(baseline.noise_of_columns(ages_M[:1])[0])
    c_NN = _centred(baseline.covariance_of_all(tasks))
    if n_columns <= _SMALL:
        return _errors_of_small_sets(c_NN, noise, seen)
    return _errors_of_large_sets(c_NN, noise, seen, wanted_KB)


def _centred(c_NN: FloatArray) -> FloatArray:
    """The covariance with what tasks have in common with all others taken out: P is the same, and much better
    conditioned where features are far from 0."""
    mean_N = c_NN.mean(axis=1)
    return c_NN - mean_N[:, None] - mean_N + mean_N.mean()


def _condition_bound(c_NN: FloatArray, noise: float, n_columns: int) -> float:
    """On the condition number of a covariance of so many of the tasks' rewards: the trace bounds the largest
    eigenvalue, and the noise the smallest."""
    return 1 + n_columns * float(np.diag(c_NN).max()) / noise


# ---------------------------------------------------------------------- leaving out the own task


def _errors_of_small_sets(c_NN: FloatArray, noise: float, seen: SeenColumns) -> FloatArray:
    """A system for each run of batches that see the same tasks, many at a time. A copy of a task that came before is a
    column of its own, with so much noise that it counts for nothing."""
    n, n_columns = len(seen.key_N), seen.columns_KM.shape[1]
    first_U, run_K = runs_of_equal_sets(seen.columns_KM, n)
    chunk, condition = max(1, _ENTRIES_AT_ONCE // n_columns**2), _condition_bound(c_NN, noise, n_columns)
    at, out = np.arange(n_columns), np.empty(seen.rows_KB.shape)
    for start in range(0, len(first_U), chunk):
        task_UM = seen.columns_KM[first_U[start : start + chunk]]
        every_U = np.arange(len(task_UM))
        count_UN, place_UN = np.zeros((len(task_UM), n)), np.empty((len(task_UM), n), dtype=np.int64)
        for j in at[::-1]:
            count_UN[every_U, task_UM[:, j]] += 1
            place_UN[every_U, task_UM[:, j]] = j
        count_UM = np.take_along_axis(count_UN, task_UM, axis=1)
        place_UM = np.take_along_axis(place_UN, task_UM, axis=1)
        is_first_UM = place_UM == at
        c_UMM = look_up_pair_blocks(c_NN, task_UM, task_UM)
        c_UMM[:, at, at] += np.where(is_first_UM, noise / count_UM, _DROWNING * noise)
        error_UM = _errors_from_inverses(
            inverses_of_stack(c_UMM, condition), seen.mean_N[task_UM], seen.v_N[task_UM] / count_UM
        )
        error_UM[is_first_UM.sum(axis=1) < 2] = np.nan
        errors_UN = np.empty(count_UN.shape)
        np.put_along_axis(errors_UN, task_UM, np.take_along_axis(error_UM, place_UM, axis=1), axis=1)
        blocks = slice(*np.searchsorted(run_K, [start, start + len(task_UM)]))
        out[blocks] = errors_UN[(run_K[blocks] - start)[:, None], seen.rows_KB[blocks]]
    return out


def _errors_from_inverses(inverse_KMM: FloatArray, mean_KM: FloatArray, v_KM: FloatArray) -> FloatArray:
    """E_i (K, M) from inverse covariances C^-1, which are squared in place, with ``P = C^-1 - s s' / sum(s)``
    multiplied out; s are the row sums."""
    s_KM = inverse_KMM.sum(axis=2)
    share_KM = s_KM / s_KM.sum(axis=1, keepdims=True)
    own_KM = np.einsum("kii->ki", inverse_KMM) - share_KM * s_KM
    times = inverse_KMM @ np.stack([mean_KM, s_KM * v_KM], axis=2)
    moved_KM = times[:, :, 0] - share_KM * (s_KM * mean_KM).sum(axis=1, keepdims=True)
    squares_KM = (np.square(inverse_KMM, out=inverse_KMM) @ v_KM[:, :, None])[:, :, 0]
    squares_KM += share_KM * (share_KM * (s_KM**2 * v_KM).sum(axis=1, keepdims=True) - 2 * times[:, :, 1])
    own_KM[own_KM <= 0] = np.nan  # of a batch that sees one task only
    return (moved_KM**2 + squares_KM) / own_KM**2 - v_KM


class _PrecisionRows:
    """Rows of the residual precision of any selection of the tasks.

    Args:
        c_NN: Covariance of all task means.
        noise: Of a reward.
        n_selections: How many will be asked for. For many, the precision of all tasks is worth its while: that of a
            selection V follows from it and the rest T, ``P_VV - P_VT P_TT^-1 P_TV``, by a system of the rest's size.
    """

    def __init__(self, c_NN: FloatArray, noise: float, n_selections: int) -> None:
        self._c_NN, self._noise, self._n_selections = c_NN, noise, n_selections
        self._p_NN: FloatArray | None = None

    def follows_from_all_tasks(self, column_M: IntArray) -> bool:
        """Whether these columns, no two of one task, leave so few tasks that their number decides."""
        n_rest = len(self._c_NN) - len(column_M)
        return (
            0 <= 3 * n_rest < 2 * len(column_M) and self._n_selections > 8 and len(np.unique(column_M)) == len(column_M)
        )

    def of_first_tasks(self, task_M: IntArray, count_M: IntArray, n: int) -> FloatArray:
        """The rows (n, M) of the first n of these tasks, of which there are so many copies each."""
        if (count_M == 1).all() and self.follows_from_all_tasks(task_M):
            return self._from_all_tasks(task_M, n)
        c_MM = look_up_pair_blocks(self._c_NN, task_M[None], task_M[None])[0]
        at = np.arange(len(task_M))
        c_MM[at, at] += self._noise / count_M
        return rows_of_precision(c_MM, at[:n])

    def _from_all_tasks(self, task_M: IntArray, n: int) -> FloatArray:
        p_NN = self._p_NN
        if p_NN is None:
            p_NN = residual_precision((self._c_NN + self._noise * np.eye(len(self._c_NN)))[None])[0]
            self._p_NN = p_NN
        is_rest_N = np.ones(len(self._c_NN), dtype=bool)
        is_rest_N[task_M] = False
        rest_T = np.flatnonzero(is_rest_N)
        p_nM = look_up_pair_blocks(p_NN, task_M[None, :n], task_M[None])[0]
        if not len(rest_T):
            return p_nM
        p_TT, p_TM = (look_up_pair_blocks(p_NN, rest_T[None], some[None])[0] for some in (rest_T, task_M))
        return p_nM - np.linalg.solve(p_TT, p_TM[:, :n]).T @ p_TM


def _errors_of_large_sets(c_NN: FloatArray, noise: float, seen: SeenColumns, wanted_KB: BoolArray | None) -> FloatArray:
    """A system for each run of batches that see the same tasks, solved for the rows that are asked for."""
    first_U, run_K = runs_of_equal_sets(seen.columns_KM, len(seen.key_N))
    bounds = np.searchsorted(run_K, np.arange(len(first_U) + 1))
    precision = _PrecisionRows(c_NN, noise, len(first_U))
    out, value_N = np.full(seen.rows_KB.shape, np.nan), np.full(len(seen.key_N), np.nan)
    for u, first in enumerate(first_U):
        blocks = slice(bounds[u], bounds[u + 1])
        rows = seen.rows_KB[blocks] if wanted_KB is None else seen.rows_KB[blocks][wanted_KB[blocks]]
        task_M, count_M = np.unique(seen.columns_KM[first], return_counts=True)
        own_n = np.unique(rows)
        n = len(own_n)
        if not n or len(task_M) < 2:
            continue
        rest = np.isin(task_M, own_n, invert=True)
        count_M = np.concatenate([count_M[~rest], count_M[rest]])
        task_M = np.concatenate([own_n, task_M[rest]])
        p_nM, at_n = precision.of_first_tasks(task_M, count_M, n), np.arange(n)
        diagonal_n, v_M = p_nM[at_n, at_n], seen.v_N[task_M] / count_M
        value_N[own_n] = ((p_nM @ seen.mean_N[task_M]) ** 2 + p_nM**2 @ v_M) / diagonal_n**2 - v_M[:n]
        out[blocks] = value_N[seen.rows_KB[blocks]]
        value_N[own_n] = np.nan
    return out


# ---------------------------------------------------------------------- leaving out the whole batch


def _errors_without_batch(gram_NN: FloatArray, penalty: float, seen: SeenColumns) -> FloatArray | None:
    """Errors of ridge; None where a row's window holds hardly anything but copies of it."""
    first_U, run_K = runs_of_equal_sets(seen.columns_KM, len(seen.key_N))
    if 2 * len(first_U) > len(run_K):
        precision = _PrecisionRows(gram_NN, penalty, len(run_K))
        parts = [_errors_of_window(gram_NN, penalty, seen, k, precision) for k in range(len(run_K))]
    else:
        bounds = np.searchsorted(run_K, np.arange(len(first_U) + 1))
        parts = [
            _errors_of_shared_set(gram_NN, penalty, seen._replace(columns_KM=seen.columns_KM[start:stop]))
            for start, stop in itertools.pairwise(bounds)
        ]
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _errors_of_window(
    gram_NN: FloatArray, penalty: float, seen: SeenColumns, k: int, precision: _PrecisionRows
) -> FloatArray | None:
    """Errors (1, B) of one batch, whose window no other batch shares."""
    n_rows, row_B, column_M = seen.n_rows, seen.rows_KB[k], seen.columns_KM[k]
    task_H, count_H = np.unique(seen.window_KH[k], return_counts=True)
    if precision.follows_from_all_tasks(column_M):
        task_H, count_H = seen.window_KH[k], np.ones(len(seen.window_KH[k]))
        p_BM = precision.of_first_tasks(column_M, np.ones(len(column_M), np.int64), n_rows)
        w_BH = -np.linalg.solve(p_BM[:, :n_rows], p_BM[:, n_rows:])
    else:
        c_HH, cross_BH = (look_up_pair_blocks(gram_NN, some[None], task_H[None])[0] for some in (task_H, row_B))
        at = np.arange(len(task_H))
        c_HH[at, at] += penalty / count_H
        solved = np.linalg.solve(c_HH, np.concatenate([cross_BH, np.ones((1, len(task_H)))]).T).T
        of_rows, of_ones = solved[:-1], solved[-1]
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
    condition = _condition_bound(gram_NN, penalty, n_columns)
    mean_M, v_M = seen.mean_N[task_M], seen.v_N[task_M]
    begin_M, end_M = (np.searchsorted(task_M, task_M, side=side) for side in ("left", "right"))
    r_MM, moved_M = (p_MM * v_M) @ p_MM, p_MM @ mean_M
    # Where the batch's rows stand among the columns, a place of its own for each copy of a task.
    order_KM = np.argsort(seen.columns_KM, axis=1, kind="stable")
    place_KM = np.empty_like(order_KM)
    np.put_along_axis(place_KM, order_KM, np.broadcast_to(at, order_KM.shape), axis=1)
    out = []
    chunk = max(1, _ENTRIES_AT_ONCE // seen.n_rows**2)
    for start in range(0, len(place_KM), chunk):
        place_KB = place_KM[start : start + chunk, : seen.n_rows]
        a_KBB = inverses_of_stack(look_up_pair_blocks(p_MM, place_KB, place_KB), condition)
        m_KB, v_KB = mean_M[place_KB], v_M[place_KB]
        bias_KB = -(a_KBB @ moved_M[place_KB][:, :, None])[:, :, 0]
        spread_KB = np.einsum("kij,kij->ki", a_KBB @ look_up_pair_blocks(r_MM, place_KB, place_KB), a_KBB) - v_KB
        # Copies of a row's own task in the window, all of one weight: it is taken out of the sums.
        in_batch_KM = np.zeros((len(place_KB), n_columns + 1), dtype=bool)
        np.put_along_axis(in_batch_KM, place_KB, True, axis=1)
        begin_KB, end_KB = begin_M[place_KB], end_M[place_KB]
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
