"""Tensors of tokens (N, T) as the trainers hold them: outcome rewards and log-probabilities out of them, advantages
back over them. torch is not imported."""

from __future__ import annotations

from typing import Any

from rollonce.integrations.hook import AdvantageResult
from rollonce.rollouts import FloatArray


def outcome_rewards(token_level_rewards: Any) -> FloatArray:
    """What each row got in all (N,) float64, of a tensor of rewards by token (N, T)."""
    return token_level_rewards.detach().double().sum(-1).cpu().numpy()


def rows_with_tokens(mask: Any) -> list[bool]:
    """Whether a row has any token that counts (N,), of a mask (N, T): one without is padding or was rejected."""
    return (mask.detach() != 0).any(-1).cpu().tolist()


def summed_log_probs(log_probs: Any, mask: Any) -> FloatArray:
    """Of each row's tokens that count in all (N,) float64, of log-probabilities by token and a mask (N, T) each; NaN
    where no token counts, or one that does has NaN."""
    counts = mask.detach() != 0
    total = log_probs.detach().double().masked_fill(~counts, 0.0).sum(-1)
    return total.masked_fill(~counts.any(-1), float("nan")).cpu().numpy()


def spread_over_tokens(result: AdvantageResult, like: Any, mask: Any) -> tuple[Any, Any]:
    """The same advantage at every token that counts (N, T), twice: as advantages and as returns. dtype and device of
    ``like``."""
    advantages = like.new_tensor(result.advantages_N.tolist())[:, None] * mask.to(like.dtype)
    return advantages, advantages.clone()
