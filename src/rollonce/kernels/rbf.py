"""Gaussian (radial basis function) kernel on any feature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature
from rollonce.features.length import LogLength
from rollonce.kernels.base import BoolArray, Kernel, pairwise_similarity
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Rbf(Kernel):
    """``w_ij = exp(-|x_i - x_j|^2 / (2 l^2))`` with length scale ``l`` in the feature's unit."""

    type: ClassVar[str] = "rbf"
    title: ClassVar[str] = "RBF"
    symbols: ClassVar[dict[str, str]] = {"length_scale": "l"}
    feature: Feature = field(default_factory=LogLength)
    length_scale: float = 0.3

    def __post_init__(self) -> None:
        if not self.length_scale > 0:
            raise InputError(f"rbf length_scale must be above 0, not {self.length_scale}")

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        d2 = pairwise_similarity(self.feature, tasks, rows_KB, columns_KM, squared_distance=True)
        return d2 / (-2 * max(self.length_scale, 1e-100) ** 2)  # the square of a smaller one would underflow
