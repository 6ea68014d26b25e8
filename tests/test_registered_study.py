"""The arithmetic of studies/step/analyse.py, follow_ups.py, cut_arms.py and run.py, by hand."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "studies" / "step"


def load_script(name: str) -> ModuleType:
    """A script of the study as a module; one may import another, as when it is run."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


analyse = load_script("analyse")
follow_ups = load_script("follow_ups")
cut_arms = load_script("cut_arms")
measurement = load_script("run")


def test_holms_correction_by_hand():
    assert analyse.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_the_equivalent_batch_is_read_off_a_curve_that_is_linear_in_the_logarithm():
    means = {"loo_16": 40.0, "loo": 44.0, "loo_64": 46.0}
    at = {42.0: 32 / 2**0.5, 45.0: 32 * 2**0.5, 47.0: 64 * 2**0.5, 36.0: 8.0}
    for level, batch in at.items():
        assert analyse.equivalent_batch(means | {"arm": level}, "arm") == pytest.approx(batch)
    assert np.isnan(analyse.equivalent_batch({"loo_16": 44.0, "loo": 44.0, "loo_64": 40.0, "arm": 43.0}, "arm"))


def test_the_equivalent_batch_is_read_off_a_parabola_and_its_tangents():
    def level(batch: float) -> float:
        return 30 + 5 * np.log(batch) - 0.4 * np.log(batch) ** 2

    means = {name: level(batch) for name, batch in cut_arms.CONTROLS.items()}
    for batch in (16, 20, 40, 64):
        assert cut_arms.read_off_parabola(means | {"arm": level(batch)}, "arm") == pytest.approx(batch, rel=1e-6)
    # Beyond 64 along the tangent there, whose slope in the logarithm is 5 - 0.8 ln 64.
    beyond = means | {"arm": level(64) + (5 - 0.8 * np.log(64)) * np.log(1.25)}
    assert cut_arms.read_off_parabola(beyond, "arm") == pytest.approx(80)
    below = means | {"arm": level(16) - (5 - 0.8 * np.log(16)) * np.log(2)}
    assert cut_arms.read_off_parabola(below, "arm") == pytest.approx(8)
    falling = {name: -m for name, m in means.items()} | {"arm": -35.0}
    assert np.isnan(cut_arms.read_off_parabola(falling, "arm"))


def test_the_verdict_needs_controls_that_differ():
    primary = {
        "control": {"value": 6.0, "p": 0.001},
        "control_64_over_32": {"value": 3.0},
        "judged": {"norm_weighted_self_tuning": {"value": 2.0, "high": 3.0, "holm": 0.01}},
        "rank_correlation": {"prediction": [0.9, 0.5, 1.0], "B_eff": [0.1, -0.5, 0.6]},
    }
    assert analyse.verdict(primary).startswith("yes")
    worse = primary | {"judged": {"norm_weighted_self_tuning": {"value": 0.1, "high": 1.0, "holm": 0.9}}}
    assert analyse.verdict(worse).startswith("no")
    between = primary | {"judged": {"norm_weighted_self_tuning": {"value": 1.1, "high": 2.0, "holm": 0.2}}}
    assert analyse.verdict(between) == "cannot tell"
    assert analyse.verdict(primary | {"control": {"value": 6.0, "p": 0.2}}).startswith("cannot tell: LOO at 64")


def test_the_best_rate_is_that_of_the_training_reward_and_differences_are_paired(tmp_path):
    """Accuracy rises with the rate here and the reward of the last steps falls: the lowest rate is the best."""
    for arm, ahead in (("loo", 0.0), ("norm_weighted_loo", 0.1), ("none", 0.0)):
        for k, rate in enumerate(follow_ups.RATES):
            for seed in (1, 2, 3):
                run = tmp_path / "follow_up_rates" / "runs" / f"{arm}@{rate}" / f"seed{seed}"
                (run / "evaluations").mkdir(parents=True)
                (run / "result.json").write_text("{}")
                right = [1.0] * round(10 * (0.2 + 0.1 * k + ahead) + seed) + [0.0] * 20
                rows = [{"reward": r, "split": "test", "mode": "sampled"} for r in right[:20]]
                (run / "evaluations" / "step_000002.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
                (run / "metrics.jsonl").write_text(json.dumps({"reward": 0.5 - 0.1 * k}) + "\n")
    rates = follow_ups.analyse(tmp_path)["rates"]
    for rate in follow_ups.RATES:  # one more of twenty right in every seed: 5 points, without spread
        difference = rates["differences"][f"norm_weighted_loo@{rate}"]
        assert [difference[key] for key in ("value", "low", "high")] == pytest.approx([5.0, 5.0, 5.0])
    (best, _) = rates["at_their_best_rates"]
    assert best == f"norm_weighted_loo@{follow_ups.RATES[0]}"
    assert rates["at_their_best_rates"][best]["against"] == f"loo@{follow_ups.RATES[0]}"


def test_the_share_of_what_was_measured_that_is_not_noise():
    assert measurement._reliability(np.array([0.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0])) == pytest.approx(0.75)
    assert measurement._reliability(np.array([0.0, 0.1]), np.array([1.0, 1.0])) == 0.0
