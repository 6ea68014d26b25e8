"""The loop's learner on a Tinker-compatible service: every arm whose baseline runs on this side, the same loss as
`LocalLearner`'s.

What a service cannot do is refused with the setting's name: a KL penalty or a gate inside the loss, a lag, a
token-level critic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from rollonce.errors import InputError
from rollonce.policies.objective import bernoulli_kl_BT, k3_kl_estimate_BT, token_loss_weights
from rollonce.policies.samples import Samples
from rollonce.policies.tinker_policy import AdamSettings, TinkerPolicy
from rollonce.setting_rules import Rule, refuse
from rollonce.training.config import CriticConfig, RunConfig
from rollonce.training.learners.base import Update, generator_from_seed

_RULES = (
    Rule(
        "arm.critic",
        True,
        "needs values of the policy's hidden states, which no service gives",
        "use baseline = 'critic_prompt'",
    ),
    Rule(
        "loss.kl",
        lambda value: value > 0,
        "needs the gradient of the penalty, which a service's loss has not",
        "set it to 0",
    ),
    Rule(
        "loss.gate",
        True,
        "needs log-probabilities before the step's gradient",
        "leave it out: on-policy it drops nothing",
    ),
    Rule("loss.lag", lambda value: value > 0, "would keep adapters of many steps on the service", "set it to 0"),
    Rule(
        "policy.lora_rank",
        lambda value: value < 1,
        "would train every weight, and a service trains adapters",
        "set it, to 32 say",
    ),
    Rule("policy.source", lambda value: value == "embedded", "is not on a service", "name one of the service's models"),
)


class TinkerLearner:
    """See the module and `rollonce.training.learners.base.Learner`.

    Args:
        config: The run; `rollonce.training.config.PolicyConfig` names service, model and renderer.
        policy: Instead of connecting to the configured one.

    Raises:
        InputError: a setting that a service cannot carry out.
        ServiceError: the service is not there, or refuses.
    """

    def __init__(self, config: RunConfig, policy: TinkerPolicy | None = None) -> None:
        refuse(config, _RULES, "a Tinker-compatible service")
        self.config = config
        self.max_new_tokens = config.train.max_new_tokens or 512
        self.policy = policy if policy is not None else _connect_to_service(config)
        self.adam = self.policy.adam

    def sample_rollouts(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: Sequence[int],
        behaviour: bool = False,
    ) -> Samples:
        return self.policy.sample(
            prompts, max_new_tokens=max_new_tokens, temperature=temperature, generator=generator_from_seed(seed)
        )

    def sample_from_saved_weights(self, path: str | None) -> None:
        """See `TinkerPolicy.sample_from_saved_weights`."""
        self.policy.sample_from_saved_weights(path)

    def encode_prompt(self, prompt: str) -> list[int]:
        """See `TinkerPolicy.encode_prompt`."""
        return self.policy.encode_prompt(prompt)

    def compute_log_probs(self, samples: Samples) -> torch.Tensor:
        """See `TinkerPolicy.compute_log_probs`."""
        return self.policy.compute_log_probs(samples)

    def update_policy(
        self, samples: Samples, advantages: np.ndarray, *, measure_kl: bool = False, move: bool = True
    ) -> Update:
        """See `Learner.update_policy`. Entropy is NaN: a service gives the sampled tokens' log-probabilities alone."""
        weights_BT = token_loss_weights(samples.response_mask_BT, self.config.loss.aggregation).double()
        advantages_BT = torch.from_numpy(np.ascontiguousarray(advantages, dtype=np.float64))
        advantages_BT = advantages_BT if advantages_BT.ndim == 2 else advantages_BT[:, None].expand_as(weights_BT)
        n_tokens, mask_BT, old_BT = max(1, samples.n_tokens), samples.response_mask_BT, samples.log_probs_BT
        first: Update | None = None
        for _ in range(self.config.loss.epochs):
            # The service adds up ratio x advantage over tokens: the weights of the mean go into the advantages.
            told = self.policy.update(
                samples, weights_BT * advantages_BT, learning_rate=self.config.learning_rate if move else 0.0
            )
            ratio_BT = torch.exp(told.log_probs_BT.double() - old_BT.double())
            gain_BT, clipped = ratio_BT * advantages_BT, 0.0
            if self.config.loss.clip is not None:
                low, high = 1 - self.config.loss.clip, 1 + (self.config.loss.clip_high or self.config.loss.clip)
                gain_BT = torch.minimum(gain_BT, ratio_BT.clamp(low, high) * advantages_BT)
                clipped = float((((ratio_BT < low) | (ratio_BT > high)) & mask_BT).sum()) / n_tokens
            kl = None
            if measure_kl and first is None:
                k3 = k3_kl_estimate_BT(told.log_probs_BT.double(), self.policy.compute_base_log_probs(samples).double())
                kl = float((k3 * mask_BT).sum()) / n_tokens
            kl_old = float((bernoulli_kl_BT(told.log_probs_BT, old_BT) * mask_BT).sum()) / n_tokens
            update = Update(
                loss=-float((gain_BT * weights_BT).sum()),
                grad_norm=told.grad_norm,
                entropy=math.nan,
                kl=kl,
                kl_old=kl_old,
                gated=0.0,
                clipped=clipped,
            )
            first = update if first is None else first._replace(kl_old=update.kl_old, clipped=update.clipped)
        assert first is not None
        return first

    def state_dict(self) -> dict[str, Any]:
        """Where the service keeps weights and optimizer."""
        return self.policy.save_service_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.policy.load_service_state(state)

    def save_policy(self, directory: Any) -> None:
        """Keep the weights for sampling on the service; a small JSON file says where (`sample_from_saved_weights` takes
        its ``path``)."""
        file = Path(directory)
        path = self.policy.save_for_sampling(
            f"{_replace_odd_characters(self.config.name)}-seed{self.config.seed}-{self.policy.steps:06d}"
        )
        file.write_text(json.dumps({"path": path, **self.policy.facts()}, indent=1) + "\n", encoding="utf-8")

    def make_token_critic(self, settings: CriticConfig) -> NoReturn:
        """A service gives no hidden states.

        Raises:
            InputError: always.
        """
        raise InputError("a token-level critic needs hidden states, which no service gives: use 'critic_prompt'")

    def close(self) -> None:
        """End the session on the service."""
        self.policy.close()


def _replace_odd_characters(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)


def resolve_renderer_name(configured: str | None) -> str:
    """``text`` and ``chat`` are ours; any other name is the cookbook's (``cookbook:`` in front or not)."""
    if configured is None:
        return "text"
    return (
        configured if configured in ("text", "chat") or configured.startswith("cookbook:") else f"cookbook:{configured}"
    )


def _connect_to_service(config: RunConfig) -> TinkerPolicy:
    policy, train, loss = config.policy, config.train, config.loss
    clip = None
    if loss.clip is not None:
        clip = {"clip_low_threshold": 1 - loss.clip, "clip_high_threshold": 1 + (loss.clip_high or loss.clip)}
    return TinkerPolicy.connect(
        policy.source,
        renderer=resolve_renderer_name(policy.renderer),
        loss="importance_sampling" if clip is None else "ppo",
        loss_config=clip,
        base_url=policy.base_url,
        system=policy.system,
        local_only=policy.local_only,
        prompt_template=policy.prompt_template,
        adam=AdamSettings(train.beta1, train.beta2, train.epsilon, train.weight_decay, train.max_grad_norm or 0.0),
        lora_rank=policy.lora_rank,
        seed=config.seed if policy.seed_follows_run else policy.seed,
        reduction=policy.reduction,
    )
