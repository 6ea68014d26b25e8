"""Leave-one-out weights of Kriging from a covariance of the visible rewards: the one solver of all that krige.

With C the covariance of what a batch sees (noise included) and an unknown constant mean,

    P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1),   b_i = r_i - [P r]_i / P_ii = -sum_{j != i} P_ij r_j / P_ii.

Batches that see the same rows share one solve; where a batch sees a long window and hides nothing but each row's own
column, only the batch's rows of P are solved for.

Source: Rasmussen and Williams 2006, section 5.4.2 (leave-one-out in closed form); Dubrule 1983 (groups).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray

# A solve with this many rows takes about half a second; beyond it only the newest rows are used.
EXACT_UP_TO = 2048
_ENTRIES_AT_ONCE = 4_000_000

Covariance = Callable[[IntArray, IntArray], FloatArray]


def kriging_weights(
    covariance: Covariance,
    columns_KM: IntArray,
    n_rows: int,
    visible_KBM: BoolArray,
    ages_M: IntArray,
    *,
    age_matters: bool,
) -> FloatArray:
    """Weights (K, B, M) of the columns that each row may see; rows sum to 1, or are 0 where a row sees nothing.

    Args:
        covariance: From columns (K, M) and their ages (M,) to C (K, M, M), positive definite.
        columns_KM: What each block sees, its own rows first.
        n_rows: B.
        visible_KBM: False where row i must not use column j: its own above all.
        ages_M: Steps ago that a column was sampled.
        age_matters: Whether C depends on the ages; then no two blocks share a solve.

    Exact up to 2,048 visible rows; of a longer window the newest that fit are used.
    """
    n_blocks, n_columns = columns_KM.shape
    out = np.zeros((n_blocks, n_rows, n_columns))
    if n_columns > max(EXACT_UP_TO, n_rows):
        keep = np.concatenate([np.arange(n_rows), np.arange(n_columns - (EXACT_UP_TO - n_rows), n_columns)])
        out[:, :, keep] = kriging_weights(
            covariance, columns_KM[:, keep], n_rows, visible_KBM[:, :, keep], ages_M[keep], age_matters=age_matters
        )
        return out
    chunk = max(1, _ENTRIES_AT_ONCE // n_columns**2)
    for start, stop, place_KM in _shared_blocks(columns_KM, not age_matters, chunk):
        visible = visible_KBM[start:stop]
        if place_KM is not None:
            p = residual_precision(covariance(columns_KM[start : start + 1], ages_M))
            out[start:stop] = leave_out_rows(p, n_rows, visible, place_KM)
        elif n_columns > 4 * n_rows and (~visible).sum(axis=2).max(initial=0) <= 1:
            for c, k in zip(covariance(columns_KM[start:stop], ages_M), range(start, stop), strict=True):
                out[k] = _own_rows(c, n_rows)
        else:
            p = residual_precision(covariance(columns_KM[start:stop], ages_M))
            out[start:stop] = leave_out_rows(p, n_rows, visible, None)
    return out


def _own_rows(c_MM: FloatArray, n_rows: int) -> FloatArray:
    """(B, M) where only the own column is hidden: solves for B rows of P rather than for all M."""
    own = np.arange(n_rows)
    right = np.zeros((len(c_MM), n_rows + 1))
    right[own, own] = 1.0
    right[:, n_rows] = 1.0
    solved = np.linalg.solve(c_MM, right)
    s = solved[:, n_rows]
    p_BM = solved[:, :n_rows].T - np.outer(s[:n_rows], s) / s.sum()
    w = -p_BM / p_BM[own, own][:, None]
    w[own, own] = 0.0
    return _unit_rows(w[None])[0]


def residual_precision(c_KMM: FloatArray) -> FloatArray:
    """``P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1)`` (K, M, M), symmetric, with ``P 1 = 0``."""
    inverse = np.linalg.inv(c_KMM)
    inverse = (inverse + inverse.swapaxes(1, 2)) / 2
    s = inverse.sum(axis=2)
    return inverse - s[:, :, None] * s[:, None, :] / s.sum(axis=1)[:, None, None]


def leave_out(p_KMM: FloatArray, n_rows: int, visible_KBM: BoolArray) -> FloatArray:
    """Weights (K, B, M) that predict each row's reward from the columns it may see, from the residual precision P.

    Leaving out a set S of columns that includes i: ``b_i = r_i - [P_SS^-1 (P r)_S]_i``, so the weights on the others
    are ``-[P_SS^-1 P_S,rest]_i``; for S = {i} that is the usual leave-one-out. A row that sees nothing gets no weights.
    """
    own = np.arange(n_rows)
    hidden_KBM = ~visible_KBM
    n_hidden_KB = hidden_KBM.sum(axis=2)
    diagonal = p_KMM[:, own, own][:, :, None]
    # A batch of one row and no history has P = 0: nothing to divide by, and nothing to see.
    out = np.divide(
        -p_KMM[:, :n_rows], diagonal, out=np.zeros((len(p_KMM), n_rows, p_KMM.shape[2])), where=diagonal > 0
    )
    k_two, i_two = np.nonzero(n_hidden_KB == 2)
    if len(k_two):  # one copy beside itself, the usual case in a bootstrap resample: 2 x 2 in closed form
        hidden = hidden_KBM[k_two, i_two].copy()
        hidden[np.arange(len(k_two)), i_two] = False
        other = hidden.argmax(axis=1)
        p_i, p_c = p_KMM[k_two, i_two], p_KMM[k_two, other]
        ii, cc, ic = (
            p_i[np.arange(len(other)), i_two],
            p_c[np.arange(len(other)), other],
            p_i[np.arange(len(other)), other],
        )
        determinant = ii * cc - ic**2
        safe = np.where(determinant > 1e-12 * ii * cc, determinant, 1.0)
        out[k_two, i_two] = -(cc[:, None] * p_i - ic[:, None] * p_c) / safe[:, None]
    for k, i in zip(*np.nonzero(n_hidden_KB > 2), strict=True):
        s = np.flatnonzero(hidden_KBM[k, i])
        if len(s) < p_KMM.shape[2]:
            out[k, i] = -np.linalg.solve(p_KMM[k][np.ix_(s, s)], (s == i).astype(np.float64)) @ p_KMM[k][s]
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


def leave_out_rows(p_KMM: FloatArray, n_rows: int, visible_KBM: BoolArray, place_KM: IntArray | None) -> FloatArray:
    """Weights (K, B, M) from residual precisions, as `leave_out`; one precision for all where ``place_KM`` is given.

    Leaving out a set S that includes i, the weights on the others are ``-[P_SS^-1 P_S,rest]_i``, exactly 0 on S.
    """
    if place_KM is None:
        return _unit_rows(leave_out(p_KMM, n_rows, visible_KBM))
    p = p_KMM[0]
    diagonal = np.diag(p)
    rows_KB = place_KM[:, :n_rows]
    out = -p[rows_KB[:, :, None], place_KM[:, None, :]]
    out = np.divide(out, diagonal[rows_KB][:, :, None], out=np.zeros_like(out), where=diagonal[rows_KB][:, :, None] > 0)
    hidden = ~visible_KBM
    for k, i in zip(*np.nonzero(hidden.sum(axis=2) > 1), strict=True):
        s = np.flatnonzero(hidden[k, i])
        at = place_KM[k, s]
        if len(s) < len(p):
            out[k, i] = -np.linalg.solve(p[np.ix_(at, at)], (s == i).astype(np.float64)) @ p[np.ix_(at, place_KM[k])]
    out[hidden] = 0.0
    return _unit_rows(out)


def _unit_rows(w_KBM: FloatArray) -> FloatArray:
    """Rounding taken out of the rows' sums; a row without weight stays so."""
    total = w_KBM.sum(axis=2, keepdims=True)
    return np.divide(w_KBM, total, out=w_KBM, where=np.abs(total) > 0.5)
