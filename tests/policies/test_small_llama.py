"""The forward pass of its own that a small Llama samples with, against transformers' on the same weights."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from conftest import tiny_model  # noqa: E402
from rollonce.policies import TransformersPolicy, load_embedded  # noqa: E402
from rollonce.policies.sampling import draw_padded_rollouts  # noqa: E402
from rollonce.policies.small_llama import SmallLlama, is_small_plain_llama  # noqa: E402

PROMPTS = ["1+1", "12 + 30 =", "1+1", "sort 3 1 2", "1+1"]


def both(policy: TransformersPolicy, prompts: list[str], new_tokens: int = 24, temperature: float = 1.0):
    ids_BP, mask_BP = policy.encode_prompts(prompts)
    uniform_BT = torch.rand((len(prompts), new_tokens), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        return [
            draw_rollouts(
                ids_BP,
                mask_BP,
                max_new_tokens=new_tokens,
                temperature=temperature,
                uniform_BT=uniform_BT if temperature else None,
                eos_ids=policy.eos_ids,
                pad_id=policy.pad_id,
            )
            for draw_rollouts in (
                partial(draw_padded_rollouts, policy.model),
                SmallLlama(policy.model).draw_padded_rollouts,
            )
        ]


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1] * 3, PROMPTS[1:2]], ids=["padded", "one group", "one"])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_it_draws_what_transformers_would(llama, prompts, temperature):
    """Shared key heads, left padding, equal prompts, rows that end and leave, a cache that has to grow."""
    theirs, ours = both(llama, prompts, new_tokens=90, temperature=temperature)
    assert torch.equal(theirs.ids_BT, ours.ids_BT)
    assert torch.equal(theirs.mask_BT, ours.mask_BT)
    assert torch.equal(theirs.truncated_B, ours.truncated_B)
    torch.testing.assert_close(theirs.log_probs_BT, ours.log_probs_BT, rtol=1e-4, atol=1e-4)


def test_the_embedded_policy_samples_with_it_what_it_scores():
    policy = load_embedded()
    assert is_small_plain_llama(policy.model)
    theirs, ours = both(policy, ["What is 17 + 25?", "What is 9 - 4?"])
    assert torch.equal(theirs.ids_BT, ours.ids_BT)
    torch.testing.assert_close(theirs.log_probs_BT, ours.log_probs_BT, rtol=1e-5, atol=2e-5)


def test_what_it_computes_follows_the_weights(llama):
    """Made anew for each call, so an update of the policy is in the next rollouts."""
    before = llama.sample(PROMPTS, max_new_tokens=8, generator=0)
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.mul_(1.5)
    after = llama.sample(PROMPTS, max_new_tokens=8, generator=0)
    assert not torch.equal(before.log_probs_BT, after.log_probs_BT)
    torch.testing.assert_close(llama.compute_log_probs(after).detach(), after.log_probs_BT, rtol=1e-4, atol=1e-4)
    assert not after.log_probs_BT.is_inference()  # it feeds a value head and a loss


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])
def test_other_models_are_transformers_own(tokenizer, architecture):
    assert not is_small_plain_llama(tiny_model(tokenizer, architecture))


def test_a_llama_that_is_another_is_transformers_own(tokenizer):
    assert is_small_plain_llama(tiny_model(tokenizer))
    assert not is_small_plain_llama(tiny_model(tokenizer).bfloat16())
    scaled = tiny_model(tokenizer)
    scaled.config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    assert not is_small_plain_llama(scaled)
    biased = tiny_model(tokenizer)
    biased.config.attention_bias = True
    assert not is_small_plain_llama(biased)


def test_many_prompts_are_sampled_in_parts_and_the_cache_is_let_go(monkeypatch):
    """12,288 rollouts at once had taken 12 GB, and kept them while gradients were taken."""
    policy = load_embedded()
    prompts = [f"What is {i} + {i + 1}?" for i in range(7)]
    whole = policy.sample(prompts, max_new_tokens=8, generator=3)
    monkeypatch.setattr("rollonce.policies.transformers_policy.MOST_SAMPLE_ROWS", 3)
    parts = policy.sample(prompts, max_new_tokens=8, generator=3)
    assert whole.texts == parts.texts
    decoder = SmallLlama(policy.model)
    ids, mask = policy.encode_prompts(prompts)
    decoder.draw_padded_rollouts(
        ids, mask, max_new_tokens=4, temperature=0.0, uniform_BT=None, eos_ids=policy.eos_ids, pad_id=policy.pad_id
    )
    assert decoder.keys == decoder.values == []
