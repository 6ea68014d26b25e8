"""Intervals on the mean of n bounded paired differences. Hoeffding decides; the others stand beside it.

All take differences scaled to [0, 1] or say the range. Two-sided, level 1 - alpha.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rollonce.rollouts import FloatArray
from rollonce.tuning.power import interval_half_width


class Interval(NamedTuple):
    """An estimate and its two ends, in the unit of the differences."""

    value: float
    low: float
    high: float


def hoeffding_interval(differences_N: FloatArray, low: float, high: float, alpha: float) -> Interval:
    """``mean +- R sqrt(ln(2 / alpha) / (2 n))``, R = high - low (Hoeffding 1963). No assumption but independence and
    the bounds."""
    mean = float(differences_N.mean())
    width = interval_half_width("hoeffding", len(differences_N), alpha, 0.0, span=high - low)
    return Interval(mean, mean - width, mean + width)


def empirical_bernstein_interval(differences_N: FloatArray, low: float, high: float, alpha: float) -> Interval:
    """Maurer & Pontil 2009, theorem 4, both sides with alpha / 2; uses the differences' measured variance (ddof =
    1)."""
    n, mean = len(differences_N), float(differences_N.mean())
    if n < 2:
        return Interval(mean, low, high)
    width = interval_half_width("bernstein", n, alpha, float(differences_N.var(ddof=1)), span=high - low)
    return Interval(mean, max(mean - width, low), min(mean + width, high))


def betting_interval(differences_N: FloatArray, low: float, high: float, alpha: float, *, grid: int = 2000) -> Interval:
    """Hedged-capital interval by betting (Waudby-Smith & Ramdas 2023, theorem 3, predictable plug-in bets, c = 1/2).

    For each candidate mean m two gamblers bet that the mean is larger, or smaller; m is out once the larger
    half-capital reaches 1 / alpha at any time (Ville's inequality). Depends on the order of the items, which is that of
    the evaluation set and fixed beforehand. The ends are on a grid of ``high - low`` / ``grid``, rounded outwards.
    """
    x = (np.asarray(differences_N, dtype=np.float64) - low) / (high - low)
    n = len(x)
    t = np.arange(1, n + 1)
    # Running mean and variance with a prior observation each (1/2 and 1/4); the bet at t uses what was known at t - 1.
    mean_t = (0.5 + np.cumsum(x)) / (t + 1)
    variance_t = (0.25 + np.cumsum((x - mean_t) ** 2)) / (t + 1)
    variance_before = np.concatenate([[0.25], variance_t[:-1]])
    bet = np.sqrt(2 * np.log(2 / alpha) / (variance_before * n))
    m = np.linspace(0, 1, grid + 1)
    up, down = np.zeros(grid + 1), np.zeros(grid + 1)
    most = np.full(grid + 1, -np.inf)
    cap_up, cap_down = 0.5 / np.maximum(m, 1e-12), 0.5 / np.maximum(1 - m, 1e-12)
    for x_t, bet_t in zip(x, bet, strict=True):
        step = x_t - m
        up += np.log1p(np.minimum(bet_t, cap_up) * step)
        down += np.log1p(-np.minimum(bet_t, cap_down) * step)
        np.maximum(most, np.maximum(up, down), out=most)
    inside = np.flatnonzero(np.log(0.5) + most < np.log(1 / alpha))
    value = float(differences_N.mean())
    if len(inside) == 0:  # every candidate was out at some time: the mean moved within the items
        return Interval(value, value, value)
    first, last = max(inside[0] - 1, 0), min(inside[-1] + 1, grid)
    return Interval(value, low + float(m[first]) * (high - low), low + float(m[last]) * (high - low))


class McNemar(NamedTuple):
    """Items right in one arm only, and the exact two-sided p-value of "both as often"."""

    only_treatment: int
    only_baseline: int
    p_value: float


def exact_mcnemar_test(treatment_N: FloatArray, baseline_N: FloatArray) -> McNemar:
    """Exact McNemar test on 0/1 grades: the discordant items are Binomial(n, 1/2) if the arms are equal."""
    b = int(((treatment_N > 0.5) & (baseline_N <= 0.5)).sum())
    c = int(((treatment_N <= 0.5) & (baseline_N > 0.5)).sum())
    n, fewer = b + c, min(b, c)
    tail = sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n  # at most so few of the one kind
    return McNemar(b, c, min(1.0, 2 * tail))
