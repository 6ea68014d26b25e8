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
from rollonce.rollouts import IntArray, Tasks


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
        matrix = self.feature.transform_tasks(tasks)
        if not isinstance(matrix, np.ndarray) or matrix.shape[1] != 1:
            raise InputError(
                f"buckets need a feature of one number a task; {self.feature.type!r} gives {matrix.shape[1]}"
            )
        value_N = matrix[:, 0]
        value_KM, value_KB = value_N[columns_KM], value_N[rows_KB]
        edges = np.quantile(value_KM, np.arange(1, self.n) / self.n, axis=1)  # (n - 1, K)
        bucket_KM = (value_KM[None] > edges[:, :, None]).sum(axis=0)
        bucket_KB = (value_KB[None] > edges[:, :, None]).sum(axis=0)
        return bucket_KB[:, :, None] == bucket_KM[:, None, :]
