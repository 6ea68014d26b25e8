"""Rewards that differ by rounding alone: trainers add up reward components in float32, some in half precision, so that
0.7 + 0.2 and 0.8 + 0.1 come out as two numbers. The one place that says when rewards are equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: The largest rounding of a number of size 1 that is looked for.
COARSEST = 2.0**-7


def estimate_rounding_size(rewards: FloatArray) -> float:
    """How far apart rounding alone can set two of these rewards: a few units in the last place of the precision that
    they were made in, which is the lowest that holds all of them exactly.

    Half precision (bfloat16, float16) is assumed only where some value is no short decimal, as 0.8984375 for 0.9:
    scores such as 200 and 201 are exact in any precision and differ.
    """
    if not len(rewards):
        return 0.0
    size = float(np.abs(rewards).max())
    with np.errstate(over="ignore"):
        single = rewards.astype(np.float32)
        if not np.array_equal(single, rewards):
            return max(1e-8 * size, 1e-12)
        short = np.array_equal(np.round(rewards, 4), rewards)
        if not short and not (single.view(np.uint32) & 0xFFFF).any():  # bfloat16 is the upper half of a float32
            return COARSEST * size
        if not short and np.array_equal(single.astype(np.float16), rewards):
            return 2.0**-9 * size
    return max(2.0**-21 * size, 2.0**-22)


def rewards_are_equal(rewards: FloatArray) -> bool:
    """Whether these rewards are all the same number, but for rounding.

    >>> rewards_are_equal(np.array([np.float32(0.7) + np.float32(0.2), np.float32(0.8) + np.float32(0.1)], dtype=float))
    True
    >>> rewards_are_equal(np.array([0.9, 0.901]))
    False
    """
    if len(rewards) < 2:
        return True
    spread = float(np.ptp(rewards))
    return spread == 0.0 or spread <= estimate_rounding_size(rewards)
