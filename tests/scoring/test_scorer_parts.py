"""Parts of the scorer that the values of whole boards do not pin: what breaks each one was tried, and is seen here."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats

from rollonce import datasets
from rollonce.baselines import (
    Baseline,
    Batch,
    BoostedTrees,
    FlashReinforce,
    Kriging,
    LeaveOneOut,
    NoBaseline,
    Prediction,
    Ridge,
    SelfTuning,
    published_tfidf,
)
from rollonce.errors import InputError
from rollonce.readers import read_rollouts
from rollonce.rollouts import Rollouts
from rollonce.scoring import Scorer, Watcher, score_rollouts
from rollonce.scoring.closed_form import smoother_squared_errors
from rollonce.scoring.recipe import recipe_squared_errors


def table(n: int, g: int = 3, seed: int = 0) -> Rollouts:
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    return Rollouts.from_groups(
        (rng.random((n, g)) < p[:, None]).astype(float), [f"task number{i} of{i % 7}" for i in range(n)]
    )


def test_ages_count_steps_back_and_the_newest_rows_come_last():
    scorer = Scorer(table(20), 3, n_batches=5, resamples=0)
    np.testing.assert_array_equal(scorer.ages_with_window(7), [0, 0, 0, 3, 2, 2, 2, 1, 1, 1])


def test_only_targets_count():
    t = table(12)
    chosen = [1, 4, 7]
    all_of_them, some = (
        Scorer(t, 4, n_batches=300, resamples=0),
        Scorer(t, 4, n_batches=300, resamples=0, targets=chosen),
    )
    columns = all_of_them.draw_common_batches(0)
    errors = all_of_them.unbiased_squared_errors(LeaveOneOut(), columns, 0)
    expected = errors[np.isin(columns[:, :4], chosen)].mean()
    assert some.score_baseline(LeaveOneOut()).mse == pytest.approx(expected, rel=1e-12)
    assert expected != pytest.approx(errors.mean(), rel=1e-3)


def test_dear_baselines_use_fewer_batches():
    t = table(190)
    scorer = Scorer(t, 32, n_batches=60, resamples=0, n_batches_expensive=7)
    assert scorer.score_baseline(Kriging(window=140).fit(t.tasks)).n_batches == 7
    assert scorer.score_baseline(published_tfidf(140).fit(t.tasks)).n_batches == 60
    assert scorer.score_baseline(Kriging().fit(t.tasks)).n_batches == 60


@pytest.mark.parametrize(("resamples", "df"), [(8, 7), (60, 49)])
def test_an_interval_rests_on_no_more_than_its_resamples_or_tasks(resamples, df):
    t = datasets.load("taubench_airline_gpt4o")
    scorer = Scorer(t, n_batches=100, resamples=resamples, batches_per_resample=20)
    pair, _ = scorer._compare_on_common_batches(LeaveOneOut(), LeaveOneOut())
    assert pair.degrees_of_freedom == df
    high, value = (getattr(scorer.score_baseline(LeaveOneOut()).b_eff, name) for name in ("high", "value"))
    assert np.log(high / value) == pytest.approx(scipy.stats.t.ppf(0.975, df) * pair.se_level, rel=1e-9)


def test_the_noise_of_few_batches_in_a_resample_is_taken_out():
    """30 or 400 batches a resample: the interval is that of the tasks either way (uncorrected it is 1.4 times as
    wide)."""
    t = datasets.load("game24_gpt4_cot")

    def width(per: int) -> float:
        score = Scorer(t, 8, n_batches=4000, resamples=200, batches_per_resample=per).score_baseline(LeaveOneOut())
        return float(np.log(score.b_eff.high / score.b_eff.low))

    few, many = width(30), width(400)
    assert few == pytest.approx(many, rel=0.15)


@dataclass
class SameTaskInHistory(Baseline):
    """Leaks where it can: the reward of a row of history with its own prompt, else 0."""

    type = "same_task_in_history"

    def predict(self, batch, history=None):
        assert history is not None
        known = {p.casefold(): r for p, r in zip(history.tasks.prompts, history.rewards_H, strict=True)}
        return Prediction.of(batch, np.array([known.get(p.casefold(), 0.0) for p in batch.tasks.prompts]))


def test_the_recipe_hands_no_row_its_own_prompt_from_the_window():
    t = Rollouts.from_groups([[1.0, 1.0]] * 4, ["one", "two", "ONE", "three"])
    columns, ages = np.array([[0, 1, 2, 3]]), np.array([0, 0, 1, 1])
    errors = recipe_squared_errors(SameTaskInHistory(), t, columns, 2, ages, np.random.default_rng(0))
    np.testing.assert_array_equal(errors, [[1.0, 1.0]])  # b is 0 for both: the twin of "one" was not there


def test_the_recipe_leaves_a_second_copy_out_of_the_batch():
    t = Rollouts.from_groups([[1.0, 1.0], [0.0, 0.0]], ["one", "two"])
    errors = recipe_squared_errors(
        NoBaseline(), t, np.array([[0, 0, 1]]), 3, np.zeros(3, np.int64), np.random.default_rng(0)
    )
    assert errors[0, 0] == 1.0
    assert np.isnan(errors[0, 1])


def test_ridge_with_only_copies_in_its_window_falls_back_to_the_batch():
    t = Rollouts.from_groups([[1, 1], [0, 1], [1, 0]], ["aa bb", "cc dd", "ee ff"])
    ridge = Ridge(window=2).fit(t.tasks)
    e = smoother_squared_errors(
        ridge, t.tasks, np.array([[0, 1, 0, 0]]), 2, np.array([0, 0, 1, 1]), t.means_N, t.biased_variances_N
    )
    # Task 0 (mean 1) is left with task 1: mean 0.5 and variance 0.25. With no weights at all the error would be 1.
    assert e[0, 0] == pytest.approx(0.25 + 0.25)


def test_watch_interval_is_the_jackknife_over_steps_by_hand():
    w = Watcher([FlashReinforce(), NoBaseline()])
    steps = [[0.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    for rewards in steps:
        w.score_next_step(Batch.of(["aa", "bb", "cc"], rewards))
    loo = np.array([1 + 0.25 + 0.25, 0.25 + 0.25 + 1, 1 + 0.25 + 0.25, 0.0])
    none = np.array([2.0, 2.0, 1.0, 3.0])
    rest = np.log((loo.sum() - loo) / (none.sum() - none))
    se = np.sqrt(3 / 4 * ((rest - rest.mean()) ** 2).sum())
    score = next(s for s in w.rank_scores_so_far() if s.label == "REINFORCE without a baseline")
    assert score.ratio.value == pytest.approx(loo.sum() / none.sum())
    assert np.log(score.ratio.high / score.ratio.value) == pytest.approx(scipy.stats.t.ppf(0.975, 3) * se)


def test_a_default_that_cannot_be_fitted_is_left_out_and_named():
    prompts = list("abcdefgh")  # single letters: word TF-IDF finds no term
    t = Rollouts.from_groups(np.random.default_rng(0).random((8, 2)), prompts)
    board = score_rollouts(t, batch_size=4, n_batches=20, resamples=0)
    assert any("softmax TF-IDF, T=0.1 was left out" in note for note in board.notes)
    assert board.loo is not None


def test_without_repeats_nothing_that_needs_them_is_on_the_board():
    t = Rollouts.from_groups(np.random.default_rng(0).random((10, 1)), [f"word{i} text" for i in range(10)])
    assert score_rollouts(t, batch_size=4, n_batches=20, resamples=0).apart == []


def test_without_scikit_learn_the_trees_are_left_out_in_a_sentence(monkeypatch):
    for name in ("sklearn", "sklearn.ensemble"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'rollonce\[trees\]'"):
        BoostedTrees().fit(["a prompt"])
    rollouts = Rollouts.from_groups([[0.0, 1.0]] * 12, [f"prompt {i}" for i in range(12)])
    board = score_rollouts(rollouts, batch_size=4, window=4, n_batches=20, resamples=0)
    assert [note for note in board.notes if "boosted-trees" in note] == [
        "boosted-trees critic, window 4 was left out: the boosted-trees critic needs the package scikit-learn: "
        "pip install 'rollonce[trees]'"
    ]
    assert not any("boosted" in score.label for score in board.scores)


def test_a_default_that_learns_from_rewards_is_left_out_where_it_cannot_be_cross_fitted():
    t = table(9)
    board = score_rollouts(t, batch_size=4, n_batches=20, resamples=0)
    assert any("self-tuning was left out" in note and "here are 9" in note for note in board.notes)
    with pytest.raises(InputError, match="cross-fitting needs"):
        score_rollouts(t, batch_size=4, n_batches=20, resamples=0, baselines=[SelfTuning()])


def test_scores_come_one_by_one_and_baselines_that_were_fitted_stay_as_they_are():
    t = table(24)
    seen = []
    fitted = published_tfidf().fit(t.tasks.take(np.arange(12)))
    before = fitted.state_dict()
    board = score_rollouts(
        t, baselines=[NoBaseline()], fitted=[fitted], batch_size=8, n_batches=20, resamples=0, on_score=seen.append
    )
    assert [s.label for s in seen] == ["LOO mean", NoBaseline().label, fitted.label]
    assert sorted(seen, key=lambda s: s.label) == sorted(board.scores, key=lambda s: s.label)
    assert fitted.state_dict() == before


def test_the_note_counts_all_bad_rows_not_only_those_it_keeps_a_message_of(tmp_path):
    rows = [f'{{"prompt": "task {i % 30}", "reward": {i % 2}}}' for i in range(120)]
    rows += ['{"prompt": "no reward here"}'] * 250
    file = tmp_path / "rollouts.jsonl"
    file.write_text("\n".join(rows))
    t = read_rollouts(file, skip_bad_rows=True)
    board = score_rollouts(t, baselines=[], batch_size=8, n_batches=20, resamples=0)
    assert any(note.startswith("250 bad rows were skipped") for note in board.notes)
