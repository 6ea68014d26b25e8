"""Generalised advantage estimation and the value loss, against values worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rollonce.errors import InputError  # noqa: E402
from rollonce.policies import TransformersPolicy  # noqa: E402
from rollonce.policies.critic import CriticValues, TokenCritic, generalised_advantages, token_value_loss  # noqa: E402
from rollonce.policies.objective import k3_kl_estimate_BT, token_loss_weights  # noqa: E402

MASK = torch.tensor([[True, True, True], [True, False, False]])
VALUES = torch.tensor([[0.5, 0.2, 0.4], [0.3, 9.0, 9.0]])
REWARDS = torch.tensor([1.0, 0.0])


def test_with_lambda_1_the_advantage_is_reward_minus_value():
    advantages, targets = generalised_advantages(REWARDS, VALUES, MASK)
    torch.testing.assert_close(advantages, torch.tensor([[0.5, 0.8, 0.6], [-0.3, 0.0, 0.0]]))
    torch.testing.assert_close(targets, torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))


def test_with_lambda_0_it_is_the_one_step_error():
    advantages, targets = generalised_advantages(REWARDS, VALUES, MASK, gae_lambda=0.0)
    torch.testing.assert_close(advantages, torch.tensor([[0.2 - 0.5, 0.4 - 0.2, 1.0 - 0.4], [-0.3, 0.0, 0.0]]))
    torch.testing.assert_close(targets, torch.tensor([[0.2, 0.4, 1.0], [0.0, 0.0, 0.0]]))


def test_lambda_and_discount_by_hand():
    advantages, _ = generalised_advantages(REWARDS[:1], VALUES[:1], MASK[:1], discount=0.9, gae_lambda=0.5)
    d2 = 1.0 - 0.4
    d1 = 0.9 * 0.4 - 0.2
    d0 = 0.9 * 0.2 - 0.5
    a1 = d1 + 0.45 * d2
    torch.testing.assert_close(advantages, torch.tensor([[d0 + 0.45 * a1, a1, d2]]))


def test_value_loss_takes_the_worse_of_clipped_and_free():
    old, new = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    target, mask = torch.tensor([[1.0, 0.1]]), torch.tensor([[True, True]])
    # free errors: .25, .16; held at .2: .64, .01; the worse: .64, .16
    assert float(token_value_loss(new, old, target, mask, n_tokens=2, clip=0.2)) == pytest.approx(
        0.5 * (0.64 + 0.16) / 2
    )
    assert float(token_value_loss(new, old, target, mask, n_tokens=2, clip=None)) == pytest.approx(
        0.5 * (0.25 + 0.16) / 2
    )
    assert float(
        token_value_loss(new, old, target, torch.tensor([[True, False]]), n_tokens=4, clip=None)
    ) == pytest.approx(0.5 * 0.25 / 4)


def test_loss_weights_sum_to_one_and_share_as_they_say():
    token, sequence = token_loss_weights(MASK), token_loss_weights(MASK, "sequence-mean")
    torch.testing.assert_close(token, MASK.float() / 4)
    torch.testing.assert_close(sequence, torch.tensor([[1 / 6, 1 / 6, 1 / 6], [0.5, 0.0, 0.0]]))
    with pytest.raises(InputError, match="aggregation"):
        token_loss_weights(MASK, "mean")


def test_k3_is_unbiased_for_the_kl_and_never_negative():
    p, q = torch.tensor([0.7, 0.3]), torch.tensor([0.4, 0.6])
    terms = k3_kl_estimate_BT(torch.log(p)[None], torch.log(q)[None])[0]
    assert float((p * terms).sum()) == pytest.approx(float((p * torch.log(p / q)).sum()), rel=1e-5)
    assert (terms >= 0).all()


def test_a_network_critic_learns_in_float32_under_bfloat16_weights(llama):
    """Updates of 1e-5 would be rounded away in bfloat16 weights: nearly every one of the copy's must move."""
    policy = TransformersPolicy(llama.model.to(torch.bfloat16), llama.tokenizer, autocast=True)
    critic = TokenCritic(policy, kind="network", learning_rate=1e-5, clip=None)
    samples = policy.sample(["1+1", "2+2", "3+3", "4+4"], max_new_tokens=6, generator=0)
    critic.start_at_mean_reward(0.5)
    torch.nn.init.normal_(critic.head[-1].weight)
    before = [p.detach().clone() for p in critic.network.model.parameters()]
    targets_BT = torch.tensor([1.0, 0.0, 1.0, 0.0])[:, None] * samples.response_mask_BT
    for _ in range(5):
        critic.learn_from_targets(samples, critic.predict_token_values(samples), targets_BT)
    moved = sum(int((p != b).sum()) for p, b in zip(critic.network.model.parameters(), before, strict=True))
    with_gradient = sum(int((p.grad != 0).sum()) for p in critic.network.model.parameters() if p.grad is not None)
    assert with_gradient > 1000
    assert moved >= 0.95 * with_gradient
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}


def test_the_first_step_is_a_change_from_the_mean_reward(monkeypatch):
    """Clipping at 0.2 around zeros would let half of the targets pull and the other half not."""
    from rollonce.training.arms.base import StepAdvantages
    from rollonce.training.arms.critic import CriticArm
    from rollonce.training.config import CriticConfig

    seen = {}

    class Spy:
        started = False

        def start_at_mean_reward(self, mean):
            self.mean = mean

        def learn_from_targets(self, samples, old, targets_BT):
            seen.update(old=old.values_BT, targets=targets_BT)
            return 0.0

    config = SimpleNamespace(arm=SimpleNamespace(critic=CriticConfig(gae_lambda=0.5)))
    arm = CriticArm(config, SimpleNamespace(make_token_critic=lambda settings: Spy()), None)
    mask_BT = torch.tensor([[True, True], [True, False]])
    judged = StepAdvantages(np.zeros((2, 2)), np.zeros(2), CriticValues(torch.zeros(2, 2), None))
    arm.learn_from_step(
        SimpleNamespace(rewards_B=np.array([1.0, 0.0])), SimpleNamespace(response_mask_BT=mask_BT), judged
    )
    assert seen["old"].tolist() == [[0.5, 0.5], [0.5, 0.0]]
    # Rollout 1: delta_1 = 1 - .5, A_0 = (.5 - .5) + .5 * .5; targets are A + V. Rollout 2: 0 - .5.
    assert seen["targets"].tolist() == [[0.75, 1.0], [0.0, 0.0]]
