"""What a row may see, stated once: by hand, and the compiled loop and the sampled recipe held to it."""

import numpy as np
import pytest

from rollonce.baselines import Baseline, Batch, KernelBaseline, LeaveOneOut, Prediction
from rollonce.features import LogLength
from rollonce.kernels import Rbf
from rollonce.rollouts import Rollouts, Tasks
from rollonce.scoring.closed_form import smoother_squared_errors
from rollonce.scoring.recipe import drawn_baselines
from rollonce.scoring.visibility import (
    make_visibility_blocks,
    places_of_first_copies,
    prompt_keys_of_log,
    window_visible_to_all,
)


def test_a_batch_hides_the_own_task_and_a_window_the_own_prompt():
    key_N = np.array([0, 1, 0, 2])  # tasks 0 and 2 have one prompt
    columns = np.array([[0, 2, 0, 3, 2, 1]])  # three rows of the batch, then the window
    t, f = True, False
    expected = [[[f, t, f, t, f, t], [t, f, t, t, f, t], [f, t, f, t, f, t]]]
    np.testing.assert_array_equal(make_visibility_blocks(key_N, columns, 3), expected)


def test_a_history_for_a_whole_batch_holds_no_prompt_of_the_batch():
    key_N = np.array([0, 1, 0, 2])
    np.testing.assert_array_equal(
        window_visible_to_all(key_N, np.array([0, 1]), np.array([2, 3, 1])), [False, True, False]
    )


def test_of_copies_in_a_batch_the_first_stays():
    np.testing.assert_array_equal(places_of_first_copies(np.array([4, 2, 4, 7, 2])), [0, 1, 3])


def test_in_a_log_prompts_are_told_apart_as_people_read_them():
    step, window = prompt_keys_of_log(Tasks(["One  task", "two"]), Tasks(["three", "ONE task"]))
    assert window[1] == step[0]
    assert len({*step.tolist(), *window.tolist()}) == 3


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_loop_sees_what_visible_blocks_says(seed):
    """Random tables with repeated prompts, and columns with copies of tasks, as a resample has them."""
    rng = np.random.default_rng(seed)
    n, n_rows, window = 12, 5, 7
    prompts = [f"{'x' * int(rng.integers(1, 9))} {rng.integers(7)}" for _ in range(n)]
    t = Rollouts.from_groups(rng.random((n, 3)), prompts)
    columns = rng.integers(n, size=(8, n_rows + window))
    ages = np.array([0] * n_rows + [2] * 3 + [1] * 4)
    visible = make_visibility_blocks(t.tasks.prompt_keys, columns, n_rows)
    for decay, shrinkage in ((1.0, 0.0), (0.8, 0.0), (0.8, 0.3)):
        recency = np.where(visible, decay**ages, 0.0)
        plain = recency / recency.sum(axis=2, keepdims=True)
        by_kernel = KernelBaseline(Rbf(LogLength()), window=window, decay=decay, shrinkage=shrinkage).fit(t.tasks)
        near = np.exp(by_kernel.kernel.log_weights(t.tasks, columns[:, :n_rows], columns, visible))
        near = np.where(visible, near * recency, 0.0)
        near = (1 - shrinkage) * near / near.sum(axis=2, keepdims=True) + shrinkage * plain
        for baseline, w in ((LeaveOneOut(window=window, decay=decay), plain), (by_kernel, near)):
            bias = np.einsum("kbm,km->kb", w, t.means_N[columns]) - t.means_N[columns[:, :n_rows]]
            expected = bias**2 + np.einsum("kbm,km->kb", w**2, t.biased_variances_N[columns])
            got = smoother_squared_errors(baseline, t.tasks, columns, n_rows, ages, t.means_N, t.biased_variances_N)
            np.testing.assert_allclose(got, expected, rtol=1e-9)


class WhatItSees(Baseline):
    """b is the number of rows that it was shown: batch and history."""

    type = "what_it_sees"
    window = 4

    def predict(self, batch: Batch, history=None):
        return Prediction.of(batch, np.full(len(batch), float(len(batch) + len(history))))


def test_the_recipe_shows_a_batch_once_and_a_window_without_its_prompts():
    t = Rollouts.from_groups(np.zeros((6, 2)), ["a", "b", "A", "c", "d", "e"])
    columns = np.array([[0, 1, 0, 2, 3, 1, 4]])  # a, b, a again; the window: A, c, b, d
    b = drawn_baselines(WhatItSees(), t, columns, np.zeros((1, 7)), 3, np.array([0, 0, 0, 1, 1, 1, 1]))
    np.testing.assert_array_equal(b, [[4.0, 4.0, np.nan]])
