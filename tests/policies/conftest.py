"""Tiny models made on the spot: what a test of the policy code needs, without the shipped weights and without a hub."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from embedded_tokenizer import build_tokenizer  # noqa: E402
from rollonce.policies import TransformersPolicy  # noqa: E402


@pytest.fixture(scope="session")
def tokenizer():
    pytest.importorskip("reasoning_gym")
    return build_tokenizer()


def tiny_model(tokenizer, architecture: str = "llama", seed: int = 0):
    """A random model whose weights are large enough for its distributions to be far from uniform."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    torch.manual_seed(seed)
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    if architecture == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common, num_key_value_heads=2, **ids))
    elif architecture == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**common, num_key_value_heads=2, head_dim=8, **ids))
    elif architecture == "mistral":  # a sliding window, shorter than most prompts
        model = MistralForCausalLM(MistralConfig(**common, num_key_value_heads=2, sliding_window=16, **ids))
    else:  # absolute positions and dropout, unlike the others
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=256, **ids)
        )
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(6)
    return model


@pytest.fixture(params=["llama", "qwen3", "gpt2"])
def policy(request, tokenizer):
    return TransformersPolicy(tiny_model(tokenizer, request.param), tokenizer)


@pytest.fixture
def llama(tokenizer):
    return TransformersPolicy(tiny_model(tokenizer), tokenizer)
