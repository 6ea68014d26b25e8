"""Streams of batches in which half of the tasks come more often than the other half: what the sample of tasks does.

The progress of an optimizer is no mean over batches, so its interval comes from replications: in each, a random half of
the tasks has weight ``1 + SHIFT`` and the other half ``1 - SHIFT`` (Fay's modification of half-samples, which drops no
task and copies none), batches hold a task in proportion to its weight, and the variance over replications is that over
tasks times ``SHIFT ** 2``. Replications come in pairs with the halves exchanged, so that their mean is unweighted.

Source: Fay 1989; Judkins 1990 ("Fay's method for variance estimation").

Shapes: ``_N`` tasks, ``_K`` batches.
"""

from __future__ import annotations

import numpy as np

from rollonce.rollouts import FloatArray, IntArray

SHIFT = 0.8


def half_sample_weights(n_tasks: int, replication: int, rng_seed: list[int]) -> FloatArray:
    """Weights of one replication (N,), mean 1; replications 2k and 2k + 1 are each other's mirror."""
    rng = np.random.default_rng([*rng_seed, replication // 2])
    weights_N = np.full(n_tasks, 1 - SHIFT)
    weights_N[rng.permutation(n_tasks)[: n_tasks // 2]] = 1 + SHIFT
    return 2 - weights_N if replication % 2 else weights_N


def draw_weighted_orders(weights_N: FloatArray, n_batches: int, rng: np.random.Generator) -> IntArray:
    """Random orders of all tasks (K, N); the first B of one are a batch, each task in it in proportion to its weight.

    Systematic sampling with a random start over two shuffled groups: exact as long as the heavier group lasts, which
    it does for the first ``N / (1 + SHIFT)`` places.
    """
    n = len(weights_N)
    heavy, light = np.flatnonzero(weights_N > 1), np.flatnonzero(weights_N <= 1)
    share = (1 + SHIFT) / 2
    phase_K = rng.random((n_batches, 1))
    marks = np.floor(np.arange(n + 1) * share + phase_K)
    is_heavy = np.diff(marks, axis=1) > 0
    place = np.arange(n)
    heavy_so_far = np.cumsum(is_heavy, axis=1)
    is_heavy &= heavy_so_far <= len(heavy)
    heavy_so_far = np.cumsum(is_heavy, axis=1)
    # Once the lighter group is used up, what is left is heavy.
    is_heavy |= place + 1 - heavy_so_far > len(light)
    heavy_so_far = np.cumsum(is_heavy, axis=1)
    shuffled_heavy = rng.permuted(np.broadcast_to(heavy, (n_batches, len(heavy))), axis=1)
    shuffled_light = rng.permuted(np.broadcast_to(light, (n_batches, len(light))), axis=1)
    rows = np.arange(n_batches)[:, None]
    heavy_at = np.minimum(np.maximum(heavy_so_far - 1, 0), len(heavy) - 1)
    light_at = np.minimum(np.maximum(place - heavy_so_far, 0), len(light) - 1)
    return np.where(is_heavy, shuffled_heavy[rows, heavy_at], shuffled_light[rows, light_at])


__all__ = ["SHIFT", "draw_weighted_orders", "half_sample_weights"]
