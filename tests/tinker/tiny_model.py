"""A Qwen3 of two layers with a byte-level tokenizer, made on the spot: what the tests' server trains. It knows
nothing."""

from __future__ import annotations

import math
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt "
    "%}<|assistant|>{% endif %}"
)


STOP_SHARE = 0.15


def make_tiny_model(directory: Path, seed: int = 0) -> Path:
    """Model and tokenizer in transformers' format: 256 bytes and four special tokens, 2 layers, 128 wide.

    Byte-level BPE without merges: every text has tokens, one a byte, and no word of any language is special. Random
    weights, but for one
    direction that all embeddings share and that makes the end of sequence about `STOP_SHARE` likely at each token: else
    nearly every rollout would be cut off, and a truncated rollout earns nothing by rule.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=specials[1:],
        chat_template=CHAT_TEMPLATE,
    )
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32).eval()
    shared_D = torch.randn(config.hidden_size)
    shared_D /= shared_D.norm()
    with torch.no_grad():
        model.model.embed_tokens.weight += 0.3 * shared_D
        ids = torch.randint(4, len(tokenizer), (16, 32))
        hidden = model.model(ids).last_hidden_state @ shared_D
        others = model.lm_head(model.model(ids).last_hidden_state)[..., 4:].logsumexp(-1)
        # log(p / (1 - p)) = its logit less the others' together
        stop_logit = math.log(STOP_SHARE / (1 - STOP_SHARE)) + float(others.mean())
        model.lm_head.weight[tokenizer.eos_token_id] = shared_D * stop_logit / float(hidden.mean())
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
