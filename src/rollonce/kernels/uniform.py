"""Every other rollout counts the same: the leave-one-out batch mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.kernels.base import BoolArray, Kernel
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Uniform(Kernel):
    """``w_ij = 1``: the leave-one-out mean of what is visible."""

    type: ClassVar[str] = "uniform"
    title: ClassVar[str] = "LOO"

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        return np.zeros((*rows_KB.shape, columns_KM.shape[1]))
