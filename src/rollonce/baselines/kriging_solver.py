"""Leave-one-out weights of Kriging from a covariance of the visible rewards: the one solver of all that krige.

With C the covariance of what a batch sees (noise included) and an unknown constant mean,

    P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1),   b_i = r_i - [P r]_i / P_ii = -sum_{j != i} P_ij r_j / P_ii.

Batches that see the same rows share one solve; where a batch sees a long window, only the rows of P that it needs are
solved for.

Source: Rasmussen and Williams 2006, section 5.4.2 (leave-one-out in closed form); Dubrule 1983 (groups).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from rollonce.kernels.base import FULL_MATRIX_UP_TO, BoolArray
from rollonce.rollouts import FloatArray, IntArray, Tasks

# A solve with this many rows takes about half a second; beyond it only the newest rows are used.
EXACT_UP_TO = 2048
_ENTRIES_AT_ONCE = 400_000  # what fits the processor's cache


def solve_kriging_weights(
    covariance: Callable[[IntArray], FloatArray],
    noise_M: FloatArray,
    columns_KM: IntArray,
    n_rows: int,
    visible_KBM: BoolArray,
) -> FloatArray:
    """Weights (K, B, M) of the columns that each row may see; rows sum to 1, or are 0 where a row sees nothing.

    Args:
        covariance: From columns (K, M) to the covariance of their task means (K, M, M), positive semi-definite.
        noise_M: What each column's reward adds to its own variance, above 0; it may differ by age.
        columns_KM: What each block sees, its own rows first.
        n_rows: B.
        visible_KBM: False where row i must not use column j: its own above all.

    Exact up to 2,048 visible rows; of a longer window the newest that fit are used. Nothing is computed for a row that
    sees nothing.
    """
    n_blocks, n_columns = columns_KM.shape
    out = np.zeros((n_blocks, n_rows, n_columns))
    if n_columns > max(EXACT_UP_TO, n_rows):
        keep = np.concatenate([np.arange(n_rows), np.arange(n_columns - (EXACT_UP_TO - n_rows), n_columns)])
        out[:, :, keep] = solve_kriging_weights(
            covariance, noise_M[keep], columns_KM[:, keep], n_rows, visible_KBM[:, :, keep]
        )
        return out
    as_they_are = np.arange(n_columns)[None]
    all_alike = bool((noise_M == noise_M[:1]).all())
    chunk = max(1, _ENTRIES_AT_ONCE // n_columns**2)
    for start, stop, place_KM in _runs_of_equal_columns(columns_KM, all_alike, chunk):
        visible = visible_KBM[start:stop]
        if place_KM is not None:
            out[start:stop] = _weights_of_block_run(covariance, noise_M, columns_KM[start], place_KM, visible)
        elif n_columns > 4 * n_rows:
            for k in range(start, stop):
                out[k] = _weights_of_block_run(covariance, noise_M, columns_KM[k], as_they_are, visible_KBM[k : k + 1])[
                    0
                ]
        else:
            p = residual_precision(add_noise_to_variances(covariance(columns_KM[start:stop]), noise_M))
            out[start:stop] = leave_out_weights(p, n_rows, visible)
    return out


def table_is_worth_it(tasks: Tasks, columns_KM: IntArray) -> bool:
    """Whether so many pairs are asked for that the covariances of all tasks are better computed once."""
    n_blocks, n_columns = columns_KM.shape
    return tasks.index_N is None and len(tasks) <= FULL_MATRIX_UP_TO and n_blocks * n_columns**2 > len(tasks) ** 2


def add_noise_to_variances(c_KMM: FloatArray, noise_M: FloatArray) -> FloatArray:
    """The covariance with each column's noise added to its variance, in place."""
    at = np.arange(len(noise_M))
    c_KMM[:, at, at] += noise_M
    return c_KMM


def _weights_of_block_run(
    covariance: Callable[[IntArray], FloatArray],
    noise_M: FloatArray,
    columns_M: IntArray,
    place_KM: IntArray,
    visible_KBM: BoolArray,
) -> FloatArray:
    """Weights (K, B, M) in blocks that see the same columns in another order (``place_KM``): one system for all, with
    copies of a task (bootstrap) in one row of it, solved for those rows of P alone that rows with anything in sight
    need."""
    out = np.zeros(visible_KBM.shape)
    block_R, row_R = np.nonzero(visible_KBM.any(axis=2))
    if not len(block_R):
        return out
    n_blocks, n_columns = place_KM.shape
    bounds = np.searchsorted(block_R, np.arange(n_blocks + 1))
    of_block = [slice(*ends) for ends in itertools.pairwise(bounds)]
    visible_RM = visible_KBM[block_R, row_R]
    _, first_U, group_M = np.unique(columns_M, return_index=True, return_inverse=True)
    for first, group in ((first_U, group_M), (np.arange(n_columns), np.arange(n_columns))):
        group_KM = group[place_KM]
        member_KU = np.empty((n_blocks, len(first)), dtype=np.int64)
        np.put_along_axis(member_KU, group_KM, np.arange(n_columns)[None], axis=1)
        visible_RU = np.concatenate(
            [visible_RM[rows].take(at, axis=1) for rows, at in zip(of_block, member_KU, strict=True)]
        )
        if len(first) == n_columns or all(
            (visible_RU[rows].take(at, axis=1) == visible_RM[rows]).all()
            for rows, at in zip(of_block, group_KM, strict=True)
        ):
            break  # otherwise a row may see one copy of a task and not another: each column by itself
    precision_M = 1 / noise_M
    precision_U = np.bincount(group, precision_M)
    own_R = group_KM[block_R, row_R]
    needed_U: BoolArray = np.asarray(~visible_RU.all(axis=0))
    needed_U[own_R] = True
    p_nU = rows_of_precision(
        add_noise_to_variances(covariance(columns_M[None, first]), 1 / precision_U)[0], np.flatnonzero(needed_U)
    )
    place_of_U = np.cumsum(needed_U) - 1
    w_RU = _weights_without_hidden(p_nU[None], place_of_U, np.zeros_like(block_R), own_R, ~visible_RU)
    share_M = precision_M / precision_U[group]
    for k, rows in enumerate(of_block):
        out[k, row_R[rows]] = w_RU[rows].take(group_KM[k], axis=1) * share_M[place_KM[k]]
    return _rows_summing_to_one(out)


def rows_of_precision(c_UU: FloatArray, at_n: IntArray) -> FloatArray:
    """Rows of the residual precision P (n, U) of one covariance."""
    if 3 * len(at_n) > len(c_UU):
        return residual_precision(c_UU[None])[0, at_n]
    right = np.zeros((len(c_UU), len(at_n) + 1))
    right[at_n, np.arange(len(at_n))] = 1.0
    right[:, -1] = 1.0
    solved = np.linalg.solve(c_UU, right)
    s_U = solved[:, -1]
    return solved[:, :-1].T - np.outer(s_U[at_n], s_U) / s_U.sum()


def residual_precision(c_KMM: FloatArray) -> FloatArray:
    """``P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1)`` (K, M, M), symmetric, with ``P 1 = 0``."""
    inverse = np.linalg.inv(c_KMM)
    inverse = (inverse + inverse.swapaxes(1, 2)) / 2
    s = inverse.sum(axis=2)
    return inverse - s[:, :, None] * s[:, None, :] / s.sum(axis=1)[:, None, None]


def leave_out_weights(p_KMM: FloatArray, n_rows: int, visible_KBM: BoolArray) -> FloatArray:
    """Weights (K, B, M) that predict each of the first B rows' reward from the columns it may see, from residual
    precisions; rows sum to 1, or are 0 where a row sees nothing."""
    out = np.zeros(visible_KBM.shape)
    block_R, own_R = np.nonzero(visible_KBM.any(axis=2))
    hidden_RM = ~visible_KBM[block_R, own_R]
    out[block_R, own_R] = _weights_without_hidden(p_KMM, np.arange(p_KMM.shape[1]), block_R, own_R, hidden_RM)
    return _rows_summing_to_one(out)


def _weights_without_hidden(
    p_KnU: FloatArray, place_of_U: IntArray, block_R: IntArray, own_R: IntArray, hidden_RU: BoolArray
) -> FloatArray:
    """Weights (R, U) of rows from their blocks' residual precisions, of which rows ``place_of_U`` are at hand.

    Leaving out a set S of columns that includes i: ``b_i = r_i - [P_SS^-1 (P r)_S]_i``, so the weights on the others
    are ``-[P_SS^-1 P_S,rest]_i``; for S = {i} that is the usual leave-one-out.
    """
    out = -p_KnU[block_R, place_of_U[own_R]]
    diagonal = -out[np.arange(len(own_R)), own_R][:, None]
    # A batch of one row and no history has P = 0: nothing to divide by, and nothing to see.
    np.divide(out, diagonal, out=out, where=diagonal > 0)
    n_hidden_R = hidden_RU.sum(axis=1)
    for size in np.unique(n_hidden_R[n_hidden_R > 1]):
        r = np.flatnonzero(n_hidden_R == size)
        s = np.nonzero(hidden_RU[r])[1].reshape(len(r), size)
        p_ss = p_KnU[block_R[r, None, None], place_of_U[s][:, :, None], s[:, None, :]]
        unit = (s == own_R[r, None]).astype(np.float64)
        solved = np.linalg.solve(p_ss, unit[:, :, None])
        out[r] = -(solved.swapaxes(1, 2) @ p_KnU[block_R[r, None], place_of_U[s]])[:, 0]
    out[hidden_RU] = 0.0
    return out


def _runs_of_equal_columns(
    columns_KM: IntArray, may_share: bool, chunk: int
) -> Iterator[tuple[int, int, IntArray | None]]:
    """``(start, stop, place_KM)``: runs of blocks that see the same columns in another order, or chunks of blocks that
    do not.

    ``place_KM[k, j]`` is where column j of block ``start + k`` stands in the precision of block ``start``. None for a
    chunk: a precision for each block is needed. Where age counts (``may_share`` False) nothing is shared.
    """
    n_blocks, n_columns = columns_KM.shape
    new = np.ones(n_blocks, dtype=bool)
    order_KM = np.argsort(columns_KM, axis=1, kind="stable") if may_share and n_columns > 48 else None
    if order_KM is not None:
        sorted_KM = np.take_along_axis(columns_KM, order_KM, axis=1)
        new[1:] = (sorted_KM[1:] != sorted_KM[:-1]).any(axis=1)
    starts = np.append(np.flatnonzero(new), n_blocks)
    if order_KM is None or len(starts) > 0.7 * n_blocks:
        for start in range(0, n_blocks, chunk):
            yield start, min(start + chunk, n_blocks), None
        return
    for start, stop in itertools.pairwise(starts):
        place = np.empty((stop - start, n_columns), dtype=np.int64)
        np.put_along_axis(place, order_KM[start:stop], np.broadcast_to(order_KM[start], place.shape), axis=1)
        yield int(start), int(stop), place


def _rows_summing_to_one(w_KBM: FloatArray) -> FloatArray:
    """Rounding taken out of the rows' sums; a row without weight stays so."""
    total = w_KBM.sum(axis=2, keepdims=True)
    return np.divide(w_KBM, total, out=w_KBM, where=np.abs(total) > 0.5)
