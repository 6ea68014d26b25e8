"""A policy that earns the same everywhere: the gate says so, whatever the number is."""

from __future__ import annotations

import pytest

from rollonce.baselines import published_tfidf
from rollonce.experiments.gates import compute_offline_score


@pytest.mark.parametrize("reward", [0.0, 1.0, -0.1, 0.1 + 0.2, 1 / 3])
def test_equal_rewards_have_no_effective_batch_size_however_they_round(reward: float) -> None:
    prompts = [f"task {i} with words {i % 7}" for i in range(40)]
    baseline = published_tfidf().fit(prompts)
    score = compute_offline_score(
        baseline, "tfidf_kernel_loo_T0.1", prompts, [[reward] * 8] * 40, prompts, batch_size=32, n_batches=50
    )
    assert score.ratio is None
    assert "all rewards are equal" in score.note
