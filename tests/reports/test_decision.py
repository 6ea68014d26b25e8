"""The two closing lines, against the variances they follow from: rho + B / B_eff and rho G + G / (G - 1)."""

from __future__ import annotations

import math

import pytest

from rollonce.reports.decision import decide_from_b_eff, decide_on_audit, decide_on_log, decide_on_plan
from rollonce.scoring import Estimate, WatchScore
from rollonce.testing.audit import CheckResult
from rollonce.tuning.planning import Difficulty, predict_budget_plan


def variances(rho: float, b_eff: float, batch_size: int, group: int = 8) -> tuple[float, float]:
    return rho + batch_size / b_eff, rho * group + group / (group - 1)


@pytest.mark.parametrize("rho", [0.0, 0.03, 0.08, 0.11, 0.3])
def test_the_answer_at_a_known_rho_is_that_of_the_variances(rho: float) -> None:
    one_each, groups = variances(rho, 18.0, 32)
    answer, because = decide_from_b_eff(Estimate(18.0, math.nan, math.nan), 32, rho)
    assert answer == ("yes" if one_each < groups else "no")
    assert "0.091" in because  # (32 / 18 - 8 / 7) / 7


def test_an_interval_that_holds_the_crossing_cannot_tell() -> None:
    b_eff = Estimate(18.0, 15.0, 22.0)  # crossings 0.142 and 0.0445
    assert decide_from_b_eff(b_eff, 32, 0.10)[0] == "cannot tell"
    assert decide_from_b_eff(b_eff, 32, 0.15)[0] == "yes"
    assert decide_from_b_eff(b_eff, 32, 0.04)[0] == "no"


def test_without_rho_only_a_b_eff_as_large_as_the_groups_is_a_yes() -> None:
    assert decide_from_b_eff(Estimate(29.5, 28.1, 31.0), 32)[0] == "yes"  # groups of 8 have 28 of 32
    answer, because = decide_from_b_eff(Estimate(29.5, 27.0, 31.0), 32)
    assert answer == "cannot tell"
    assert "rollonce noise" in because
    assert "1.6 times the rollouts" in decide_from_b_eff(Estimate(17.5, math.nan, math.nan), 32)[1]  # 1.829 / 1.143
    assert decide_from_b_eff(Estimate(7.0, 6.5, 7.5), 8)[0] == "yes"  # groups of 4 have 6 of 8


def test_plan_says_where_rho_comes_from() -> None:
    made = predict_budget_plan(32, Difficulty(0.4, 0.14, 0.1))
    unknown = decide_on_plan(made, "mine.jsonl", rho_known=False)
    assert unknown.answer == "cannot tell"
    assert unknown.next_step.startswith("rollonce noise")
    known = decide_on_plan(predict_budget_plan(32, Difficulty(0.4, 0.14, 0.1), rho=0.5), "mine.jsonl", rho_known=True)
    assert known.answer == "yes"
    assert known.next_step.startswith("rollonce score mine.jsonl --save-best")


def test_an_audit_that_fails_is_a_no() -> None:
    results = [CheckResult("own_reward", False, "b moved"), CheckResult("order", True, "")]
    said = decide_on_audit(results, "mine:baseline", None)
    assert (said.answer, "own reward" in said.because) == ("no", True)
    passed = decide_on_audit(results[1:], "b.json", {"reported_ratio_to_loo": [1.13, 1.02, 1.25]})
    assert passed.answer == "cannot tell"
    assert "1.13 [1.02, 1.25]" in passed.because
    assert passed.next_step == 'SingleRolloutGRPOTrainer(..., baseline="b.json")'


def test_a_log_recommends_only_what_can_be_told_apart() -> None:
    def score(low: float, high: float) -> WatchScore:
        return WatchScore("Kriging", 0.2, Estimate(1.2, low, high), 1.2, 30, 960, "")

    assert "rollonce tune run.jsonl" in decide_on_log([score(1.1, 1.3)], "run.jsonl").next_step
    assert "LeaveOneOut()" in decide_on_log([score(0.9, 1.6)], "run.jsonl").next_step
