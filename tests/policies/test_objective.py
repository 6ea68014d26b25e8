"""The loss against numbers and gradients worked out by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from rollonce.errors import InputError  # noqa: E402
from rollonce.policies import bernoulli_kl_BT, policy_loss, token_mean  # noqa: E402

MASK_BT = torch.tensor([[True, True, False], [True, False, False]])


def test_token_mean():
    values_BT = torch.tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
    assert token_mean(values_BT, MASK_BT).item() == 3.0  # (1 + 2 + 6) / 3
    assert token_mean(values_BT, MASK_BT, n_tokens=9).item() == 1.0
    assert token_mean(values_BT, torch.zeros_like(MASK_BT)).item() == 0.0


def test_on_policy_gradient_is_reinforce():
    log_probs_BT = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]], requires_grad=True)
    loss = policy_loss(log_probs_BT, log_probs_BT.detach(), torch.tensor([0.5, -1.0]), MASK_BT)
    assert loss.item() == pytest.approx(0.0)  # -(0.5 + 0.5 - 1) / 3
    loss.backward()
    # d/dlogp of -A * ratio / n at ratio 1 is -A / 3 for each response token.
    assert torch.allclose(log_probs_BT.grad, torch.tensor([[-0.5, -0.5, 0.0], [1.0, 0.0, 0.0]]) / 3)


def test_clipping_is_pessimistic():
    ones_B1 = torch.ones(1, 1, dtype=torch.bool)
    for ratio, advantage, gain in [(1.5, 1.0, 1.2), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8)]:
        log_ratio = torch.tensor([[math.log(ratio)]])
        loss = policy_loss(log_ratio, torch.zeros(1, 1), torch.tensor([advantage]), ones_B1, clip=(0.2, 0.2))
        assert loss.item() == pytest.approx(-gain, abs=1e-6)


def test_token_advantages_and_wrong_shapes():
    zeros_BT = torch.zeros(2, 3)
    advantages_BT = torch.tensor([[3.0, 6.0, 9.0], [0.0, 9.0, 9.0]])
    assert policy_loss(zeros_BT, zeros_BT, advantages_BT, MASK_BT).item() == pytest.approx(-3.0)
    with pytest.raises(InputError, match="advantages must be of shape"):
        policy_loss(zeros_BT, zeros_BT, torch.zeros(3), MASK_BT)


def test_bernoulli_kl():
    old, new = 0.5, 0.25
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    found_BT = bernoulli_kl_BT(torch.tensor([[math.log(new), 0.0, -1.0]]), torch.tensor([[math.log(old), 0.0, -1.0]]))
    assert found_BT[0, 0].item() == pytest.approx(expected, rel=1e-5)
    assert found_BT[0, 1:].tolist() == [0.0, 0.0]
