"""What an optimizer step sends to a Tinker-compatible service, and what comes back.

Shapes: ``_B`` rollouts, ``_T`` response tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rollonce.errors import InputError
from rollonce.policies.samples import Samples, unpadded_rollout_rows
from rollonce.policies.tinker_service import load_tinker_sdk

REDUCTIONS = ("sum", "sequence_mean")
"""What a service's loss does with a rollout's tokens: see `samples_to_datums`."""


class TinkerUpdate(NamedTuple):
    """What an optimizer step told.

    Attributes:
        log_probs_BT: Of the responses under the weights *before* the step, as the trainer computed them (float32, 0 in
            the padding). Less the samples' own they are 0 when on-policy, up to rounding: the check that sampler and
            trainer agree.
        grad_norm: Before clipping; NaN where the service does not tell (Tinker does not, SkyRL does).
        metrics: The service's own.
    """

    log_probs_BT: Tensor
    grad_norm: float
    metrics: dict[str, float]


def samples_to_datums(samples: Samples, advantages: Tensor | Sequence[float], *, reduction: str = "sum") -> list[Any]:
    """One datum per rollout, its input and targets shifted by one, advantage 0 on the prompt.

    Args:
        samples: B rollouts, sampled at temperature 1.
        advantages: (B,), or (B, T) one per token.
        reduction: What the service's loss does with a rollout's tokens. ``sum``: it adds them up, as Tinker does.
            ``sequence_mean``: as SkyRL's JAX backend has it, the mean over each datum's positions and then over datums;
            the advantages are scaled so that the gradient is the one that a sum would give, up to one factor for the
            whole batch.

    Raises:
        InputError: another shape, a number that is not finite, or rollouts of another temperature.
    """
    tinker = load_tinker_sdk()
    advantages = torch.as_tensor(advantages, dtype=torch.float64)
    if advantages.shape not in (samples.response_mask_BT.shape, samples.response_mask_BT.shape[:1]):
        want = tuple(samples.response_mask_BT.shape)
        raise InputError(f"advantages must be of shape {want[:1]} or {want}, not {tuple(advantages.shape)}")
    if not torch.isfinite(advantages).all():
        raise InputError("an advantage is not finite; one such number would ruin the weights on the service for good")
    if samples.temperature != 1.0:
        raise InputError(
            f"these rollouts were sampled at temperature {samples.temperature:g}; a service's loss knows "
            "log-probabilities at 1 only"
        )
    rows = unpadded_rollout_rows(samples)
    mean_positions = sum(len(p) + len(r) - 1 for p, r, _ in rows) / max(1, len(rows))
    data = []
    for b, (prompt, response, log_probs) in enumerate(rows):
        ids = prompt + response
        if len(ids) < 2:
            continue  # nothing follows anything
        before = len(prompt) - 1
        factor = (len(ids) - 1) / mean_positions if reduction == "sequence_mean" else 1.0
        own = advantages[b, : len(response)] if advantages.ndim == 2 else advantages[b].expand(len(response))
        inputs = {
            "target_tokens": torch.tensor(ids[1:], dtype=torch.int64),
            "logprobs": torch.tensor([0.0] * before + log_probs, dtype=torch.float32),
            "advantages": torch.cat([torch.zeros(before, dtype=torch.float64), own * factor]).float(),
        }
        data.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(ids[:-1]),
                loss_fn_inputs={name: tinker.TensorData.from_torch(x) for name, x in inputs.items()},
            )
        )
    if not data:
        raise InputError("none of the rollouts has a token to learn from")
    return data


def returned_log_probs(outputs: Sequence[Mapping[str, Any]], samples: Samples) -> Tensor:
    """The responses' log-probabilities (B, T) float32 that a forward pass over `samples_to_datums` of them gave."""
    log_probs_BT = torch.zeros(samples.response_mask_BT.shape)
    returned = iter(outputs)
    for b, (prompt, response, _) in enumerate(unpadded_rollout_rows(samples)):
        if len(prompt) + len(response) > 1:
            found = [float(x) for x in next(returned)["logprobs"].data]
            log_probs_BT[b, : len(response)] = torch.tensor(found[len(prompt) - 1 : len(prompt) - 1 + len(response)])
    return log_probs_BT


def find_gradient_norm(metrics: Mapping[str, float]) -> float:
    """The gradient's norm among a service's metrics, by whatever prefix; NaN where it is not told."""
    for name, value in metrics.items():
        if name.rpartition("/")[2].partition(":")[0] in ("grad_norm", "gradient_norm"):
            return value
    return math.nan
