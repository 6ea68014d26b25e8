"""Numbers worked out by hand: the decision rule's power, beta-binomial groups, the plan."""

import numpy as np
import pytest

from rollonce.errors import InputError
from rollonce.tuning.planning import (
    Difficulty,
    dead_group_chance,
    dead_group_chance_of_beta,
    difficulty_from_moments,
    fit_beta_by_moments,
    predict_budget_plan,
)
from rollonce.tuning.power import interval_half_width, items_needed_to_pass, smallest_passing, tabulate_rule_power


def test_the_seeds_rule_validates_only_2_5_points():
    # docs/mathematics.md, "The decision rule": 2 sqrt(ln 40 / 2638) = 0.0748, so with the margin -0.05 at least +0.0248
    # must be observed.
    assert interval_half_width("hoeffding", 1319, 0.05, 0.0) == pytest.approx(0.0748, abs=5e-5)
    assert smallest_passing("hoeffding", 1319, 0.05, -0.05, 0.2) == pytest.approx(0.0248, abs=5e-5)
    assert tabulate_rule_power(1319, 0.05, -0.05)[0].smallest_items == 33  # 0.0248 x 1319 = 32.6


def test_normal_rule_by_hand():
    # d - 1.96 sqrt((q - d^2) / n) = 0 with q = 0.25, n = 100: d^2 = 1.96^2 (0.25 - d^2) / 100
    c = 1.959964**2 / 100
    assert smallest_passing("normal", 100, 0.05, 0.0, 0.25) == pytest.approx(np.sqrt(0.25 * c / (1 + c)), rel=1e-6)


def test_the_normal_rule_at_an_alpha_that_is_lost_beside_1():
    """1 - alpha / 2 is 1 in float64; the quantile of the lower tail at 5e-18 is -8.5735."""
    assert interval_half_width("normal", 100, 1e-17, 1.0) == pytest.approx(0.85735, abs=1e-4)


def test_bernstein_by_hand():
    # n = 1000, V = 0.2, alpha = 0.05: sqrt(0.4 ln 80 / 1000) + 14 ln 80 / 2997
    assert interval_half_width("bernstein", 1000, 0.05, 0.2) == pytest.approx(0.041867 + 0.020470, abs=2e-6)


def test_items_needed_is_the_least_that_passes():
    n = items_needed_to_pass("hoeffding", 0.03, 0.05, -0.05, 0.2, 0.5)
    # At 50% the observed mean is the true one: n = 4 ln(40) / (2 x 0.08^2) = 1152.8
    assert n == 1153
    assert items_needed_to_pass("hoeffding", -0.05, 0.05, -0.05, 0.2, 0.8) is None
    assert items_needed_to_pass("hoeffding", 0.03, 0.05, -0.05, 0.2, 0.8) > n


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"n": 1}, "at least 2"), ({"n": 9, "alpha": 0.0}, "alpha"), ({"n": 9, "margin": 2.0}, "margin")],
)
def test_power_refuses(settings, says):
    with pytest.raises(InputError, match=says):
        tabulate_rule_power(**settings)


def test_beta_binomial_closed_form():
    assert dead_group_chance_of_beta(1, 1, 2) == pytest.approx(2 / 3)
    assert dead_group_chance_of_beta(1, 1, 4) == pytest.approx(2 / 5)  # uniform: 2 / (G + 1)
    assert dead_group_chance_of_beta(2, 2, 2) == pytest.approx(3 / 5)  # 2 x (2 x 3) / (4 x 5)
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.8, 400_000)
    assert dead_group_chance_of_beta(0.5, 0.8, 8) == pytest.approx(float(np.mean(p**8 + (1 - p) ** 8)), abs=2e-3)


def test_beta_by_moments_gives_the_moments_back():
    # Beta(1, 1): mean 1/2, variance 1/12, E[p(1-p)] = 1/6
    assert fit_beta_by_moments(Difficulty(0.5, 1 / 6, 1 / 12)) == pytest.approx((1.0, 1.0))
    assert fit_beta_by_moments(Difficulty(0.5, 0.25, 0.0)) is None


def test_plan_by_hand():
    # SNR 1, B = 32: LOO B_eff = 32 / (1 + 32/31 + 1/31) = 32 / (64/31) = 15.5; variance 32/15.5 = 2.0645
    p = predict_budget_plan(32, difficulty_from_moments(s2=0.1, tau2=0.1))
    assert p.loo_b_eff == pytest.approx(15.5)
    assert p.variance == pytest.approx(64 / 31)
    by_g = {g.group_size: g for g in p.groups}
    assert list(by_g) == [2, 4, 8, 16]
    assert (by_g[4].b_eff, by_g[4].tasks, by_g[4].variance) == pytest.approx((24, 8, 4 / 3))
    assert by_g[4].crossing == pytest.approx((64 / 31 - 4 / 3) / 3)
    at = predict_budget_plan(
        32, difficulty_from_moments(s2=0.1, tau2=0.1), rho=by_g[4].crossing
    )  # at the crossing the two are equal
    assert at.variance == pytest.approx({g.group_size: g for g in at.groups}[4].variance)


def test_difficulty_from_what_is_given():
    d = difficulty_from_moments(snr=0.75, mean=0.4)
    assert (d.s2 + d.tau2, d.snr) == pytest.approx((0.24, 0.75))
    assert difficulty_from_moments(s2=0.1, snr=2).tau2 == pytest.approx(0.2)
    assert difficulty_from_moments(s2=1 / 6, tau2=1 / 12).mean == pytest.approx(0.5)
    for bad in ({}, {"s2": 0.1}, {"s2": -1, "tau2": 1}, {"s2": 0.1, "tau2": 0.1, "snr": 1}, {"s2": 0, "tau2": 1}):
        with pytest.raises(InputError):
            difficulty_from_moments(**bad)
    with pytest.raises(InputError, match="budget"):
        predict_budget_plan(3, d)


def test_dead_groups_at_the_edges_of_difficulty():
    # All tasks alike: p^G + (1 - p)^G with p = 0.3
    assert dead_group_chance(Difficulty(0.3, 0.21, 0.0), 4) == pytest.approx(0.3**4 + 0.7**4)
    assert dead_group_chance(Difficulty(0.3, 0.21 - 1e-12, 1e-12), 4) == pytest.approx(0.3**4 + 0.7**4, rel=1e-6)
    # Tasks that are always right or always wrong: every group is dead.
    assert dead_group_chance(Difficulty(0.3, 0.0, 0.21), 4) == 1.0
    assert dead_group_chance(Difficulty(0.3, 1e-9, 0.21 - 1e-9), 4) == pytest.approx(1.0, abs=1e-6)
    # Judge scores about 3 are no 0/1 rewards, and no Beta has these moments.
    assert np.isnan(dead_group_chance(Difficulty(3.0, 1.0, 0.5), 4))
    assert np.isnan(dead_group_chance(Difficulty(0.5, 1.0, 0.5), 4))
    assert [g.dead_beta for g in predict_budget_plan(32, Difficulty(0.4, 0.24, 0.0)).groups] == pytest.approx(
        [0.4**g + 0.6**g for g in (2, 4, 8, 16)]
    )
