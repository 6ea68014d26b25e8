"""The learner on this machine: a transformers policy, Adam, and the loss of the configuration.

Shapes: ``_B`` rollouts, ``_T`` response tokens.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollonce.errors import InputError
from rollonce.policies import (
    EMBEDDED_MAX_NEW_TOKENS,
    LoraSettings,
    Samples,
    TransformersPolicy,
    bernoulli_kl_BT,
    load_embedded,
    policy_loss,
)
from rollonce.policies.critic import TokenCritic
from rollonce.policies.objective import k3_kl_estimate_BT, token_loss_weights
from rollonce.training.config import CriticConfig, PolicyConfig, RunConfig
from rollonce.training.devices import check_device_available
from rollonce.training.learners.base import Update, generator_from_seed


def load_configured_policy(config: PolicyConfig, seed: int = 0) -> TransformersPolicy:
    """The policy that a configuration names.

    Raises:
        InputError: nothing loadable there, or no such device.
    """
    check_device_available(config.device)
    options: dict[str, Any] = {
        "device": config.device,
        "bf16": config.bf16,
        "gradient_checkpointing": config.gradient_checkpointing,
    }
    options |= {"sample_rows": config.sample_rows}
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar for each of a hundred runs says nothing
    lora = (
        LoraSettings(rank=config.lora_rank, seed=seed if config.seed_follows_run else config.seed)
        if config.lora_rank
        else None
    )
    if config.attention:
        options["attention"] = config.attention
    if config.source != "embedded":
        if config.prompt_template != "{prompt}":
            options["prompt_template"] = config.prompt_template
        if config.system is not None:
            options["system"] = config.system
    try:
        if config.source == "embedded":
            return load_embedded(lora=lora, **options)
        return TransformersPolicy.load(config.source, lora=lora, local_only=config.local_only, **options)
    except RuntimeError as error:  # a device that torch was built without, or that is too small
        raise InputError(
            f"the policy {config.source!r} cannot be put on {config.device!r}: {str(error).splitlines()[0]}"
        ) from error


class LocalLearner:
    """A policy on this machine, full or LoRA, with Adam and the configured loss.

    Args:
        config: The run.
        policy: Instead of loading the configured one.
    """

    def __init__(self, config: RunConfig, policy: TransformersPolicy | None = None) -> None:
        self.config = config
        self.policy = policy if policy is not None else load_configured_policy(config.policy, config.seed)
        embedded = config.policy.source == "embedded"
        self.max_new_tokens = config.train.max_new_tokens or (EMBEDDED_MAX_NEW_TOKENS if embedded else 512)
        self.train_rows = config.policy.train_rows
        train, loss = config.train, config.loss
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.learning_rate,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
            weight_decay=train.weight_decay,
        )
        self.reference = self.policy.make_frozen_copy() if loss.kl > 0 or train.kl_every else None
        self.behaviour = self.policy.make_frozen_copy() if loss.lag else None
        self._past: deque[dict[str, Tensor]] = deque(
            [self.policy.state_dict()] if loss.lag else [], maxlen=loss.lag + 1
        )

    def make_token_critic(self, settings: CriticConfig) -> TokenCritic:
        """See `Learner.make_token_critic`."""
        policy = self.config.policy
        return TokenCritic(
            self.policy,
            kind=settings.kind,
            hidden=settings.hidden,
            learning_rate=settings.learning_rate,
            clip=settings.clip,
            epochs=settings.epochs,
            rows=self.train_rows,
            seed=self.config.seed if policy.seed_follows_run else policy.seed,
        )

    def sample_rollouts(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: Sequence[int],
        behaviour: bool = False,
    ) -> Samples:
        policy = self.policy
        if behaviour and self.behaviour is not None:
            with torch.no_grad():
                for name, parameter in self.behaviour.model.named_parameters():
                    if name in self._past[0]:
                        parameter.copy_(self._past[0][name])
            policy = self.behaviour
        return policy.sample(
            prompts, max_new_tokens=max_new_tokens, temperature=temperature, generator=generator_from_seed(seed)
        )

    def update_policy(
        self, samples: Samples, advantages: np.ndarray, *, measure_kl: bool = False, move: bool = True
    ) -> Update:
        """See `Learner.update_policy`. A loss that is not finite leaves the policy as it was and is returned for the
        loop to act on."""
        loss_config = self.config.loss
        weights_BT = token_loss_weights(samples.response_mask_BT, loss_config.aggregation)
        advantages_B = torch.from_numpy(np.ascontiguousarray(advantages, dtype=np.float32))
        with_kl = self.reference is not None and (loss_config.kl > 0 or measure_kl)
        parts = list(samples.split_into_micro_batches(self.train_rows))
        references = [self._reference_log_probs(part) if with_kl else None for _, part in parts]
        clip = None if loss_config.clip is None else (loss_config.clip, loss_config.clip_high or loss_config.clip)
        n_tokens = max(1, samples.n_tokens)
        first: Update | None = None
        epochs = loss_config.epochs if move else 1
        before = (self.policy.state_dict(), copy.deepcopy(self.optimizer.state_dict())) if epochs > 1 else None
        for epoch in range(epochs):
            self.optimizer.zero_grad(set_to_none=True)
            total, entropy, kl_sum, kl_old_sum, gated, clipped = 0.0, 0.0, 0.0, 0.0, 0, 0.0
            for (index, part), reference_BT in zip(parts, references, strict=True):
                seen = self.policy.evaluate_rollouts(part)
                T = seen.log_probs_BT.shape[1]
                device = seen.log_probs_BT.device
                old_BT, mask_BT = part.log_probs_BT.to(device), seen.mask_BT
                adv = advantages_B[index] if advantages_B.ndim == 1 else advantages_B[index, :T]
                kl_BT = bernoulli_kl_BT(seen.log_probs_BT, old_BT)
                kl_B = kl_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
                part_weights = weights_BT[index, :T].to(device)
                gain_weights = part_weights
                if loss_config.gate is not None:
                    dropped_B = kl_B > loss_config.gate
                    gain_weights = part_weights * ~dropped_B[:, None]  # weights keep the whole batch's denominators
                    gated += int(dropped_B.sum())
                loss = policy_loss(
                    seen.log_probs_BT, old_BT, adv.to(device), mask_BT, clip=clip, weights_BT=gain_weights
                )
                if reference_BT is not None:
                    k3 = k3_kl_estimate_BT(seen.log_probs_BT, reference_BT.to(device))
                    kl_sum += float((k3.detach() * mask_BT).sum())
                    if loss_config.kl > 0:
                        loss = loss + loss_config.kl * (k3 * part_weights).sum()
                loss.backward()
                total += float(loss.detach())
                entropy += float(seen.entropies_BT.sum())
                kl_old_sum += float(kl_BT.sum())
                if clip is not None:
                    ratio_BT = torch.exp(seen.log_probs_BT.detach() - old_BT)
                    clipped += float((((ratio_BT < 1 - clip[0]) | (ratio_BT > 1 + clip[1])) & mask_BT).sum())
            limit = self.config.train.max_grad_norm
            norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), math.inf if limit is None else limit))
            kl = kl_sum / n_tokens if with_kl else None
            update = Update(
                loss=total,
                grad_norm=norm,
                entropy=entropy / n_tokens,
                kl=kl,
                kl_old=kl_old_sum / n_tokens,
                gated=gated / len(samples),
                clipped=clipped / n_tokens,
            )
            if first is None:
                first = update
            else:  # the loss and gradient are the first epoch's; how far the policy has gone, the last one's
                first = first._replace(kl_old=update.kl_old, gated=update.gated, clipped=update.clipped)
            if not (math.isfinite(total) and math.isfinite(norm)):
                self.optimizer.zero_grad(set_to_none=True)
                if before is not None and epoch:
                    self.policy.load_state_dict(before[0])
                    self.optimizer.load_state_dict(before[1])
                return update
            if move:
                self.optimizer.step()
        if loss_config.lag:
            self._past.append(self.policy.state_dict())
        assert first is not None
        return first

    def _reference_log_probs(self, part: Samples) -> Tensor:
        assert self.reference is not None
        with torch.no_grad():
            return self.reference.compute_log_probs(part).cpu()

    def state_dict(self) -> dict[str, Any]:
        """Policy, optimizer and, with a lag, the earlier policies. The reference is the start policy and is loaded
        anew."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "past": list(self._past),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._past.clear()
        self._past.extend(state["past"])

    def save_policy(self, directory: Any) -> None:
        """A directory that transformers (or peft) reads."""
        self.policy.save(directory)

    def close(self) -> None:
        """Nothing to end."""
