"""Sampling with the exact log-probability of every token, from any causal language model of transformers.

Why not ``generate``: it draws from the global random state, so a rollout would depend on whatever ran before; its
scores are processed ones (``min_new_tokens`` masks the end of sequence in them; ``top_k=50`` hides in the defaults);
and ``torch.multinomial`` takes 0.3 s a step on a vocabulary of 151k at batch 64 on a CPU. Here every draw is one
uniform number put through the inverse of the cumulative distribution.

Shapes: ``_B`` rollouts, ``_A`` those not yet ended, ``_P`` prompt tokens, ``_T`` response tokens, ``_V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rollonce.policies.shared_prefix import compute_shared_prefix


class Drawn(NamedTuple):
    """Response ids (padded right with the pad id), mask, log-probabilities and the truncation flag, on the model's
    device."""

    ids_BT: Tensor
    mask_BT: Tensor
    log_probs_BT: Tensor
    truncated_B: Tensor


def tokens_by_inverse_cdf(log_probs_AV: Tensor, uniform_A: Tensor) -> Tensor:
    """The token whose stretch of the cumulative distribution holds ``uniform_A`` (values in [0, 1)), for each row (A,).

    Summed in float64: with float32 the rounding of a 151k-term sum is as large as the probability of a rare token.
    A token of probability 0 is never drawn: its stretch is empty.

    >>> tokens_by_inverse_cdf(torch.log(torch.tensor([[0.5, 0.0, 0.5]])), torch.tensor([0.5])).tolist()
    [2]
    """
    cdf_AV = log_probs_AV.double().exp().cumsum(dim=-1)
    # The sum is 1 up to rounding; scaling u by it keeps u < cdf[-1], so the search never runs off the end.
    target_A1 = (uniform_A.double().to(cdf_AV.device) * cdf_AV[:, -1]).unsqueeze(1)
    return torch.searchsorted(cdf_AV, target_A1, right=True).squeeze(1).clamp_(max=cdf_AV.shape[1] - 1)


@torch.no_grad()
def draw_padded_rollouts(
    model: Any,
    prompt_ids_BP: Tensor,
    prompt_mask_BP: Tensor,
    *,
    max_new_tokens: int,
    temperature: float,
    uniform_BT: Tensor | None,
    eos_ids: Collection[int],
    pad_id: int,
) -> Drawn:
    """One rollout for each left-padded prompt, rows that have ended being dropped from the batch as it shrinks to half.

    Args:
        model: Takes ``input_ids, attention_mask, position_ids, past_key_values, use_cache, logits_to_keep``.
        prompt_ids_BP, prompt_mask_BP: Prompts and their mask, on the model's device.
        max_new_tokens: T at most.
        temperature: 0 for greedy, else what logits are divided by.
        uniform_BT: Row b's token t is drawn with ``uniform_BT[b, t]``, whatever the rest of the batch does; None for
            greedy.
        eos_ids: Tokens that end a rollout (kept as its last token).
        pad_id: What fills the rest.
    """
    (B, P), device = prompt_ids_BP.shape, prompt_ids_BP.device
    ids_BT = torch.full((B, max_new_tokens), pad_id, dtype=torch.long, device=device)
    mask_BT = torch.zeros((B, max_new_tokens), dtype=torch.bool, device=device)
    log_probs_BT = torch.zeros((B, max_new_tokens), dtype=torch.float32, device=device)
    truncated_B = torch.ones(B, dtype=torch.bool, device=device)
    eos = torch.tensor(sorted(eos_ids), dtype=torch.long, device=device)
    # Rows of the shrinking batch: which rollout each is, whether it goes on, its attention and its uniform numbers.
    rows_A = torch.arange(B, device=device)
    going_A = torch.ones(B, dtype=torch.bool, device=device)
    # What all prompts begin with is in the cache already; the rest of each is padded on the left in its place.
    n_shared, cache = compute_shared_prefix(model, prompt_ids_BP, prompt_mask_BP)
    n_padding_B1 = P - prompt_mask_BP.sum(dim=1, keepdim=True)
    column_L = torch.arange(P + max_new_tokens, device=device)
    attention_AL = ((column_L < n_shared) | (column_L >= n_shared + n_padding_B1)).long()
    uniform_AT = None if uniform_BT is None else uniform_BT.to(device)
    # Positions count real tokens only: with left padding the default 0, 1, 2 ... would shift every one of them.
    position_A = attention_AL[:, :P].sum(dim=1) - 1
    inputs: dict[str, Any] = {
        "input_ids": prompt_ids_BP[:, n_shared:],
        "position_ids": (attention_AL[:, :P].cumsum(dim=1) - 1).clamp_(min=0)[:, n_shared:],
        "past_key_values": cache,
    }
    steps: list[tuple[Tensor, Tensor, Tensor]] = []  # since the batch last shrank: token, log-probability, was going on
    start = 0

    def write_drawn_tokens(end: int) -> None:
        token_AS, log_prob_AS, was_going_AS = (torch.stack(column, dim=1) for column in zip(*steps, strict=True))
        ids_BT[rows_A, start:end], mask_BT[rows_A, start:end] = token_AS, was_going_AS
        log_probs_BT[rows_A, start:end] = log_prob_AS
        truncated_B[rows_A] = going_A

    for t in range(max_new_tokens):
        output = model(**inputs, attention_mask=attention_AL[:, : P + t], use_cache=True, logits_to_keep=1)
        scaled_AV = output.logits[:, -1].float()
        if temperature not in (0, 1):
            scaled_AV = scaled_AV / temperature
        all_AV = torch.log_softmax(scaled_AV, dim=-1)
        if temperature > 0:
            assert uniform_AT is not None
            token_A = tokens_by_inverse_cdf(all_AV, uniform_AT[:, t])
        else:
            token_A = all_AV.argmax(dim=-1)
        token_A1 = token_A[:, None]
        # Rows that ended are still in the batch until it shrinks: what they draw is thrown away by the mask.
        steps.append((token_A, all_AV.gather(1, token_A1).squeeze(1), going_A))
        going_A = going_A & ~torch.isin(token_A, eos)
        n_going = int(going_A.sum())
        if t == max_new_tokens - 1 or not n_going:
            write_drawn_tokens(t + 1)
            break
        cache, position_A = output.past_key_values, position_A + 1
        if 2 * n_going <= len(rows_A) and hasattr(cache, "batch_select_indices"):
            write_drawn_tokens(t + 1)
            steps, start = [], t + 1
            keep = going_A.nonzero().squeeze(1)
            cache.batch_select_indices(keep)
            rows_A, going_A, token_A1, position_A = rows_A[keep], going_A[keep], token_A1[keep], position_A[keep]
            attention_AL = attention_AL[keep]
            uniform_AT = None if uniform_AT is None else uniform_AT[keep]
        inputs = {"input_ids": token_A1, "position_ids": position_A[:, None], "past_key_values": cache}
    T = max(1, int(mask_BT.sum(dim=1).max()))
    ids_BT, mask_BT = ids_BT[:, :T], mask_BT[:, :T]
    return Drawn(torch.where(mask_BT, ids_BT, pad_id), mask_BT, log_probs_BT[:, :T] * mask_BT, truncated_B)
