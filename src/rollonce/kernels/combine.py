"""Products and sums of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.kernels.base import BoolArray, Kernel, normalise_log_weights
from rollonce.rollouts import FloatArray, IntArray, Tasks


def _check_has_kernels(kernels: Sequence[Kernel], what: str) -> None:
    if not kernels or not all(isinstance(k, Kernel) for k in kernels):
        raise InputError(f"a {what} needs at least one kernel")


def _describe_kernel_parts(kernel: Product | Mixture) -> str:
    return f"{kernel.type}({' + '.join(k.describe() for k in kernel.kernels)})"


@register
@dataclass
class Product(Kernel):
    """``w_ij = prod_k w_ij^(k)``: near in every sense."""

    type: ClassVar[str] = "product"
    kernels: Sequence[Kernel] = ()

    def __post_init__(self) -> None:
        _check_has_kernels(self.kernels, "product")
        self.pairwise = all(k.pairwise for k in self.kernels)  # type: ignore[misc]

    def describe(self) -> str:
        return _describe_kernel_parts(self)

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        total = self.kernels[0].log_weights(tasks, rows_KB, columns_KM, visible_KBM)
        for kernel in self.kernels[1:]:
            total = total + kernel.log_weights(tasks, rows_KB, columns_KM, visible_KBM)
        return total

    def compute_covariance(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray) -> FloatArray:
        """(K, B, M) product of the parts' covariances (Schur: positive semi-definite if they are)."""
        return np.multiply.reduce([kernel.compute_covariance(tasks, rows_KB, columns_KM) for kernel in self.kernels])


@register
@dataclass
class Mixture(Kernel):
    """``w_ij = sum_k a_k w_ij^(k) / sum_l w_il^(k)``: each kernel's weights normalised over what is visible, then
    averaged.

    Args:
        kernels: The parts.
        shares: ``a_k >= 0``, not all zero; scaled to sum to 1.

    A part that has no weight for a row leaves its share to the others.
    """

    type: ClassVar[str] = "mixture"
    pairwise: ClassVar[bool] = False
    kernels: Sequence[Kernel] = ()
    shares: Sequence[float] = ()

    def __post_init__(self) -> None:
        _check_has_kernels(self.kernels, "mixture")
        if len(self.shares) != len(self.kernels) or min(self.shares) < 0 or sum(self.shares) <= 0:
            raise InputError(
                f"a mixture of {len(self.kernels)} kernels needs as many shares >= 0, not all zero; got "
                f"{list(self.shares)}"
            )

    def describe(self) -> str:
        return _describe_kernel_parts(self)

    def log_weights(self, tasks: Tasks, rows_KB: IntArray, columns_KM: IntArray, visible_KBM: BoolArray) -> FloatArray:
        total = np.zeros((*rows_KB.shape, columns_KM.shape[1]))
        for kernel, share in zip(self.kernels, self.shares, strict=True):
            if share > 0:
                log_w = kernel.log_weights(tasks, rows_KB, columns_KM, visible_KBM)
                total += share * normalise_log_weights(log_w, visible_KBM, fallback=False)
        with np.errstate(divide="ignore"):
            return np.log(total)
