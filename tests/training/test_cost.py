"""What a comparison will take: counts worked out by hand, hours from a step's, and the first minutes against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rollonce import cli
from rollonce.tasks import TaskSplits
from rollonce.training import cost as cost_module
from rollonce.training.config import ExperimentConfig
from rollonce.training.cost import (
    Pace,
    StepCost,
    count_evaluation_answers,
    estimate_comparison_cost,
    save_comparison_cost,
    step_costs_from_throughput,
)
from rollonce.training.loading import list_comparison_runs
from rollonce.training.sections import validate_section

ARMS: dict[str, Any] = {"loo": {"baseline": "loo", "learning_rates": [1e-4, 2e-4]}, "none": {"baseline": "none"}}


def config(**tables: Any) -> ExperimentConfig:
    data = {
        "train": {"steps": 100, "rollouts": 32},
        "evaluation": {"every": 25, "repeats": 2, "test_repeats": 3},
        "compare": {"seeds": [0, 1, 2]},
        "arms": ARMS,
    }
    return validate_section(ExperimentConfig, {**data, **tables})


SPLITS = TaskSplits(train=[None] * 64, holdout=[None] * 10, test=[None] * 20)  # type: ignore[arg-type] - lengths alone


def test_answers_are_counted_before_on_the_way_and_at_the_end() -> None:
    run = list_comparison_runs(config())[0]
    # Start and end: 10 x 2 + 20 x (3 + greedy); after steps 25, 50 and 75 the hold-out alone.
    assert count_evaluation_answers(run, 10, 20) == 2 * (20 + 80) + 3 * 20
    seldom = list_comparison_runs(config(evaluation={"every": 0, "greedy": False}))[0]
    assert count_evaluation_answers(seldom, 10, 20) == 2 * (10 + 20)


def test_hours_tokens_and_rollouts_by_hand() -> None:
    steps = {"loo": StepCost(9.0, 1000.0, 0.5, 40.0, 2**30), "none": StepCost(18.0, 1000.0, 0.5, 40.0, 2**31)}
    found = estimate_comparison_cost(config(), SPLITS, steps, places=4, how="by hand")
    loo, none = found.arms
    assert (loo.arm, loo.runs, loo.rollouts) == ("loo", 6, 6 * 3200)  # two rates, three seeds
    assert loo.tokens == 6 * (100 * 1000 + 260 * 40)
    assert loo.hours == pytest.approx(6 * (900 + 130) / 3600)
    assert none.hours == pytest.approx(3 * (1800 + 130) / 3600)
    assert found.hours == pytest.approx((loo.hours + none.hours) / 4)
    assert found.seconds_per_step == 13.5
    # However many devices: no shorter than its longest run.
    assert estimate_comparison_cost(config(), SPLITS, steps, places=100, how="").hours == pytest.approx(1930 / 3600)
    assert estimate_comparison_cost(config(), SPLITS, {}, places=1, how="").hours is None


def test_a_throughput_that_is_given() -> None:
    step = step_costs_from_throughput(config(), tokens_per_second=800, response_tokens=50)["none"]
    assert (step.tokens, step.seconds, step.memory) == (1600, 2.0, None)


def test_the_first_minutes_are_held_against_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(cost_module.time, "monotonic", lambda: now[0])
    steps = step_costs_from_throughput(config(), tokens_per_second=800, response_tokens=50)
    save_comparison_cost(
        estimate_comparison_cost(config(), SPLITS, steps, places=4, how=""), tmp_path
    )  # 2 s a step, 4 at once: 120 a minute
    pace = Pace(tmp_path)
    assert pace.sentence_when_due(50) == ""  # done before this session
    now[0] += 300
    said = pace.sentence_when_due(350)
    assert said.startswith(
        "after 5 minutes: 60 steps a minute, where --check expected 120; what remains will take 2 times"
    )
    assert pace.sentence_when_due(400) == ""  # once
    assert Pace(tmp_path / "nowhere").sentence_when_due(1) == ""


TOML = """
[tasks]
train = 60
holdout = 4
test = 4
[train]
steps = 50
rollouts = 4
max_new_tokens = 8
shadow = []
[arms.loo]
baseline = "loo"
[arms.head.critic]
kind = "head"
"""


def test_check_measures_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "two.toml", tmp_path / "out"
    file.write_text(TOML)
    assert cli.main(["compare", str(file), "--out", str(out), "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(arm["arm"], arm["runs"], arm["rollouts"]) for arm in found["arms"]] == [("loo", 1, 200), ("head", 1, 200)]
    assert all(arm["hours"] > 0 and 0 < arm["tokens"] < 8 * 300 and arm["memory"] > 1e8 for arm in found["arms"])
    assert [path.name for path in out.iterdir()] == ["cost.json"]
    assert cli.main(["compare", str(file), "--out", str(out), "--check", "--tokens-per-second", "1000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1000 response tokens per second and 4 tokens per response" in said
    assert "hours from start to end" in said
    assert cli.main(["compare", str(file), "--tokens-per-second", "1000"]) == 2
    assert "are for --check" in capsys.readouterr().err
