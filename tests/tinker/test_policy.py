"""The Tinker policy on the raw SDK against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from server import KEY, TinkerServer

from rollonce.errors import InputError
from rollonce.policies.tinker_policy import TinkerPolicy

PROMPTS = [f"What is {i} + {j}?" for i in range(4) for j in range(8)]


def connect(server: TinkerServer, model: Path, **options: Any) -> TinkerPolicy:
    settings = {"renderer": "chat", "loss": "importance_sampling", "base_url": server.url, "lora_rank": 8, **options}
    return TinkerPolicy.connect(str(model), **settings)


@pytest.fixture(scope="module")
def policy(server: TinkerServer, model: Path) -> Iterator[TinkerPolicy]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", KEY)
        made = connect(server, model)
    yield made
    made.close()


def test_rollouts_are_reproducible_ragged_and_carry_their_exact_log_probabilities(policy: TinkerPolicy) -> None:
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=3)
    again = policy.sample(PROMPTS, max_new_tokens=16, seed=3)
    other = policy.sample(PROMPTS, max_new_tokens=16, seed=4)
    assert torch.equal(samples.response_ids_BT, again.response_ids_BT)
    assert not torch.equal(samples.response_ids_BT, other.response_ids_BT[:, : samples.response_ids_BT.shape[1]])
    eos = policy.tokenizer.eos_token_id
    for b in range(len(PROMPTS)):
        ids = samples.response_ids_BT[b, samples.response_mask_BT[b]].tolist()
        assert bool(samples.truncated_B[b]) == (eos not in ids)
        assert ids.index(eos) == len(ids) - 1 if eos in ids else len(ids) == 16
    # The sampler's log-probabilities are those that another request computes for the finished texts.
    assert float((policy.compute_log_probs(samples) - samples.log_probs_BT).abs().max()) < 1e-4
    # Fresh adapters change nothing, so the base model says the same.
    assert float((policy.compute_base_log_probs(samples) - samples.log_probs_BT).abs().max()) < 1e-4


def test_equal_prompts_give_different_rollouts(policy: TinkerPolicy) -> None:
    assert len(set(policy.sample(["What is 1 + 1?"] * 16, max_new_tokens=16, seed=0).texts)) > 8


def test_greedy_takes_the_same_path_whatever_the_seed(policy: TinkerPolicy) -> None:
    a = policy.sample(PROMPTS[:8], max_new_tokens=8, temperature=0.0, seed=1)
    b = policy.sample(PROMPTS[:8], max_new_tokens=8, temperature=0.0, seed=2)
    assert a.texts == b.texts


def test_zero_advantages_give_a_gradient_of_exactly_zero(server: TinkerServer, model: Path) -> None:
    policy = connect(server, model)
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=5)
    told = policy.update(samples, torch.zeros(len(samples)), learning_rate=1e-2)
    assert told.grad_norm == 0.0
    assert float((policy.compute_log_probs(samples) - samples.log_probs_BT).abs().max()) < 1e-4
    policy.close()


def test_a_step_moves_probability_towards_what_was_rewarded_and_trainer_agrees_with_sampler(
    server: TinkerServer, model: Path
) -> None:
    policy = connect(server, model)
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=5)
    sign = torch.tensor([1.0 if b % 2 else -1.0 for b in range(len(samples))])
    told = policy.update(samples, sign, learning_rate=1e-3)
    assert float((told.log_probs_BT - samples.log_probs_BT).abs().max()) < 1e-4  # on-policy: ratios are 1
    change_B = (policy.compute_log_probs(samples) - samples.log_probs_BT).sum(dim=1)
    # First order: the sum of sign x change is learning rate x |gradient|_1 > 0.
    assert float((sign * change_B).sum()) > 0
    assert told.grad_norm > 0
    policy.close()


def test_what_the_services_loss_does_with_tokens_and_rollouts(server: TinkerServer, model: Path) -> None:
    """`reduction='sequence_mean'` describes SkyRL's JAX backend: pinned by gradient norms, which only a mean or a sum
    can give."""
    policy = connect(server, model)
    whole = policy.sample(["What is 6 + 7?"], max_new_tokens=16, seed=2)
    T = int(whole.lengths_B[0])
    assert T > 1
    first_only = torch.zeros((1, whole.response_mask_BT.shape[1]))
    first_only[0, 0] = 1.0
    norm = lambda samples, advantages: policy.update(samples, advantages, learning_rate=0.0).grad_norm  # noqa: E731
    from dataclasses import replace

    cut = replace(
        whole,
        response_ids_BT=whole.response_ids_BT[:, :1],
        response_mask_BT=whole.response_mask_BT[:, :1],
        log_probs_BT=whole.log_probs_BT[:, :1],
    )
    prompt = int(whole.prompt_mask_BP.sum())
    one, shortened = norm(whole, first_only), norm(cut, torch.ones((1, 1)))
    # The same gradient of one token, divided by the datum's positions: P + T - 1 against P.
    assert shortened / one == pytest.approx((prompt + T - 1) / prompt, rel=1e-3)
    twice = type(whole).concatenate_samples([whole, whole])
    assert norm(twice, first_only.expand(2, -1)) == pytest.approx(one, rel=1e-3)  # a mean over datums, not their sum
    assert norm(whole, 3 * first_only) == pytest.approx(3 * one, rel=1e-3)
    policy.close()


def test_with_sequence_mean_every_token_counts_alike(server: TinkerServer, model: Path) -> None:
    """Two rollouts of different length, advantage on one token: scaled by us, divided by the service, the norms are
    those of a sum."""
    policy = connect(server, model, reduction="sequence_mean")
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=9)
    lengths = samples.lengths_B.tolist()
    short, long = min(range(32), key=lengths.__getitem__), max(range(32), key=lengths.__getitem__)
    pair = samples.take_rollouts([short, long])
    assert pair.lengths_B[0] < pair.lengths_B[1]
    only = torch.zeros_like(pair.log_probs_BT)
    only[0, 0] = 1.0
    both_norm = policy.update(pair, only, learning_rate=0.0).grad_norm
    # Alone, with its own length as the mean length, the factor is 1: the gradient is that of the token over its
    # positions.
    alone = samples.take_rollouts([short])
    own = torch.zeros_like(alone.log_probs_BT)
    own[0, 0] = 1.0
    alone_norm = policy.update(alone, own, learning_rate=0.0).grad_norm
    positions = (pair.prompt_mask_BP.sum(1) + pair.lengths_B - 1).double()
    # In the pair: factor positions_0 / mean, over positions_0, over 2 datums.
    assert both_norm / alone_norm == pytest.approx(float(positions[0] / positions.mean()) / 2, rel=1e-3)
    policy.close()


def test_a_checkpoint_goes_on_exactly_as_the_run_would_have(server: TinkerServer, model: Path) -> None:
    policy = connect(server, model)
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=1)
    advantages = torch.linspace(-1, 1, len(samples))
    policy.update(samples, advantages, learning_rate=1e-2)
    state = policy.save_service_state()
    policy.update(samples, advantages, learning_rate=1e-2)
    expected = policy.compute_log_probs(samples)
    resumed = connect(server, model)
    resumed.load_service_state(state)
    assert resumed.steps == 1
    resumed.update(samples, advantages, learning_rate=1e-2)
    # Adam's moments came along. (To rounding: another slot of the server sums in another order. Without them it is off
    # by far more, below.)
    assert float((resumed.compute_log_probs(samples) - expected).abs().max()) < 1e-4
    client = resumed.service.service_client
    resumed._trainer = resumed.service.call_with_watch(
        "a start without moments", lambda: client.create_training_client_from_state(state["path"])
    )
    resumed._sampler = None
    resumed.update(samples, advantages, learning_rate=1e-2)
    assert float((resumed.compute_log_probs(samples) - expected).abs().max()) > 1e-2
    with pytest.raises(InputError, match="rank 4"):
        connect(server, model, lora_rank=4).load_service_state(state)
    for p in (policy, resumed):
        p.close()


def test_weights_kept_for_sampling_can_be_sampled_from_later(server: TinkerServer, model: Path) -> None:
    policy = connect(server, model)
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=1)
    policy.update(samples, torch.linspace(-1, 1, len(samples)), learning_rate=1e-2)
    after = policy.compute_log_probs(samples)
    path = policy.save_for_sampling("kept")
    fresh = connect(server, model)
    fresh.sample_from_saved_weights(path)
    assert float((fresh.compute_log_probs(samples) - after).abs().max()) < 1e-4
    assert float((after - samples.log_probs_BT).abs().max()) > 1e-3
    for p in (policy, fresh):
        p.close()


def test_ppo_is_another_loss_with_the_same_gradient_on_policy(server: TinkerServer, model: Path) -> None:
    clip = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    norms = []
    for loss, config in (("importance_sampling", None), ("ppo", clip)):
        policy = connect(server, model, loss=loss, loss_config=config)
        samples = policy.sample(PROMPTS, max_new_tokens=16, seed=1)
        norms.append(policy.update(samples, torch.linspace(-1, 1, len(samples)), learning_rate=1e-3).grad_norm)
        policy.close()
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_a_cookbook_renderer_gives_the_cookbooks_tokens(server: TinkerServer, model: Path) -> None:
    from tinker_cookbook import renderers

    policy = connect(server, model, renderer="cookbook:role_colon")
    theirs = renderers.get_renderer("role_colon", tokenizer=policy.tokenizer)
    assert policy.encode_prompt("Hi?") == theirs.build_generation_prompt([{"role": "user", "content": "Hi?"}]).to_ints()
    with pytest.raises(InputError, match="nonsense"):
        connect(server, model, renderer="cookbook:nonsense")
    policy.close()
