"""The verdict against numbers worked out by hand, and the intervals beside it against their guarantees."""

from __future__ import annotations

import math

import numpy as np
import pytest
from experiment_fakes import SEED_SPEC

from rollonce.errors import InputError
from rollonce.experiments.decision import decide_verdict, power_statement
from rollonce.experiments.intervals import (
    betting_interval,
    empirical_bernstein_interval,
    exact_mcnemar_test,
    hoeffding_interval,
)
from rollonce.experiments.loading import load_specification
from rollonce.experiments.spec import Criterion, DecisionRule, compute_metric_span


def rule(**changes: object) -> DecisionRule:
    criterion = {
        "id": "primary",
        "metric": "accuracy",
        "bounds": [0.0, 1.0],
        "margin": -0.05,
        "weights": {"baseline": -1.0, "treatment": 1.0},
    }
    return DecisionRule.model_validate(
        {
            "alpha": 0.05,
            "criteria": [criterion],
            "method": "paired_hoeffding",
            "seeds": [0],
            "unit": "fixed_checkpoint_items",
            "version": 1,
        }
        | changes
    )


def pair(n: int, both: int, only_treatment: int, only_baseline: int) -> dict[str, np.ndarray]:
    t, b = np.zeros(n), np.zeros(n)
    t[:both] = b[:both] = 1
    t[both : both + only_treatment] = 1
    b[both + only_treatment : both + only_treatment + only_baseline] = 1
    return {"treatment": t, "baseline": b}


def test_the_registered_design_has_the_half_width_worked_out_by_hand() -> None:
    i = hoeffding_interval(np.zeros(1319), -1, 1, 0.05)
    assert i.high == pytest.approx(2 * math.sqrt(math.log(40) / (2 * 1319)), rel=1e-12)
    assert round(i.high, 4) == 0.0748


def test_33_net_items_of_1319_validate_and_32_do_not() -> None:
    # -0.05 + 0.07479 = 0.02479; 33 / 1319 = 0.02502 lies above, 32 / 1319 = 0.02426 below.
    assert decide_verdict(rule(), pair(1319, 700, 33, 0)).verdict == "validated"
    found = decide_verdict(rule(), pair(1319, 700, 32, 0))
    assert found.verdict == "inconclusive"
    assert "an observed difference above +0.0248 was needed" in found.sentence


def test_a_treatment_that_is_exactly_as_good_stays_inconclusive() -> None:
    assert decide_verdict(rule(), pair(1319, 700, 0, 0)).verdict == "inconclusive"
    assert any("Being exactly as good will end inconclusive" in line for line in power_statement(rule(), 1319))


def test_failed_needs_the_upper_end_below_the_margin() -> None:
    # -0.05 - 0.07479 = -0.12479 -> 165 / 1319 = 0.12509 fails, 164 / 1319 = 0.12434 does not.
    assert decide_verdict(rule(), pair(1319, 0, 0, 165)).verdict == "failed"
    assert decide_verdict(rule(), pair(1319, 0, 0, 164)).verdict == "inconclusive"


def test_the_range_comes_from_bounds_and_weights() -> None:
    c = Criterion(
        id="a", metric="accuracy", bounds=[0.0, 2.0], margin=0.1, weights={"treatment": 0.5, "baseline": -1.0}
    )
    assert compute_metric_span(c) == (-2.0, 1.0)
    d = decide_verdict(rule(criteria=[c.model_dump()]), {"treatment": np.full(50, 2.0), "baseline": np.zeros(50)})
    width = d.criteria[0].hoeffding.high - d.criteria[0].hoeffding.value
    assert width == pytest.approx(3 * math.sqrt(math.log(40) / 100), rel=1e-12)
    assert d.criteria[0].hoeffding.value == 1.0


def test_two_criteria_share_alpha_and_both_must_hold() -> None:
    one = rule().criteria[0].model_dump()
    two = rule(criteria=[one, one | {"id": "strict", "margin": 0.05}])
    grades = pair(2000, 900, 200, 20)  # +0.09; the half-width at alpha / 2 is 2 sqrt(ln 80 / 4000) = 0.0662
    found = decide_verdict(two, grades)
    assert found.criteria[0].alpha == 0.025
    assert found.criteria[0].hoeffding.high - 0.09 == pytest.approx(2 * math.sqrt(math.log(80) / 4000), rel=1e-9)
    assert [c.verdict for c in found.criteria] == ["validated", "inconclusive"]
    assert found.verdict == "inconclusive"
    worst = decide_verdict(two, pair(2000, 900, 0, 400))
    assert worst.verdict == "failed"


def test_an_impossible_design_is_called_so() -> None:
    assert "it can never validate" in power_statement(rule(), 5)[0]
    assert "no observed difference could have passed" in decide_verdict(rule(), pair(5, 5, 0, 0)).sentence


def test_the_power_statement_of_the_requests_file() -> None:
    (line,) = power_statement(load_specification(SEED_SPEC).spec.decision_rule, 1319)
    assert "half-width 0.0748" in line
    assert "at least 2.5 points better (net +33 items)" in line


def test_the_power_statement_of_two_criteria_shares_alpha() -> None:
    """2 sqrt(ln 80 / 2638) = 0.0815."""
    one = rule().criteria[0].model_dump()
    lines = power_statement(rule(criteria=[one, one | {"id": "strict"}]), 1319)
    assert ["half-width 0.0815 at alpha 0.025" in line for line in lines] == [True, True]


def test_items_needed_at_the_difference_observed() -> None:
    # (d - margin)^2 n >= 2^2 ln(40) / 2 with d = 0: n = 2 ln 40 / 0.0025 = 2951.1 -> 2952.
    assert "or 2952 items at the difference observed" in decide_verdict(rule(), pair(1000, 500, 0, 0)).sentence


def test_grades_outside_the_registered_bounds_are_refused() -> None:
    with pytest.raises(InputError, match="registered for a metric in"):
        decide_verdict(rule(), {"treatment": np.array([0.0, 1.5]), "baseline": np.zeros(2)})
    with pytest.raises(InputError, match="needs the same items"):
        decide_verdict(rule(), {"treatment": np.zeros(3), "baseline": np.zeros(2)})
    with pytest.raises(InputError, match="registered for"):
        decide_verdict(rule(), {"treatment": np.array([np.inf, 0.0]), "baseline": np.zeros(2)})


def test_an_unanswered_item_can_neither_validate_nor_fail() -> None:
    """33 net items of 1319 validate; with one of the treatment's right answers lost, 32 are certain, and 33 possible:
    inconclusive. The interval reaches from the one to the other."""
    grades = pair(1319, 700, 33, 0)
    assert decide_verdict(rule(), grades).verdict == "validated"
    grades["treatment"][700] = np.nan
    found = decide_verdict(rule(), grades)
    assert found.verdict == "inconclusive"
    assert found.criteria[0].unanswered == 1
    half = 2 * math.sqrt(math.log(40) / (2 * 1319))
    assert found.criteria[0].hoeffding.low == pytest.approx(32 / 1319 - half, rel=1e-12)
    assert found.criteria[0].hoeffding.high == pytest.approx(33 / 1319 + half, rel=1e-12)
    assert "1 items were never answered by an arm" in found.sentence
    # The same where it is the baseline that never answered: it may have been right.
    other = pair(1319, 700, 33, 0)
    other["baseline"][1318] = np.nan
    assert decide_verdict(rule(), other).criteria[0].hoeffding == found.criteria[0].hoeffding
    # 165 lost net items fail; with one of them unanswered 164 are certain.
    grades = pair(1319, 0, 0, 165)
    assert decide_verdict(rule(), grades).verdict == "failed"
    grades["treatment"][0] = np.nan
    assert decide_verdict(rule(), grades).verdict == "inconclusive"


def test_empirical_bernstein_is_the_formula() -> None:
    d = np.array([1.0, -1.0, 0.0, 0.0] * 100)
    v, n, log = d.var(ddof=1), 400, math.log(80)
    wanted = math.sqrt(2 * v * log / n) + 7 * 2 * log / (3 * (n - 1))
    assert empirical_bernstein_interval(d, -1, 1, 0.05).high == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("q", [0.03, 0.2])
def test_intervals_cover_at_least_as_often_as_they_claim(q: float) -> None:
    """400 draws of 200 differences with a known mean; at 95% at most 5% may miss (and 3 sd of luck: 8.3%)."""
    rng = np.random.default_rng(5)
    true, missed = 0.02, {"betting": 0, "bernstein": 0, "hoeffding": 0}
    for _ in range(400):
        d = rng.choice([1.0, -1.0, 0.0], p=[(q + true) / 2, (q - true) / 2, 1 - q], size=200)
        for name, make in (
            ("betting", betting_interval),
            ("bernstein", empirical_bernstein_interval),
            ("hoeffding", hoeffding_interval),
        ):
            i = make(d, -1, 1, 0.05)
            missed[name] += not i.low <= true <= i.high
    assert max(missed.values()) <= 33, missed


def test_betting_is_tighter_where_few_items_differ() -> None:
    rng = np.random.default_rng(0)
    d = rng.choice([1.0, -1.0, 0.0], p=[0.06, 0.04, 0.9], size=1319)
    bet, hoeff = betting_interval(d, -1, 1, 0.05), hoeffding_interval(d, -1, 1, 0.05)
    assert bet.high - bet.low < 0.7 * (hoeff.high - hoeff.low)
    assert bet.low < d.mean() < bet.high


def test_betting_follows_scale_and_sign() -> None:
    d = np.random.default_rng(1).choice([1.0, -1.0, 0.0], p=[0.3, 0.1, 0.6], size=300)
    one, flipped = betting_interval(d, -1, 1, 0.05), betting_interval(-d, -1, 1, 0.05)
    assert (flipped.low, flipped.high) == pytest.approx((-one.high, -one.low), abs=2e-3)
    scaled = betting_interval(5 + 3 * d, 2, 8, 0.05)
    assert (scaled.low, scaled.high) == pytest.approx((5 + 3 * one.low, 5 + 3 * one.high), abs=1e-9)


def test_mcnemar_is_the_exact_binomial() -> None:
    g = pair(100, 40, 8, 2)
    # two-sided: 2 * (C(10,0) + C(10,1) + C(10,2)) / 2^10 = 112 / 1024
    assert exact_mcnemar_test(g["treatment"], g["baseline"]) == (8, 2, pytest.approx(112 / 1024))
    assert exact_mcnemar_test(np.ones(4), np.ones(4)).p_value == 1.0


def gambler_is_out(x: np.ndarray, m: float, alpha: float) -> bool:
    """The definition by a plain loop: Waudby-Smith & Ramdas 2023, theorem 3 with predictable plug-in bets truncated at
    c = 1/2."""
    n, up, down, seen = len(x), 1.0, 1.0, []
    for t in range(n):
        means = [(0.5 + sum(seen[: k + 1])) / (k + 2) for k in range(t)]
        variance = 0.25 if t == 0 else (0.25 + sum((s - mu) ** 2 for s, mu in zip(seen, means, strict=True))) / (t + 1)
        bet = math.sqrt(2 * math.log(2 / alpha) / (variance * n))
        up *= 1 + min(bet, 0.5 / m) * (x[t] - m)
        down *= 1 - min(bet, 0.5 / (1 - m)) * (x[t] - m)
        seen.append(float(x[t]))
        if 0.5 * max(up, down) >= 1 / alpha:
            return True
    return False


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_betting_ends_where_the_definition_ends(alpha: float) -> None:
    d = np.random.default_rng(3).choice([1.0, -1.0, 0.0], p=[0.35, 0.1, 0.55], size=60)
    i, x, step = betting_interval(d, -1, 1, alpha, grid=400), (d + 1) / 2, 1 / 400
    low, high = (i.low + 1) / 2, (i.high + 1) / 2
    assert 0 < low < high < 1
    # The ends are rounded outwards by one step: they are out, the points next to them inside are not.
    assert gambler_is_out(x, low, alpha)
    assert gambler_is_out(x, high, alpha)
    assert not gambler_is_out(x, low + step, alpha)
    assert not gambler_is_out(x, high - step, alpha)
