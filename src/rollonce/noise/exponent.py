"""How a rollout's squared gradient norm grows with its surprisal, measured: what `score` needs to predict a step.

``log |g|^2 = constant + exponent * log S`` by least squares over rollouts, with ``S = -log pi(rollout)``; the exponent
lies between 1 (the tokens' scores add up incoherently) and 2 (they point the same way) and belongs to a policy, so it
is measured and never assumed. docs/mathematics.md, "What a step feels".

Shapes: ``_R`` rollouts in task order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollonce.errors import InputError
from rollonce.rollouts import FloatArray, IntArray
from rollonce.scoring import Estimate

_RESAMPLES = 200


class SurprisalExponent(NamedTuple):
    """The power of the surprisal that a squared gradient norm follows, in one metric.

    Attributes:
        metric: ``plain``, or ``adam``: every parameter in units of its own root mean square gradient.
        exponent: With its 95% interval over tasks.
        correlation: Of the two logarithms.
        rest: Standard deviation of what the power leaves of ``log |g|^2``; ``total``: before.
        right_over_wrong: What it leaves between rollouts above and below the mean reward: the difference of the mean
            of ``log |g|^2`` (nats), 0 if surprisal says it all.
        between_rewards: The power between rollouts above and below the mean reward: the difference of their mean
            ``log |g|^2`` over that of their mean ``log S``. What norm-weighted baselines take; NaN where the surprisals
            do not differ.
        n_rollouts: Behind it.
    """

    metric: str
    exponent: Estimate
    correlation: float
    rest: float
    total: float
    right_over_wrong: Estimate
    between_rewards: Estimate
    n_rollouts: int


def fit_surprisal_exponent(
    squared_norms_R: FloatArray,
    surprisals_R: FloatArray,
    rewards_R: FloatArray,
    task_R: IntArray,
    *,
    metric: str = "plain",
    seed: int = 0,
) -> SurprisalExponent:
    """Fit the exponent, with intervals from resampling tasks.

    Args:
        squared_norms_R: ``|g|^2`` of each rollout.
        surprisals_R: ``-log pi`` of each rollout, in nats.
        rewards_R: Their rewards.
        task_R: The task of each.
        metric: A name for the result.
        seed: Of the resampling.

    Raises:
        InputError: fewer than 20 rollouts with a positive norm and surprisal, or surprisals all equal.
    """
    used = (squared_norms_R > 0) & (surprisals_R > 0) & np.isfinite(surprisals_R)
    if used.sum() < 20 or np.ptp(np.log(surprisals_R[used])) < 1e-9:
        raise InputError(
            f"the exponent of the surprisal needs at least 20 rollouts with a gradient and different surprisals; here "
            f"are {int(used.sum())}"
        )
    x, y = np.log(surprisals_R[used]), np.log(squared_norms_R[used])
    good, task = rewards_R[used] > rewards_R[used].mean(), task_R[used]
    slope, gap, power = _fit_slope_and_gaps(x, y, good)
    rest = y - y.mean() - slope * (x - x.mean())
    rng = np.random.default_rng([seed, 51])
    tasks = np.unique(task)
    rows_of = {t: np.flatnonzero(task == t) for t in tasks}
    draws = []
    for _ in range(_RESAMPLES):
        at = np.concatenate([rows_of[t] for t in rng.choice(tasks, len(tasks))])
        draws.append(_fit_slope_and_gaps(x[at], y[at], good[at]))
    low, high = _interval_percentiles(np.array(draws))
    return SurprisalExponent(
        metric=metric,
        exponent=Estimate(slope, float(low[0]), float(high[0])),
        correlation=float(np.corrcoef(x, y)[0, 1]),
        rest=float(rest.std()),
        total=float(y.std()),
        right_over_wrong=Estimate(gap, float(low[1]), float(high[1])),
        between_rewards=Estimate(power, float(low[2]), float(high[2])),
        n_rollouts=int(used.sum()),
    )


def _interval_percentiles(draws: FloatArray) -> FloatArray:
    """The ends of 95% intervals (2, columns); NaN for a column that no draw has."""
    known = np.isfinite(draws).any(axis=0)
    out = np.full((2, draws.shape[1]), np.nan)
    out[:, known] = np.nanpercentile(draws[:, known], [2.5, 97.5], axis=0)
    return out


def _fit_slope_and_gaps(x: FloatArray, y: FloatArray, good: np.ndarray) -> tuple[float, float, float]:
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / max(float(centred @ centred), 1e-300))
    rest = y - slope * x
    if not good.any() or good.all():
        return slope, float("nan"), float("nan")
    gap = float(rest[good].mean() - rest[~good].mean())
    apart = float(x[good].mean() - x[~good].mean())
    return slope, gap, slope + gap / apart if abs(apart) > 1e-9 else float("nan")


ROLLOUTS_AT_ONCE = 1024


def adam_squared_norms(coordinates_RD: np.ndarray, n_parameters: int) -> FloatArray:
    """``|g|^2`` with every parameter in units of its own root mean square gradient, from D random parameters of P (R,).

    A parameter whose gradient is below 1e-4 of the typical one counts in units of that floor.
    """
    # A stretch of the rollouts at a time: in float64 all of them at once would take several times their own memory.
    stretches = np.array_split(coordinates_RD, max(1, len(coordinates_RD) // ROLLOUTS_AT_ONCE))
    sums = [np.square(part, dtype=np.float64).sum(axis=0) for part in stretches]
    mean_D = np.sum(sums, axis=0) / len(coordinates_RD)
    scale_D = np.sqrt(mean_D)
    scale_D += max(1e-4 * float(np.sqrt(mean_D.mean())), 1e-150)
    squares_R = np.concatenate([np.square(part, dtype=np.float64) @ (1 / scale_D**2) for part in stretches])
    return squares_R * (n_parameters / coordinates_RD.shape[1])


__all__ = ["SurprisalExponent", "adam_squared_norms", "fit_surprisal_exponent"]
