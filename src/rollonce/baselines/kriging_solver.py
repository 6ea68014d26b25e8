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


def kriging_weights(
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

    Exact up to 2,048 visible rows; of a longer window the newest that fit are used.
    """
    n_blocks, n_columns = columns_KM.shape
    out = np.zeros((n_blocks, n_rows, n_columns))
    if n_columns > max(EXACT_UP_TO, n_rows):
        keep = np.concatenate([np.arange(n_rows), np.arange(n_columns - (EXACT_UP_TO - n_rows), n_columns)])
        out[:, :, keep] = kriging_weights(
            covariance, noise_M[keep], columns_KM[:, keep], n_rows, visible_KBM[:, :, keep]
        )
        return out
    all_alike = bool((noise_M == noise_M[:1]).all())
    chunk = max(1, _ENTRIES_AT_ONCE // n_columns**2)
    for start, stop, place_KM in _shared_blocks(columns_KM, all_alike, chunk):
        visible = visible_KBM[start:stop]
        if place_KM is not None:
            out[start:stop] = _rows_of_run(covariance, noise_M, columns_KM[start], place_KM, n_rows, visible)
        elif n_columns > 4 * n_rows:
            for k in range(start, stop):
                out[k] = _rows_of_block(covariance, noise_M, columns_KM[k], n_rows, visible_KBM[k])
        else:
            p = residual_precision(with_noise(covariance(columns_KM[start:stop]), noise_M))
            out[start:stop] = leave_out_rows(p, n_rows, visible)
    return out


def table_is_worth_it(tasks: Tasks, columns_KM: IntArray) -> bool:
    """Whether so many pairs are asked for that the covariances of all tasks are better computed once."""
    n_blocks, n_columns = columns_KM.shape
    return tasks.index_N is None and len(tasks) <= FULL_MATRIX_UP_TO and n_blocks * n_columns**2 > len(tasks) ** 2


def with_noise(c_KMM: FloatArray, noise_M: FloatArray) -> FloatArray:
    """The covariance with each column's noise added to its variance, in place."""
    at = np.arange(len(noise_M))
    c_KMM[:, at, at] += noise_M
    return c_KMM


def _rows_of_run(
    covariance: Callable[[IntArray], FloatArray],
    noise_M: FloatArray,
    columns_M: IntArray,
    place_KM: IntArray,
    n_rows: int,
    visible_KBM: BoolArray,
) -> FloatArray:
    """Weights (K, B, M) in blocks that see the same columns in another order: one solve for all, with copies of a task
    (bootstrap) in one row of the system."""
    n_columns = len(columns_M)
    _, first_U, group_M = np.unique(columns_M, return_index=True, return_inverse=True)
    for first, group in ((first_U, group_M), (np.arange(n_columns), np.arange(n_columns))):
        group_KM = group[place_KM]
        member_KU = np.empty((len(place_KM), len(first)), dtype=np.int64)
        np.put_along_axis(member_KU, group_KM, np.arange(n_columns)[None], axis=1)
        hidden_KBU = np.stack([~v.take(at, axis=1) for v, at in zip(visible_KBM, member_KU, strict=True)])
        if all((h.take(g, axis=1) != v).all() for h, g, v in zip(hidden_KBU, group_KM, visible_KBM, strict=True)):
            break  # otherwise a row may see one copy of a task and not another: each column by itself
    copies_U = np.bincount(group)
    p = residual_precision(with_noise(covariance(columns_M[None, first]), noise_M[0] / copies_U))
    own_KB = group_KM[:, :n_rows]
    w_KBU = _leave_out(np.broadcast_to(p, (len(place_KM), *p.shape[1:])), own_KB, hidden_KBU)
    w_KBU /= copies_U
    return _unit_rows(np.stack([w.take(group, axis=1) for w, group in zip(w_KBU, group_KM, strict=True)]))


def _rows_of_block(
    covariance: Callable[[IntArray], FloatArray],
    noise_M: FloatArray,
    columns_M: IntArray,
    n_rows: int,
    visible_BM: BoolArray,
) -> FloatArray:
    """Weights (B, M) in one block with a long window: copies of a task (bootstrap) in one row of the system, and a
    solve for those rows of P alone that the batch needs."""
    _, first_U, group_M = np.unique(columns_M, return_index=True, return_inverse=True)
    hidden_BU = ~visible_BM[:, first_U]
    if (hidden_BU[:, group_M] == visible_BM).any():  # a row may see one copy of a task and not another
        p = residual_precision(with_noise(covariance(columns_M[None]), noise_M))
        return leave_out_rows(p, n_rows, visible_BM[None])[0]
    precision_M = 1 / noise_M
    precision_U = np.bincount(group_M, precision_M)
    c_UU = with_noise(covariance(columns_M[None, first_U]), 1 / precision_U)[0]
    needed = np.flatnonzero(hidden_BU.any(axis=0))
    right = np.zeros((len(c_UU), len(needed) + 1))
    right[needed, np.arange(len(needed))] = 1.0
    right[:, -1] = 1.0
    solved = np.linalg.solve(c_UU, right)
    s = solved[:, -1]
    p_nU = solved[:, :-1].T - np.outer(s[needed], s) / s.sum()
    own = group_M[:n_rows]
    at = np.searchsorted(needed, own)
    w_BU = -p_nU[at] / p_nU[at, own][:, None]
    for i in np.flatnonzero(hidden_BU.sum(axis=1) > 1):
        out = np.flatnonzero(hidden_BU[i])
        rows = p_nU[np.searchsorted(needed, out)]
        if len(out) < len(c_UU):
            w_BU[i] = -np.linalg.solve(rows[:, out], (out == own[i]).astype(np.float64)) @ rows
    w_BU[hidden_BU] = 0.0
    return _unit_rows((w_BU[:, group_M] * (precision_M / precision_U[group_M]))[None])[0]


def residual_precision(c_KMM: FloatArray) -> FloatArray:
    """``P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1)`` (K, M, M), symmetric, with ``P 1 = 0``."""
    inverse = np.linalg.inv(c_KMM)
    inverse = (inverse + inverse.swapaxes(1, 2)) / 2
    s = inverse.sum(axis=2)
    return inverse - s[:, :, None] * s[:, None, :] / s.sum(axis=1)[:, None, None]


def leave_out_rows(p_KMM: FloatArray, n_rows: int, visible_KBM: BoolArray) -> FloatArray:
    """Weights (K, B, M) that predict each of the first B rows' reward from the columns it may see, from residual
    precisions; rows sum to 1, or are 0 where a row sees nothing."""
    own_KB = np.broadcast_to(np.arange(n_rows), (len(p_KMM), n_rows))
    return _unit_rows(_leave_out(p_KMM, own_KB, ~visible_KBM))


def _leave_out(p_KMM: FloatArray, own_KB: IntArray, hidden_KBM: BoolArray) -> FloatArray:
    """Leaving out a set S of columns that includes i: ``b_i = r_i - [P_SS^-1 (P r)_S]_i``, so the weights on the others
    are ``-[P_SS^-1 P_S,rest]_i``; for S = {i} that is the usual leave-one-out."""
    every = np.arange(len(p_KMM))[:, None]
    n_columns = p_KMM.shape[2]
    diagonal = p_KMM[every, own_KB, own_KB][:, :, None]
    out = -p_KMM[every, own_KB]
    # A batch of one row and no history has P = 0: nothing to divide by, and nothing to see.
    np.divide(out, diagonal, out=out, where=diagonal > 0)
    n_hidden_KB = hidden_KBM.sum(axis=2)
    for size in np.unique(n_hidden_KB[(n_hidden_KB > 1) & (n_hidden_KB < n_columns)]):
        k, i = np.nonzero(n_hidden_KB == size)
        s = np.nonzero(hidden_KBM[k, i])[1].reshape(len(k), size)
        p_ss = p_KMM[k[:, None, None], s[:, :, None], s[:, None, :]]
        unit = (s == own_KB[k, i][:, None]).astype(np.float64)
        solved = np.linalg.solve(p_ss, unit[:, :, None])
        out[k, i] = -(solved.swapaxes(1, 2) @ p_KMM[k[:, None], s])[:, 0]
    out[hidden_KBM] = 0.0
    return out


def _shared_blocks(columns_KM: IntArray, may_share: bool, chunk: int) -> Iterator[tuple[int, int, IntArray | None]]:
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


def _unit_rows(w_KBM: FloatArray) -> FloatArray:
    """Rounding taken out of the rows' sums; a row without weight stays so."""
    total = w_KBM.sum(axis=2, keepdims=True)
    return np.divide(w_KBM, total, out=w_KBM, where=np.abs(total) > 0.5)
