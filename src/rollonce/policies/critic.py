"""A token-level critic: a value for every response token, generalised advantage estimation, and the value loss.

Shapes: ``_B`` rollouts, ``_T`` response tokens, ``_D`` hidden features. The value at a token is taken *before* it:
V(s_t) knows the prompt and the tokens sampled so far, so the advantage of the first token has a prompt-level baseline.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rollonce.errors import InputError
from rollonce.policies.samples import Samples
from rollonce.policies.transformers_policy import TransformersPolicy


def generalised_advantages(
    rewards_B: Tensor, values_BT: Tensor, mask_BT: Tensor, *, discount: float = 1.0, gae_lambda: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets, with the whole reward at a rollout's last token.

    ``delta_t = r_t + discount * V_{t+1} - V_t``, ``A_t = delta_t + discount * lambda * A_{t+1}``, target ``A_t + V_t``;
    V after the last token is 0.

    Args:
        rewards_B: One a rollout.
        values_BT: V before each token.
        mask_BT: True on response tokens, padded on the right.
        discount, gae_lambda: Both 1 give ``r - V_t``.

    Returns:
        ``advantages_BT`` and ``targets_BT``, 0 in the padding.

    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation".
    """
    T = values_BT.shape[1]
    values_BT = values_BT * mask_BT
    length_B = mask_BT.sum(dim=1)
    advantages_BT = torch.zeros_like(values_BT)
    running_B = torch.zeros_like(rewards_B)
    for t in reversed(range(T)):
        here_B = mask_BT[:, t]
        after_B = values_BT[:, t + 1] if t + 1 < T else torch.zeros_like(rewards_B)
        reward_B = torch.where(length_B - 1 == t, rewards_B, torch.zeros_like(rewards_B))
        delta_B = reward_B + discount * after_B - values_BT[:, t]
        running_B = torch.where(here_B, delta_B + discount * gae_lambda * running_B, torch.zeros_like(running_B))
        advantages_BT[:, t] = running_B
    return advantages_BT, (advantages_BT + values_BT) * mask_BT


def token_value_loss(
    values_BT: Tensor, old_BT: Tensor, targets_BT: Tensor, mask_BT: Tensor, *, n_tokens: int, clip: float | None
) -> Tensor:
    """Half the mean squared error over tokens; with ``clip`` the worse of it and that of values held within ``old +-
    clip`` (PPO)."""
    error_BT = (values_BT - targets_BT) ** 2
    if clip is not None:
        held_BT = old_BT + (values_BT - old_BT).clamp(-clip, clip)
        error_BT = torch.maximum(error_BT, (held_BT - targets_BT) ** 2)
    return 0.5 * (error_BT * mask_BT).sum() / n_tokens


class CriticValues(NamedTuple):
    """What a critic says of a batch before it learns from it.

    Attributes:
        values_BT: V before each response token, without gradient, on the CPU; 0 in the padding.
        hidden: The policy's hidden states that a head read, one tensor per micro-batch: what it will learn from after
            the policy has moved. None for a network, which makes its own.
    """

    values_BT: Tensor
    hidden: list[Tensor] | None


class TokenCritic:
    """Values for every token, learned from the rewards of past steps; Adam of its own.

    Args:
        policy: Whose rollouts it judges.
        kind: ``head``: two layers on the policy's last hidden state, *detached*, so that the policy's update is the
            same function of the advantages as in every other arm; ``network``: a copy of the policy as it is now, with
            a linear value output, all trained.
        hidden: Width of the head's hidden layer.
        learning_rate, clip, epochs, rows: See `rollonce.training.config.CriticConfig`; ``rows`` a micro-batch.
        seed: Of the head's start.

    The output layer starts at zero weights: until it has learned, every value is its bias, which the first step sets to
        the mean reward.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        *,
        kind: str = "head",
        hidden: int = 128,
        learning_rate: float = 1e-3,
        clip: float | None = 0.2,
        epochs: int = 4,
        rows: int | None = None,
        seed: int = 0,
    ) -> None:
        self.policy, self.kind, self.clip, self.epochs, self.rows = policy, kind, clip, epochs, rows
        width = policy.model.config.get_text_config().hidden_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "head":
                self.network: TransformersPolicy | None = None
                self.head = nn.Sequential(
                    nn.LayerNorm(width), nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, 1)
                )
            elif kind == "network":
                self.network = copy.copy(policy)
                # In float32 whatever the policy's frozen weights are in: small updates of bfloat16 weights would be
                # rounded away.
                self.network.model = copy.deepcopy(policy.model).float().requires_grad_(True)
                self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
            else:
                raise InputError(f"a critic is a 'head' or a 'network', not {kind!r}")
        nn.init.zeros_(self.head[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.head[-1].bias)  # type: ignore[arg-type]
        self.head.to(policy.device)
        self.started = False
        self.optimizer = torch.optim.Adam(self.parameters(), lr=learning_rate, betas=(0.9, 0.95))

    def parameters(self) -> list[nn.Parameter]:
        """What its optimizer moves."""
        body = self.network.parameters() if self.network is not None else []
        return [*body, *self.head.parameters()]

    @property
    def n_parameters(self) -> int:
        """Numbers that it trains."""
        return sum(p.numel() for p in self.parameters())

    def _hidden_before_tokens(self, samples: Samples) -> Tensor:
        """Last hidden state before each token (B, T, D): the policy's, which no gradient enters, or its own."""
        if self.network is not None:
            hidden = self.network.evaluate_rollouts(samples, hidden=True).hidden_BTD
        else:
            with torch.no_grad():
                hidden = self.policy.evaluate_rollouts(samples, hidden=True).hidden_BTD
        assert hidden is not None
        return hidden

    def _values_from_hidden(self, hidden_BTD: Tensor) -> Tensor:
        return self.head(hidden_BTD).squeeze(-1)

    def predict_token_values(self, samples: Samples) -> CriticValues:
        """V before each response token (B, T), and what it was read from."""
        out_BT = torch.zeros(samples.response_mask_BT.shape)
        kept = []
        with torch.no_grad():
            for index, part in samples.split_into_micro_batches(self.rows):
                kept.append(self._hidden_before_tokens(part))
                values = self._values_from_hidden(kept[-1]).cpu().float() * part.response_mask_BT
                out_BT[index, : values.shape[1]] = values
        return CriticValues(out_BT, kept if self.network is None else None)

    def learn_from_targets(self, samples: Samples, old: CriticValues, targets_BT: Tensor) -> float:
        """Several updates on one batch; returns the value loss before them (half a squared reward).

        Args:
            samples: The batch.
            old: What `predict_token_values` said of it: a head's inputs do not move while it learns, and are those of
                before the policy's update.
            targets_BT: What the values should have been.
        """
        parts, kept = list(samples.split_into_micro_batches(self.rows)), old.hidden
        n_tokens, first = samples.n_tokens, 0.0
        for epoch in range(self.epochs):
            self.optimizer.zero_grad(set_to_none=True)
            for k, (index, part) in enumerate(parts):
                hidden = kept[k] if kept is not None else self._hidden_before_tokens(part)
                T, device = part.response_mask_BT.shape[1], hidden.device
                before, target = old.values_BT[index, :T].to(device), targets_BT[index, :T].to(device)
                mask = part.response_mask_BT.to(device)
                loss = token_value_loss(
                    self._values_from_hidden(hidden), before, target, mask, n_tokens=n_tokens, clip=self.clip
                )
                loss.backward()
                first += float(loss.detach()) if epoch == 0 else 0.0
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            self.optimizer.step()
        return first

    def start_at_mean_reward(self, mean_reward: float) -> None:
        """Set the bias to the first step's mean reward, once: the best that can be said before anything was learned."""
        if not self.started:
            with torch.no_grad():
                self.head[-1].bias.fill_(mean_reward)  # type: ignore[union-attr]
            self.started = True

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "head": self.head.state_dict(),
            "network": None if self.network is None else self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "started": self.started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.head.load_state_dict(state["head"])
        if self.network is not None:
            self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.started = state["started"]
