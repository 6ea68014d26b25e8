"""Learning-rate robustness: final level against rate, how often runs collapse, and the rate chosen on the hold-out.

A rate is chosen by the mean final level on the *hold-out* items and reported on the test items. The seeds are the same
for both, so what is reported of the chosen rate is free of luck with items, not of luck with seeds; with few seeds it
flatters a little.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from rollonce.comparison.intervals import (
    Crossed,
    crossed_difference,
    crossed_mean,
    holm_adjusted_p_values,
    share_with_interval,
)
from rollonce.comparison.runs import FinishedRun, Runs
from rollonce.rollouts import FloatArray
from rollonce.scoring import Estimate


class RatePoint(NamedTuple):
    """An arm at one learning rate.

    Attributes:
        arm, rate: Which.
        final: Final level on the final split.
        holdout: Final level on the hold-out; NaN where there is none.
        collapsed: Share of its runs that collapsed, with an exact interval.
        n_collapsed, n_runs: The same counted.
    """

    arm: str
    rate: float
    final: Crossed
    holdout: float
    collapsed: Estimate
    n_collapsed: int
    n_runs: int


class RateCurve(NamedTuple):
    """All rates of an arm.

    Attributes:
        base: The arm without its rate.
        points: By rising rate.
        chosen: Name of the arm at the chosen rate.
        how: How it was chosen.
        over_rates: Mean final level over the rates that all arms of the grid share, with equal weights (on a log grid:
            the area under the curve); None if they share fewer than two.
        against_reference: Difference of that mean to the reference arm's; None for the reference.
        p_holm: Holm's adjusted p of that difference over all arms with such a curve; NaN without one.
    """

    base: str
    points: list[RatePoint]
    chosen: str
    how: str
    over_rates: Crossed | None
    against_reference: Crossed | None
    p_holm: float = math.nan


def has_run_collapsed(run: FinishedRun, kind: tuple[str, str], drop: float) -> bool:
    """Whether a run ended badly, or below its own start by more than ``drop`` and by more than the noise of its items:
    the 99% interval of the change over the same items excludes 0."""
    if run.has_ended_badly:
        return True
    series = run.series[kind]
    if series.at_E[0] != 0:
        return False
    change_I = series.levels_EI[-1] - series.levels_EI[0]
    return bool(change_I.mean() < -drop and _is_surely_below_zero(change_I))


def _is_surely_below_zero(change_I: FloatArray) -> bool:
    """Whether a mean change over items lies below 0 with its whole 99% interval (Student's t); one item cannot tell."""
    if len(change_I) < 2:
        return False
    standard_error = change_I.std(ddof=1) / math.sqrt(len(change_I))
    return bool(change_I.mean() + stats.t.ppf(0.995, len(change_I) - 1) * standard_error < 0)


def choose_learning_rates(runs: Runs, mode: str) -> tuple[dict[str, str], dict[str, str]]:
    """For each arm without its rate: the name at the chosen rate, and how it was chosen ("" where there was no
    choice)."""
    by_base: dict[str, list[str]] = {}
    for name in runs.arms:
        by_base.setdefault(runs.arm_without_rate(name), []).append(name)
    chosen, how = {}, {}
    for base, names in by_base.items():
        if len(names) == 1:
            chosen[base], how[base] = names[0], ""
            continue
        names = sorted(names, key=lambda n: (runs.learning_rate_of_arm(n), n))
        comparable, note = _comparable_runs_by_rate({n: runs.arms[n] for n in names})
        levels = {n: _mean_final_level(arm_runs, (mode, "holdout")) for n, arm_runs in comparable.items()}
        if all(math.isfinite(v) for v in levels.values()):
            chosen[base] = max(levels, key=lambda n: levels[n])
            what = f"highest mean on the hold-out{note}"
            how[base] = what if runs.final_split == "test" else f"{what}, which is also what is shown: it flatters"
        else:
            chosen[base] = names[(len(names) - 1) // 2]
            how[base] = "the middle of the grid: there is no hold-out evaluation to choose by"
    return chosen, how


def _comparable_runs_by_rate(rates: dict[str, list[FinishedRun]]) -> tuple[dict[str, list[FinishedRun]], str]:
    """The runs by which rates may be compared, and what must be said of them.

    While a grid is still running one rate may have had the lucky seeds alone: only seeds that all rates have count.
    Where there are none, the rates with the most seeds are compared, again by those they share if they share any.
    """
    every = {n: {r.seed for r in arm_runs} for n, arm_runs in rates.items()}
    shared = set.intersection(*every.values())
    if shared:
        note = (
            ""
            if all(seeds == shared for seeds in every.values())
            else f" over the {_format_seed_count(len(shared))} that all rates have"
        )
    else:
        most = max(map(len, every.values()))
        every = {n: seeds for n, seeds in every.items() if len(seeds) == most}
        shared = set.intersection(*every.values())
        note = f" among the {len(every)} rates with the most seeds ({most} each): no seed was run at all rates"
        if len(every) == 1:
            note = f", being the only rate with {_format_seed_count(most)}: no seed was run at all rates"
        elif not shared:
            note += ", nor at all of these"
    return {n: [r for r in rates[n] if r.seed in (shared or seeds)] for n, seeds in every.items()}, note


def _format_seed_count(n: int) -> str:
    return f"{n} seed{'s' if n > 1 else ''}"


def _mean_final_level(runs: list[FinishedRun], kind: tuple[str, str]) -> float:
    if any(kind not in r.series for r in runs):
        return math.nan
    return float(np.mean([r.final_item_levels(*kind).mean() for r in runs]))


def compute_rate_curves(runs: Runs, mode: str, reference: str, drop: float) -> list[RateCurve]:
    """The curves of all arms that have more than one rate.

    Args:
        runs: Everything.
        mode: ``sampled`` or ``greedy``.
        reference: Base name of the arm to compare with.
        drop: See `has_run_collapsed`.
    """
    chosen, how = choose_learning_rates(runs, mode)
    kind = (mode, runs.final_split)
    grids = {
        base: sorted(
            (n for n in runs.arms if runs.arm_without_rate(n) == base), key=lambda n: (runs.learning_rate_of_arm(n), n)
        )
        for base in chosen
    }
    grids = {base: names for base, names in grids.items() if len(names) > 1}
    shared = (
        set.intersection(*({runs.learning_rate_of_arm(n) for n in names} for names in grids.values()))
        if grids
        else set()
    )
    means = {
        base: _mean_final_over_rates(runs, [n for n in names if runs.learning_rate_of_arm(n) in shared], kind)
        for base, names in grids.items()
    }
    out: list[RateCurve] = []
    for base, names in grids.items():
        mine, other = means[base], means.get(reference)
        over = crossed_mean(mine) if mine is not None and len(shared) > 1 else None
        against = None
        if base != reference and mine is not None and other is not None and len(shared) > 1:
            # Averaged over rates, each of which may have collapsed or not, seeds of two arms have little in common: not
            # paired.
            against = crossed_difference(mine, other, paired=False)
        out.append(
            RateCurve(
                base=base,
                points=[_make_rate_point(runs, n, kind, drop) for n in names],
                chosen=chosen[base],
                how=how[base],
                over_rates=over,
                against_reference=against,
            )
        )
    compared = [k for k, c in enumerate(out) if c.against_reference is not None]
    adjusted = holm_adjusted_p_values([c.against_reference.p for c in out if c.against_reference is not None])
    for k, p in zip(compared, adjusted, strict=True):
        out[k] = out[k]._replace(p_holm=p)
    return out


def _mean_final_over_rates(runs: Runs, names: list[str], kind: tuple[str, str]) -> FloatArray | None:
    """Mean over rates of the final levels (S, I), over the seeds that every rate has."""
    if not names:
        return None
    seeds = sorted(set.intersection(*({r.seed for r in runs.arms[n]} for n in names)))
    if not seeds:
        return None
    tables = [np.array([r.final_item_levels(*kind) for r in runs.arms[n] if r.seed in seeds]) for n in names]
    return np.mean(tables, axis=0)


def _make_rate_point(runs: Runs, name: str, kind: tuple[str, str], drop: float) -> RatePoint:
    arm_runs = runs.arms[name]
    n = sum(has_run_collapsed(r, kind, drop) for r in arm_runs)
    final = crossed_mean(np.array([r.final_item_levels(*kind) for r in arm_runs]))
    return RatePoint(
        arm=name,
        rate=runs.learning_rate_of_arm(name),
        final=final,
        holdout=_mean_final_level(arm_runs, (kind[0], "holdout")),
        collapsed=share_with_interval(n, len(arm_runs)),
        n_collapsed=n,
        n_runs=len(arm_runs),
    )
