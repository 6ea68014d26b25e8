"""Sums over what each row of a batch may see, for weights that depend on the pair of tasks alone.

For a row i of a batch, with ``f_j`` the factor of a column (recency) and ``w_ij`` a weight from an N x N table, the
closed form (`rollonce.scoring.closed_form`) needs

    sum_j f_j w_ij,     sum_j f_j w_ij m_j,     sum_j (f_j w_ij)^2 v_j     and, for shrinkage,     sum_j f_j^2 w_ij v_j.

They come in one of three ways, whichever is quickest:

* equal weights within classes (or of all): what the row's class adds up to, less what its own copies add;
* few tasks: how often each batch holds each task is a matrix (K, N), and the sums over columns are its products with
  the table;
* otherwise a compiled loop over pairs.

What a row may see says `rollonce.scoring.visibility`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rollonce.rollouts import FloatArray, IntArray

# An entry of a matrix product takes so much less time than a pair in the loop.
_PAIRS_PER_ENTRY = 1 / 16
# Products over so many entries take less time than loading the loop.
_FEW_ENTRIES = 30_000_000
_ENTRIES_AT_ONCE = 50_000  # of a table of batches and tasks: what fits the processor's cache


class SeenColumns(NamedTuple):
    """What K batches see, and the tasks' moments.

    Attributes:
        columns_KM: Positions of tasks, the batch's own ``n_rows`` first; copies of a task may be among them.
        n_rows: B.
        key_N: A number below N, equal where normalised prompts are equal.
        factor_M: Of each column, above 0; 1 for the batch.
        mean_N, v_N: Mean and biased variance of each task's rollouts.
    """

    columns_KM: IntArray
    n_rows: int
    key_N: IntArray
    factor_M: FloatArray
    mean_N: FloatArray
    v_N: FloatArray

    @property
    def rows_KB(self) -> IntArray:
        return self.columns_KM[:, : self.n_rows]

    @property
    def window_KH(self) -> IntArray:
        return self.columns_KM[:, self.n_rows :]

    @property
    def factor_H(self) -> FloatArray:
        return self.factor_M[self.n_rows :]

    @property
    def prompts_repeat(self) -> bool:
        """Whether two tasks have one normalised prompt."""
        return len(np.unique(self.key_N)) < len(self.key_N)


class PairSums(NamedTuple):
    """The four sums of every row of every batch (K, B) each; ``total`` is 0 exactly where there is nothing to add."""

    total: FloatArray
    first: FloatArray
    second: FloatArray
    mixed: FloatArray


def sums_of_equal_weights(seen: SeenColumns, class_KM: IntArray | None = None) -> PairSums:
    """With weight 1 for each column of the row's own class, 0 for others, in O(K (B + H + N)).

    Args:
        seen: What the batches see.
        class_KM: A number below N for each column, equal for copies of a task; all are of one class without it. Where
            two tasks have one prompt they must be of one class as well, or their own sums are wrong.
    """
    chunk = max(1, _ENTRIES_AT_ONCE // len(seen.key_N))
    parts = [
        _chunk_of_equal_weights(
            seen._replace(columns_KM=seen.columns_KM[start : start + chunk]),
            None if class_KM is None else class_KM[start : start + chunk],
        )
        for start in range(0, len(seen.columns_KM), chunk)
    ]
    return PairSums(*(np.concatenate(s) for s in zip(*parts, strict=True)))


def _chunk_of_equal_weights(seen: SeenColumns, class_KM: IntArray | None) -> PairSums:
    n, n_rows, rows_KB = len(seen.key_N), seen.n_rows, seen.rows_KB

    def class_sums_of(value_KM: FloatArray, columns: slice) -> FloatArray:
        if class_KM is None:
            return value_KM.sum(axis=1, keepdims=True)
        return _look_up(_counts_of_tasks(class_KM[:, columns], n, value_KM), class_KM[:, :n_rows])

    batch, window = slice(0, n_rows), slice(n_rows, None)
    copies_KB = _look_up(_counts_of_tasks(rows_KB, n), rows_KB)
    total = class_sums_of(np.ones(rows_KB.shape), batch) - copies_KB
    first = class_sums_of(seen.mean_N[rows_KB], batch) - copies_KB * seen.mean_N[rows_KB]
    second = class_sums_of(seen.v_N[rows_KB], batch) - copies_KB * seen.v_N[rows_KB]
    visible = total
    if seen.window_KH.shape[1]:
        key_KH, key_KB = seen.key_N[seen.window_KH], seen.key_N[rows_KB]

        def visible_sums_of(value_KH: FloatArray) -> FloatArray:
            return class_sums_of(value_KH, window) - _look_up(_counts_of_tasks(key_KH, n, value_KH), key_KB)

        in_window = visible_sums_of(np.ones(key_KH.shape))
        visible = total + in_window
        if (seen.factor_M == 1).all():
            total = visible
        else:
            total = total + visible_sums_of(np.broadcast_to(seen.factor_H, key_KH.shape))
        first = first + visible_sums_of(seen.factor_H * seen.mean_N[seen.window_KH])
        second = second + visible_sums_of(seen.factor_H**2 * seen.v_N[seen.window_KH])
    total, first, second = (np.where(visible > 0, s, 0.0) for s in (total, first, second))
    return PairSums(total, first, second, second)


def sums_from_table(table_NN: FloatArray, seen: SeenColumns, with_mixed: bool = True) -> PairSums:
    """With the weights of an N x N table; ``mixed`` may be anything where it is not asked for."""
    n_batches, n_columns = seen.columns_KM.shape
    pairs, entries = n_batches * seen.n_rows * n_columns, n_batches * len(table_NN) ** 2
    if entries <= max(_FEW_ENTRIES, pairs / _PAIRS_PER_ENTRY):
        return sums_by_products(table_NN, seen, with_mixed)
    from rollonce.scoring.pair_loop import sums_by_loop

    columns_KM = np.ascontiguousarray(seen.columns_KM)  # or the loop is compiled once more
    sums_KB4: Any = sums_by_loop(table_NN, columns_KM, *seen[1:])
    return PairSums(*(sums_KB4[:, :, i] for i in range(4)))


def sums_by_products(table_NN: FloatArray, seen: SeenColumns, with_mixed: bool = True) -> PairSums:
    """The sums by matrix products."""
    n, chunk = len(table_NN), max(1, _ENTRIES_AT_ONCE // len(table_NN))
    other_id_NN = np.where(np.eye(n, dtype=bool), 0.0, table_NN)
    other_prompt_NN = np.where(seen.key_N[:, None] == seen.key_N, 0.0, table_NN)
    out = [np.zeros(seen.rows_KB.shape) for _ in PairSums._fields]
    for start in range(0, len(seen.columns_KM), chunk):
        rows_KB, window_KH = seen.rows_KB[start : start + chunk], seen.window_KH[start : start + chunk]
        counts_KN = _counts_of_tasks(rows_KB, n)
        products = list(_products(other_id_NN, counts_KN, counts_KN, seen, with_mixed))
        if window_KH.size:
            factor_KH = np.broadcast_to(seen.factor_H, window_KH.shape)
            factors_KN, squares_KN = (_counts_of_tasks(window_KH, n, f) for f in (factor_KH, factor_KH**2))
            of_window = _products(other_prompt_NN, factors_KN, squares_KN, seen, with_mixed)
            products = [a + b for a, b in zip(products, of_window, strict=True)]
        place_KB = rows_KB + np.arange(len(rows_KB))[:, None] * n
        for total, sums_KN in zip(out, products, strict=False):
            sums_KN.take(place_KB, out=total[start : start + chunk])
    return PairSums(*out)


def _products(
    table_NN: FloatArray, factors_KN: FloatArray, squares_KN: FloatArray, seen: SeenColumns, with_mixed: bool
) -> Iterator[FloatArray]:
    """The sums (K, N) for every task as the row, from the sums of factors and of their squares by task."""
    spread_KN = squares_KN * seen.v_N
    yield factors_KN @ table_NN.T
    yield (factors_KN * seen.mean_N) @ table_NN.T
    yield spread_KN @ (table_NN**2).T
    if with_mixed:
        yield spread_KN @ table_NN.T


def _counts_of_tasks(task_KM: IntArray, n: int, weight_KM: FloatArray | None = None) -> FloatArray:
    """How often each batch holds each of n tasks, or the sum of these weights (K, n)."""
    place = (task_KM + np.arange(len(task_KM))[:, None] * n).ravel()
    weight = None if weight_KM is None else weight_KM.ravel()
    return np.bincount(place, weight, len(task_KM) * n).reshape(len(task_KM), n).astype(np.float64, copy=False)


def _look_up(table_KN: FloatArray, task_KB: IntArray) -> FloatArray:
    return table_KN.take(task_KB + np.arange(len(task_KB))[:, None] * table_KN.shape[1])


def runs_of_equal_sets(columns_KM: IntArray, n_tasks: int) -> tuple[IntArray, IntArray]:
    """Runs of batches that see the same tasks, in whatever order: the first batch of each, and the run of each
    batch."""
    # A sum of random numbers, which does not depend on the order, tells two collections of tasks apart.
    mark_N = np.random.default_rng(0).integers(2**63, size=n_tasks, dtype=np.uint64)
    mark_K = mark_N[columns_KM].sum(axis=1)
    begins_K = np.append(True, mark_K[1:] != mark_K[:-1])[: len(mark_K)]
    return np.flatnonzero(begins_K), np.cumsum(begins_K) - 1


__all__ = [
    "PairSums",
    "SeenColumns",
    "runs_of_equal_sets",
    "sums_by_products",
    "sums_from_table",
    "sums_of_equal_weights",
]
