"""What is asked of a service's sampling client: rollouts with their log-probabilities, and those of given responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rollonce.errors import InputError
from rollonce.policies.samples import Samples, unpadded_rollout_rows
from rollonce.policies.tinker_service import TinkerService, load_tinker_sdk, wait_for_result


class SampledSequence(NamedTuple):
    """One sampled response: token ids, the log-probability of each, and whether the limit cut it off."""

    tokens: list[int]
    log_probs: list[float]
    truncated: bool


def sample_sequences(
    service: TinkerService,
    sampler: Any,
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[int],
    stop: Sequence[str] | Sequence[int],
    max_new_tokens: int,
    temperature: float,
) -> list[SampledSequence]:
    """One response per prompt (token ids), each with a seed of its own.

    Raises:
        InputError: a response without a log-probability for each of its tokens.
    """
    tinker = load_tinker_sdk()

    def request_samples() -> list[Any]:
        futures = [
            sampler.sample(
                prompt=tinker.ModelInput.from_ints(list(ids)),
                num_samples=1,
                sampling_params=tinker.SamplingParams(
                    max_tokens=max_new_tokens, temperature=temperature, seed=seed, stop=list(stop)
                ),
            )
            for ids, seed in zip(prompts, seeds, strict=True)
        ]
        return [wait_for_result(f).sequences[0] for f in futures]

    out = []
    for told in service.call_with_watch("sampling", request_samples):
        tokens = [int(t) for t in told.tokens]
        log_probs = [float(x) for x in (told.logprobs if told.logprobs is not None else [])]
        if len(tokens) != len(log_probs):
            raise InputError(
                f"{service.name} gave {len(log_probs)} log-probabilities for {len(tokens)} sampled tokens: nothing can "
                "be learnt"
            )
        out.append(SampledSequence(tokens, log_probs, str(told.stop_reason) != "stop"))
    return out


def response_log_probs(service: TinkerService, sampler: Any, samples: Samples) -> Tensor:
    """Log-probabilities (B, T) float32 of given responses under a sampling client's weights, 0 in the padding."""
    tinker = load_tinker_sdk()
    rows = unpadded_rollout_rows(samples)

    def request_log_probs() -> list[Any]:
        return [
            wait_for_result(f)
            for f in [sampler.compute_logprobs(tinker.ModelInput.from_ints(p + r)) for p, r, _ in rows]
        ]

    out_BT = torch.zeros(samples.response_mask_BT.shape)
    for b, (found, (prompt, response, _)) in enumerate(
        zip(service.call_with_watch("log-probabilities", request_log_probs), rows, strict=True)
    ):
        whole = len(prompt) + len(response)
        if len(found) not in (whole, whole - 1):  # SkyRL leaves the first, undefined one out
            raise InputError(f"{service.name} gave {len(found)} log-probabilities for {whole} tokens")
        if response:
            out_BT[b, : len(response)] = torch.tensor([float(x) for x in found[-len(response) :]])
    return out_BT
