"""The log-probability of a response as logs write it, as one sum over its tokens (natural logarithm).

Taken: a number (the sum), a list with one number per token, an OpenAI-compatible ``logprobs`` object (``content`` of
chats, ``token_logprobs`` of completions), and a list of objects with ``logprob``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollonce.errors import InputError
from rollonce.readers.values import describe_value_kind

# Rounding in half precision can lift the logarithm of a probability near 1 above 0 by this much.
_ROUNDING = 2e-3
_REMEDY = "name the key that holds log-probabilities (--log-prob-key), or say log_prob_key='' for none"


def unwrap_token_log_probs(value: Any) -> Any:
    """The list with one log-probability per token that an object of an OpenAI-compatible reply holds; anything else as
    it is.

    >>> unwrap_token_log_probs({"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]})
    [-0.5, -1.0]
    """
    if isinstance(value, dict):
        value = value.get("content") if value.get("content") is not None else value.get("token_logprobs", value)
    if isinstance(value, list) and value and all(isinstance(v, dict) and "logprob" in v for v in value):
        return [v["logprob"] for v in value]
    return value


def sum_token_log_probs(value: Any, n_tokens: float = math.nan) -> tuple[float, float]:
    """The sum over the response's tokens, and how many these are (NaN where neither is known).

    Args:
        value: As the log has it; None where it has none.
        n_tokens: The number of response tokens that the log gives, NaN where it gives none.

    Raises:
        InputError: for a value that is missing inside a list, is not finite or is positive, and for a list with another
            number of tokens than the log gives. An end-of-text token that one of both leaves out is no disagreement.
    """
    if value is None:
        return math.nan, n_tokens
    value = unwrap_token_log_probs(value)
    if not isinstance(value, list | tuple):
        return _validate_log_prob(value, "the log-probability"), n_tokens
    total = 0.0
    for i, token in enumerate(value):
        if type(token) is not float or not -math.inf < token <= 0.0:
            token = _validate_log_prob(token, f"the log-probability of token {i + 1} of {len(value)}")
        total += token
    if abs(n_tokens - len(value)) > 1:
        raise InputError(
            f"{len(value)} log-probabilities for a response of {n_tokens:g} tokens; name the right keys "
            "(--log-prob-key, --length-key), or say length_key='' if the length does not count tokens"
        )
    return total, float(len(value)) if math.isnan(n_tokens) else n_tokens


def sum_log_probs_over_calls(calls: Iterable[Any]) -> tuple[float | None, int | None]:
    """The sum over a rollout's model calls and the number of their tokens; None where a call has no log-probabilities.

    Raises:
        InputError: as `sum_token_log_probs`.
    """
    lists = [unwrap_token_log_probs(call) for call in calls]
    if not lists or not all(isinstance(tokens, list) and tokens for tokens in lists):
        return None, None
    tokens = [token for tokens in lists for token in tokens]
    return sum_token_log_probs(tokens)[0], len(tokens)


def sum_block_log_probs(
    values: Sequence[Any], lengths_R: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`sum_token_log_probs` of many rollouts: sums (R,) and numbers of tokens (R,).

    Raises:
        InputError: as `sum_token_log_probs`, for the first wrong one, without saying which.
    """
    tokens = [math.nan] * len(values) if lengths_R is None else lengths_R.tolist()
    pairs = [sum_token_log_probs(value, n) for value, n in zip(values, tokens, strict=True)]
    return np.array([s for s, _ in pairs]), np.array([n for _, n in pairs])


def _validate_log_prob(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise InputError(f"{what} is {describe_value_kind(value)}; it must be a number of at most 0; {_REMEDY}")
    if not math.isfinite(value):
        raise InputError(f"{what} is {value}; it must be finite; {_REMEDY}")
    if value > _ROUNDING:
        raise InputError(f"{what} is {value:g}, and a log-probability is never positive; {_REMEDY}")
    return min(float(value), 0.0)
