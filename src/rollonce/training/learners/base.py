"""What the loop asks of something that samples and learns.

Shapes: ``_B`` rollouts, ``_T`` response tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rollonce.policies.critic import TokenCritic
from rollonce.policies.samples import Samples
from rollonce.training.config import CriticConfig


class Update(NamedTuple):
    """What an update did.

    Attributes:
        loss: Of the policy, before the update, the KL penalty included.
        grad_norm: Before clipping; NaN where a service does not tell.
        entropy: Mean over response tokens (nats); NaN where a service does not tell.
        kl: To the start policy (k3, mean over response tokens), None where it was not measured.
        kl_old: Mean Bernoulli KL from the sampling policy, after the last epoch's forward pass.
        gated: Share of trajectories that the gate dropped.
        clipped: Share of response tokens whose ratio the clip held.
    """

    loss: float
    grad_norm: float
    entropy: float
    kl: float | None
    kl_old: float
    gated: float
    clipped: float

    @property
    def is_finite(self) -> bool:
        """Whether the policy may be moved by it. A service that tells no gradient norm (NaN) is believed."""
        return math.isfinite(self.loss) and not math.isinf(self.grad_norm)


class Learner(Protocol):
    """What samples and learns. One step of the loop is ``sample``, then ``update``."""

    max_new_tokens: int

    def sample_rollouts(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: Sequence[int],
        behaviour: bool = False,
    ) -> Samples:
        """One rollout per prompt; equal seeds, equal rollouts. ``behaviour``: from the lagged policy, where there is a
        lag."""
        ...

    def update_policy(
        self, samples: Samples, advantages: np.ndarray, *, measure_kl: bool = False, move: bool = True
    ) -> Update:
        """Move the policy; ``advantages`` (B,) or (B, T) float64. ``move = False``: measure, and leave it where it
        is."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on alike."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        ...

    def save_policy(self, directory: Any) -> None:
        """The policy alone, for others to use."""
        ...

    def make_token_critic(self, settings: CriticConfig) -> TokenCritic:
        """A fresh critic that reads this learner's policy as it is now.

        Raises:
            InputError: the learner has no hidden states to give.
        """
        ...

    def close(self) -> None:
        """End what there is to end: a session on a service."""
        ...


def generator_from_seed(seed: Sequence[int]) -> torch.Generator:
    """A CPU generator from several numbers (run seed, purpose, step ...): no state to carry from step to step."""
    words = np.random.SeedSequence([int(s) for s in seed]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed((int(words[0]) << 31) ^ int(words[1]))
