"""Intervals over seeds *and* items, for arms that are evaluated on the same items.

Model: ``y[s, i] = mu + A_s + B_i + E_si``, seeds and items both drawn at random (crossed, not nested: every seed meets
the same items). With S seeds and I items, for one matrix (an arm, or the differences of two arms paired by seed):

    Var(mean) = var_A / S + var_B / I + var_E / (S I),   estimated by   (MS_A + MS_B - MS_E) / (S I)

from the mean squares of the two-way table, floored at the larger of ``MS_A / (S I)`` and ``MS_B / (S I)`` (no variance
is negative). Degrees of freedom are Satterthwaite's (1946), not below those of the seeds alone, and the quantile is
Student's t. Where the seeds of two arms have nothing to do with each other, each arm has its own A and E; items are
paired all the same:

    V = MS_A1 / (S1 I) + MS_A2 / (S2 I) + var_i(mean_1i - mean_2i) / I - MS_E1 / (S1 I) - MS_E2 / (S2 I)

The percentile bootstrap that resamples seeds and items ("pigeonhole", Owen 2007) is computed as well. With three seeds
it is far too short where seeds differ much, because it sees only (S - 1) / S of their variance and the normal's tails;
`docs/comparison.md` has the measured coverage of both. What has no formula (the interquartile mean) takes the
bootstrap's shape, stretched by what the mean's needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import optimize, stats

from rollonce.rollouts import FloatArray
from rollonce.scoring import Estimate

NONE = Estimate(math.nan, math.nan, math.nan)


class Components(NamedTuple):
    """Variances of a mean difference (or mean): ``seed`` per seed, ``item`` per item, ``rest`` per seed and item.

    They are the parts of ``seed / S + item / I + rest / (S I)``, not below 0.
    """

    seed: float
    item: float
    rest: float


class Crossed(NamedTuple):
    """A mean over seeds and items.

    Attributes:
        estimate: The value with its 95% interval; NaN bounds where nothing is known of the spread (see
            `why_no_interval`).
        se, df: Standard error and degrees of freedom.
        p: Two-sided p of "it is 0"; NaN without an interval.
        components: Where the uncertainty comes from.
        n_seeds, n_items: S (the smaller one of two arms) and I.
    """

    estimate: Estimate
    se: float
    df: float
    p: float
    components: Components
    n_seeds: int
    n_items: int

    @property
    def why_no_interval(self) -> Literal["", "one seed", "one item", "no spread"]:
        """Why there is no interval; "" where there is one."""
        if math.isfinite(self.estimate.low):
            return ""
        return "one seed" if self.n_seeds < 2 else "one item" if self.n_items < 2 else "no spread"


class _Squares(NamedTuple):
    seed: float
    item: float
    rest: float


def _two_way_mean_squares(y_SI: FloatArray) -> _Squares:
    n_seeds, n_items = y_SI.shape
    by_seed, by_item = y_SI.mean(axis=1), y_SI.mean(axis=0)
    rest = y_SI - by_seed[:, None] - by_item[None, :] + y_SI.mean()
    return _Squares(
        n_items * float(by_seed.var(ddof=1)),
        n_seeds * float(by_item.var(ddof=1)),
        float((rest**2).sum()) / ((n_seeds - 1) * (n_items - 1)),
    )


def crossed_mean(y_SI: FloatArray) -> Crossed:
    """The mean of a seeds x items table.

    Args:
        y_SI: Mean reward of each item with each seed, or the paired differences of two arms (S, I).
    """
    y_SI = np.asarray(y_SI, dtype=np.float64)
    value, (n_seeds, n_items) = float(y_SI.mean()), y_SI.shape
    if n_seeds < 2 or n_items < 2:
        return _estimate_without_interval(value, n_seeds, n_items)
    ms, cells = _two_way_mean_squares(y_SI), n_seeds * n_items
    plus = [(ms.seed / cells, n_seeds - 1), (ms.item / cells, n_items - 1)]
    minus = [(ms.rest / cells, (n_seeds - 1) * (n_items - 1))]
    parts = Components(max(0.0, (ms.seed - ms.rest) / n_items), max(0.0, (ms.item - ms.rest) / n_seeds), ms.rest)
    return _make_crossed_interval(value, plus, minus, [plus[:1], plus[1:]], float(n_seeds - 1), parts, n_seeds, n_items)


def crossed_difference(first_SI: FloatArray, second_SI: FloatArray, paired: bool) -> Crossed:
    """``first - second`` on the same items.

    Args:
        first_SI, second_SI: Seeds x items of each arm; with ``paired`` row s of both is the same seed.
        paired: Whether the same seed makes the two arms alike (same data order), so that differences are taken seed by
            seed.
    """
    first_SI, second_SI = np.asarray(first_SI, dtype=np.float64), np.asarray(second_SI, dtype=np.float64)
    if paired:
        return crossed_mean(first_SI - second_SI)
    value, n_items = float(first_SI.mean() - second_SI.mean()), first_SI.shape[1]
    counts = (len(first_SI), len(second_SI))
    if min(counts) < 2 or n_items < 2:
        return _estimate_without_interval(value, min(counts), n_items)
    ms = [_two_way_mean_squares(first_SI), _two_way_mean_squares(second_SI)]
    seeds = [(m.seed / (s * n_items), s - 1) for m, s in zip(ms, counts, strict=True)]
    item = [(float((first_SI.mean(axis=0) - second_SI.mean(axis=0)).var(ddof=1)) / n_items, n_items - 1)]
    minus = [(m.rest / (s * n_items), (s - 1) * (n_items - 1)) for m, s in zip(ms, counts, strict=True)]
    by_seeds = _satterthwaite_degrees(sum(v for v, _ in seeds), seeds)
    rest = sum(m.rest for m in ms)
    parts = Components(
        sum(max(0.0, (m.seed - m.rest) / n_items) for m in ms),
        max(0.0, (item[0][0] - sum(v for v, _ in minus)) * n_items),
        rest,
    )
    return _make_crossed_interval(value, [*seeds, *item], minus, [seeds, item], by_seeds, parts, min(counts), n_items)


def _make_crossed_interval(
    value: float,
    plus: list[tuple[float, int]],
    minus: list[tuple[float, int]],
    floors: list[list[tuple[float, int]]],
    least_df: float,
    parts: Components,
    n_seeds: int,
    n_items: int,
) -> Crossed:
    variance = sum(v for v, _ in plus) - sum(v for v, _ in minus)
    variance = max(variance, *(sum(v for v, _ in f) for f in floors))
    if (
        variance <= 1e-24
    ):  # every cell alike but for rounding: there is nothing to learn a variance from, which is no proof of anything
        return _estimate_without_interval(value, n_seeds, n_items)
    df = max(_satterthwaite_degrees(variance, [*plus, *minus]), least_df)
    se = math.sqrt(variance)
    half = float(stats.t.ppf(0.975, df)) * se
    p = float(2 * stats.t.sf(abs(value) / se, df))
    return Crossed(Estimate(value, value - half, value + half), se, df, p, parts, n_seeds, n_items)


def _satterthwaite_degrees(variance: float, parts: list[tuple[float, int]]) -> float:
    below = sum(v**2 / df for v, df in parts)
    return variance**2 / below if below > 0 else float(min(df for _, df in parts))


def _estimate_without_interval(value: float, n_seeds: int, n_items: int) -> Crossed:
    return Crossed(
        Estimate(value, math.nan, math.nan),
        math.nan,
        math.nan,
        math.nan,
        Components(math.nan, math.nan, math.nan),
        n_seeds,
        n_items,
    )


def mean_over_seeds(values_S: Sequence[float] | FloatArray) -> Estimate:
    """A mean with Student's t interval over seeds alone (NaN bounds with one)."""
    v = np.asarray(values_S, dtype=np.float64)
    v = v[np.isfinite(v)]
    if len(v) < 2:
        return Estimate(float(v.mean()) if len(v) else math.nan, math.nan, math.nan)
    half = float(stats.t.ppf(0.975, len(v) - 1) * v.std(ddof=1) / math.sqrt(len(v)))
    return Estimate(float(v.mean()), float(v.mean() - half), float(v.mean() + half))


def holm_adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values (1979): each is compared with 0.05 as if it were the only one.

    NaN stays NaN but counts as a comparison: whether there is a p may hang on the data (a family where nothing varies).

    >>> holm_adjusted_p_values([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    out = [math.nan] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(sorted((p, i) for i, p in enumerate(p_values) if math.isfinite(p))):
        highest = max(highest, min(1.0, p * (len(p_values) - rank)))
        out[i] = highest
    return out


# Bootstrap and what rests on it
# -----------------------------------------------------------------------------------------------


class Bootstrap(NamedTuple):
    """Resampled differences.

    Attributes:
        mean: Percentile interval of the difference of means: short with few seeds, shown for comparison only.
        iqm: Difference of the interquartile means over seeds; with fewer than four seeds that is the mean.
    """

    mean: Estimate
    iqm: Estimate


def interquartile_mean(values: FloatArray, axis: int = -1) -> FloatArray:
    """Mean without the lowest and highest quarter (rounded down), as in rliable (Agarwal et al. 2021); up to three
    values: their mean.

    >>> float(interquartile_mean(np.array([0.0, 1.0, 2.0, 9.0])))
    1.5
    """
    return np.asarray(stats.trim_mean(values, 0.25, axis=axis))


def bootstrap_difference(
    first_SI: FloatArray,
    second_SI: FloatArray,
    paired: bool,
    *,
    exact: Crossed | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Bootstrap:
    """Resample seeds and items (the same items for both arms; the same seeds if paired).

    Args:
        first_SI, second_SI, paired: As for `crossed_difference`.
        exact: The mean's interval from the formula; the interquartile mean's is stretched until the mean's would be as
            wide as that.
        resamples, seed: How many, and of the generator.
    """
    rng = np.random.default_rng([seed, 7])
    (n_1, n_items), n_2 = first_SI.shape, len(second_SI)
    items = rng.multinomial(n_items, np.full(n_items, 1 / n_items), size=resamples) / n_items
    rows_1 = rng.integers(n_1, size=(resamples, n_1))
    rows_2 = rows_1 if paired else rng.integers(n_2, size=(resamples, n_2))
    by_seed_1 = np.take_along_axis(items @ first_SI.T, rows_1, axis=1)
    by_seed_2 = np.take_along_axis(items @ second_SI.T, rows_2, axis=1)
    means = by_seed_1.mean(axis=1) - by_seed_2.mean(axis=1)
    value = float(first_SI.mean() - second_SI.mean())
    mean = Estimate(value, *map(float, np.quantile(means, [0.025, 0.975])))
    if paired:  # of the differences, as everything else that is paired
        iqm = interquartile_mean(by_seed_1 - by_seed_2)
        middle = float(interquartile_mean((first_SI - second_SI).mean(axis=1)))
    else:
        iqm = interquartile_mean(by_seed_1) - interquartile_mean(by_seed_2)
        middle = float(interquartile_mean(first_SI.mean(axis=1)) - interquartile_mean(second_SI.mean(axis=1)))
    if exact is not None and exact.why_no_interval == "no spread":  # resampling what never varies gives [value, value]
        mean = Estimate(value, math.nan, math.nan)
    if exact is None or not math.isfinite(exact.estimate.low):
        return Bootstrap(mean, Estimate(middle, math.nan, math.nan))
    short = mean.high - mean.low
    stretch = (exact.estimate.high - exact.estimate.low) / short if short > 0 else 1.0
    low, high = np.quantile(iqm - middle, [0.025, 0.975])
    return Bootstrap(mean, Estimate(middle, float(middle + stretch * low), float(middle + stretch * high)))


def probability_of_improvement(first_S: FloatArray, second_S: FloatArray) -> Estimate:
    """Chance that a run of the first arm ends above one of the second, ties counting half (Agarwal et al. 2021), over
    seeds.

    The interval is Newcombe's (2006, part 2, method 5), which inverts a score test and so keeps away from [1, 1] where
    all seeds of one arm lie above the other's, with Student's t of S1 + S2 - 2 degrees in place of the normal: three
    seeds fall all on one side of three others once in ten times by luck alone, and with the normal's 1.96 that would
    pass for proof. It speaks of these items only.
    """
    a, b = np.asarray(first_S, dtype=np.float64), np.asarray(second_S, dtype=np.float64)
    wins = float(((a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :])).mean())
    if min(len(a), len(b)) < 2:
        return Estimate(wins, math.nan, math.nan)
    size, star, z2 = len(a) * len(b), (len(a) + len(b)) / 2 - 1, float(stats.t.ppf(0.975, len(a) + len(b) - 2)) ** 2

    def score_test_excess(theta: float) -> float:
        variance = theta * (1 - theta) / size * (1 + star * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
        return float((wins - theta) ** 2 - z2 * variance)

    def root_between(start: float, end: float) -> float:
        return float(optimize.brentq(score_test_excess, start, end))  # type: ignore[arg-type]

    low = root_between(0.0, wins - 1e-12) if wins > 0 and score_test_excess(0.0) > 0 else 0.0
    high = root_between(wins + 1e-12, 1.0) if wins < 1 and score_test_excess(1.0) > 0 else 1.0
    return Estimate(wins, low, high)


def share_with_interval(count: int, total: int) -> Estimate:
    """A share of runs with its exact (Clopper-Pearson) interval."""
    if total == 0:
        return NONE
    low = 0.0 if count == 0 else float(stats.beta.ppf(0.025, count, total - count + 1))
    high = 1.0 if count == total else float(stats.beta.ppf(0.975, count + 1, total - count))
    return Estimate(count / total, low, high)


# How many seeds
# ---------------------------------------------------------------------------------------------------------------


def predicted_standard_error(parts: Components, n_seeds: int, n_items: int) -> float:
    """``sqrt(seed / S + item / I + rest / (S I))``."""
    return math.sqrt(parts.seed / n_seeds + parts.item / n_items + parts.rest / (n_seeds * n_items))


def smallest_difference(
    parts: Components, n_seeds: int, n_items: int, paired: bool, power: float = 0.8, arms: int = 1
) -> float:
    """The true difference that would be told apart from 0 with this chance: ``(t_(1 - .025 / arms) + t_power) se``.

    ``arms`` are held against the reference at once: .05 is divided by their number (Bonferroni), which is what Holm
    asks of the smallest p, and more than it asks of the others. df are Satterthwaite's with the expected mean squares
    in place of the observed ones (paired: S - 1 seeds, else 2 (S - 1)).
    """
    if n_seeds < 2 or not all(map(math.isfinite, parts)):
        return math.nan
    se = predicted_standard_error(parts, n_seeds, n_items)
    by_seed = (parts.seed + parts.rest / n_items) / n_seeds
    by_item = (parts.item + parts.rest / n_seeds) / n_items
    df_seed = (n_seeds - 1) * (1 if paired else 2)
    below = by_seed**2 / df_seed + by_item**2 / (n_items - 1)
    df = max(se**4 / below, df_seed) if below > 0 else float(df_seed)
    return float(stats.t.ppf(1 - 0.025 / arms, df) + stats.t.ppf(power, df)) * se


def count_seeds_needed(
    parts: Components,
    n_items: int,
    difference: float,
    paired: bool,
    power: float = 0.8,
    arms: int = 1,
    most: int = 10_000,
) -> int | None:
    """The fewest seeds an arm at which this true difference is told apart from 0 with this chance, among so many arms.

    None if no number of seeds will do, because these items alone leave too much open.
    """
    if not all(map(math.isfinite, parts)) or difference <= 0:
        return None
    if smallest_difference(parts, most, n_items, paired, power, arms) > difference:
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if smallest_difference(parts, middle, n_items, paired, power, arms) <= difference:
            high = middle
        else:
            low = middle
    return high
