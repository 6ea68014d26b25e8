"""The policy-gradient objective, in the few lines that every arm shares. Shapes: ``_B`` rollouts, ``_T`` response
tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from rollonce.errors import InputError


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each token under its logits, with gradient, and the entropy (nats) of its distribution,
    without.

    Args:
        logits: (..., V).
        tokens: (...).
        temperature: What the logits are divided by; 0 for a greedy rollout, which is judged at temperature 1.
    """
    log_probs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
    with torch.no_grad():
        entropies = torch.special.entr(log_probs.exp()).sum(dim=-1)
    return log_probs.gather(-1, tokens[..., None]).squeeze(-1), entropies


def token_mean(values_BT: Tensor, mask_BT: Tensor, n_tokens: int | None = None) -> Tensor:
    """Sum over response tokens divided by their number.

    Args:
        values_BT: What to average.
        mask_BT: True where there is a response token.
        n_tokens: The denominator, default this mask's tokens. A micro-batch gets the *whole* batch's number, so that
            the gradients of the micro-batches add up to the batch's.
    """
    return (values_BT * mask_BT).sum() / max(1, int(mask_BT.sum()) if n_tokens is None else n_tokens)


def policy_loss(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor,
    *,
    n_tokens: int | None = None,
    clip: tuple[float, float] | None = None,
    weights_BT: Tensor | None = None,
) -> Tensor:
    """``-mean over tokens of ratio * A``: REINFORCE when on-policy (ratio 1, which carries the gradient), PPO's
    surrogate with ``clip``.

    Args:
        log_probs_BT: Of the policy being trained, with gradient.
        old_log_probs_BT: Of the policy that sampled (`Samples.log_probs_BT`).
        advantages: One a rollout (B,) or one a token (B, T).
        mask_BT: True where there is a response token.
        n_tokens: See `token_mean`.
        clip: ``(low, high)``: the ratio is clipped to [1 - low, 1 + high], pessimistically as in PPO (Schulman et al.,
            2017). None: no clipping.
        weights_BT: A factor a token in place of ``1 / n_tokens`` (see `token_loss_weights`).

    Raises:
        InputError: advantages of another shape.
    """
    if advantages.shape not in (log_probs_BT.shape, log_probs_BT.shape[:1]):
        raise InputError(
            f"advantages must be of shape {tuple(log_probs_BT.shape[:1])} or {tuple(log_probs_BT.shape)}, not "
            f"{tuple(advantages.shape)}"
        )
    advantages_BT = (advantages if advantages.ndim == 2 else advantages[:, None]).to(log_probs_BT)
    # Padding has log-probability 0 on both sides: its ratio is 1, finite, and masked below.
    ratio_BT = torch.exp(log_probs_BT - old_log_probs_BT.to(log_probs_BT))
    gain_BT = ratio_BT * advantages_BT
    if clip is not None:
        low, high = clip
        gain_BT = torch.minimum(gain_BT, ratio_BT.clamp(1 - low, 1 + high) * advantages_BT)
    if weights_BT is not None:
        return -(gain_BT * weights_BT.to(gain_BT)).sum()
    return -token_mean(gain_BT, mask_BT, n_tokens)


def token_loss_weights(mask_BT: Tensor, aggregation: str = "token-mean") -> Tensor:
    """What each response token counts in the loss (B, T), float32; they sum to 1.

    Args:
        mask_BT: True where there is a response token, of the *whole* batch.
        aggregation: ``token-mean``: every token alike, long rollouts count more; ``sequence-mean``: every rollout
            alike.

    Raises:
        InputError: another aggregation.
    """
    mask = mask_BT.float()
    if aggregation == "token-mean":
        return mask / mask.sum().clamp(min=1)
    if aggregation == "sequence-mean":
        return mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / len(mask)
    raise InputError(f"aggregation must be 'token-mean' or 'sequence-mean', not {aggregation!r}")


def k3_kl_estimate_BT(log_probs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference) from sampled tokens: ``exp(d) - 1 - d``, d = reference - policy;
    never negative.

    Source: Schulman 2020, "Approximating KL divergence".
    """
    difference = reference_BT.to(log_probs_BT) - log_probs_BT
    return torch.exp(difference) - 1 - difference


def bernoulli_kl_BT(log_probs_BT: Tensor, old_log_probs_BT: Tensor) -> Tensor:
    """KL between the two policies' Bernoulli distributions "this token or not", per token (nats, detached).

    A lower bound of the KL over the vocabulary that needs the sampled token's probability only; FlashREINFORCE's gate
    compares a trajectory's mean of it with delta. 0 in the padding, where both log-probabilities are 0.
    """
    new, old = log_probs_BT.detach().double(), old_log_probs_BT.to(log_probs_BT.device).double()
    # log(1 - p) without cancellation; p = 1 exactly is held a hair below, or the KL would be infinite times zero.
    ceiling = -1e-12
    rest_new, rest_old = (
        torch.log(-torch.expm1(new.clamp(max=ceiling))),
        torch.log(-torch.expm1(old.clamp(max=ceiling))),
    )
    p_old = old.exp()
    return (p_old * (old - new) + (1 - p_old) * (rest_old - rest_new)).clamp_(min=0.0).to(log_probs_BT.dtype)
