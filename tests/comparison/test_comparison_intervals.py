"""The intervals: worked out by hand, held against other software's formulas, and their coverage on planted effects."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from rollonce.comparison.intervals import (
    Components,
    Crossed,
    bootstrap_difference,
    count_seeds_needed,
    crossed_difference,
    crossed_mean,
    holm_adjusted_p_values,
    interquartile_mean,
    mean_over_seeds,
    probability_of_improvement,
    share_with_interval,
    smallest_difference,
)


def test_two_by_two_by_hand() -> None:
    # rows (seeds) [0, 2], [2, 6]: means 1 and 4 by seed, 1 and 4 by item, 2.5 in all.
    # MS_A = 2 * ((1.5)^2 * 2) / 1 = 9, MS_B the same, residuals +-0.5: MS_E = 4 * 0.25 / 1 = 1.
    # Var = (9 + 9 - 1) / 4 = 4.25; df = 4.25^2 / (2.25^2 + 2.25^2 + 0.25^2) = 18.0625 / 10.1875.
    found = crossed_mean(np.array([[0.0, 2.0], [2.0, 6.0]]))
    assert found.estimate.value == 2.5
    assert found.se == pytest.approx(math.sqrt(4.25))
    assert found.df == pytest.approx(18.0625 / 10.1875)
    half = stats.t.ppf(0.975, 18.0625 / 10.1875) * math.sqrt(4.25)
    assert found.estimate.low == pytest.approx(2.5 - half)
    assert found.estimate.high == pytest.approx(2.5 + half)
    assert found.p == pytest.approx(2 * stats.t.sf(2.5 / math.sqrt(4.25), found.df))
    # seed variance (9 - 1) / 2 items = 4, item variance (9 - 1) / 2 seeds = 4
    assert found.components == pytest.approx(Components(4.0, 4.0, 1.0))


def test_without_items_that_differ_it_is_students_t_over_seeds() -> None:
    by_seed = np.array([0.1, 0.4, 0.2])
    found = crossed_mean(np.repeat(by_seed[:, None], 50, axis=1))
    theirs = stats.ttest_1samp(by_seed, 0.0)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.estimate.low, found.estimate.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert mean_over_seeds(by_seed) == pytest.approx(found.estimate)


def test_without_seeds_that_differ_it_is_students_t_over_items() -> None:
    by_item = np.random.default_rng(0).standard_normal(30)
    found = crossed_mean(np.repeat(by_item[None, :], 3, axis=0))
    theirs = stats.ttest_1samp(by_item, 0.0)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.df == pytest.approx(29)


def test_unpaired_without_items_is_welch() -> None:
    a, b = np.array([0.1, 0.4, 0.2]), np.array([0.5, 0.55, 0.9, 0.6])
    found = crossed_difference(np.repeat(a[:, None], 9, axis=1), np.repeat(b[:, None], 9, axis=1), paired=False)
    theirs = stats.ttest_ind(a, b, equal_var=False)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.df == pytest.approx(theirs.df)


def test_paired_is_the_mean_of_the_differences() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 4, 12))
    assert crossed_difference(a, b, paired=True) == crossed_mean(a - b)


def test_one_seed_has_no_interval_and_no_p() -> None:
    found = crossed_difference(np.ones((1, 5)), np.zeros((3, 5)), paired=False)
    assert found.estimate.value == 1.0
    assert math.isnan(found.estimate.low)
    assert math.isnan(found.p)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("first", "second"), [(0.5, 0.5), (1.0, 0.0)])
def test_a_table_without_spread_proves_nothing(first: float, second: float, paired: bool) -> None:
    # Two seeds and two items of 1 against 0, or saturated arms: no variance was seen, which is not that there is none.
    found = crossed_difference(np.full((2, 2), first), np.full((2, 2), second), paired=paired)
    assert found.estimate.value == first - second
    assert all(map(math.isnan, (found.estimate.low, found.estimate.high, found.p, found.se, *found.components)))
    assert found.why_no_interval == "no spread"
    boot = bootstrap_difference(np.full((2, 2), first), np.full((2, 2), second), paired, exact=found, resamples=100)
    assert all(map(math.isnan, (boot.mean.low, boot.mean.high, boot.iqm.low, boot.iqm.high)))
    assert holm_adjusted_p_values([found.p, 0.01])[1] == 0.02  # it counts as a comparison all the same


def test_why_there_is_no_interval() -> None:
    assert crossed_mean(np.ones((1, 5))).why_no_interval == "one seed"
    assert crossed_mean(np.array([[0.0], [1.0], [1.0]])).why_no_interval == "one item"
    assert crossed_mean(np.array([[0.0, 2.0], [2.0, 6.0]])).why_no_interval == ""


# Coverage
# ---------------------------------------------------------------------------------------------------------------------


def planted(
    rng: np.random.Generator, n_seeds: int, n_items: int, seed_sd: float, paired: bool, shared: float
) -> tuple[np.ndarray, np.ndarray]:
    """Two arms of 0/1 rewards: item difficulties in common, a seed's effect of its own in each arm, ``shared`` of it in
    common.

    The true difference over seeds and items is 0: both arms are drawn from one law (a logit-free, clipped-probability
        model).
    """
    item = rng.uniform(0.15, 0.85, n_items)
    common = rng.standard_normal(n_seeds)
    out = []
    for _ in range(2):
        own = math.sqrt(shared) * common + math.sqrt(1 - shared) * rng.standard_normal(n_seeds)
        interaction = 0.05 * rng.standard_normal((1, n_items))
        p = np.clip(item[None, :] + seed_sd * own[:, None] + interaction, 0.0, 1.0)
        out.append((rng.random((n_seeds, n_items)) < p).astype(float))
    return out[0], out[1]


def coverage(make: Callable[[np.random.Generator], Crossed], n: int = 1200) -> float:
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(n):
        e = make(rng).estimate
        inside += e.low <= 0.0 <= e.high
    return inside / n


@pytest.mark.parametrize("n_seeds", [3, 8])
@pytest.mark.parametrize(("paired", "shared"), [(True, 0.5), (False, 0.0)])
@pytest.mark.parametrize("seed_sd", [0.0, 0.02, 0.05])
def test_intervals_cover_what_they_promise(n_seeds: int, paired: bool, shared: float, seed_sd: float) -> None:
    def make(rng: np.random.Generator) -> Crossed:
        return crossed_difference(*planted(rng, n_seeds, 120, seed_sd, paired, shared), paired)

    # Monte-Carlo sd .006. Not below 95% but for noise; conservative, not useless, where seeds do not differ.
    assert 0.93 <= coverage(make) <= 0.995


def test_the_plain_bootstrap_undercovers_at_three_seeds_and_the_formula_does_not() -> None:
    rng = np.random.default_rng(6)
    plain = ours = iqm = 0
    n = 400
    for _ in range(n):
        a, b = (0.05 * rng.standard_normal((3, 1)) + 0.1 * rng.standard_normal((3, 100)) for _ in range(2))
        exact = crossed_difference(a, b, paired=True)
        boot = bootstrap_difference(a, b, True, exact=exact, resamples=300)
        plain += boot.mean.low <= 0 <= boot.mean.high
        ours += exact.estimate.low <= 0 <= exact.estimate.high
        iqm += boot.iqm.low <= 0 <= boot.iqm.high
    assert plain / n < 0.82  # measured .75: three seeds are two degrees of freedom
    assert ours / n > 0.92
    assert iqm / n > 0.88  # the resampled shape of three values is skewed, and the stretch keeps that


def test_the_interquartile_mean_is_covered_at_eight_seeds() -> None:
    rng = np.random.default_rng(7)
    inside, n = 0, 300
    for _ in range(n):
        a, b = (0.05 * rng.standard_normal((8, 1)) + 0.2 * rng.standard_normal((8, 100)) for _ in range(2))
        boot = bootstrap_difference(a, b, False, exact=crossed_difference(a, b, False), resamples=300)
        inside += boot.iqm.low <= 0 <= boot.iqm.high
    assert 0.92 <= inside / n <= 0.995


def test_bootstrap_pairs_items() -> None:
    # Items differ hugely, arms by a constant: with the same items in both arms every resample gives exactly that
    # constant.
    items = np.linspace(0, 10, 40)[None, :].repeat(3, axis=0)
    boot = bootstrap_difference(items + 0.25, items, False, resamples=200)
    assert boot.mean == pytest.approx((0.25, 0.25, 0.25))


def test_bootstrap_pairs_seeds_only_when_asked() -> None:
    # The same for seeds: they differ hugely, the arms by a constant.
    seeds = np.array([0.0, 5.0, 11.0])[:, None].repeat(20, axis=1)
    paired = bootstrap_difference(seeds + 0.25, seeds, True, resamples=200)
    assert paired.mean == pytest.approx((0.25, 0.25, 0.25))
    unpaired = bootstrap_difference(seeds + 0.25, seeds, False, resamples=200)
    assert unpaired.mean.high - unpaired.mean.low > 5


# Small things
# -----------------------------------------------------------------------------------------------------------------


def test_interquartile_mean() -> None:
    assert interquartile_mean(np.arange(8.0)) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean(np.array([1.0, 2.0, 9.0])) == pytest.approx(4.0)  # three seeds: nothing to trim
    assert interquartile_mean(np.array([[0.0, 1.0, 3.0, 100.0]])) == pytest.approx([2.0])


def test_probability_of_improvement_counts_ties_half() -> None:
    found = probability_of_improvement(np.array([1.0, 2.0]), np.array([1.0, 0.0]))
    assert found.value == pytest.approx((0.5 + 1 + 1 + 1) / 4)
    apart = probability_of_improvement(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    assert apart.value == 1.0
    assert apart.high == 1.0
    assert apart.low < 0.5  # by luck alone three lie above three once in twenty times, and below as often
    # Its end solves Newcombe's score equation, with t of 4 degrees.
    t2, end = stats.t.ppf(0.975, 4) ** 2, apart.low
    variance = end * (1 - end) / 9 * (1 + 2.0 * ((1 - end) / (2 - end) + end / (1 + end)))
    assert (1 - end) ** 2 == pytest.approx(t2 * variance)
    many = probability_of_improvement(np.arange(6.0) + 6, np.arange(6.0))
    assert many.low > 0.5
    mirrored = probability_of_improvement(np.array([1.0, 0.0]), np.array([1.0, 2.0]))
    assert mirrored.value == pytest.approx(1 - found.value)
    assert mirrored.low == pytest.approx(1 - found.high)


@pytest.mark.parametrize(("n_seeds", "shift"), [(3, 0.0), (5, 1.0), (12, 0.5)])
def test_probability_of_improvement_covers(n_seeds: int, shift: float) -> None:
    rng, inside, n = np.random.default_rng(8), 0, 400
    true = stats.norm.cdf(shift / math.sqrt(2))
    for _ in range(n):
        found = probability_of_improvement(shift + rng.standard_normal(n_seeds), rng.standard_normal(n_seeds))
        inside += found.low <= true <= found.high
    assert inside / n >= 0.93


def test_holm() -> None:
    assert holm_adjusted_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    got = holm_adjusted_p_values([0.02, math.nan, 0.3])
    assert got[0] == pytest.approx(0.06)  # three comparisons, one of which has no p
    assert math.isnan(got[1])
    assert got[2] == pytest.approx(0.6)
    assert holm_adjusted_p_values([0.9, 0.8]) == [1.0, 1.0]


def test_share_is_exact() -> None:
    found, theirs = share_with_interval(1, 8), stats.binomtest(1, 8).proportion_ci(method="exact")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert share_with_interval(0, 3).low == 0.0
    assert share_with_interval(3, 3).high == 1.0


# Seeds needed
# -----------------------------------------------------------------------------------------------------------------


def test_smallest_difference_by_hand() -> None:
    # Seeds alone: sd 0.02 a seed, paired. With 9 seeds se = 0.02 / 3 and df = 8.
    parts = Components(0.0004, 0.0, 0.0)
    want = (stats.t.ppf(0.975, 8) + stats.t.ppf(0.8, 8)) * 0.02 / 3
    assert smallest_difference(parts, 9, 100, paired=True) == pytest.approx(want)
    # The number of seeds is the least that gets there.
    n = count_seeds_needed(parts, 100, want, paired=True)
    assert n == 9
    assert smallest_difference(parts, 8, 100, paired=True) > want


def test_the_level_is_shared_among_the_arms() -> None:
    # Four arms: .05 / 4 = .0125, half of it on each side. Seeds alone, sd 0.02, paired, 9 seeds: se = 0.02 / 3, df = 8.
    parts = Components(0.0004, 0.0, 0.0)
    want = (stats.t.ppf(1 - 0.00625, 8) + stats.t.ppf(0.8, 8)) * 0.02 / 3
    assert smallest_difference(parts, 9, 100, paired=True, arms=4) == pytest.approx(want)
    assert want > smallest_difference(parts, 9, 100, paired=True)
    assert count_seeds_needed(parts, 100, want, paired=True, arms=4) == 9
    assert count_seeds_needed(parts, 100, want, paired=True) < 9


def test_items_alone_can_forbid_it() -> None:
    # sd 0.5 an item, 100 items: se 0.05 however many seeds; (1.98 + 0.84) * 0.05 = 0.14.
    parts = Components(0.0001, 0.25, 0.1)
    assert count_seeds_needed(parts, 100, 0.02, paired=True) is None
    assert count_seeds_needed(parts, 100, 0.2, paired=True) is not None


def test_the_promised_power_is_had() -> None:
    rng, n_items = np.random.default_rng(9), 150
    seed_sd, rest_sd, true = 0.02, 0.4, 0.03
    parts = Components(2 * seed_sd**2, 0.0, 2 * rest_sd**2)
    n_seeds = count_seeds_needed(parts, n_items, true, paired=True)
    assert n_seeds is not None
    told, n = 0, 400
    for _ in range(n):
        a = true + seed_sd * rng.standard_normal((n_seeds, 1)) + rest_sd * rng.standard_normal((n_seeds, n_items))
        b = seed_sd * rng.standard_normal((n_seeds, 1)) + rest_sd * rng.standard_normal((n_seeds, n_items))
        told += crossed_difference(a, b, paired=True).estimate.low > 0
    assert 0.7 <= told / n <= 0.9
