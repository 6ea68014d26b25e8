"""Tasks with the same value of a declared column ("family", "source", "level")."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.features.base import Feature
from rollonce.features.column import CategoryColumn
from rollonce.kernels.base import BoolArray, Kernel
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Same(Kernel):
    """Weight 1 where all columns of the feature are equal, 0 elsewhere; alone in its family, a row falls back to
    LOO."""

    type: ClassVar[str] = "same"
    feature: Feature = field(default_factory=CategoryColumn)

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        matrix = np.asarray(self.feature.transform_tasks(tasks))
        equal = (matrix[rows_KB][:, :, None, :] == matrix[columns_KM][:, None, :, :]).all(axis=-1)
        return np.where(equal, 0.0, -np.inf)

    def classes_of_columns(self, tasks: Tasks, columns_KM: IntArray) -> IntArray | None:
        """Tasks with equal columns are a class (K, M)."""
        matrix = np.asarray(self.feature.transform_tasks(tasks))
        if np.isnan(matrix).any():  # which is equal to nothing
            return None
        return np.unique(matrix, axis=0, return_inverse=True)[1].reshape(-1)[columns_KM]
