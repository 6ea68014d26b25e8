"""Quantile buckets of a number, as the post's prompt-length example: tasks in the same bucket count, others don't."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature
from rollonce.features.length import LogLength
from rollonce.kernels.base import AllOrNothing, BoolArray
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Buckets(AllOrNothing):
    """Weight 1 within the same quantile bucket of a one-column feature, over the rows in sight (batch plus window).

    Edges are the 1/n, 2/n ... quantiles (linear interpolation) of the values in sight, intervals closed on the right as
    in ``pandas.qcut``, so equal values share a bucket. The own prompt's value is known before the rollout and counts
    for the edges. A bucket of one has no weight left and falls back to the leave-one-out mean.

    Source: post "You Only Rollout Once", appendix B (5 buckets of log prompt length, this batch plus the previous 16).
    """

    type: ClassVar[str] = "buckets"
    symbols: ClassVar[dict[str, str]] = {"n": "n"}
    pairwise: ClassVar[bool] = False
    feature: Feature = field(default_factory=LogLength)
    n: int = 5

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"buckets n must be at least 1, not {self.n}")

    def columns_that_count(
        self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray
    ) -> BoolArray:
        """(K, B, M): whether the column is in the row's bucket. Rows must be among the columns."""
        value_N = self._value_of_tasks(tasks)
        edges = self._bucket_edges(value_N[columns_KM])
        bucket_KM, bucket_KB = ((value_N[at][None] > edges).sum(axis=0) for at in (columns_KM, rows_KB))
        return bucket_KB[:, :, None] == bucket_KM[:, None, :]

    def classes_of_columns(self, tasks: Tasks, columns_KM: IntArray) -> IntArray | None:
        """The bucket of each column (K, M)."""
        value_KM = self._value_of_tasks(tasks)[columns_KM]
        return (value_KM[None] > self._bucket_edges(value_KM)).sum(axis=0) if self.n <= len(tasks) else None

    def _bucket_edges(self, value_KM: FloatArray) -> FloatArray:
        """(n - 1, K, 1)."""
        return np.quantile(value_KM, np.arange(1, self.n) / self.n, axis=1)[:, :, None]

    def _value_of_tasks(self, tasks: Tasks) -> FloatArray:
        matrix = self.feature.transform_tasks(tasks)
        if not isinstance(matrix, np.ndarray) or matrix.shape[1] != 1:
            raise InputError(
                f"buckets need a feature of one number a task; {self.feature.type!r} gives {matrix.shape[1]}"
            )
        return matrix[:, 0]
