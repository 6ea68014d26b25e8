"""Ranking from single-rollout logs."""

from __future__ import annotations

import numpy as np
import pytest

from rollonce.baselines import Batch, FlashReinforce, Grpo, KernelBaseline, LeaveOneOut, published_tfidf
from rollonce.features import CategoryColumn
from rollonce.kernels import Same
from rollonce.rollouts import Rollouts
from rollonce.scoring import Watcher, split_into_steps
from rollonce.scoring.watch import predict_without_siblings


def batch(rewards, prompts, **columns):
    return Batch.of(prompts, rewards, columns=columns or None)


def test_squared_advantages_by_hand():
    w = Watcher([FlashReinforce()])
    w.score_next_step(batch([0.0, 1.0, 1.0], ["a", "b", "c"]))
    loo = next(s for s in w.rank_scores_so_far() if s.label == "LOO mean")
    assert loo.mean_squared_advantage == pytest.approx(((0 - 1) ** 2 + 2 * (1 - 0.5) ** 2) / 3)
    flash = next(s for s in w.rank_scores_so_far() if s.scored_as)
    assert (flash.scored_as, flash.mean_squared_advantage) == ("LOO mean", loo.mean_squared_advantage)


def test_siblings_are_hidden_in_batch_and_history():
    """Two rollouts of one prompt: neither may see the other, though to the kernel they are the nearest."""
    b = batch([1.0, 1.0, 0.0, 0.0], ["xx yy", "XX  yy", "zz ww", "qq rr"])
    kernel = published_tfidf().fit(b.tasks.prompts)
    np.testing.assert_allclose(predict_without_siblings(kernel, b)[:2], 0.0)
    assert kernel.predict(b).baseline_B[0] > 0.9  # unmasked it leaks
    windowed = published_tfidf(8).fit(b.tasks.prompts)
    windowed.observe(batch([1.0, 0.0], ["xx yy", "qq ss"]))
    np.testing.assert_allclose(predict_without_siblings(windowed, b)[:2], 0.0)


def test_a_copying_kernel_gains_nothing_on_a_grouped_log():
    rng = np.random.default_rng(0)
    w = Watcher([published_tfidf().fit([f"word{i}" for i in range(50)])])
    for _ in range(30):
        tasks = rng.choice(50, size=4, replace=False).repeat(4)
        p = (tasks % 2) * 0.8 + 0.1
        w.score_next_step(batch((rng.random(16) < p).astype(float), [f"word{t}" for t in tasks]))
    kernel = next(s for s in w.rank_scores_so_far() if s.label != "LOO mean")
    assert kernel.ratio.value == pytest.approx(1.0, abs=1e-9)


def test_finds_the_family_kernel_and_its_interval():
    rng = np.random.default_rng(1)
    w = Watcher([KernelBaseline(Same(CategoryColumn("family"))), Grpo()])
    true_ratios = []
    for step in range(60):
        family = rng.integers(4, size=32)
        p = np.array([0.05, 0.35, 0.65, 0.95])[family]
        w.score_next_step(
            batch(
                (rng.random(32) < p).astype(float), [f"{step}-{i}" for i in range(32)], family=[str(f) for f in family]
            )
        )
        true_ratios.append(1)
    best = w.rank_scores_so_far()[0]
    assert best.label.startswith("same")
    assert best.ratio.low > 1.2
    # E[A^2] of LOO: s2 + tau2 B/(B-1) + s2/(B-1); of the family: s2 (1 + E[1/k]), k ~ 7.75.
    p = np.array([0.05, 0.35, 0.65, 0.95])
    s2, tau2 = (p * (1 - p)).mean(), p.var()
    assert best.ratio.value == pytest.approx((s2 * 32 / 31 + tau2 * 32 / 31) / (s2 * (1 + 1 / 7)), rel=0.12)
    assert len(w.rank_scores_so_far()) == 2  # GRPO needs groups and is left out


def test_identity_with_b_eff_on_repeated_data():
    """The ratio from single rollouts is the ratio of B_eff from repeats, within its interval."""
    from rollonce import datasets
    from rollonce.scoring import Scorer

    table = datasets.load("rg_easy_gemma3_27b_G3")
    kernel = published_tfidf().fit(table.tasks)
    offline = Scorer(table, n_batches=3000, resamples=0).score_baseline(kernel).ratio.value
    rng = np.random.default_rng(2)
    w = Watcher([kernel])
    for _ in range(12):
        order = rng.permutation(table.n_tasks)
        for start in range(0, table.n_tasks - 32, 32):
            at = order[start : start + 32]
            draws = np.array([rng.choice(table.group(n)) for n in at])
            w.score_next_step(Batch(table.tasks.take(at), draws))
    score = next(s for s in w.rank_scores_so_far() if s.label != "LOO mean")
    assert score.ratio.low <= offline <= score.ratio.high
    assert score.ratio.value == pytest.approx(offline, abs=0.03)


def test_steps_follow_the_log():
    table = Rollouts.from_groups([[1, 0], [0, 1], [1, 1]], ["a", "b", "c"])
    steps = list(split_into_steps(table, batch_size=2))
    assert [len(s) for s in steps] == [2, 2, 2]
    ordered = Rollouts(
        "log",
        table.tasks,
        table.offsets_N1,
        table.rewards_R,
        None,
        np.array([0, 1, 0, 1, 0, 1]),
        np.array([0, 3, 1, 4, 2, 5]),
    )
    first, second = split_into_steps(ordered)
    assert first.tasks.prompts == ["a", "b", "c"]
    np.testing.assert_array_equal(first.rewards_B, [1, 0, 1])
    np.testing.assert_array_equal(second.rewards_B, [0, 1, 1])


def test_steps_without_other_tasks_are_passed_over():
    w = Watcher([LeaveOneOut()])
    w.score_next_step(batch([1.0, 0.0], ["a", "a"]))
    assert w.rank_scores_so_far() == []


def test_progress_of_a_log_is_the_mean_inverse_norm_of_its_own_steps():
    from rollonce.baselines import Constant

    rewards = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    log_probs = [[-0.5, -3.0, -2.0, -1.0], [-4.0, -1.0, -0.2, -2.0], [-0.3, -0.7, -5.0, -2.0]]
    watcher = Watcher([Constant(0.2)], exponent=2.0)
    means = {"loo": [], "constant": []}
    for r, l in zip(rewards, log_probs, strict=True):
        watcher.score_next_step(Batch.of(["a", "b", "c", "d"], r, log_probs=l))
        r, s = np.array(r), -np.array(l)
        for name, b in (("loo", (r.sum() - r) / 3), ("constant", 0.2)):
            means[name].append((((r - b) ** 2) * s**2).sum() ** -0.5)
    scores = {s.label: s for s in watcher.rank_scores_so_far()}
    expected = np.mean(means["constant"]) / np.mean(means["loo"])
    got = scores["constant 0.2"].progress
    assert got is not None
    assert got.value == pytest.approx(expected)
    assert got.low < expected < got.high
    assert scores["LOO mean"].progress.value == pytest.approx(1.0)
    plain = Watcher([Constant(0.2)])
    plain.score_next_step(Batch.of(["a", "b"], [1.0, 0.0], log_probs=[-1.0, -1.0]))
    assert all(s.progress is None for s in plain.rank_scores_so_far())
