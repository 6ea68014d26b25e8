"""The arithmetic of studies/step/analyse.py, by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SPEC = importlib.util.spec_from_file_location(
    "analyse", Path(__file__).resolve().parents[1] / "studies" / "step" / "analyse.py"
)
assert SPEC is not None
assert SPEC.loader is not None
analyse = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(analyse)


def test_holms_correction_by_hand():
    assert analyse.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_the_equivalent_batch_is_read_off_a_curve_that_is_linear_in_the_logarithm():
    means = {"loo_16": 40.0, "loo": 44.0, "loo_64": 46.0}
    at = {42.0: 32 / 2**0.5, 45.0: 32 * 2**0.5, 47.0: 64 * 2**0.5, 36.0: 8.0}
    for level, batch in at.items():
        assert analyse.equivalent_batch(means | {"arm": level}, "arm") == pytest.approx(batch)
    assert np.isnan(analyse.equivalent_batch({"loo_16": 44.0, "loo": 44.0, "loo_64": 40.0, "arm": 43.0}, "arm"))


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
