"""The k nearest visible neighbours, equally weighted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature
from rollonce.features.tfidf import Tfidf
from rollonce.kernels.base import AllOrNothing, BoolArray, pairwise_similarity
from rollonce.rollouts import IntArray, Tasks


@register
@dataclass
class Nearest(AllOrNothing):
    """Weight 1 for the ``k`` visible columns nearest in Euclidean distance, 0 for the rest; ties with the k-th all
    count.

    Since ties count, the result does not depend on the order of the rows, and identical prompts give the plain mean.
    For features of unit length this is the order of cosine similarity.
    """

    type: ClassVar[str] = "nearest"
    title: ClassVar[str] = "kNN"
    symbols: ClassVar[dict[str, str]] = {"k": "k"}
    pairwise: ClassVar[bool] = False
    feature: Feature = field(default_factory=Tfidf)
    k: int = 8

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"nearest k must be at least 1, not {self.k}")

    def columns_that_count(
        self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray
    ) -> BoolArray:
        """(K, B, M): whether the column is among the row's neighbours."""
        d2 = np.where(
            visible_KBM, pairwise_similarity(self.feature, tasks, rows_KB, columns_KM, squared_distance=True), np.inf
        )
        k = min(self.k, d2.shape[-1])
        kth = np.partition(d2, k - 1, axis=-1)[..., k - 1 : k]
        with np.errstate(invalid="ignore"):
            near = d2 <= kth + 1e-9 * (1 + np.abs(kth))
        return near & visible_KBM
