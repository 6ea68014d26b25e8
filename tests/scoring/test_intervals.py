"""Do the intervals cover? On simulated tasks whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from rollonce import datasets
from rollonce.baselines import KernelBaseline, LeaveOneOut, published_tfidf
from rollonce.kernels import Same
from rollonce.rollouts import Rollouts
from rollonce.scoring import Scorer, effective_batch_of_loo, moments

N, G, B, FAMILIES = 60, 6, 16, 12


def simulate(seed: int) -> Rollouts:
    """Tasks of 12 families; a task's success probability is its family's (Beta) plus its own part."""
    rng = np.random.default_rng(seed)
    family_mean = rng.beta(1.2, 1.2, size=FAMILIES) * 0.8 + 0.1
    family = rng.integers(FAMILIES, size=N)
    p = np.clip(family_mean[family] + rng.normal(0, 0.08, size=N), 0, 1)
    rewards = (rng.random((N, G)) < p[:, None]).astype(float)
    return Rollouts.from_groups(rewards, [f"task {i}" for i in range(N)], columns={"family": [str(f) for f in family]})


def truth_loo() -> float:
    rng = np.random.default_rng(123)
    mean = np.clip((rng.beta(1.2, 1.2, 400_000) * 0.8 + 0.1) + rng.normal(0, 0.08, 400_000), 0, 1)
    return effective_batch_of_loo(float(mean.var() / (mean * (1 - mean)).mean()), B)


@pytest.mark.slow
def test_coverage_of_level_and_ratio():
    """95% intervals over 200 simulated tables. Families are drawn anew in each, so tasks are exchangeable but not
    independent: the level's interval, which treats tasks as independent, is judged on a design with a family per task;
    the ratio on this one's own population value over the same families."""
    level_hits = ratio_hits = runs = 0
    for seed in range(200):
        rng = np.random.default_rng(10_000 + seed)
        p = np.clip((rng.beta(1.2, 1.2, N) * 0.8 + 0.1) + rng.normal(0, 0.08, N), 0, 1)
        table = Rollouts.from_groups((rng.random((N, G)) < p[:, None]).astype(float), [f"t{i}" for i in range(N)])
        score = Scorer(table, B, n_batches=600, resamples=60, batches_per_resample=60, seed=seed).score_baseline(
            LeaveOneOut()
        )
        level_hits += score.b_eff.low <= truth_loo() <= score.b_eff.high
        ratio_hits += _ratio_covers(seed)
        runs += 1
    assert 0.90 <= level_hits / runs <= 0.99, level_hits / runs
    assert 0.90 <= ratio_hits / runs <= 0.995, ratio_hits / runs


def _ratio_covers(seed: int) -> bool:
    """The family kernel's ratio over a fixed population of families from which each table draws its tasks."""
    rng = np.random.default_rng(77)
    family_mean = rng.beta(1.2, 1.2, size=FAMILIES) * 0.8 + 0.1
    rng = np.random.default_rng(20_000 + seed)
    family = rng.integers(FAMILIES, size=N)
    p = np.clip(family_mean[family] + rng.normal(0, 0.08, size=N), 0, 1)
    table = Rollouts.from_groups(
        (rng.random((N, G)) < p[:, None]).astype(float),
        [f"t{i}" for i in range(N)],
        columns={"family": [str(f) for f in family]},
    )
    score = Scorer(table, B, n_batches=600, resamples=60, batches_per_resample=60, seed=seed).score_baseline(
        KernelBaseline(Same())
    )
    return bool(score.ratio.low <= _true_family_ratio() <= score.ratio.high)


_memo: dict[str, float] = {}


def _true_family_ratio() -> float:
    """By brute force over a population of 20,000 tasks of the same families."""
    if "ratio" not in _memo:
        rng = np.random.default_rng(77)
        family_mean = rng.beta(1.2, 1.2, size=FAMILIES) * 0.8 + 0.1
        rng = np.random.default_rng(78)
        n = 20_000
        family = rng.integers(FAMILIES, size=n)
        p = np.clip(family_mean[family] + rng.normal(0, 0.08, size=n), 0, 1)
        s2, total, total_loo, count = float((p * (1 - p)).mean()), 0.0, 0.0, 0
        for _ in range(20_000):
            at = rng.integers(n, size=B)
            r = (rng.random(B) < p[at]).astype(float)
            same = family[at][:, None] == family[at][None, :]
            np.fill_diagonal(same, False)
            k = same.sum(axis=1)
            loo = (r.sum() - r) / (B - 1)
            b = np.where(k > 0, (same @ r) / np.maximum(k, 1), loo)
            total += ((b - p[at]) ** 2).mean()
            total_loo += ((loo - p[at]) ** 2).mean()
            count += 1
        _memo["ratio"] = (s2 + total_loo / count) / (s2 + total / count)
    return _memo["ratio"]


def test_copies_in_a_resample_do_not_meet_themselves():
    """A kernel that finds only exact copies must look no better inside resamples than it is: its resampled levels
    centre on LOO's."""
    table = simulate(1)
    distinct = Rollouts.from_groups([table.group(n) for n in range(N)], [f"word{i}" for i in range(N)])
    kernel = KernelBaseline(published_tfidf().kernel).fit(distinct.tasks)
    kernel.kernel.temperature = 0.05  # type: ignore[attr-defined]
    scorer = Scorer(distinct, B, n_batches=300, resamples=40, seed=1)
    score = scorer.score_baseline(kernel)
    assert score.ratio.value == pytest.approx(1.0, abs=1e-9)  # prompts share no word: the kernel is the LOO mean
    assert score.ratio.high < 1.001
    assert score.ratio.low > 0.999


def test_paired_ratio_is_far_tighter_than_the_level():
    table = datasets.load("gsm8k_qwen25coder_1.5b")
    score = Scorer(table, n_batches=500, resamples=60).score_baseline(published_tfidf().fit(table.tasks))
    width = np.log(score.ratio.high / score.ratio.low)
    assert width < 0.3 * np.log(score.b_eff.high / score.b_eff.low)


def test_moments_intervals_cover_the_truth():
    """s2 and tau2 of 150 simulated tables of independent tasks."""
    rng = np.random.default_rng(0)
    big = np.clip((rng.beta(1.2, 1.2, 400_000) * 0.8 + 0.1), 0, 1)
    s2, tau2 = float((big * (1 - big)).mean()), float(big.var())
    hits = np.zeros(3)
    for seed in range(150):
        rng = np.random.default_rng(seed)
        p = rng.beta(1.2, 1.2, N) * 0.8 + 0.1
        m = moments(
            Rollouts.from_groups((rng.random((N, G)) < p[:, None]).astype(float), [f"t{i}" for i in range(N)]),
            resamples=200,
            seed=seed,
        )
        for k, (e, t) in enumerate(((m.s2, s2), (m.tau2, tau2), (m.snr, tau2 / s2))):
            hits[k] += e.low <= t <= e.high
    assert (hits / 150 >= 0.88).all()
    assert (hits / 150 <= 0.995).all()
