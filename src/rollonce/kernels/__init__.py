"""Kernels: how much another task's reward counts, from features. One file each."""

from rollonce.kernels.base import Kernel
from rollonce.kernels.buckets import Buckets
from rollonce.kernels.combine import Mixture, Product
from rollonce.kernels.cosine import Cosine
from rollonce.kernels.exponential import Exponential
from rollonce.kernels.nearest import Nearest
from rollonce.kernels.rbf import Rbf
from rollonce.kernels.same import Same
from rollonce.kernels.softmax import Softmax
from rollonce.kernels.uniform import Uniform

__all__ = [
    "Buckets",
    "Cosine",
    "Exponential",
    "Kernel",
    "Mixture",
    "Nearest",
    "Product",
    "Rbf",
    "Same",
    "Softmax",
    "Uniform",
]
