"""The optimal token baseline: by hand, against verl's formula written out once more, and that no rollout moves its
own."""

import numpy as np
import pytest
import torch

from rollonce.baselines import Batch
from rollonce.policies.samples import Samples
from rollonce.training.arms.token_baseline import (
    TokenBaselineArm,
    gathered_energy,
    optimal_token_baseline,
    others_token_baseline,
)
from rollonce.training.config import ArmConfig


def verl_baselines(rewards, mask, groups, log_probs, sum_of_squares):
    """`compute_optimal_token_baseline_advantage` of verl, token by token: returns, cumulative 1 - 2 p + sum p^2, the
    weighted mean of the group with 1e-8 in the denominator, and no baseline beyond the second-longest response."""
    n, t_max = mask.shape
    out = np.zeros((n, t_max))
    w = np.zeros((n, t_max))
    for i in range(n):
        total = 0.0
        for t in range(t_max):
            if mask[i, t]:
                total += 1 - 2 * np.exp(log_probs[i, t]) + sum_of_squares[i, t]
            w[i, t] = total
    lengths = mask.sum(axis=1)
    for g in set(groups):
        rows = [i for i in range(n) if groups[i] == g]
        if len(rows) == 1:
            continue
        longest = sorted(rows, key=lambda i: lengths[i])[-1]
        second = sorted(lengths[rows])[-2]
        for i in rows:
            for t in range(t_max):
                there = [j for j in rows if mask[j, t]]
                numerator = sum(rewards[j] * w[j, t] for j in there)
                out[i, t] = numerator / (sum(w[j, t] for j in there) + 1e-8)
                if i == longest and lengths[longest] > second and t >= second:
                    out[i, t] = 0.0
    return out * mask


def made_up(seed: int, n: int = 12, t: int = 9):
    rng = np.random.default_rng(seed)
    mask = np.arange(t) < rng.integers(1, t + 1, n)[:, None]
    log_probs = np.log(rng.uniform(0.05, 1, (n, t))) * mask
    return mask, log_probs, rng.uniform(0.1, 1, (n, t)), (rng.random(n) < 0.5) * 1.0


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_verls_formula(seed):
    mask, log_probs, squares, rewards = made_up(seed)
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3])
    got = optimal_token_baseline(rewards, gathered_energy(log_probs, mask, squares), mask, groups)
    np.testing.assert_allclose(got, verl_baselines(rewards, mask, groups, log_probs, squares), rtol=1e-12, atol=1e-14)
    assert (got[11] == 0).all()


def test_by_hand():
    # p = 1/2 twice and 3/4 once; without the sum over the vocabulary a token counts 1 - p
    log_probs = np.log(np.array([[0.5, 0.5], [0.75, 1.0]]))
    mask = np.array([[True, True], [True, False]])
    energy = gathered_energy(log_probs, mask)
    np.testing.assert_allclose(energy, [[0.5, 1.0], [0.25, 0.25]])
    b = optimal_token_baseline(np.array([1.0, 0.0]), energy, mask, np.array([0, 0]))
    np.testing.assert_allclose(b, [[0.5 / 0.75, 0.0], [0.5 / 0.75, 0.0]], atol=1e-7)
    three = np.array([[0.5, 1.0], [0.25, 0.25], [0.25, 0.75]])
    b = others_token_baseline(np.array([1.0, 0.0, 1.0]), three)
    np.testing.assert_allclose(b, [[0.5, 0.75], [1.0, 1.0], [2 / 3, 0.8]])


def test_the_expectation_of_what_stands_for_the_sum_over_the_vocabulary_is_that_sum():
    p = np.array([0.5, 0.3, 0.2])
    proxy = sum(q * gathered_energy(np.log([[q]]), np.array([[True]]))[0, 0] for q in p)
    exact = sum(q * gathered_energy(np.log([[q]]), np.array([[True]]), np.array([[p @ p]]))[0, 0] for q in p)
    assert proxy == pytest.approx(exact)
    assert proxy == pytest.approx(1 - p @ p)


def test_nothing_of_a_rollout_moves_its_own_baseline_over_the_batch():
    mask, log_probs, _, rewards = made_up(7)
    straight = others_token_baseline(rewards, gathered_energy(log_probs, mask))
    for i in range(len(rewards)):
        other_rewards, other_log_probs, other_mask = rewards.copy(), log_probs.copy(), mask.copy()
        other_rewards[i], other_log_probs[i], other_mask[i] = 40.0, -3.0, True
        moved = others_token_baseline(other_rewards, gathered_energy(other_log_probs, other_mask))
        np.testing.assert_allclose(moved[i], straight[i], rtol=0, atol=1e-12)
        assert np.abs(moved - straight).max() > 1e-3
    np.testing.assert_array_equal(others_token_baseline(np.ones(1), np.ones((1, 3))), np.zeros((1, 3)))
    np.testing.assert_array_equal(others_token_baseline(np.array([0.0, 1.0]), np.zeros((2, 2))), [[1, 1], [0, 0]])


def test_the_arm():
    mask, log_probs, _, rewards = made_up(8, n=6, t=4)
    response = torch.from_numpy(mask)
    ids = torch.zeros(6, 4, dtype=torch.long)
    samples = Samples(
        ["a"] * 6, [""] * 6, ids, response, ids, response, torch.from_numpy(log_probs).float(), torch.zeros(6).bool()
    )
    batch = Batch.of(["a"] * 6, rewards, task_ids=["x", "x", "x", "y", "y", "y"])
    energy = gathered_energy(log_probs, mask)
    for over_groups, b in (
        (True, optimal_token_baseline(rewards, energy, mask, np.array([0, 0, 0, 1, 1, 1]))),
        (False, others_token_baseline(rewards, energy)),
    ):
        judged = TokenBaselineArm(over_groups=over_groups).advantages_of_step(batch, samples)
        np.testing.assert_allclose(judged.advantages, (rewards[:, None] - b) * mask, atol=1e-6)
        np.testing.assert_allclose(judged.baseline_B, b[:, 0], atol=1e-6)
    with pytest.raises(ValueError, match="group_size"):
        ArmConfig(baseline="otb")
    ArmConfig(baseline="otb", group_size=4)
