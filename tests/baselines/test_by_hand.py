"""Baselines against values worked out by hand."""

import math

import numpy as np
import pytest

from rollonce.baselines import (
    Batch,
    Blend,
    Constant,
    FlashReinforce,
    Grpo,
    History,
    KernelBaseline,
    LeaveOneOut,
    NoBaseline,
    Oracle,
    ReinforcePlusPlus,
    Ridge,
    Rloo,
    Tracker,
)
from rollonce.errors import InputError
from rollonce.kernels import Same, Softmax

R4 = [1.0, 0.0, 0.0, 0.0]


def batch(rewards, prompts=None, **kw):
    return Batch.of(prompts or [f"prompt {i}" for i in range(len(rewards))], rewards, **kw)


def groups(rewards, *ids):
    return batch(rewards, [f"prompt of {i}" for i in ids], task_ids=list(ids))


def test_flashreinforce_is_the_batch_mean_and_a_constant_share_of_the_leave_one_out_advantage():
    b = batch(R4)
    assert FlashReinforce().predict(b).baseline_B.tolist() == [0.25] * 4
    np.testing.assert_allclose(FlashReinforce().advantages(b), 0.75 * LeaveOneOut().advantages(b), atol=1e-15)
    assert FlashReinforce().advantages(batch([0.1] * 7)).tolist() == [0.0] * 7  # exactly, though 7 * 0.1 / 7 is not 0.1


def test_reinforce_plus_plus_whitens_and_guards_the_deviation():
    std = math.sqrt(0.1875)
    b = batch(R4)
    np.testing.assert_allclose(ReinforcePlusPlus().advantages(b), [0.75 / std, *[-0.25 / std] * 3], atol=1e-15)
    factor = ReinforcePlusPlus().twin_advantage_factor(b)
    assert factor == pytest.approx(0.75 / std)
    np.testing.assert_allclose(ReinforcePlusPlus().advantages(b), factor * LeaveOneOut().advantages(b), atol=1e-14)
    for r in (0.0, 0.3, 1e9, -0.1):
        assert ReinforcePlusPlus().advantages(batch([r] * 5)).tolist() == [0.0] * 5
    almost = ReinforcePlusPlus().advantages(batch([0.3, 0.3, 0.1 + 0.2]))  # equal but for rounding
    assert almost.tolist() == [0.0] * 3


def test_grpo_and_rloo_by_hand():
    b = groups([1.0, 0.0, 0.0, 0.5, 0.5, 1.0, 0.0], "x", "y", "x", "y", "x", "y", "x")
    # x: 1, 0, 0.5, 0 (mean 0.375); y: 0, 0.5, 1 (mean 0.5)
    np.testing.assert_allclose(Grpo().predict(b).baseline_B, [0.375, 0.5, 0.375, 0.5, 0.375, 0.5, 0.375], atol=1e-15)
    np.testing.assert_allclose(Rloo().predict(b).baseline_B, [0.5 / 3, 0.75, 0.5, 0.5, 1 / 3, 0.25, 0.5], atol=1e-15)
    factor = np.array([4 / 3, 3 / 2, 4 / 3, 3 / 2, 4 / 3, 3 / 2, 4 / 3])
    np.testing.assert_allclose(Rloo().advantages(b), factor * Grpo().advantages(b), atol=1e-15)


def test_grpo_by_the_groups_deviation():
    b = groups([1.0, 0.0, 0.3, 0.3], "x", "x", "y", "y")
    assert Grpo("group").advantages(b).tolist() == [1.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize("baseline", [Grpo(), Grpo("group"), Rloo()], ids=lambda b: b.label)
def test_groups_of_one_are_refused_and_named(baseline):
    with pytest.raises(
        InputError,
        match=r"at least two rollouts of every task, but task 'lonely' has one .* advantage would always be 0",
    ):
        baseline.advantages(groups([1.0, 0.0, 1.0], "x", "x", "lonely"))


def test_none_constant_and_oracle():
    b = groups([1.0, 0.0], "x", "y")
    assert NoBaseline().advantages(b).tolist() == [1.0, 0.0]
    assert Constant(0.25).advantages(b).tolist() == [0.75, -0.25]
    assert Oracle({"y": 0.2, "x": 0.9}).predict(b).baseline_B.tolist() == [0.9, 0.2]
    with pytest.raises(InputError, match=r"does not know task 'y' \(1 of 2"):
        Oracle({"x": 0.9}).predict(b)
    assert Oracle({"type": 0.5}).config()["means"] == {"type": 0.5}


def test_leave_one_out_with_a_window_and_decay_by_hand():
    baseline = LeaveOneOut(window=3, decay=0.5)
    baseline.observe(batch([1.0, 0.0]))
    baseline.observe(batch([1.0, 0.5]))
    # The newest three: 0 (two steps ago, weight 1/4), 1 and 0.5 (one step ago, weight 1/2).
    assert baseline.history.rewards_H.tolist() == [0.0, 1.0, 0.5]
    assert baseline.history.ages_H.tolist() == [2, 1, 1]
    b = batch([0.2, 0.6])
    past, weight = 0.25 * 0 + 0.5 * 1 + 0.5 * 0.5, 0.25 + 0.5 + 0.5
    np.testing.assert_allclose(
        baseline.predict(b).baseline_B, [(0.6 + past) / (1 + weight), (0.2 + past) / (1 + weight)], atol=1e-15
    )
    np.testing.assert_allclose(baseline.weights(b)[0] * (1 + weight), [0, 1, 0.25, 0.5, 0.5], atol=1e-15)
    np.testing.assert_allclose(baseline.predict(b, History.before_first_step()).baseline_B, [0.6, 0.2], atol=0)
    alone = baseline.predict(batch([0.9]))
    np.testing.assert_allclose(alone.baseline_B, [past / weight], atol=1e-15)
    assert not alone.only_prior_B.any()


def test_a_kernel_with_a_window_and_decay_by_hand():
    baseline = KernelBaseline(Softmax(temperature=1.0), shrinkage=0.5, window=2, decay=0.5).fit(["red", "blue"])
    baseline.observe(batch([1.0], ["red"]))
    baseline.observe(batch([0.0], ["blue"]))
    e = math.e
    # Row 0 ("red") sees red 0.5 now, red 1 two steps ago (1/4), blue 0 one step ago (1/2).
    kernel = (e * 0.5 + 0.25 * e * 1.0 + 0.5 * 0.0) / (e + 0.25 * e + 0.5)
    loo = (0.5 + 0.25 * 1.0 + 0.5 * 0.0) / 1.75
    np.testing.assert_allclose(
        baseline.predict(batch([0.2, 0.5], ["red", "red"])).baseline_B[0], 0.5 * kernel + 0.5 * loo, atol=1e-15
    )


def test_history_keeps_the_newest_rows_and_forgets_the_rest():
    baseline = LeaveOneOut(window=4)
    for r in range(5):
        baseline.observe(batch([float(r)] * 3))
    assert baseline.history.rewards_H.tolist() == [3.0, 4.0, 4.0, 4.0]
    assert baseline.history.ages_H.tolist() == [2, 1, 1, 1]
    assert len(baseline.history.tasks.root) == 4  # the older tasks are not held in memory by a view
    no_window = LeaveOneOut()
    no_window.observe(batch([1.0]))
    assert len(no_window.history) == 0


def test_shrinkage_by_hand():
    prompts, rewards = ["red", "red", "blue"], [1.0, 0.0, 0.5]
    e = math.exp(2.0)
    kernel = np.array([0.5 / (e + 1), (e + 0.5) / (e + 1), 0.5])
    loo = np.array([0.25, 0.75, 0.5])
    b = batch(rewards, prompts)
    for baseline in (
        KernelBaseline(Softmax(temperature=0.5), shrinkage=0.3),
        Blend([KernelBaseline(Softmax(temperature=0.5)), LeaveOneOut()], [0.7, 0.3]),
        Blend([KernelBaseline(Softmax(temperature=0.5))], [1.0], shrinkage=0.3),
    ):
        np.testing.assert_allclose(baseline.fit(prompts).predict(b).baseline_B, 0.7 * kernel + 0.3 * loo, atol=1e-15)


def test_a_blend_uses_each_parts_own_window():
    blend = Blend([LeaveOneOut(window=2), LeaveOneOut()], [3.0, 1.0])
    assert blend.window == 2
    blend.observe(batch([1.0, 1.0]))
    b = batch([0.0, 0.5])
    # With the window: (0.5 + 1 + 1) / 3 and (0 + 1 + 1) / 3; in the batch alone: 0.5 and 0.
    np.testing.assert_allclose(blend.predict(b).baseline_B, [0.75 * 2.5 / 3 + 0.25 * 0.5, 0.75 * 2 / 3], atol=1e-15)
    # A batch of one: only the windowed part sees anything, and gets all the weight.
    np.testing.assert_allclose(blend.predict(batch([0.0])).baseline_B, [1.0], atol=1e-15)
    assert blend.weights(batch([0.0])).sum() == pytest.approx(1.0)


def test_a_window_on_a_mixture_is_refused_rather_than_ignored():
    with pytest.raises(InputError, match="blend takes window and decay from its parts"):
        Blend([LeaveOneOut()], [1.0], decay=0.5)


def test_tags_of_mixtures_follow_their_parts():
    assert not Blend([LeaveOneOut(window=9), Ridge(window=9)], [1.0, 1.0]).tags.neutral
    assert Blend([LeaveOneOut(), KernelBaseline()], [1.0, 1.0]).tags.neutral
    assert not Blend([LeaveOneOut(), KernelBaseline(window=8)], [1.0, 1.0]).tags.neutral


def test_tracker_by_hand():
    tracker = Tracker(discount=0.5, strength=1.0, prior_mean=0.5)
    ask = batch([0.0, 0.0], ["Seen  Often", "new"])
    tracker.observe(batch([1.0], ["seen often"]))
    tracker.observe(batch([0.0], ["SEEN often "]))  # one task: prompts are compared normalised
    # 1, then 0: weight 0.5 + 1, sum 0.5 * 1 + 0.
    np.testing.assert_allclose(tracker.predict(ask).baseline_B, [(0.5 + 0.5) / 2.5, 0.5], atol=1e-15)
    assert not tracker.predict(ask).only_prior_B.any()


def test_tracker_without_a_prior_mean_uses_the_running_mean():
    tracker = Tracker(discount=1.0, strength=2.0)
    assert tracker.predict(batch([1.0])).baseline_B.tolist() == [0.0]
    assert tracker.predict(batch([1.0])).only_prior_B.tolist() == [True]
    tracker.observe(batch([1.0, 0.0, 0.5, 0.5], ["a", "b", "a", "c"]))
    np.testing.assert_allclose(
        tracker.predict(batch([0.0, 0.0], ["a", "z"])).baseline_B, [(2 * 0.5 + 1.5) / 4, 0.5], atol=1e-15
    )


def test_tracker_counts_a_group_alike_in_any_order():
    rewards = np.array([1.0, 0.0, 0.5])
    values = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        tracker = Tracker(discount=0.5, prior_mean=0.0)
        tracker.observe(batch([1.0], ["t"]))
        tracker.observe(batch(rewards[order], ["t"] * 3))
        values.append(tracker.predict(batch([0.0], ["t"])).baseline_B[0])
    # Weight 0.5^3 + (1 + 0.5 + 0.25), sum 0.5^3 * 1 + 1.75 * mean.
    assert values == [pytest.approx((0.125 + 1.75 * 0.5) / (1 + 0.125 + 1.75), abs=1e-15)] * 3
    assert len(set(values)) == 1


def test_tracker_with_history_given_is_the_tracker_that_observed_it():
    rng = np.random.default_rng(0)
    past = [batch(rng.random(4), list(rng.choice(["a", "b", "c"], 4))) for _ in range(5)]
    tracker, history = Tracker(discount=0.7), History.before_first_step()
    for step in past:
        tracker.observe(step)
        history = history.with_batch_appended(step)
    ask = batch([0.0] * 3, ["a", "b", "z"])
    np.testing.assert_allclose(
        Tracker(discount=0.7).predict(ask, history).baseline_B, tracker.predict(ask).baseline_B, atol=1e-15
    )


def test_zero_weight_rows_fall_back_to_what_they_see_window_included():
    baseline = KernelBaseline(Same(), window=2)
    family = {"columns": {"family": ["p", "q"]}}
    baseline.observe(batch([1.0, 0.0], **family))
    got = baseline.predict(batch([0.5, 0.25], columns={"family": ["alone", "p"]})).baseline_B
    np.testing.assert_allclose(got, [(0.25 + 1 + 0) / 3, 1.0], atol=1e-15)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Batch.of(["a", "b"], [1.0]), "2 prompts, rewards of shape \\(1,\\)"),
        (lambda: Batch.of(["a", "b"], [1.0, float("nan")]), "reward 1 of the batch is nan"),
        (lambda: LeaveOneOut(window=-1), "window must be >= 0"),
        (lambda: LeaveOneOut(decay=0.0), "decay in \\(0, 1\\]"),
        (lambda: KernelBaseline(shrinkage=1.5), "shrinkage"),
        (lambda: Tracker(discount=0.0), "discount"),
        (lambda: Constant(float("inf")), "finite"),
        (lambda: Grpo("batch"), "'none' or 'group'"),  # type: ignore[arg-type]
        (lambda: Blend([LeaveOneOut()], [1.0, 2.0]), "as many shares"),
        (lambda: LeaveOneOut(shrinkage=2.0), "in \\[0, 1\\]"),
    ],
)
def test_bad_input_is_named(make, word):
    with pytest.raises(InputError, match=word):
        make()


def test_a_saved_file_has_the_mode_that_open_would_give(tmp_path):
    import os
    import stat

    before = os.umask(0o027)
    try:
        LeaveOneOut().save(tmp_path / "b.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "b.json").stat().st_mode) == 0o640
