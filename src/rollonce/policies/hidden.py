"""A policy's hidden state at the end of a prompt, before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from rollonce.policies.samples import Samples
from rollonce.policies.transformers_policy import TransformersPolicy
from rollonce.rollouts import FloatArray


@torch.no_grad()
def prompt_hidden_states(policy: TransformersPolicy, prompts: Sequence[str]) -> FloatArray:
    """Last hidden state at the last token of each rendered prompt (N, D), float64. Prompts are read one by one, so that
    what is said of one does not depend on the others."""
    rows = []
    for prompt in prompts:
        ids_BP, mask_BP = policy.encode_prompts([prompt])
        one = torch.ones(1, 1)
        samples = Samples(
            [prompt], [""], ids_BP, mask_BP, ids_BP[:, -1:], one.bool(), torch.zeros(1, 1), torch.zeros(1).bool()
        )
        hidden_BTD = policy.evaluate_rollouts(samples, hidden=True).hidden_BTD
        assert hidden_BTD is not None
        rows.append(hidden_BTD[0, 0].double().cpu().numpy())
    return np.array(rows)


def make_hidden_state_reader(policy: TransformersPolicy) -> Callable[[Sequence[str]], FloatArray]:
    """For `rollonce.features.HiddenState.attach_policy_reader`: reads prompts with a copy of the policy as it is now.

    >>> feature.attach_policy_reader(lambda: make_hidden_state_reader(policy))  # doctest: +SKIP
    """
    frozen = policy.make_frozen_copy()
    return lambda prompts: prompt_hidden_states(frozen, prompts)


__all__ = ["make_hidden_state_reader", "prompt_hidden_states"]
