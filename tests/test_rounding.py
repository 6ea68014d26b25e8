"""Rewards equal but for rounding are equal wherever that is asked: advantages, dead groups, moments, warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rollonce.baselines import Batch, Grpo, LeaveOneOut, ReinforcePlusPlus
from rollonce.integrations import AdvantageHook
from rollonce.rollouts import Rollouts
from rollonce.rounding import rewards_are_equal
from rollonce.scoring import dead_group_fraction, moments


def bfloat16(x: float) -> float:
    """Rounded to the upper half of a float32, ties to even."""
    bits = np.array(x, dtype=np.float32).view(np.uint32)
    return float(((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & 1)) & 0xFFFF0000).view(np.float32))


def half_sum(a: float, b: float) -> float:
    return bfloat16(bfloat16(a) + bfloat16(b))


def float32(*parts: float) -> float:
    total = np.float32(0)
    for part in parts:
        total += np.float32(part)
    return float(total)


NINE_TENTHS = {
    "float64": (0.1 + 0.2 + 0.6, 0.9, 0.3 * 3),
    "float32": (float32(0.7, 0.2), float32(0.8, 0.1), float32(0.9)),
    "bfloat16": (half_sum(0.7, 0.2), half_sum(0.8, 0.1), bfloat16(0.9)),
    "float16": tuple(float(np.float16(a) + np.float16(b)) for a, b in ((0.7, 0.2), (0.8, 0.1), (0.6, 0.3))),
}


@pytest.mark.parametrize("precision", NINE_TENTHS)
def test_nine_tenths_in_every_precision(precision: str) -> None:
    values = NINE_TENTHS[precision]
    assert len(set(values)) > 1  # the case is one
    rewards = np.array([values[i % 3] for i in range(8)])
    assert rewards_are_equal(rewards)
    prompts = [f"task {i}" for i in range(8)]
    for settings in ({}, {"scale_by_std": True}, {"whiten": True}):
        hook = AdvantageHook(LeaveOneOut(), **settings)
        with pytest.warns(UserWarning, match=r"all 8 rewards of this step are 0\.\d+: there is nothing to learn"):
            assert np.abs(hook.advantages(prompts, rewards).advantages_N).max() == 0
    batch = Batch.of(prompts, rewards)
    assert np.abs(ReinforcePlusPlus().advantages(batch)).max() == 0
    groups = Batch.of(prompts, rewards, task_ids=[str(i // 4) for i in range(8)])
    assert np.abs(Grpo(scale="group").advantages(groups)).max() == 0


@pytest.mark.parametrize("precision", NINE_TENTHS)
def test_a_group_of_them_is_dead_and_has_no_noise(precision: str) -> None:
    values = NINE_TENTHS[precision]
    table = Rollouts.from_groups([[values[0], values[1], values[2]], [0, 1, 1]], ["a", "b"])
    assert dead_group_fraction(table, 3) == 0.5
    assert dead_group_fraction(table, 2) == pytest.approx((1 + 1 / 3) / 2)
    assert table.variances_N.tolist() == [0, pytest.approx(1 / 3)]
    assert table.group(1).tolist() == [0, 1, 1]
    everything = Rollouts.from_groups([[values[0], values[1]], [values[2], values[1]]], ["a", "b"])
    m = moments(everything)
    assert (m.s2.value, m.tau2.value, np.ptp(everything.rewards_R)) == (0, 0, 0)


@pytest.mark.parametrize(
    "rewards",
    [
        [0.9, 0.901],
        [200, 201],
        [100, 100.5],
        [1.0, 1.00001],
        [0, 1e-6],
        [1e-9, 2e-9, 4e-9],
        [0.5, 0.75],
        [bfloat16(0.9), bfloat16(0.92)],
    ],
)
def test_small_differences_that_are_differences(rewards: list[float]) -> None:
    assert not rewards_are_equal(np.array(rewards, dtype=np.float64))
    table = Rollouts.from_groups([rewards], ["a"])
    assert table.rewards_R.tolist() == rewards


def test_a_step_with_differences_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hook = AdvantageHook(LeaveOneOut(), scale_by_std=True)
        result = hook.advantages([f"task {i}" for i in range(4)], [float32(0.7, 0.2), float32(0.8, 0.1), 0, 1])
    assert np.abs(result.advantages_N).max() > 0.5
