"""Random batches of distinct tasks, the same ones for every baseline that is compared."""

from __future__ import annotations

import numpy as np
from numba import njit

from rollonce.rollouts import IntArray


@njit(cache=True)
def _shuffle_heads(n: int, uniform_KM: np.ndarray) -> np.ndarray:
    """The first M entries of K random permutations of range(n), in O(K M) time and O(n) memory (Fisher-Yates, undone
    after each)."""
    n_batches, m = uniform_KM.shape
    out = np.empty((n_batches, m), dtype=np.int64)
    order = np.arange(n)
    picked = np.empty(m, dtype=np.int64)
    for k in range(n_batches):
        for i in range(m):
            j = i + int(uniform_KM[k, i] * (n - i))
            picked[i] = j
            order[i], order[j] = order[j], order[i]
            out[k, i] = order[i]
        for i in range(m - 1, -1, -1):
            j = picked[i]
            order[i], order[j] = order[j], order[i]
    return out


def draw_columns(n_tasks: int, n_columns: int, n_batches: int, rng: np.random.Generator) -> IntArray:
    """K batches of M distinct positions out of N (K, M): the first B are a batch, the rest a window of other tasks."""
    return _shuffle_heads(n_tasks, rng.random((n_batches, n_columns)))
