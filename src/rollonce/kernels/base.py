"""A kernel says how much task j's reward should count for task i, from what is known before the rollouts.

Everything works on blocks: K batches at once, each with B rows (whose baseline is wanted) and M columns (whose rewards
are visible). One training batch is K = 1. Weights are handled as logarithms, so a temperature near zero neither
overflows nor loses the nearest neighbour.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from rollonce.component import Component
from rollonce.errors import InputError
from rollonce.features.base import Feature, tasks_from_prompts
from rollonce.features.sparse import SparseRows
from rollonce.rollouts import FloatArray, IntArray, Tasks

BoolArray = np.typing.NDArray[np.bool_]

# Up to this many tasks the full N x N similarity is computed once and looked up (33 MB); above it, per block.
FULL_MATRIX_UP_TO = 2048
_SHORT_ROWS, _PLACES_AT_ONCE = 128, 50_000


class Kernel(Component):
    """Base of all kernels: `log_weights` on blocks.

    ``pairwise`` kernels' weights depend on the pair (i, j) alone, so they can be looked up in an N x N table; others
    (k nearest, quantile buckets) depend on which rows are visible.
    """

    pairwise: ClassVar[bool] = True

    def fit(self, tasks: Sequence[str] | Tasks) -> Self:
        """Fit the features on prompts."""
        tasks = tasks_from_prompts(tasks)
        for child in self.nested_components().values():
            if isinstance(child, Feature | Kernel):
                child.fit(tasks)
        return self

    @abstractmethod
    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        """Log weights (K, B, M) of columns for rows, both given as positions in ``tasks``; ``-inf`` is no weight.

        ``visible_KBM`` is False where row i may not use column j (its own rollout above all). Pairwise kernels may
        ignore it, since the caller masks; kernels that choose among the visible rows must not.
        """

    def normalised_weights(
        self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray
    ) -> FloatArray:
        """Weights (K, B, M) that sum to 1 over what each row sees: its mean where no weight is left, and 0 where it
        sees nothing."""
        return normalise_log_weights(self.log_weights(tasks, rows_KB, columns_KM, visible_KBM), visible_KBM)

    def classes_of_columns(self, tasks: Tasks, columns_KM: IntArray) -> IntArray | None:
        """Where each batch's columns fall into classes, with weight 1 within a class and 0 between: the class of each
        column (K, M), a number from 0 to N - 1, equal for equal tasks. None for all other kernels. A scorer takes
        the errors from it alone: who changes the weights of such a kernel changes this."""
        return None

    def compute_covariance(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray) -> FloatArray:
        """The kernel as a positive semi-definite covariance (K, B, M), 1 for a task with itself; for Kriging.

        Raises:
            InputError: for kernels that are no covariance (k nearest, buckets, mixtures).
        """
        if not self.pairwise:
            raise InputError(
                f"a {self.type!r} kernel depends on which rows are visible and is no covariance; Kriging cannot use it"
            )
        visible = np.ones((*rows_KB.shape, columns_KM.shape[1]), dtype=bool)
        return np.exp(self.log_weights(tasks, rows_KB, columns_KM, visible))


class AllOrNothing(Kernel):
    """A kernel that chooses some of the visible columns for each row, all of one weight."""

    @abstractmethod
    def columns_that_count(
        self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray
    ) -> BoolArray:
        """Whether a column counts for a row (K, B, M); the caller masks what is not visible."""

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        """(K, B, M): 0 for what is chosen, -inf for the rest."""
        return np.where(self.columns_that_count(tasks, rows_KB, columns_KM, visible_KBM), 0.0, -np.inf)

    def normalised_weights(
        self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray
    ) -> FloatArray:
        """As of any kernel, without exponentials."""
        kept = self.columns_that_count(tasks, rows_KB, columns_KM, visible_KBM) & visible_KBM
        count = kept.sum(axis=2, keepdims=True)
        if not count.all():
            kept = np.where(count, kept, visible_KBM)
            count = kept.sum(axis=2, keepdims=True)
        return kept * (1 / np.maximum(count, 1))


def normalise_log_weights(log_w_KBM: FloatArray, visible_KBM: BoolArray, *, fallback: bool = True) -> FloatArray:
    """Weights (K, B, M) that sum to 1 over the visible columns of each row, from log weights.

    Args:
        fallback: Rows without any weight become the mean of the visible columns; otherwise they stay zero. A row that
            sees nothing stays zero either way.
    """
    log_w = np.where(visible_KBM, log_w_KBM, -np.inf)
    top = log_w.max(axis=-1, keepdims=True) if log_w.shape[-1] else np.full((*log_w.shape[:-1], 1), -np.inf)
    log_w -= np.where(np.isfinite(top), top, 0.0)
    w = np.exp(log_w, out=log_w)
    total = w.sum(axis=-1, keepdims=True)
    empty = ~(total > 0)
    if fallback and empty.any():
        w = np.where(empty, visible_KBM.astype(np.float64), w)
        total = w.sum(axis=-1, keepdims=True)
    return np.divide(w, total, out=w, where=total > 0)


def pairwise_similarity(
    feature: Feature, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, *, squared_distance: bool = False
) -> FloatArray:
    """Inner products (or squared Euclidean distances) of a feature's rows, (K, B, M).

    With up to `FULL_MATRIX_UP_TO` tasks the whole table is computed once and cached, where one block asks for all of it
    or many blocks for much of it; otherwise each block is computed on its own, so memory never grows with N squared.
    """
    n_blocks, n_rows = rows_KB.shape
    if (
        len(tasks) <= FULL_MATRIX_UP_TO
        and _is_block_of_all_tasks(tasks, rows_KB)
        and _is_block_of_all_tasks(tasks, columns_KM)
    ):
        return _cached_table_of_view(feature, tasks, squared_distance).copy()[None]
    if len(tasks) <= FULL_MATRIX_UP_TO and _is_table_worth_it(feature, tasks, n_blocks, n_rows * columns_KM.shape[1]):
        table = full_pairwise_table(feature, tasks, squared_distance=squared_distance)
        return look_up_pair_blocks(table, rows_KB, columns_KM)
    matrix = feature.transform_tasks(tasks)

    def similarity_of_block(k: int) -> FloatArray:
        left, right = matrix[rows_KB[k]], matrix[columns_KM[k]]
        if not squared_distance:
            return _inner_product_table(left, right)
        inner = pairwise_similarity(feature, tasks, rows_KB, columns_KM)[0] if _ONE_BLOCK in tasks.root._cache else None
        return _squared_distance_table(left, right, inner)

    if n_blocks == 1:
        return shared_pair_table(tasks, (feature.matrix_cache_key, squared_distance), lambda: similarity_of_block(0))[
            None
        ]
    return (
        np.stack([similarity_of_block(k) for k in range(n_blocks)])
        if n_blocks
        else np.empty((0, n_rows, columns_KM.shape[1]))
    )


_ONE_BLOCK = "pairs of one block"


def expect_one_block(tasks: Tasks) -> None:
    """Let kernels share what they compute of a feature: from here on these tasks are asked for one block of pairs
    only."""
    tasks.root._cache[_ONE_BLOCK] = {}


def shared_pair_table(tasks: Tasks, name: tuple[Any, ...], compute: Callable[[], FloatArray]) -> FloatArray:
    """A table of pairs (B, M); after `expect_one_block` it is computed once, and must not be written to."""
    blocks = tasks.root._cache.get(_ONE_BLOCK)
    if blocks is None:
        return compute()
    if name not in blocks:
        blocks[name] = compute()
    return blocks[name]


def look_up_pair_blocks(table_NN: FloatArray, rows_KB: IntArray, columns_KM: IntArray) -> FloatArray:
    """``table[rows, columns]`` of every pair, block by block (K, B, M)."""
    n_blocks, n_columns = columns_KM.shape
    out = np.empty((*rows_KB.shape, n_columns), dtype=table_NN.dtype)
    if n_columns > _SHORT_ROWS:
        for k in range(n_blocks):  # several times as fast as one index over all blocks
            table_NN.take(rows_KB[k], axis=0).take(columns_KM[k], axis=1, out=out[k])
        return out
    flat, width = table_NN.ravel(), table_NN.shape[1]
    chunk = max(1, _PLACES_AT_ONCE // max(1, rows_KB.shape[1] * n_columns))
    for start in range(0, n_blocks, chunk):
        rows, columns = rows_KB[start : start + chunk], columns_KM[start : start + chunk]
        flat.take((rows * width)[:, :, None] + columns[:, None, :], out=out[start : start + chunk], mode="clip")
    return out


def _is_table_worth_it(feature: Feature, tasks: Tasks, n_blocks: int, pairs_a_block: int) -> bool:
    """Whether the pairs asked for so far come to a quarter of all there are.

    Only calls for several blocks count towards that: a single block, a training batch, is computed the same way however
    often it comes.
    """
    asked = n_blocks * pairs_a_block
    if n_blocks > 1:
        cache, key = tasks.root._cache, ("asked", feature.matrix_cache_key)
        asked += cache.get(key, 0)
        cache[key] = asked
    return asked > len(tasks.root) ** 2 // 4


def _is_block_of_all_tasks(tasks: Tasks, places_KM: IntArray) -> bool:
    """Whether this is one block of all tasks in their order."""
    return places_KM.shape == (1, len(tasks)) and bool((places_KM[0] == np.arange(len(tasks))).all())


def _cached_table_of_view(feature: Feature, tasks: Tasks, squared_distance: bool) -> FloatArray:
    """The table of these tasks alone, kept as long as they are: several kernels of one feature ask for it in turn."""
    key = _cache_key_of_table(feature, squared_distance)
    if tasks.index_N is None or key in tasks.root._cache:
        return full_pairwise_table(feature, tasks, squared_distance=squared_distance)
    if key not in tasks._cache:
        inner_key = _cache_key_of_table(feature, False)
        matrix = feature.transform_tasks(tasks)
        if inner_key not in tasks._cache:
            tasks._cache[inner_key] = _inner_product_table(matrix, matrix)
        if squared_distance:
            tasks._cache[key] = _squared_distance_table(matrix, matrix, tasks._cache[inner_key])
    return tasks._cache[key]


def _cache_key_of_table(feature: Feature, squared_distance: bool) -> tuple[str, tuple[str, str], bool]:
    return "table", feature.matrix_cache_key, squared_distance


def full_pairwise_table(feature: Feature, tasks: Tasks, *, squared_distance: bool = False) -> FloatArray:
    """The whole N x N table of inner products or squared distances, cached with the tasks."""
    key, root = _cache_key_of_table(feature, squared_distance), tasks.root

    def compute_full_table(all_tasks: Tasks) -> FloatArray:
        matrix = feature.transform_tasks(all_tasks)
        if not squared_distance:
            return _inner_product_table(matrix, matrix)
        # Kernels of one feature often want both tables, and the products take most of the time.
        return _squared_distance_table(
            matrix, matrix, full_pairwise_table(feature, all_tasks) if isinstance(matrix, SparseRows) else None
        )

    if key not in root._cache:
        root._cache[key] = compute_full_table(root)
    table = root._cache[key]
    return table if tasks.index_N is None else table[np.ix_(tasks.index_N, tasks.index_N)]


def _inner_product_table(left: FloatArray | SparseRows, right: FloatArray | SparseRows) -> FloatArray:
    if isinstance(left, SparseRows):
        assert isinstance(right, SparseRows)
        return left.dot_with_transposed(right)
    assert isinstance(right, np.ndarray)
    return left @ right.T


def _squared_distance_table(
    left: FloatArray | SparseRows, right: FloatArray | SparseRows, inner: FloatArray | None = None
) -> FloatArray:
    if isinstance(left, np.ndarray) and left.shape[1] == 1 and isinstance(right, np.ndarray):
        return (left - right.T) ** 2  # exact, where the expanded form would lose digits
    squares = [_squared_row_lengths(m) for m in (left, right)]
    return np.maximum(
        squares[0][:, None] + squares[1][None, :] - 2 * (_inner_product_table(left, right) if inner is None else inner),
        0.0,
    )


def _squared_row_lengths(matrix: FloatArray | SparseRows) -> FloatArray:
    if isinstance(matrix, SparseRows):
        rows = np.repeat(np.arange(len(matrix)), np.diff(matrix.indptr))
        return np.bincount(rows, weights=matrix.data**2, minlength=len(matrix)).astype(np.float64)
    return (matrix * matrix).sum(axis=1)
