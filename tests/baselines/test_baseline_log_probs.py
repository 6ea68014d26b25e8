"""Log-probabilities travel with batch and history, into files and back, and rows without them stay unknown."""

import json

import numpy as np
import pytest

from rollonce.baselines import (
    Batch,
    Blend,
    BoostedTrees,
    Cost,
    ExpertMixture,
    History,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    Ridge,
    SelfTuning,
    Tracker,
)
from rollonce.errors import InputError


def batch(rewards, log_probs=None):
    return Batch.of([f"task {i}" for i in range(len(rewards))], rewards, log_probs=log_probs)


def test_a_window_mixes_rows_with_and_without():
    history = History.before_first_step().with_batch_appended(batch([1.0, 0.0]))
    assert history.log_probs_H is None
    history = history.with_batch_appended(batch([0.5, 0.25], [-3.0, np.nan])).with_batch_appended(batch([1.0]))
    np.testing.assert_array_equal(history.log_probs_H, [np.nan, np.nan, -3.0, np.nan, np.nan])
    np.testing.assert_array_equal(history.keep_newest_rows(3).log_probs_H, [-3.0, np.nan, np.nan])
    np.testing.assert_array_equal(history.rows_at_positions([2, 0]).log_probs_H, [-3.0, np.nan])
    np.testing.assert_array_equal(history.rebuild_batch_of_age(2).log_probs_B, [-3.0, np.nan])
    assert history.rebuild_batch_of_age(2).rewards_B.tolist() == [0.5, 0.25]


def test_as_plain_json_and_back_and_from_a_state_that_knew_none():
    history = (
        History.before_first_step()
        .with_batch_appended(batch([1.0, 0.0]))
        .with_batch_appended(batch([0.5, 0.25], [-3.5, -700.25]))
    )
    state = json.loads(json.dumps(history.to_json_state(), allow_nan=False))
    assert state["log_probs"] == [None, None, -3.5, -700.25]
    np.testing.assert_array_equal(History.from_json_state(state).log_probs_H, history.log_probs_H)
    del state["log_probs"]  # as written before there were any
    old = History.from_json_state(state)
    assert old.log_probs_H is None
    assert old.rewards_H.tolist() == [1.0, 0.0, 0.5, 0.25]
    assert "log_probs" not in old.to_json_state()


def test_batches_end_to_end():
    both = Batch.concatenate_batches([batch([1.0], [-2.0]), batch([0.0, 0.5])])
    np.testing.assert_array_equal(both.log_probs_B, [-2.0, np.nan, np.nan])
    assert Batch.concatenate_batches([batch([1.0]), batch([0.0])]).log_probs_B is None


def test_a_saved_window_keeps_them(tmp_path):
    baseline = KernelBaseline(window=8).fit(["task 0", "task 1"])
    baseline.observe(batch([1.0, 0.0], [-1.0, -2.0]))
    baseline.save(tmp_path / "b.json")
    assert KernelBaseline.load(tmp_path / "b.json").history.log_probs_H.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("bad", [[3.0, -1.0], [-np.inf, -1.0], [-1.0], [[-1.0, -2.0]]])
def test_what_is_no_log_probability_is_refused(bad):
    with pytest.raises(InputError, match="log-probability"):
        batch([1.0, 0.0], bad)
    with pytest.raises(InputError, match="log-probability"):
        History.from_json_state(
            History.before_first_step().with_batch_appended(batch([1.0, 0.0])).to_json_state() | {"log_probs": bad}
        )


def test_the_tag_of_cost_is_that_of_the_dearest_part():
    assert LeaveOneOut(window=512).tags.cost == KernelBaseline().tags.cost == Tracker().tags.cost == Cost.TABLE
    assert Kriging().tags.cost == SelfTuning().tags.cost == Ridge().tags.cost == Cost.SOLVE
    assert Blend([Kriging(), LeaveOneOut()], [1.0, 1.0]).tags.cost == Cost.SOLVE
    assert Blend([KernelBaseline(), LeaveOneOut()], [1.0, 1.0]).tags.cost == Cost.TABLE
    assert ExpertMixture([Ridge()]).tags.cost == Cost.SOLVE
    assert ExpertMixture([Ridge(), BoostedTrees()]).tags.cost == Cost.MODEL_FIT
