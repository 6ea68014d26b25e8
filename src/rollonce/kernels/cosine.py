"""The plain inner product as a weight and, above all, as a covariance for Kriging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.features.base import Feature
from rollonce.features.tfidf import Tfidf
from rollonce.kernels.base import BoolArray, Kernel, pairwise_similarity
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Cosine(Kernel):
    """``w_ij = max(0, <x_i, x_j>)``; for features of unit length the cosine. As a covariance the inner product
    itself."""

    type: ClassVar[str] = "cosine"
    feature: Feature = field(default_factory=Tfidf)

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(pairwise_similarity(self.feature, tasks, rows_KB, columns_KM), 0.0))

    def compute_covariance(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray) -> FloatArray:
        """(K, B, M) inner products, which may be negative."""
        return pairwise_similarity(self.feature, tasks, rows_KB, columns_KM)
