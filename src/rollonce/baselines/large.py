"""Kernel baselines for batches too large for a (B, B + H) table of float64: the same sums, a block of rows at a time,
in float32.

A batch of 4,096 with 65,536 rows of history has 285 million pairs. Here they are formed 256 rows at a time and reduced
at once to ``sum w r`` and ``sum w``, so memory stays near that of the features. Stated tolerance: ``|b - b64| <= 1e-4``
times the rewards' range. Kernels that only ask "same bucket?" need no pairs at all: sums per bucket are enough, and
exact.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rollonce.features.sparse import SparseRows
from rollonce.kernels import Buckets, Kernel, Nearest, Rbf, Same, Softmax, Uniform
from rollonce.rollouts import FloatArray, IntArray, Tasks

# Above this many pairs (a 4 MB table of float64 each) the blocked path is taken.
LARGE = 8_000_000
_ROWS, _COLUMNS = 256, 65_536
_SPARSE_ROWS = 32
# A term in more than this share of the rows is multiplied densely, the rest by their lists of rows.
_COMMON = 1 / 16


def predict_large_batch(
    kernel: Kernel, tasks: Tasks, *, n_rows: int, rewards_M: FloatArray, recency_M: FloatArray, shrinkage: float
) -> tuple[FloatArray, np.ndarray]:
    """``b`` (B,) and whether a row saw anything (B,), for a kernel-weighted mean over batch and window.

    Args:
        kernel: The kernel.
        tasks: Batch and window (M,), the batch first.
        n_rows: B.
        rewards_M: Their rewards.
        recency_M: ``decay ** age`` of each.
        shrinkage: Share of the leave-one-out mean.
    """
    own = np.arange(n_rows)
    plain_below = recency_M.sum() - recency_M[own]
    plain = np.divide(
        recency_M @ rewards_M - recency_M[own] * rewards_M[own],
        plain_below,
        out=np.zeros(n_rows),
        where=plain_below > 0,
    )
    if isinstance(kernel, Uniform):
        return plain, plain_below > 0
    codes = _bucket_or_family_codes(kernel, tasks)
    if codes is not None:
        below = np.bincount(codes, weights=recency_M)[codes[own]] - recency_M[own]
        above = np.bincount(codes, weights=recency_M * rewards_M)[codes[own]] - recency_M[own] * rewards_M[own]
        alone = np.bincount(codes)[codes[own]] == 1
    else:
        below, above = _weighted_sums_by_block(kernel, tasks, n_rows, rewards_M, recency_M)
        alone = ~(below > 0)
    mean = np.where(alone, plain, np.divide(above, below, out=np.zeros(n_rows), where=below > 0))
    return (1 - shrinkage) * mean + shrinkage * plain, plain_below > 0


def _bucket_or_family_codes(kernel: Kernel, tasks: Tasks) -> IntArray | None:
    """An integer per row, equal within a bucket or family; None for other kernels."""
    if isinstance(kernel, Buckets):
        value = np.asarray(kernel.feature.transform_tasks(tasks))[:, 0]
        return np.searchsorted(np.quantile(value, np.arange(1, kernel.n) / kernel.n), value, side="left")
    if isinstance(kernel, Same):
        return np.unique(np.asarray(kernel.feature.transform_tasks(tasks)), axis=0, return_inverse=True)[1].reshape(-1)
    return None


def _weighted_sums_by_block(
    kernel: Kernel, tasks: Tasks, n_rows: int, rewards_M: FloatArray, recency_M: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """``sum_j w_ij`` and ``sum_j w_ij r_j`` (B,), up to a common factor a row."""
    if isinstance(kernel, Nearest):
        return _sums_over_nearest(kernel, tasks, n_rows, rewards_M, recency_M)
    blocks = _make_log_weight_blocks(kernel, tasks)
    with np.errstate(divide="ignore"):
        log_recency = np.log(recency_M).astype(np.float32)
    # Rewards around their mean, so that float32 sums lose nothing of a large common offset.
    centre = float(rewards_M.mean())
    right = np.stack([np.ones(len(rewards_M)), rewards_M - centre], axis=1).astype(np.float32)
    decays = bool((recency_M != 1).any())

    def sums_of_row_block(start: int) -> FloatArray:
        rows = np.arange(start, min(start + blocks.n_rows, n_rows))
        out = np.zeros((len(rows), 2))
        for columns in blocks.make_column_slices(len(rewards_M)):
            log_w = blocks(rows, columns)
            if decays:
                log_w += log_recency[columns]
            own = np.flatnonzero((rows >= columns.start) & (rows < columns.stop))
            log_w[own, rows[own] - columns.start] = -np.inf
            if not blocks.bounded:  # then a slice is a whole row, and its maximum can be taken out
                top = log_w.max(axis=1, keepdims=True)
                log_w -= np.where(np.isfinite(top), top, 0)
            out += np.exp(log_w, out=log_w) @ right[columns]
        return out

    total = np.concatenate(_map_over_threads(sums_of_row_block, range(0, n_rows, blocks.n_rows), blocks.threads))
    return total[:, 0], total[:, 1] + total[:, 0] * centre


def _map_over_threads(f: Callable[[int], Any], starts: range, threads: int) -> list[Any]:
    if threads == 1:
        return [f(s) for s in starts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(f, starts))


def _number_of_threads() -> int:
    """Threads for what runs outside the linear-algebra library: what it was told to use, or two."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(int(told), 8)) if told.isdigit() else 2


class _Blocks:
    """Float32 log weights of some rows over some columns.

    Attributes:
        bounded: Log weights stay within +-40, so that exp needs no shift and columns can come in slices.
        n_rows: Rows in a block.
        threads: Over which blocks may be spread: 1 where a matrix product, with threads of its own, dominates.
    """

    def __init__(
        self,
        function: Callable[[IntArray, slice], Any],
        *,
        bounded: bool,
        n_rows: int = _ROWS,
        threads: int | None = None,
    ) -> None:
        self.function, self.bounded, self.n_rows = function, bounded, n_rows
        self.threads = _number_of_threads() if threads is None else threads

    def __call__(self, rows: IntArray, columns: slice) -> Any:
        return self.function(rows, columns)

    def make_column_slices(self, n: int) -> list[slice]:
        """Slices that stay in cache where columns can come in slices; else everything at once."""
        return [slice(c, min(c + _COLUMNS, n)) for c in range(0, n, _COLUMNS)] if self.bounded else [slice(0, n)]


def _make_log_weight_blocks(kernel: Kernel, tasks: Tasks) -> _Blocks:
    if isinstance(kernel, Softmax) and kernel.temperature >= 1e-3:
        matrix = kernel.feature.transform_tasks(tasks)
        inner = _make_inner_products(matrix, 1 / kernel.temperature)
        if isinstance(matrix, SparseRows):  # rows of unit length: log weights lie in [0, 1 / T]
            return _Blocks(inner, bounded=False, n_rows=_SPARSE_ROWS)
        bound = float(np.einsum("nd,nd->n", matrix, matrix).max()) / kernel.temperature
        return _Blocks(inner, bounded=bound <= 40, threads=1)
    if isinstance(kernel, Rbf):
        matrix = kernel.feature.transform_tasks(tasks)
        if isinstance(matrix, np.ndarray) and matrix.shape[1] == 1:
            x = ((matrix[:, 0] - matrix.mean()) / (np.sqrt(2) * kernel.length_scale)).astype(np.float32)

            def single_number_log_weights(rows: IntArray, columns: slice) -> Any:
                d = np.subtract.outer(x[rows], x[columns])
                d *= d
                return np.negative(d, out=d)

            return _Blocks(single_number_log_weights, bounded=False, n_rows=_SPARSE_ROWS)
        half, inner = _squares_and_products(matrix, 1 / (2 * kernel.length_scale**2))

        def rbf_log_weights(rows: IntArray, columns: slice) -> Any:
            block = inner(rows, columns)
            block -= half[columns]
            block -= half[rows][:, None]
            return np.minimum(block, 0, out=block)

        return _Blocks(rbf_log_weights, bounded=False, threads=1)
    everything = np.arange(len(tasks))[None]

    def kernel_log_weights(rows: IntArray, columns: slice) -> Any:
        visible = rows[None, :, None] != everything[:, None, columns]
        return kernel.log_weights(tasks, rows[None], everything[:, columns], visible)[0].astype(np.float32)

    return _Blocks(kernel_log_weights, bounded=False)


def _squares_and_products(
    matrix: FloatArray | SparseRows, scale: float
) -> tuple[Any, Callable[[IntArray, slice], Any]]:
    """``scale |x|^2`` (M,) and a function for ``2 scale x y'``, in float32; dense features are centred first, which
    loses fewer digits."""
    if isinstance(matrix, SparseRows):
        rows = np.repeat(np.arange(len(matrix)), np.diff(matrix.indptr))
        squares = np.bincount(rows, weights=matrix.data**2, minlength=len(matrix))
    else:
        dense: FloatArray = matrix - matrix.mean(axis=0)
        matrix, squares = dense, (dense**2).sum(axis=1)
    return (squares * scale).astype(np.float32), _make_inner_products(matrix, 2 * scale)


def _sums_over_nearest(
    kernel: Nearest, tasks: Tasks, n_rows: int, rewards_M: FloatArray, recency_M: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Sums over the k nearest (ties with the k-th included, to 1e-5 of the distance)."""
    matrix = kernel.feature.transform_tasks(tasks)
    n, k, width = len(rewards_M), kernel.k, 64
    rows_at_once = _SPARSE_ROWS
    if isinstance(
        matrix, np.ndarray
    ):  # a whole number of groups of columns, the extra ones infinitely far: views rather than copies
        # With one more column, 1 against -|x|^2 / 2, the product itself orders a row's columns by distance.
        centred = (matrix - matrix.mean(axis=0)).astype(np.float32)
        extra = -n % width
        right = np.zeros((n + extra, matrix.shape[1] + 1), dtype=np.float32)
        right[:n, :-1], right[:n, -1] = centred, -(centred**2).sum(axis=1) / 2
        right[n:, -1] = -np.inf
        left, right_t = right.copy(), np.ascontiguousarray(right.T)
        left[:, -1] = 1
        n, rows_at_once = n + extra, _ROWS

        def closeness_to_columns(rows: IntArray) -> Any:
            return left[rows] @ right_t
    else:
        half, inner = _squares_and_products(matrix, 0.5)

        def closeness_to_columns(rows: IntArray) -> Any:
            block = inner(rows, slice(0, n))
            block -= half
            return block

    whole = n // width * width

    def sums_of_row_block(start: int) -> FloatArray:
        rows = np.arange(start, min(start + rows_at_once, n_rows))
        block = closeness_to_columns(rows)
        block[np.arange(len(rows)), rows] = -np.inf
        # The k largest lie in the k groups of columns with the largest maxima (and the ragged rest): no need to sort
        # 70,000 numbers. Column c is member c // n_groups of group c % n_groups: maxima over members then run along
        # memory.
        groups = block[:, :whole].reshape(len(rows), width, -1)
        n_groups = groups.shape[2]
        largest = groups.max(axis=1)
        best = np.argpartition(-largest, min(k, n_groups) - 1, axis=1)[:, :k]
        candidates = np.take_along_axis(groups, best[:, None, :], axis=2).reshape(len(rows), -1)
        candidates = np.concatenate([candidates, block[:, whole:]], axis=1)
        kth = -np.partition(-candidates, k - 1, axis=1)[:, k - 1 : k]
        enough = kth - 1e-5 * (1 + np.abs(kth))
        row_g, group = np.nonzero(largest >= enough)
        hit, member = np.nonzero(groups[row_g, :, group] >= enough[row_g])
        row_r, place_r = np.nonzero(block[:, whole:] >= enough)
        row, column = (
            np.concatenate([row_g[hit], row_r]),
            np.concatenate([member * n_groups + group[hit], whole + place_r]),
        )
        w = recency_M[column]
        return np.stack(
            [np.bincount(row, v, minlength=len(rows)).astype(np.float64) for v in (w, w * rewards_M[column])], axis=1
        )

    total = np.concatenate(
        _map_over_threads(
            sums_of_row_block,
            range(0, n_rows, rows_at_once),
            _number_of_threads() if isinstance(matrix, SparseRows) else 1,
        )
    )
    return total[:, 0], total[:, 1]


def _make_inner_products(matrix: FloatArray | SparseRows, scale: float) -> Callable[[IntArray, slice], Any]:
    """A function from rows and columns to ``scale * x_rows @ x_columns.T`` in float32 (sparse ones: all columns at
    once)."""
    if not isinstance(matrix, SparseRows):
        x = matrix.astype(np.float32)
        xt = np.ascontiguousarray(x.T)
        return lambda rows, columns: (x[rows] * np.float32(scale)) @ xt[:, columns]
    n, data = len(matrix), (matrix.data * np.sqrt(scale)).astype(np.float32)
    row_of = np.repeat(np.arange(n), np.diff(matrix.indptr))
    frequency = np.bincount(matrix.indices, minlength=matrix.n_columns)
    common = np.flatnonzero(frequency > n * _COMMON)
    place = np.full(matrix.n_columns, -1)
    place[common] = np.arange(len(common))
    dense = np.zeros((n, len(common)), dtype=np.float32)
    is_common = place[matrix.indices] >= 0
    dense[row_of[is_common], place[matrix.indices[is_common]]] = data[is_common]
    dense_t = np.ascontiguousarray(dense.T)
    rest = ~is_common
    row_rest, term_rest, data_rest = row_of[rest].astype(np.int32), matrix.indices[rest], data[rest]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row_rest, minlength=n))])
    order = np.argsort(term_rest, kind="stable")
    postings = np.concatenate([[0], np.cumsum(np.bincount(term_rest, minlength=matrix.n_columns))])
    posted_row, posted_data = row_rest[order], data_rest[order]
    add = _choose_rare_term_loop()

    def sparse_inner_products(rows: IntArray, columns: slice) -> Any:
        out = dense[rows] @ dense_t if len(common) else np.zeros((len(rows), n), dtype=np.float32)
        add(out, rows, indptr, term_rest, data_rest, postings, posted_row, posted_data)
        return out

    return sparse_inner_products


_compiled: Callable[..., None] | None = None


def _add_rare_term_products(
    out: Any, rows: Any, indptr: Any, terms: Any, data: Any, postings: Any, posted_row: Any, posted_data: Any
) -> None:
    for i in range(len(rows)):
        for a in range(indptr[rows[i]], indptr[rows[i] + 1]):
            x, t = data[a], terms[a]
            for p in range(postings[t], postings[t + 1]):
                out[i, posted_row[p]] += x * posted_data[p]


def _add_rare_term_products_numpy(
    out: Any, rows: Any, indptr: Any, terms: Any, data: Any, postings: Any, posted_row: Any, posted_data: Any
) -> None:
    for i, r in enumerate(rows):
        for a in range(indptr[r], indptr[r + 1]):
            at = slice(postings[terms[a]], postings[terms[a] + 1])
            out[i, posted_row[at]] += data[a] * posted_data[at]  # a term is in a row once, so no index comes twice


def _choose_rare_term_loop() -> Callable[..., None]:
    """The inner loop, compiled where numba is installed (as rollonce's own environment is; a trainer's may not be)."""
    global _compiled
    if _compiled is None:
        try:
            from numba import njit

            _compiled = njit(_add_rare_term_products, fastmath=True, nogil=True)
        except ImportError:
            _compiled = _add_rare_term_products_numpy
    return _compiled
