"""Learning curves: their level along the way, the area under them, and what it took to reach a level.

Between two evaluations a curve is a straight line. A run that ended badly keeps the level it ended with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from rollonce.comparison.intervals import mean_over_seeds
from rollonce.comparison.runs import FinishedRun
from rollonce.rollouts import FloatArray
from rollonce.scoring import Estimate


class CurvePoint(NamedTuple):
    """An arm at one evaluation: means over its seeds, the level with an interval over seeds (on these items)."""

    step: int
    rollouts: float
    seconds: float
    level: Estimate


class Reached(NamedTuple):
    """What an arm needed to reach a level.

    Runs that did not reach it are censored where they ended: it would have taken them longer, nobody knows how much.
        One that ended badly
    is not censored but never reaches it: to take it out of those at risk would flatter its arm.

    Attributes:
        n_reached, n_runs: How many did.
        median: Kaplan-Meier median over seeds; infinite if too few reached it.
        mean_within: Mean of ``min(needed, horizon)`` over seeds: known for every run, and comparable between arms.
        ratio: ``mean_within`` over the reference's, with an interval (see `ratio_of_means`); NaN for the reference.
    """

    n_reached: int
    n_runs: int
    median: float
    mean_within: Estimate
    ratio: Estimate


class Reach(NamedTuple):
    """The level, how it came about, and each arm's `Reached` in rollouts and in seconds up to the horizons."""

    level: float
    why: str
    rollout_horizon: float
    seconds_horizon: float
    rollouts: dict[str, Reached]
    seconds: dict[str, Reached]


def common_evaluation_steps(runs: Sequence[FinishedRun], kind: tuple[str, str]) -> np.ndarray:
    """Steps at which all runs that went to their end were evaluated; of all runs, if none did."""
    whole = [r for r in runs if not r.has_ended_badly] or list(runs)
    steps = set(whole[0].series[kind].at_E.tolist())
    for run in whole[1:]:
        steps &= set(run.series[kind].at_E.tolist())
    return np.array(sorted(steps), dtype=np.int64)


def item_levels_at_steps(run: FinishedRun, kind: tuple[str, str], steps_E: np.ndarray) -> FloatArray:
    """Levels of the items (E, I) at these steps; after a bad end, those it ended with."""
    series = run.series[kind]
    return series.levels_EI[np.maximum(np.searchsorted(series.at_E, steps_E, side="right") - 1, 0)]


def area_under_curve(run: FinishedRun, kind: tuple[str, str], steps_E: np.ndarray) -> FloatArray:
    """Mean level of each item (I,) over the steps, by the trapezoid rule; with one step, the level there."""
    levels = item_levels_at_steps(run, kind, steps_E)
    if len(steps_E) < 2:
        return levels[0]
    widths_E = np.diff(steps_E.astype(np.float64))
    return ((levels[1:] + levels[:-1]) / 2 * widths_E[:, None]).sum(axis=0) / widths_E.sum()


def make_learning_curve(
    runs: Sequence[FinishedRun], kind: tuple[str, str], steps_E: np.ndarray, clock: str
) -> list[CurvePoint]:
    """An arm's learning curve."""
    levels_SE = np.array([item_levels_at_steps(r, kind, steps_E).mean(axis=1) for r in runs])
    rollouts_SE = np.array([r.cumulative_total_at(r.metrics.rollouts_T, steps_E) for r in runs])
    seconds_SE = np.array([r.cumulative_total_at(r.metrics.cumulative_seconds_T(clock), steps_E) for r in runs])
    return [
        CurvePoint(
            int(step), float(rollouts_SE[:, k].mean()), float(seconds_SE[:, k].mean()), mean_over_seeds(levels_SE[:, k])
        )
        for k, step in enumerate(steps_E)
    ]


def first_reach_of_level(x_E: FloatArray, levels_E: FloatArray, level: float) -> tuple[float, bool]:
    """Where a curve first reaches a level, and True; or where it ends, and False.

    >>> first_reach_of_level(np.array([0.0, 100.0]), np.array([0.25, 0.75]), 0.375)
    (25.0, True)
    """
    above = np.flatnonzero(levels_E >= level)
    if len(above) == 0:
        return float(x_E[-1]), False
    k = int(above[0])
    if k == 0:
        return float(x_E[0]), True
    share = (level - levels_E[k - 1]) / (levels_E[k] - levels_E[k - 1])
    return float(x_E[k - 1] + share * (x_E[k] - x_E[k - 1])), True


def kaplan_meier_median(times: Sequence[float], reached: Sequence[bool]) -> float:
    """The time by which half have reached it, with those that had not when they ended censored; infinite if it is never
    half.

    A run that never reaches it (it ended badly) has an infinite time, and stays at risk.

    >>> kaplan_meier_median([3.0, 5.0, 9.0], [True, True, False])
    5.0
    """
    surviving = 1.0
    for time in sorted({t for t, r in zip(times, reached, strict=True) if r}):
        at_risk = sum(t >= time for t in times)
        events = sum(t == time and r for t, r in zip(times, reached, strict=True))
        surviving *= 1 - events / at_risk
        if surviving <= 0.5 + 1e-12:
            return float(time)
    return math.inf


def measure_reach_of_level(
    arms: dict[str, list[FinishedRun]], kind: tuple[str, str], level: float, why: str, reference: str, clock: str
) -> Reach:
    """Rollouts and seconds that each arm needed to reach a level."""
    tables: list[dict[str, Reached]] = []
    horizons: list[float] = []
    for quantity in ("rollouts", "seconds"):
        needed: dict[str, list[tuple[float, bool]]] = {}
        ends, last = [], 0.0
        for name, runs in arms.items():
            for run in runs:
                series = run.series[kind]
                total = run.metrics.rollouts_T if quantity == "rollouts" else run.metrics.cumulative_seconds_T(clock)
                at, reached = first_reach_of_level(
                    run.cumulative_total_at(total, series.at_E), series.levels_EI.mean(axis=1), level
                )
                last = max(last, at)
                # A run that went wrong would not have reached it with more time either: its end is no horizon, and it
                # is never there.
                if not reached and not run.has_ended_badly:
                    ends.append(at)
                needed.setdefault(name, []).append((at if reached or not run.has_ended_badly else math.inf, reached))
        horizon = min(ends) if ends else last
        within = {
            name: np.array([min(t, horizon) for t, _ in needed_of_runs]) for name, needed_of_runs in needed.items()
        }
        tables.append(
            {
                name: _summarise_reach_of_arm(needed_of_runs, within[name], within[reference], name == reference)
                for name, needed_of_runs in needed.items()
            }
        )
        horizons.append(horizon)
    return Reach(level, why, horizons[0], horizons[1], tables[0], tables[1])


def _summarise_reach_of_arm(
    needed: list[tuple[float, bool]], within: FloatArray, reference: FloatArray, is_reference: bool
) -> Reached:
    n = sum(r for _, r in needed)
    median = kaplan_meier_median([t for t, _ in needed], [r for _, r in needed])
    ratio = Estimate(math.nan, math.nan, math.nan) if is_reference else ratio_of_means(within, reference)
    return Reached(n, len(needed), median, mean_over_seeds(within), ratio)


def ratio_of_means(first_S: FloatArray, second_S: FloatArray) -> Estimate:
    """One arm's mean over another's, with a t interval by the delta method on the log scale; NaN where a mean is not
    above 0.

    ``Var(log(a / b)) = Var(a) / a^2 + Var(b) / b^2`` with the variances of the two means, and Welch's degrees of
    freedom. NaN bounds with
    fewer than two values, and where no value differs: nothing is known of their spread then.
    """
    arms = [np.asarray(v, dtype=np.float64) for v in (first_S, second_S)]
    if not all(len(v) and v.mean() > 0 for v in arms):
        return Estimate(math.nan, math.nan, math.nan)
    value = float(arms[0].mean() / arms[1].mean())
    if min(map(len, arms)) < 2:
        return Estimate(value, math.nan, math.nan)
    parts = [(float(v.var(ddof=1)) / len(v) / float(v.mean()) ** 2, len(v) - 1) for v in arms]
    variance = sum(v for v, _ in parts)
    if variance < 1e-24:  # alike but for rounding
        return Estimate(value, math.nan, math.nan)
    df = variance**2 / sum(v**2 / n for v, n in parts)
    factor = math.exp(float(stats.t.ppf(0.975, df)) * math.sqrt(variance))
    return Estimate(value, value / factor, value * factor)
