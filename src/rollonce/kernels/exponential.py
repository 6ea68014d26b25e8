"""Exponential (Laplacian, Matern 1/2) kernel: falls off linearly near 0, so that near neighbours matter more than under
an RBF."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature
from rollonce.features.tfidf import Tfidf
from rollonce.kernels.base import (
    FULL_MATRIX_UP_TO,
    BoolArray,
    Kernel,
    look_up_pair_blocks,
    pairwise_similarity,
    shared_pair_table,
)
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Exponential(Kernel):
    """``w_ij = exp(-|x_i - x_j| / l)``, a covariance for either metric.

    Args:
        feature: Dense for ``cityblock``.
        length_scale: ``l`` in the feature's unit.
        metric: ``euclidean`` or ``cityblock`` (the sum of absolute differences).

    Source: Rasmussen and Williams 2006, section 4.2 (Ornstein-Uhlenbeck).
    """

    type: ClassVar[str] = "exponential"
    symbols: ClassVar[dict[str, str]] = {"length_scale": "l"}
    feature: Feature = field(default_factory=Tfidf)
    length_scale: float = 1.0
    metric: Literal["euclidean", "cityblock"] = "euclidean"

    def __post_init__(self) -> None:
        if not self.length_scale > 0:
            raise InputError(f"exponential length_scale must be above 0, not {self.length_scale}")
        if self.metric not in ("euclidean", "cityblock"):
            raise InputError(f"exponential metric must be 'euclidean' or 'cityblock', not {self.metric!r}")

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        if self.metric == "cityblock":
            d = self._cityblock_distances(tasks, rows_KB, columns_KM)
        else:
            d2 = pairwise_similarity(self.feature, tasks, rows_KB, columns_KM, squared_distance=True)
            d = np.sqrt(np.where(d2 < 1e-10, 0.0, d2))  # the root would blow up rounding between equal rows
        return d / -max(self.length_scale, 1e-100)

    def _cityblock_distances(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray) -> FloatArray:
        matrix = self.feature.transform_tasks(tasks)
        if not isinstance(matrix, np.ndarray):
            raise InputError(f"the cityblock metric needs a dense feature; {self.feature.type!r} is sparse")
        n = len(tasks)
        if n <= FULL_MATRIX_UP_TO and rows_KB.size * columns_KM.shape[1] > n**2 // 4:
            cache, key = tasks.root._cache, ("table", self.feature.matrix_cache_key, "cityblock")
            if tasks.index_N is None:
                if key not in cache:
                    cache[key] = _sum_of_differences(matrix, matrix)
                return look_up_pair_blocks(cache[key], rows_KB, columns_KM)
        if len(rows_KB) == 1:
            r, c = rows_KB[0], columns_KM[0]
            name = (self.feature.matrix_cache_key, "cityblock")
            return shared_pair_table(tasks, name, lambda: _sum_of_differences(matrix[r], matrix[c]))[None]
        return np.stack([_sum_of_differences(matrix[r], matrix[c]) for r, c in zip(rows_KB, columns_KM, strict=True)])


def _sum_of_differences(left: FloatArray, right: FloatArray) -> FloatArray:
    out = np.zeros((len(left), len(right)))
    for a, b in zip(left.T, right.T, strict=True):
        out += np.abs(a[:, None] - b)
    return out
