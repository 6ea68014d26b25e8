"""Rows of a sparse matrix in plain numpy, so that a fitted TF-IDF needs neither scipy nor scikit-learn inside a
trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollonce.rollouts import FloatArray, IntArray

_FEW_ROWS = 64
_MANY_ROWS, _RARE = 600, 0.03


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A compressed-sparse-row matrix: row n holds ``data[indptr[n]:indptr[n+1]]`` at columns ``indices[...]`` (sorted,
    unique).

    Attributes:
        indptr: (N + 1,) int64.
        indices: (nnz,) int32.
        data: (nnz,) float64.
        n_columns: D.
        exact: Every number is a multiple of 2**-24 (`round_for_exact_sums`), so that inner products of rows of squared
            length up to 32 are exact: the same bits whatever the order of the sum, and whatever else is computed with
            them.
    """

    indptr: IntArray
    indices: np.ndarray
    data: FloatArray
    n_columns: int
    exact: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, (N, D)."""
        return len(self.indptr) - 1, self.n_columns

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: IntArray | Sequence[int]) -> SparseRows:
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and (rows == np.arange(rows[0], rows[0] + len(rows))).all():  # a slice: nothing to gather
            first, last = rows[0], rows[-1] + 1
            a, z = self.indptr[first], self.indptr[last]
            indptr = self.indptr[first : last + 1] - a
            return replace(self, indptr=indptr, indices=self.indices[a:z], data=self.data[a:z])
        sizes = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        pick = np.repeat(self.indptr[rows] - indptr[:-1], sizes) + np.arange(indptr[-1])
        return replace(self, indptr=indptr, indices=self.indices[pick], data=self.data[pick])

    @staticmethod
    def stack_vertically(parts: Sequence[SparseRows]) -> SparseRows:
        """These matrices one below the other."""
        offsets = np.cumsum([0] + [p.indptr[-1] for p in parts])
        indptr = np.concatenate(
            [np.zeros(1, np.int64)] + [p.indptr[1:] + o for p, o in zip(parts, offsets[:-1], strict=True)]
        )
        return SparseRows(
            indptr,
            np.concatenate([p.indices for p in parts]),
            np.concatenate([p.data for p in parts]),
            parts[0].n_columns,
            all(p.exact for p in parts),
        )

    def with_rounded_numbers(self) -> SparseRows:
        """The same rows, each number rounded to the nearest multiple of 2**-24: see ``exact``."""
        return replace(self, data=round_for_exact_sums(self.data), exact=True)

    def to_dense(self) -> FloatArray:
        """(N, D) float64. Only for small matrices."""
        out = np.zeros(self.shape)
        out[np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices] = self.data
        return out

    def _gram_matrix_of_rows(self) -> FloatArray:
        """``self @ self.T``. Columns that occur in one row only add to the diagonal alone; of n-grams that is most of
        them. Of many rows, columns that few of them have are multiplied pair by pair."""
        n = len(self)
        # A table over all columns is quickest unless there are very many.
        place = self.indices if self.n_columns <= 1_000_000 else np.unique(self.indices, return_inverse=True)[1]
        size = np.bincount(place)
        common = size > (_RARE * n if n > _MANY_ROWS else 1)
        row, kept = np.repeat(np.arange(n), np.diff(self.indptr)), common[place]
        dense = np.zeros((n, int(common.sum())))
        dense[row[kept], (np.cumsum(common) - 1)[place[kept]]] = self.data[kept]
        out = dense @ dense.T
        if n <= _MANY_ROWS:
            out[np.diag_indices(n)] += np.bincount(row[~kept], self.data[~kept] ** 2, minlength=n)
            return out
        # All pairs within each rare column, the rows of a column end to end.
        at = np.flatnonzero(~kept)
        at = at[np.argsort(place[at], kind="stable")]
        row, data, partners = row[at], self.data[at], size[place[at]]
        first = np.cumsum(np.bincount(place[at], minlength=len(size))) - np.where(common, 0, size)
        right = np.repeat(first[place[at]] - np.cumsum(partners) + partners, partners) + np.arange(partners.sum())
        cell = np.repeat(row * n, partners) + row[right]
        return out + np.bincount(cell, np.repeat(data, partners) * data[right], n * n).reshape(n, n)

    def _dot_in_any_order(self, other: SparseRows) -> FloatArray:
        """``self @ other.T`` for a few rows and many: columns that most rows have by a matrix product, all others pair
        by pair."""
        n, m = len(self), len(other)
        if n > _FEW_ROWS:
            parts = [self[np.arange(i, min(i + _FEW_ROWS, n))] for i in range(0, n, _FEW_ROWS)]
            return np.concatenate([part._dot_in_any_order(other) for part in parts])
        size_left, size_right = (np.bincount(r.indices, minlength=self.n_columns) for r in (self, other))
        pairs = size_left * size_right
        common = pairs > n * m / 256
        width = int(common.sum())
        place = np.where(common, np.cumsum(common) - 1, width)
        dense = []
        for rows in (self, other):
            flat = np.zeros(len(rows) * (width + 1))  # the rest goes to a last column, which is left out
            flat[np.repeat(np.arange(len(rows)) * (width + 1), np.diff(rows.indptr)) + place[rows.indices]] = rows.data
            dense.append(flat.reshape(len(rows), width + 1)[:, :width])
        out = dense[0] @ dense[1].T
        rare = (pairs > 0) & ~common
        left, right = np.flatnonzero(rare[self.indices]), np.flatnonzero(rare[other.indices])
        left = left[np.argsort(self.indices[left], kind="stable")]
        columns = other.indices[right]
        times, first = size_left[columns], (np.cumsum(np.where(rare, size_left, 0)) - size_left)[columns]
        right_of_pair = np.repeat(right, times)
        of_right = np.arange(len(right_of_pair)) - np.repeat(np.cumsum(times) - times, times)
        left_of_pair = left[np.repeat(first, times) + of_right]
        row_left, row_right = (np.repeat(np.arange(len(r)), np.diff(r.indptr)) for r in (self, other))
        cell = row_left[left_of_pair] * m + row_right[right_of_pair]
        return out + np.bincount(cell, self.data[left_of_pair] * other.data[right_of_pair], n * m).reshape(n, m)

    def dot_with_transposed(self, other: SparseRows) -> FloatArray:
        """``self @ other.T`` as a dense (N, M) float64 array.

        Both are first written densely over the columns that occur in ``self``, in chunks of rows of ``other``; with N
        rows of about 60 terms that is a small matrix product, and it needs numpy alone.
        """
        if other is self:
            return self._gram_matrix_of_rows()
        if self.exact and other.exact:
            return self._dot_in_any_order(other)
        # A lookup table over all columns is quickest unless there are very many; then a search among the few that
        # occur.
        lookup = self.n_columns <= 200_000
        if lookup:
            seen = np.zeros(self.n_columns, dtype=bool)
            seen[self.indices] = True
            columns = np.flatnonzero(seen)
            place = np.zeros(self.n_columns, dtype=np.int64)
            place[columns] = np.arange(len(columns))
            inverse = place[self.indices]
        else:
            columns, inverse = np.unique(self.indices, return_inverse=True)
        left = np.zeros((len(self), len(columns)))
        left[np.repeat(np.arange(len(self)), np.diff(self.indptr)), inverse] = self.data
        out = np.zeros((len(self), len(other)))
        if not len(columns):
            return out
        chunk = max(64, int(2_000_000 // len(columns)))
        for start in range(0, len(other), chunk):
            stop = min(start + chunk, len(other))
            a, z = other.indptr[start], other.indptr[stop]
            indices = other.indices[a:z]
            if lookup:
                at, known = place[indices], seen[indices]  # type: ignore[possibly-undefined]
            else:
                at = np.minimum(np.searchsorted(columns, indices), len(columns) - 1)
                known = columns[at] == indices
            row = np.repeat(np.arange(stop - start), np.diff(other.indptr[start : stop + 1]))
            right = np.zeros((stop - start, len(columns)))
            right[row[known], at[known]] = other.data[a:z][known]
            out[:, start:stop] = left @ right.T
        return out


def round_for_exact_sums(numbers: FloatArray) -> FloatArray:
    """To the nearest multiple of 2**-24: sums of products of such numbers, up to 32 in all, are exact in float64."""
    return np.rint(numbers * 2.0**24) * 2.0**-24
