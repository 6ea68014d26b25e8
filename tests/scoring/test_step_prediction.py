"""The predicted progress of a step, against enumeration of every batch of a small table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rollonce.baselines import Constant, KernelBaseline, LeaveOneOut, NoBaseline
from rollonce.errors import InputError
from rollonce.rollouts import Rollouts
from rollonce.scoring.estimator import Scorer
from rollonce.scoring.step_prediction import StepPredictor, join_over_exponents

REWARDS = [[0.0], [1.0], [1.0], [0.5], [0.0]]
LOG_PROBS = [[-3.0], [-0.5], [-2.0], [-1.0], [-8.0]]


def table(rewards=REWARDS, log_probs=LOG_PROBS) -> Rollouts:
    return Rollouts.from_groups(rewards, [f"task {i}" for i in range(len(rewards))], log_probs=log_probs)


def enumerated(advantage, size: int, exponent: float) -> float:
    """E[(sum A^2 S^a)^(-1/2)] over all batches of that size, a batch without advantages counting 0."""
    values = []
    for rows in itertools.combinations(range(5), size):
        r = np.array([REWARDS[i][0] for i in rows])
        s = -np.array([LOG_PROBS[i][0] for i in rows])
        total = float((advantage(r) ** 2 * s**exponent).sum()) / size**2
        values.append(total**-0.5 if total > 0 else 0.0)
    return float(np.mean(values))


def loo(r: np.ndarray) -> np.ndarray:
    return r - (r.sum() - r) / (len(r) - 1)


@pytest.mark.parametrize("exponent", [1.0, 2.4])
@pytest.mark.parametrize(("baseline", "advantage"), [(NoBaseline(), lambda r: r), (Constant(0.3), lambda r: r - 0.3)])
def test_the_prediction_is_the_mean_over_all_batches(baseline, advantage, exponent):
    scorer = Scorer(table(), 2, n_batches=4000, resamples=0)
    (got,) = StepPredictor(scorer, (exponent,), n_batches=4000).predict_step_progress(baseline)
    expected = enumerated(advantage, 2, exponent) / enumerated(loo, 2, exponent)
    assert got.progress.value == pytest.approx(expected, rel=0.03)
    assert got.progress.low < got.progress.value < got.progress.high


def test_loo_is_one_and_its_equivalent_batch_is_the_batch():
    rng = np.random.default_rng(0)
    rewards = list(rng.integers(2, size=(80, 4)).astype(float))
    log_probs = list(-np.exp(rng.normal(size=(80, 4))))
    scorer = Scorer(table(rewards, log_probs), 16, n_batches=500, resamples=0)
    predictor = StepPredictor(scorer, (1.0, 2.0))
    for same in (LeaveOneOut(), KernelBaseline().fit([f"task {i}" for i in range(80)])):
        both = predictor.predict_step_progress(same)
        if isinstance(same, LeaveOneOut):
            assert [p.progress.value for p in both] == pytest.approx([1.0, 1.0])
            assert [p.equivalent_batch.value for p in both] == pytest.approx([16.0, 16.0])
    # A window of other tasks makes LOO's advantages a little smaller: a little more progress.
    windowed = predictor.predict_step_progress(LeaveOneOut(window=48))
    assert all(1.0 < p.progress.value < 1.1 and 16 < p.equivalent_batch.value < 20 for p in windowed)


def test_where_right_rollouts_are_sure_a_lower_baseline_is_better_and_b_eff_does_not_see_it():
    rng = np.random.default_rng(1)
    right = rng.random((120, 8)) < 0.5
    log_probs = np.where(right, -0.2, -5.0) * np.exp(0.3 * rng.normal(size=right.shape))
    scorer = Scorer(table(list(right.astype(float)), list(log_probs)), 16, n_batches=800, resamples=0)
    predictor = StepPredictor(scorer, (2.0,))
    low, high = predictor.predict_step_progress(Constant(0.1))[0], predictor.predict_step_progress(Constant(0.9))[0]
    assert low.progress.low > 1 > high.progress.high
    assert scorer.score_baseline(Constant(0.1)).ratio.value == pytest.approx(
        scorer.score_baseline(Constant(0.9)).ratio.value, rel=0.05
    )


def test_a_batch_without_advantages_makes_no_step():
    # Every second batch of two equal rewards is dead under LOO, and none is with a constant of 0.5.
    same = table([[0.0], [0.0], [1.0], [1.0]], [[-1.0]] * 4)
    scorer = Scorer(same, 2, n_batches=2000, resamples=0)
    (got,) = StepPredictor(scorer, (1.0,)).predict_step_progress(Constant(0.5))
    # LOO: 4 of 6 pairs differ, |A| = 1, norm sqrt(2); constant: |A| = 1/2 in all 6, norm sqrt(1/2).
    assert got.progress.value == pytest.approx(2.0 / (4 / 6), rel=0.03)


def test_several_exponents_are_one_range():
    scorer = Scorer(table(), 2, n_batches=1000, resamples=0)
    both = StepPredictor(scorer, (1.0, 2.0)).predict_step_progress(NoBaseline())
    progress, _ = join_over_exponents(both)
    assert progress.value == pytest.approx(np.sqrt(both[0].progress.value * both[1].progress.value))
    assert progress.low == min(p.progress.low for p in both)
    assert progress.high == max(p.progress.high for p in both)


def test_missing_log_probabilities_are_a_sentence():
    with pytest.raises(InputError, match="no log-probabilities"):
        StepPredictor(Scorer(table(log_probs=None), 2, resamples=0), (1.0,))
    some = [[-1.0], [float("nan")], [-1.0], [-1.0], [-1.0]]
    with pytest.raises(InputError, match="1 of 5 tasks have no rollout with a log-probability"):
        StepPredictor(Scorer(table(log_probs=some), 2, resamples=0), (1.0,))
