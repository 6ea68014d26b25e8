"""The published example kernel: ``w_ij = exp(cos(x_i, x_j) / T)`` (post "You Only Rollout Once", appendix B; T = 0.1 on
word TF-IDF)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature
from rollonce.features.tfidf import Tfidf
from rollonce.kernels.base import BoolArray, Kernel, pairwise_similarity
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Softmax(Kernel):
    """Exponential of the inner product of two tasks' features over a temperature.

    Args:
        feature: Rows of unit length make the inner product a cosine (TF-IDF and embeddings are).
        temperature: T > 0. T -> infinity is the leave-one-out mean; T -> 0 the nearest neighbour (ties share).
    """

    type: ClassVar[str] = "softmax"
    symbols: ClassVar[dict[str, str]] = {"temperature": "T"}
    feature: Feature = field(default_factory=Tfidf)
    temperature: float = 0.1

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise InputError(f"softmax temperature must be above 0, not {self.temperature}")

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        s = pairwise_similarity(self.feature, tasks, rows_KB, columns_KM)
        if self.temperature < 1e-6:  # differences of rounding size are ties, which share, rather than a winner
            s = np.round(s, 9)
        return s / max(self.temperature, 1e-100)  # smaller ones would overflow, and mean the same

    def compute_covariance(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray) -> FloatArray:
        """``exp((cos - 1) / T)``: positive semi-definite, and 1 for a task with itself where rows have unit length."""
        return np.exp((pairwise_similarity(self.feature, tasks, rows_KB, columns_KM) - 1) / self.temperature)
