"""Rows of a board by name, and one of them fitted for a file."""

from __future__ import annotations

import numpy as np
import pytest

from rollonce.baselines import Baseline, Batch, SelfTuning
from rollonce.baselines.catalogue import default_board_baselines
from rollonce.errors import InputError
from rollonce.rollouts import Rollouts
from rollonce.scoring.rows import choose_board_rows, find_rows_by_name, fit_row_for_saving


@pytest.fixture(scope="module")
def table() -> Rollouts:
    rng = np.random.default_rng(0)
    easy = [("add the numbers", 0.9), ("sort the list", 0.2)]
    prompts = [f"{easy[i % 2][0]} {i} and {i * 7 % 31}" for i in range(40)]
    rewards = [(rng.random(4) < easy[i % 2][1]).astype(float).tolist() for i in range(40)]
    return Rollouts.from_groups(rewards, prompts, columns={"family": [i % 2 for i in range(40)]})


def test_names_are_labels_names_or_parts_of_labels(table: Rollouts) -> None:
    rows = default_board_baselines(table.tasks, 16)
    assert [r.label for r in find_rows_by_name("LOO mean", rows)] == ["LOO mean"]
    assert [r.label for r in find_rows_by_name("kriging", rows)] == ["Kriging"]  # the name of the catalogue
    assert [r.label for r in find_rows_by_name("gs1_tfidf", rows)] == ["softmax TF-IDF, T=0.1"]
    assert [r.label for r in find_rows_by_name("loo_window_8", rows)] == ["LOO mean, window 8"]
    assert {r.label for r in find_rows_by_name("Krig", rows)} == {"Kriging", "Kriging, window 16"}
    assert {r.label for r in find_rows_by_name("window 16", rows)} == {r.label for r in rows if "window 16" in r.label}


def test_a_near_miss_is_named(table: Rollouts) -> None:
    with pytest.raises(InputError, match="did you mean 'gs1_tfidf'"):
        choose_board_rows(table, 16, only=["gs1_tdidf"])


def test_quick_leaves_out_what_is_fitted_on_rewards(table: Rollouts) -> None:
    rows = choose_board_rows(table, 16, quick=True)
    assert not any(hasattr(r, "fit_rewards") or "boosted" in r.label for r in rows)
    assert {"LOO mean", "Kriging, window 16"} <= {r.label for r in rows}


def test_a_saved_row_gives_what_the_row_gave(table: Rollouts, tmp_path) -> None:
    for label in ("same family, window 16", "self-tuning"):
        row = fit_row_for_saving(table, label, default_board_baselines(table.tasks, 16))
        row.save(tmp_path / "b.json", {})
        loaded = Baseline.load(tmp_path / "b.json")
        batch = Batch(table.tasks.take(np.arange(8)), np.arange(8) % 2.0)
        np.testing.assert_array_equal(loaded.predict(batch).baseline_B, row.predict(batch).baseline_B)
    assert isinstance(loaded, SelfTuning)
    # It has learned that tasks differ: fitted on nothing it would give the batch's mean of the others.
    fresh = SelfTuning().fit(table.tasks)
    assert not np.allclose(fresh.predict(batch).baseline_B, loaded.predict(batch).baseline_B)


def test_what_no_trainer_can_have_is_not_saved(table: Rollouts) -> None:
    with pytest.raises(InputError, match="is not saved"):
        fit_row_for_saving(table, "oracle", default_board_baselines(table.tasks, 16))
    with pytest.raises(InputError, match="several rows: Kriging, Kriging, window 16"):
        fit_row_for_saving(table, "Krig", default_board_baselines(table.tasks, 16))
