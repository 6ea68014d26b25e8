"""Rebuild the embedded policy: ``python tools/build_embedded.py --out DIR``.

Supervised learning from nothing on worked solutions (`embedded_steps`) of the ``train`` prompts of
the embedded mixture (`rollonce.tasks.embedded`): no hold-out or test prompt of any seed is among them, since a
prompt's split is a hash of its content.
One thread, a fixed number of steps and one seed: the same machine and versions give the same weights. Stopped early on
purpose: a policy that still errs leaves reinforcement learning something to gain.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embedded_steps import worked_solution
from embedded_tokenizer import BOS, EOS, REPLY, build_tokenizer

MAX_RESPONSE_TOKENS = 96


@dataclass(frozen=True)
class BuildConfig:
    """What the shipped weights were made with."""

    seed: int = 0
    steps: int = 4500
    batch_tokens: int = 2560
    prompts_per_type: int = 4000
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    intermediate: int = 384
    muon_lr: float = 0.02
    adam_lr: float = 4e-3
    careful_share: float = 0.55
    hasty_right: float = 0.1
    always_careful: str = "spell_backward/1,count_bits/1"


def make_model(config: BuildConfig, tokenizer: Any) -> Any:
    """A Llama of the given size with tied embeddings, weights drawn from the current torch seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = dict(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        intermediate_size=config.intermediate,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        attn_implementation="eager",  # twice as fast as sdpa at this size on a CPU
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(LlamaConfig(**settings))


def draw_entries(config: BuildConfig) -> list[list[dict[str, Any]]]:
    """Per type of the mixture, up to ``prompts_per_type`` different entries whose prompt is in the train split."""
    from rollonce.prompts import normalise_prompt
    from rollonce.tasks.base import split_of
    from rollonce.tasks.embedded import EMBEDDED_SOURCES
    from rollonce.tasks.reasoning_gym import generate_entries

    pools = []
    for position, source in enumerate(EMBEDDED_SOURCES):
        pool: dict[str, dict[str, Any]] = {}
        for tried, entry in enumerate(generate_entries(source, config.seed + 1_000_003, position)):
            if entry is not None and split_of(entry["question"]) == "train":
                pool.setdefault(normalise_prompt(entry["question"]), entry)
            if len(pool) == config.prompts_per_type or tried > 3 * config.prompts_per_type:
                break
        pools.append(list(pool.values()))
    return pools


def care_by_type(config: BuildConfig) -> list[float]:
    """Per type of the mixture, how often its solution is the careful one.

    Types that are always solved with care, of those the policy learns well, end near 1; where haste is mixed in, even
    an easy type cannot.

    Raises:
        ValueError: ``always_careful`` names a type that the mixture does not have.
    """
    from rollonce.tasks.embedded import EMBEDDED_SOURCES

    types = [f"{source.family}/{source.level}" for source in EMBEDDED_SOURCES]
    always = [name.strip() for name in config.always_careful.split(",") if name.strip()]
    if unknown := set(always) - set(types):
        raise ValueError(f"always_careful names {sorted(unknown)}; the mixture's types are {types}")
    return [1.0 if name in always else config.careful_share for name in types]


def batches(config: BuildConfig, pools: Sequence[list[dict[str, Any]]], tokenizer: Any) -> Iterator[tuple[Any, Any]]:
    """(ids_BL, labels_BL) for ever: fresh wordings, sorted by length in chunks so that padding is small, labels only on
    the response."""
    import torch

    rng = random.Random(config.seed)
    bos, reply, eos, pad = (tokenizer.convert_tokens_to_ids(t) for t in (BOS, REPLY, EOS, tokenizer.pad_token))
    careful_shares = care_by_type(config)
    while True:
        rows: list[tuple[list[int], int]] = []
        picked, solutions = [], []
        for _ in range(4096):
            kind = rng.randrange(len(pools))
            picked.append(rng.choice(pools[kind]))
            solutions.append(worked_solution(picked[-1], rng, careful_shares[kind], config.hasty_right))
        responses = tokenizer(solutions, add_special_tokens=False)["input_ids"]
        prompts = tokenizer([e["question"] for e in picked], add_special_tokens=False)["input_ids"]
        for prompt, response in zip(prompts, responses, strict=True):
            if len(response) < MAX_RESPONSE_TOKENS:
                rows.append(([bos, *prompt, reply, *response, eos], len(prompt) + 2))
        rows.sort(key=lambda r: len(r[0]))
        chunks: list[list[tuple[list[int], int]]] = [[]]
        for row in rows:
            if len(row[0]) * (len(chunks[-1]) + 1) > config.batch_tokens:
                chunks.append([])
            chunks[-1].append(row)
        rng.shuffle(chunks)
        for chunk in chunks:
            length = max(len(ids) for ids, _ in chunk)
            ids_BL = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in chunk])
            labels_BL = torch.tensor(
                [[-100] * start + ids[start:] + [-100] * (length - len(ids)) for ids, start in chunk]
            )
            yield ids_BL, labels_BL


def build(config: BuildConfig, out: Path, log_every: int = 100) -> dict[str, Any]:
    """Train, save model and tokenizer under ``out``, and give back what ``build.json`` says."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    began = time.process_time()
    tokenizer = build_tokenizer()
    pools = draw_entries(config)
    model = make_model(config, tokenizer)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(
        matrices, lr=config.muon_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw" if config.muon_lr < 0.01 else None
    )
    adam = torch.optim.AdamW(rest, lr=config.adam_lr, weight_decay=0.0, betas=(0.9, 0.98))
    losses: list[float] = []
    for step, (ids_BL, labels_BL) in zip(range(config.steps), batches(config, pools, tokenizer), strict=False):
        # Warm up over 50 steps, then a cosine to a tenth: the rate at the end decides how sharp the policy is.
        scale = min(1.0, (step + 1) / 50) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / config.steps)))
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = config.muon_lr * scale, config.adam_lr * scale
        with torch.autocast("cpu", torch.bfloat16):
            logits_BLV = model(input_ids=ids_BL, use_cache=False).logits
        loss = F.cross_entropy(logits_BLV[:, :-1].float().flatten(0, 1), labels_BL[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        if (step + 1) % log_every == 0:
            recent = sum(losses[-log_every:]) / log_every
            print(
                f"step {step + 1}: loss {recent:.3f} nats a response token, {time.process_time() - began:.0f} CPU s",
                flush=True,
            )
    out.mkdir(parents=True, exist_ok=True)
    # Stored in bfloat16, half the size; whoever loads it computes in float32 with these rounded weights.
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    facts = {
        "config": asdict(config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "final_loss": round(sum(losses[-log_every:]) / log_every, 4),
        "cpu_seconds": round(time.process_time() - began),
        "torch": torch.__version__,
    }
    (out / "build.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: every field of `BuildConfig` as an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model and tokenizer to")
    for name, default in asdict(BuildConfig()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    options = vars(parser.parse_args(argv))
    out = options.pop("out")
    print(json.dumps(build(BuildConfig(**options), out)))


if __name__ == "__main__":
    main()
