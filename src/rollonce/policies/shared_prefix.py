"""What all prompts of a batch begin with is computed once: a system message, a template's worked examples.

With four worked examples a prompt of 400 tokens differs from the next one in its last twenty. The keys and values of
the other 380 are the same in every row, in sampling and in the update alike, so they are computed for one row and
repeated for the others; autograd adds the rows' gradients up on the way back. The numbers are those of the whole rows
up to rounding.

Shapes: ``_B`` rows, ``_P`` prompt tokens, padded on the left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

SHORTEST_SHARED_PREFIX = 32
"""Tokens below which a forward pass of their own costs more than it spares."""


class SharedPrefix(NamedTuple):
    """The first ``n_tokens`` tokens of every row; ``cache`` has their keys and values, repeated for every row (None
    where there are none)."""

    n_tokens: int
    cache: Any


NOTHING_SHARED = SharedPrefix(0, None)


def count_shared_tokens(ids_BP: Tensor, mask_BP: Tensor) -> int:
    """How many tokens all rows begin with; the last token of the shortest prompt is never among them, since the next
    token's distribution comes from it.

    >>> count_shared_tokens(torch.tensor([[0, 5, 6, 7], [5, 6, 8, 9]]), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]) > 0)
    2
    """
    rows = [ids[mask] for ids, mask in zip(ids_BP, mask_BP, strict=True)]
    most = min(map(len, rows)) - 1
    same_T = torch.stack([row[:most] == rows[0][:most] for row in rows]).all(dim=0)
    return int(same_T.long().cumprod(dim=0).sum())


def compute_shared_prefix(model: Any, ids_BP: Tensor, mask_BP: Tensor) -> SharedPrefix:
    """One forward pass over what all prompts begin with.

    Args:
        model: A causal language model of transformers. Its layers must keep all keys and values and nothing else (no
            sliding window, no recurrent state): of other models nothing is shared.
        ids_BP, mask_BP: Prompts padded on the left, and their mask, on any device.

    Returns:
        `NOTHING_SHARED` where there is one row, or fewer than `SHORTEST_SHARED_PREFIX` tokens are shared.
    """
    if len(ids_BP) < 2 or ids_BP.shape[1] <= SHORTEST_SHARED_PREFIX:
        return NOTHING_SHARED
    n_tokens = count_shared_tokens(ids_BP, mask_BP)
    if n_tokens < SHORTEST_SHARED_PREFIX:
        return NOTHING_SHARED
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache(config=model.config)
    if not all(type(layer) is DynamicLayer for layer in cache.layers):
        return NOTHING_SHARED
    first_row_1T = ids_BP[0][mask_BP[0]][None, :n_tokens].to(model.device)
    output = model(input_ids=first_row_1T, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=True)
    output.past_key_values.batch_repeat_interleave(len(ids_BP))
    return SharedPrefix(n_tokens, output.past_key_values)
