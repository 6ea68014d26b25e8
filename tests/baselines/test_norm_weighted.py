"""Norm-weighted baselines: the formula by hand, what is learned, and that the own log-probability moves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from rollonce.baselines import Baseline, Batch, History, KernelBaseline, Kriging, LeaveOneOut, NormWeighted, SelfTuning
from rollonce.baselines.catalogue import named_baseline
from rollonce.baselines.norm_weighted import MOST_TILT, fit_surprisal_slope, tilted_weighted_means
from rollonce.errors import InputError
from rollonce.integrations.hook import AdvantageHook
from rollonce.rollouts import Rollouts
from rollonce.scoring import score_rollouts
from rollonce.testing import check_baseline

PROMPTS = [f"count to {n}" for n in range(40)] + [f"prove lemma {n}" for n in range(40)]


def past(rng: np.random.Generator, n: int = 80, ratio: float = 0.5) -> Batch:
    """Right rollouts have ``ratio`` times the surprisal of wrong ones."""
    rewards = rng.integers(0, 2, n).astype(float)
    surprisals = np.exp(rng.normal(2.0, 0.1, n)) * np.where(rewards > 0, ratio, 1.0)
    return Batch.of(PROMPTS[:n], rewards, log_probs=-surprisals)


def test_rewards_of_0_and_1_by_the_formula_of_the_post_and_the_papers() -> None:
    """With m1 / m0 = rho: b = p rho / (p rho + 1 - p) for the leave-one-out share p of right rollouts."""
    batch = Batch.of(["a", "b", "c", "d", "e"], [1.0, 1.0, 0.0, 0.0, 0.0])
    w = LeaveOneOut().weights(batch)
    rho = 0.25
    b = tilted_weighted_means(w[None], batch.rewards_B[None], np.log(rho))[0]
    p = np.array([1 / 4, 1 / 4, 2 / 4, 2 / 4, 2 / 4])
    np.testing.assert_allclose(b, p * rho / (p * rho + 1 - p), rtol=1e-12)


def test_b_is_the_weighted_mean_for_rewards_of_any_kind() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=7) * 3 - 2
    w = np.abs(rng.normal(size=(1, 4, 7)))
    w /= w.sum(axis=2, keepdims=True)
    tilt = -0.2
    m = np.exp(tilt * rewards)
    expected = (w[0] * m * rewards).sum(axis=1) / (w[0] * m).sum(axis=1)
    np.testing.assert_allclose(tilted_weighted_means(w, rewards[None], tilt)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(tilted_weighted_means(w, rewards[None] + 5, tilt)[0], expected + 5, rtol=1e-12)
    np.testing.assert_array_equal(tilted_weighted_means(w, rewards[None], 0.0)[0], w[0] @ rewards)


def test_negative_weights_stay_between_the_rewards_and_the_tilt_has_a_limit() -> None:
    w = np.array([[[1.6, -0.6], [-0.4, 1.4], [0.5, 0.5]]])
    b = tilted_weighted_means(w, np.array([[0.0, 1.0]]), -50.0)[0]
    assert b.min() >= -0.6
    assert b.max() <= 1.4
    assert b[2] == pytest.approx(1 / 21)  # the weight of right rollouts is no less than a twentieth
    assert pytest.approx(np.log(20)) == MOST_TILT


def test_the_slope_is_that_of_log_surprisals_and_noise_alone_gives_none() -> None:
    rewards = np.array([0.0, 1.0] * 50)
    assert fit_surprisal_slope(rewards, -np.where(rewards > 0, 2.0, 8.0)) == pytest.approx(-np.log(4))
    assert fit_surprisal_slope(np.ones(100), -np.arange(1.0, 101)) == 0.0
    rng = np.random.default_rng(1)
    noise = [
        fit_surprisal_slope(rng.integers(0, 2, 100).astype(float), -np.exp(rng.normal(size=100))) for _ in range(200)
    ]
    assert np.mean(np.array(noise) == 0) > 0.6  # P(|t| < 1) is 0.68
    assert abs(np.mean(noise)) < 0.03
    graded = rng.random(500) * 10
    assert fit_surprisal_slope(graded, -np.exp(1 - 0.3 * graded)) == pytest.approx(-0.3)


@pytest.mark.parametrize(
    "smoother", [LeaveOneOut(), LeaveOneOut(window=16), KernelBaseline(window=16), Kriging(window=16), SelfTuning()]
)
def test_around_any_smoother_b_is_between_the_plain_one_and_the_lowest_reward(smoother: Baseline) -> None:
    rng = np.random.default_rng(2)
    plain, weighted = smoother, NormWeighted(smoother.named(smoother.label), exponent=2.0)
    for b in (plain, weighted):
        b.fit(PROMPTS)
    seen = past(rng)
    plain.observe(seen)
    weighted.observe(seen)
    assert weighted.surprisal_slope == pytest.approx(np.log(0.5), abs=0.1)
    batch = Batch.of(PROMPTS[30:50], rng.integers(0, 2, 20).astype(float))
    low, high = weighted.predict(batch).baseline_B, plain.predict(batch).baseline_B
    inside = (high > 0.02) & (high < 0.98)
    assert inside.any()
    assert (low[inside] < high[inside]).all()
    p = high[inside]
    rho = np.exp(2 * weighted.surprisal_slope)
    np.testing.assert_allclose(low[inside], p * rho / (p * rho + 1 - p), atol=1e-9)


def test_without_log_probabilities_it_is_the_smoother_itself() -> None:
    rng = np.random.default_rng(3)
    seen, batch = past(rng), Batch.of(PROMPTS[:10], [1.0, 0.0] * 5)
    bare = Batch(seen.tasks, seen.rewards_B)
    weighted, plain = NormWeighted(LeaveOneOut(window=64)), LeaveOneOut(window=64)
    weighted.observe(bare)
    plain.observe(bare)
    np.testing.assert_array_equal(weighted.predict(batch).baseline_B, plain.predict(batch).baseline_B)


def test_the_own_log_probability_never_moves_the_own_baseline_even_once_it_was_observed() -> None:
    rng = np.random.default_rng(4)
    weighted = NormWeighted(LeaveOneOut(window=64))
    weighted.observe(past(rng))
    batch = Batch.of(PROMPTS[:8], rng.integers(0, 2, 8).astype(float), log_probs=-np.ones(8))
    other = Batch(batch.tasks, batch.rewards_B, log_probs_B=np.array([-900.0, *[-1.0] * 7]))
    np.testing.assert_array_equal(weighted.predict(batch).baseline_B, weighted.predict(other).baseline_B)


@pytest.mark.parametrize("name", ["norm_weighted_loo_window_64", "norm_weighted_tfidf", "norm_weighted_self_tuning"])
def test_it_keeps_the_contract(name: str) -> None:
    results = check_baseline(named_baseline(name))
    assert [(r.name, r.message) for r in results if not r.passed] == []
    assert "own_log_prob" in [r.name for r in results]


def test_a_history_given_counts_as_if_it_had_been_observed_and_a_file_keeps_what_was_learned(tmp_path) -> None:
    rng = np.random.default_rng(5)
    seen, batch = past(rng), Batch.of(PROMPTS[:10], [1.0, 0.0] * 5)
    live, given = NormWeighted(LeaveOneOut(window=64)), NormWeighted(LeaveOneOut(window=64))
    live.observe(seen)
    history = History.before_first_step().with_batch_appended(seen)
    expected = live.predict(batch).baseline_B
    np.testing.assert_allclose(given.predict(batch, history).baseline_B, expected, rtol=1e-12)
    live.save(tmp_path / "b.json")
    np.testing.assert_array_equal(Baseline.load(tmp_path / "b.json").predict(batch).baseline_B, expected)
    offline = NormWeighted(LeaveOneOut()).fit_rewards(seen.tasks, seen.rewards_B, seen.log_probs_B)
    offline.save(tmp_path / "c.json")
    again = Baseline.load(tmp_path / "c.json")
    assert isinstance(again, NormWeighted)
    assert again.surprisal_slope == offline.surprisal_slope < -0.5


def test_the_board_shows_it_where_there_are_log_probabilities_and_predicts_more_progress() -> None:
    """Right rollouts have a tenth of the squared norm, so a lower baseline makes more of a step."""
    rng = np.random.default_rng(6)
    rewards = [rng.integers(0, 2, 8).astype(float) for _ in range(64)]
    log_probs = [-np.exp(rng.normal(2.0, 0.3, 8)) * np.where(r > 0, 10**-0.5, 1.0) for r in rewards]
    prompts = [f"{PROMPTS[i]} {i}" for i in range(64)]
    bare = Rollouts.from_groups(rewards, prompts)
    table = Rollouts.from_groups(rewards, prompts, log_probs=log_probs)
    options = {"batch_size": 16, "window": 32, "n_batches": 400, "resamples": 0}
    labels = [s.label for s in score_rollouts(bare, **options).scores]
    assert not any("norm-weighted" in label for label in labels)
    board = score_rollouts(table, exponent=2.0, **options)
    progress = {s.label: s.progress.value for s in board.scores if s.progress}
    weighted = progress["LOO mean, window 32, norm-weighted"]
    assert weighted > 1.1
    assert weighted == max(progress.values())


def test_names_and_refusals() -> None:
    made = named_baseline("norm_weighted_loo_window_64")
    assert isinstance(made, NormWeighted)
    assert made.window == 64
    assert made.label == "LOO mean, window 64, norm-weighted"
    with pytest.raises(InputError, match="no weighted mean"):
        named_baseline("norm_weighted_constant")
    with pytest.raises(InputError, match="exponent"):
        NormWeighted(exponent=-1)
    with pytest.raises(InputError, match="min_rows"):
        NormWeighted(min_rows=4)
    with pytest.raises(InputError, match="one log-probability per task"):
        NormWeighted().fit_rewards(["a", "b"], [0.0, 1.0], [-1.0])


def test_in_a_trainers_hook_it_learns_from_step_to_step_and_goes_on_after_a_restart() -> None:
    rng = np.random.default_rng(7)
    hook = AdvantageHook(NormWeighted(LeaveOneOut(window=64)))
    plain = AdvantageHook(LeaveOneOut(window=64))
    steps = [past(rng, 40) for _ in range(3)]
    for i, step in enumerate(steps):
        assert step.log_probs_B is not None
        prompts = step.tasks.prompts
        a = hook.advantages(prompts, step.rewards_B, log_probs=step.log_probs_B).advantages_N
        b = plain.advantages(prompts, step.rewards_B).advantages_N
        np.testing.assert_allclose(a, b) if i == 0 else np.testing.assert_array_less(b - 1e-12, a)
    again = AdvantageHook(NormWeighted(LeaveOneOut(window=64)))
    again.load_state_dict(hook.state_dict())
    batch = past(rng, 20)
    expected = hook.advantages(batch.tasks.prompts, batch.rewards_B, log_probs=batch.log_probs_B).advantages_N
    np.testing.assert_array_equal(
        again.advantages(batch.tasks.prompts, batch.rewards_B, log_probs=batch.log_probs_B).advantages_N, expected
    )


@pytest.mark.parametrize("smoother", [KernelBaseline(window=64), LeaveOneOut(window=64)])
def test_large_batches_go_without_the_table_of_weights_and_agree_with_it(smoother, monkeypatch) -> None:
    rng = np.random.default_rng(8)
    weighted = NormWeighted(smoother)
    weighted.fit(PROMPTS)
    weighted.observe(past(rng))
    batch = Batch.of(PROMPTS[20:60], rng.integers(0, 2, 40).astype(float))
    by_table = weighted.predict(batch)
    monkeypatch.setattr("rollonce.baselines.norm_weighted.LARGE", 10)
    monkeypatch.setattr("rollonce.baselines.kernel.LARGE", 10)
    without = weighted.predict(batch)
    np.testing.assert_allclose(without.baseline_B, by_table.baseline_B, atol=1e-4)  # float32, see `baselines.large`
    assert not np.array_equal(without.baseline_B, by_table.baseline_B) or isinstance(smoother, LeaveOneOut), (
        "float32 shows"
    )


def test_unknown_log_probabilities_are_passed_over_and_the_newest_rows_count() -> None:
    """NaN for every other rollout; then the policy changes, and what was learned before is forgotten."""
    rng = np.random.default_rng(9)
    before, after = past(rng, 64, ratio=2.0), past(rng, 64, ratio=0.5)
    holes = np.where(np.arange(64) % 2, np.nan, before.log_probs_B)
    partly = NormWeighted(LeaveOneOut(), min_rows=8, learn_rows=32)
    partly.observe(Batch(before.tasks, before.rewards_B, log_probs_B=holes))
    known = slice(0, 64, 2)
    assert before.log_probs_B is not None
    assert partly.surprisal_slope == fit_surprisal_slope(before.rewards_B[known], before.log_probs_B[known])
    partly.observe(after)
    assert partly.surprisal_slope == pytest.approx(np.log(0.5), abs=0.15)
    given = NormWeighted(LeaveOneOut(), min_rows=8, learn_rows=32)
    history = History.before_first_step().with_batch_appended(before).with_batch_appended(after)
    batch = Batch.of(PROMPTS[:10], [1.0, 0.0] * 5)
    np.testing.assert_array_equal(given.predict(batch, history).baseline_B, partly.predict(batch).baseline_B)
