"""Cross-fitting: no task is scored with what its own rewards taught, and each fold has its own baseline."""

import numpy as np
import pytest

from rollonce.baselines import LeaveOneOut, SelfTuning, published_tfidf
from rollonce.errors import InputError
from rollonce.features import PromptStatistics, Tfidf
from rollonce.kernels import Cosine, Rbf
from rollonce.prompts import normalise_prompt
from rollonce.rollouts import Rollouts
from rollonce.scoring import CrossFitted, Scorer, cross_fit_baseline
from rollonce.scoring.crossfit import deal_prompts_to_folds, fit_copy_per_fold

WORDS = ["river", "apple", "ledger", "window", "quantum", "bridge", "carriage", "tower"]


def small(**settings) -> SelfTuning:
    return SelfTuning(kernels=[Cosine(Tfidf()), Rbf(PromptStatistics(["characters"]), 1.0)], **settings)


def table(n: int, rng: np.random.Generator, useful: bool = True) -> Rollouts:
    """Prompts of two kinds, the chance of success told by the kind (or not), and two ids with one prompt."""
    kind = rng.integers(0, 2, n)
    prompts = [
        f"{'prove the lemma about' if k else 'count the letters in'} {' '.join(rng.choice(WORDS, 4))} number {i}"
        for i, k in enumerate(kind)
    ]
    p = np.where(kind == 1, 0.1, 0.9) if useful else rng.permutation(np.where(kind == 1, 0.1, 0.9))
    prompts[1] = prompts[0].upper()
    return Rollouts.from_groups((rng.random((n, 6)) < p[:, None]).astype(float), prompts)


def folds_of(t: Rollouts, fold_N: np.ndarray) -> dict[str, int]:
    return {normalise_prompt(p): int(f) for p, f in zip(t.tasks.prompts, fold_N, strict=True)}


def test_a_fold_is_fitted_without_its_own_tasks_and_prompts_stay_together():
    t = table(60, np.random.default_rng(11))
    fold = deal_prompts_to_folds(t.tasks, 4, np.random.default_rng(0))
    assert fold[0] == fold[1]
    assert np.bincount(fold).max() <= 16
    parts, fold = fit_copy_per_fold(small(), t, 4, np.random.default_rng(3))
    for f in range(4):
        rewards = t.rewards_R.copy()
        own = fold[t.task_of_R] == f
        rewards[own] = 1 - rewards[own]
        other = Rollouts("flipped", t.tasks, t.offsets_N1, rewards)
        again, same_fold = fit_copy_per_fold(small(), other, 4, np.random.default_rng(3))
        np.testing.assert_array_equal(fold, same_fold)
        np.testing.assert_array_equal(parts[f].variance_shares_K1, again[f].variance_shares_K1)
        assert any((parts[g].variance_shares_K1 != again[g].variance_shares_K1).any() for g in range(4) if g != f)


def test_what_learns_nothing_has_its_ordinary_score():
    t = table(60, np.random.default_rng(12))
    scorer = Scorer(t, n_batches=150, resamples=0)
    score, want = scorer.score_baseline(cross_fit_baseline(LeaveOneOut(), t)), scorer.score_baseline(LeaveOneOut())
    assert score.b_eff.value == pytest.approx(want.b_eff.value)
    assert score.ratio.value == pytest.approx(1.0)


def test_a_planted_difference_is_found_with_an_interval():
    t = table(90, np.random.default_rng(13))
    s = Scorer(t, n_batches=100, resamples=20, shared_windows=True).score_baseline(
        cross_fit_baseline(small(window=40), t)
    )
    assert s.window == 40
    assert s.ratio.low > 1.2
    assert s.ratio.low < s.ratio.value < s.ratio.high
    useless = table(90, np.random.default_rng(14), useful=False)
    assert (
        Scorer(useless, n_batches=200, resamples=0).score_baseline(cross_fit_baseline(small(), useless)).ratio.value
        > 0.97
    )


def test_runs_of_batches_are_batches_with_a_window_of_other_tasks():
    t = table(220, np.random.default_rng(15))
    scorer = Scorer(t, n_batches=240, resamples=0, shared_windows=True)
    columns = scorer.draw_common_batches(150)
    assert columns.shape == (240, 182)
    assert (np.sort(columns, axis=1)[:, 1:] != np.sort(columns, axis=1)[:, :-1]).all()
    assert all(set(columns[0]) == set(columns[k]) for k in range(5))
    fitted = cross_fit_baseline(small(window=150), t)
    plain = Scorer(t, n_batches=60, resamples=0, n_batches_expensive=60)
    assert scorer.score_baseline(fitted).ratio.value == pytest.approx(
        plain.score_baseline(fitted).ratio.value, rel=0.05
    )


def test_errors_are_the_mean_over_the_draws_of_folds():
    t = table(60, np.random.default_rng(17))
    scorer = Scorer(t, n_batches=40, resamples=0)
    rows = scorer.draw_common_batches(0)
    both = cross_fit_baseline(small(), t, draws=2)
    second = both.further_draws[0]
    first = CrossFitted(both.parts, both.fold_of)
    expected = (scorer.unbiased_squared_errors(first, rows, 0) + scorer.unbiased_squared_errors(second, rows, 0)) / 2
    np.testing.assert_allclose(scorer.unbiased_squared_errors(both, rows, 0), expected)
    assert (scorer.unbiased_squared_errors(first, rows, 0) != scorer.unbiased_squared_errors(second, rows, 0)).any()


def test_each_fold_has_its_own_baseline_and_its_own_window():
    t = table(64, np.random.default_rng(18))
    fold = np.arange(64) // 2 % 2  # equal prompts in one fold
    a, b = LeaveOneOut(), published_tfidf(window=20).fit(t.tasks)
    scorer = Scorer(t, 16, n_batches=30, resamples=0)
    columns = scorer.draw_common_batches(20)
    rows = columns[:, :16]
    expected = np.where(
        fold[rows] == 0, scorer.unbiased_squared_errors(a, rows, 0), scorer.unbiased_squared_errors(b, columns, 20)
    )
    both = CrossFitted([a, b], folds_of(t, fold))
    np.testing.assert_allclose(scorer.unbiased_squared_errors(both, columns, 20), expected)
    assert both.window == 20


def test_folds_follow_the_prompts_into_a_view_of_the_tasks():
    t = table(40, np.random.default_rng(19))
    both = CrossFitted([LeaveOneOut(), published_tfidf()], folds_of(t, np.arange(40) // 2 % 2))
    view = t.tasks.take([7, 4, 2])
    names = both.evaluate_by_fold(view, np.arange(3), lambda part, _: np.full(3, float(both.parts.index(part))))
    np.testing.assert_array_equal(names, [1.0, 0.0, 1.0])


def test_too_many_folds():
    t = table(40, np.random.default_rng(16))
    with pytest.raises(InputError, match="cross-fitting needs"):
        cross_fit_baseline(small(), t, folds=41)
