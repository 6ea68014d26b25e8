"""What a policy gives back, and what a training loop may ask of one.

Shapes: ``_B`` rollouts, ``_P`` prompt tokens (padded left), ``_T`` response tokens (padded right), ``_D`` hidden
    features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rollonce.errors import InputError


@dataclass(frozen=True, eq=False)
class Samples:
    """B rollouts, on the CPU, ordinary tensors (never inference tensors, which could not feed a value head).

    Attributes:
        prompts: The prompts as given, before any template.
        texts: The responses as text, special tokens left out.
        prompt_ids_BP: Token ids of the rendered prompts, padded on the left.
        prompt_mask_BP: True where there is a prompt token.
        response_ids_BT: Sampled token ids, the end-of-sequence token included where one was sampled, padded on the
            right.
        response_mask_BT: True where there is a response token (the end-of-sequence token counts: it was a choice too).
        log_probs_BT: Log-probability of each token under the distribution that it was drawn from, 0 in the padding
            (float32).
        truncated_B: True where the limit came before the end-of-sequence token: its reward is 0 by rule, see
            `rollonce.tasks.grade`.
        temperature: What the logits were divided by; 0 for greedy, whose log-probabilities are those at temperature 1.
    """

    prompts: list[str]
    texts: list[str]
    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    log_probs_BT: Tensor
    truncated_B: Tensor
    temperature: float = 1.0

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each response, the end-of-sequence token included (int64)."""
        return self.response_mask_BT.sum(dim=1)

    @property
    def n_tokens(self) -> int:
        """Response tokens of all B together: the denominator of a token-mean loss."""
        return int(self.response_mask_BT.sum())

    def take_rollouts(self, index: Sequence[int] | Tensor) -> Samples:
        """The rollouts at these positions, their padding trimmed to the longest of them."""
        rows = [int(i) for i in index]
        chosen = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in chosen.items():
            if isinstance(value, Tensor):
                chosen[name] = value[rows]
            elif isinstance(value, list):
                chosen[name] = [value[i] for i in rows]
        p = int(chosen["prompt_mask_BP"].sum(dim=1).max()) if rows else 0
        t = max(1, int(chosen["response_mask_BT"].sum(dim=1).max())) if rows else 1
        start = chosen["prompt_ids_BP"].shape[1] - p
        for name in ("prompt_ids_BP", "prompt_mask_BP"):
            chosen[name] = chosen[name][:, start:]
        for name in ("response_ids_BT", "response_mask_BT", "log_probs_BT"):
            chosen[name] = chosen[name][:, :t]
        return Samples(**chosen)

    def split_into_micro_batches(self, rows: int | None) -> Iterator[tuple[list[int], Samples]]:
        """(positions, micro-batch) pairs of at most ``rows`` rollouts, alike in length so that little is spent on
        padding.

        Every rollout is in exactly one of them. With None, one micro-batch of all in their order.
        """
        if rows is not None and rows < 1:
            raise InputError(f"a micro-batch holds at least one rollout, not {rows}")
        if rows is None or rows >= len(self):
            yield list(range(len(self))), self
            return
        total_B = self.prompt_mask_BP.sum(dim=1) + self.lengths_B
        order = torch.argsort(total_B, descending=True, stable=True).tolist()
        for start in range(0, len(order), rows):
            index = order[start : start + rows]
            yield index, self.take_rollouts(index)

    @classmethod
    def concatenate_samples(cls, parts: Sequence[Samples]) -> Samples:
        """Rollouts of several calls as one batch, padded anew.

        Raises:
            InputError: nothing to put together, or samples of different temperatures (their log-probabilities mean
                different things).
        """
        if not parts:
            raise InputError("there are no samples to put together")
        temperatures = {s.temperature for s in parts}
        if len(temperatures) > 1:
            raise InputError(f"samples of different temperatures cannot be one batch: {sorted(temperatures)}")
        p = max(s.prompt_ids_BP.shape[1] for s in parts)
        t = max(s.response_ids_BT.shape[1] for s in parts)
        left = lambda x: torch.nn.functional.pad(x, (p - x.shape[1], 0))  # noqa: E731
        right = lambda x: torch.nn.functional.pad(x, (0, t - x.shape[1]))  # noqa: E731
        return cls(
            prompts=[x for s in parts for x in s.prompts],
            texts=[x for s in parts for x in s.texts],
            prompt_ids_BP=torch.cat([left(s.prompt_ids_BP) for s in parts]),
            prompt_mask_BP=torch.cat([left(s.prompt_mask_BP) for s in parts]),
            response_ids_BT=torch.cat([right(s.response_ids_BT) for s in parts]),
            response_mask_BT=torch.cat([right(s.response_mask_BT) for s in parts]),
            log_probs_BT=torch.cat([right(s.log_probs_BT) for s in parts]),
            truncated_B=torch.cat([s.truncated_B for s in parts]),
            temperature=parts[0].temperature,
        )

    def replace_log_probs(self, log_probs_BT: Tensor) -> Samples:
        """The same rollouts with other behaviour log-probabilities (recomputed by the trainer, say), detached, 0 in the
        padding."""
        return replace(self, log_probs_BT=log_probs_BT.detach().float().cpu() * self.response_mask_BT)


class Evaluation(NamedTuple):
    """A policy's view of given rollouts, on its device.

    Attributes:
        log_probs_BT: Log-probability of each response token at the samples' temperature, with gradient, 0 in the
            padding.
        entropies_BT: Entropy (nats) of the distribution each token was drawn from, without gradient, 0 in the padding.
        mask_BT: True where there is a response token.
        hidden_BTD: Last hidden state *before* each token, which a value head may read; None unless asked for.
    """

    log_probs_BT: Tensor
    entropies_BT: Tensor
    mask_BT: Tensor
    hidden_BTD: Tensor | None = None


class Policy(Protocol):
    """What a training loop needs. `rollonce.policies.TransformersPolicy` is the one implementation with gradients."""

    def sample(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        generator: torch.Generator | int | None = None,
    ) -> Samples: ...

    def evaluate_rollouts(self, samples: Samples, *, hidden: bool = False) -> Evaluation:
        """Log-probabilities (with gradient) and entropies of given rollouts."""
        ...

    def compute_log_probs(self, samples: Samples) -> Tensor:
        """``evaluate(samples).log_probs_BT``."""
        ...

    def parameters(self) -> list[torch.nn.Parameter]:
        """What an optimizer should move."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The trained tensors, for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a checkpoint's tensors back."""
        ...

    def save(self, directory: str | Path) -> None:
        """A directory that `load` of the implementation reads."""
        ...


def unpadded_rollout_rows(samples: Samples) -> list[tuple[list[int], list[int], list[float]]]:
    """Prompt ids, response ids and log-probabilities of each rollout, without padding."""
    return [
        (
            samples.prompt_ids_BP[b, samples.prompt_mask_BP[b]].tolist(),
            samples.response_ids_BT[b, samples.response_mask_BT[b]].tolist(),
            samples.log_probs_BT[b, samples.response_mask_BT[b]].tolist(),
        )
        for b in range(len(samples))
    ]


def pad_rollouts_to_samples(
    *,
    prompts: list[str],
    texts: list[str],
    prompt_ids: Sequence[Sequence[int]],
    response_ids: Sequence[Sequence[int]],
    log_probs: Sequence[Sequence[float]],
    truncated: Sequence[bool],
    temperature: float,
    pad_id: int,
) -> Samples:
    """B ragged rollouts as `Samples`: prompts padded on the left, responses on the right."""
    B, P, T = len(prompts), max(map(len, prompt_ids)), max(1, *map(len, response_ids))
    prompt_ids_BP, response_ids_BT = torch.full((B, P), pad_id), torch.full((B, T), pad_id)
    prompt_mask_BP, response_mask_BT = torch.zeros((B, P), dtype=torch.bool), torch.zeros((B, T), dtype=torch.bool)
    log_probs_BT = torch.zeros((B, T))
    for b, (prompt, response, lps) in enumerate(zip(prompt_ids, response_ids, log_probs, strict=True)):
        prompt_ids_BP[b, P - len(prompt) :] = torch.tensor(prompt)
        prompt_mask_BP[b, P - len(prompt) :] = True
        if response:
            response_ids_BT[b, : len(response)] = torch.tensor(response)
            response_mask_BT[b, : len(response)] = True
            log_probs_BT[b, : len(response)] = torch.tensor(lps)
    return Samples(
        prompts=prompts,
        texts=texts,
        prompt_ids_BP=prompt_ids_BP,
        prompt_mask_BP=prompt_mask_BP,
        response_ids_BT=response_ids_BT,
        response_mask_BT=response_mask_BT,
        log_probs_BT=log_probs_BT,
        truncated_B=torch.tensor(truncated),
        temperature=temperature,
    )
