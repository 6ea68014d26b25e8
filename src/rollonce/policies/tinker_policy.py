"""A model on a Tinker-compatible service as a policy: it samples and learns there, the baseline and the advantages stay
here.

A thin loop on the raw SDK: sample, `forward_backward` with one advantage per token, `optim_step`, new sampling weights.
Loss, renderer, tokenizer and the optimizer's parameters are always said, because services differ in their defaults.
Nothing of tinker-cookbook is used (unless a renderer of its is asked for).

A service gives back log-probabilities and no gradient, no hidden states: a critic over prompts is a baseline here
(`Ridge`,
`BoostedTrees`: it needs nothing else), and a critic over tokens would have to be the service's own. None is reachable
through the SDK: its losses (0.38) have no value loss, and SkyRL 0.4.0 takes ``ppo_critic`` over HTTP for its GPU
backends only, not for JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollonce.errors import InputError
from rollonce.policies.samples import Samples, pad_rollouts_to_samples
from rollonce.policies.tinker_datums import (
    REDUCTIONS,
    TinkerUpdate,
    find_gradient_norm,
    returned_log_probs,
    samples_to_datums,
)
from rollonce.policies.tinker_render import Renderer, load_tokenizer, make_prompt_renderer
from rollonce.policies.tinker_sampling import response_log_probs, sample_sequences
from rollonce.policies.tinker_service import TinkerService, load_tinker_sdk, wait_for_result

LOSSES = ("importance_sampling", "ppo", "cispo")
"""Losses of the services that take (target tokens, sampling log-probabilities, advantages)."""


@dataclass(frozen=True)
class AdamSettings:
    """What is sent with every optimizer step. The defaults are tinker-cookbook's.

    Attributes:
        beta1, beta2, eps: Adam's.
        weight_decay: Decoupled; 0 for none.
        grad_clip_norm: Largest norm of the gradient; 0 for no clipping (SkyRL's JAX backend never clips).
    """

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class TinkerPolicy:
    """A LoRA being trained on a service, with the methods that a training loop needs.

    Args:
        service: The connection.
        model: The base model's name, as the service knows it.
        tokenizer: Its tokenizer (of transformers).
        renderer: From `make_prompt_renderer`.
        loss: One of `LOSSES`.
        loss_config: What the loss takes besides (``clip_low_threshold`` ...).
        adam: The optimizer's parameters but the learning rate.
        lora_rank: Rank of the adapters.
        seed: Of the adapters' initial values.
        prompt_template: ``{prompt}`` with what the model should be told besides.
        reduction: What the service's loss does with a rollout's tokens. ``sum``: adds them up, as Tinker does.
            ``sequence_mean``: as SkyRL's JAX backend has it, the mean over each datum's positions and then over datums;
            the advantages are scaled so that the gradient is the one that a sum would give, up to one factor for the
            whole batch.

    `connect` makes one; ``last_adam`` is what its last optimizer step was sent with. All calls
    raise `ServiceError` when the service fails.
    """

    def __init__(
        self,
        service: TinkerService,
        model: str,
        tokenizer: Any,
        renderer: Renderer,
        *,
        loss: str,
        loss_config: dict[str, float] | None = None,
        adam: AdamSettings | None = None,
        lora_rank: int = 32,
        seed: int = 0,
        prompt_template: str = "{prompt}",
        reduction: str = "sum",
    ) -> None:
        if loss not in LOSSES:
            more = (
                "; stable_reinforce wants provenance spans, which only the cookbook's loop attaches"
                if loss == "stable_reinforce"
                else ""
            )
            raise InputError(f"the loss must be one of {', '.join(LOSSES)}, not {loss!r}{more}")
        if "{prompt}" not in prompt_template:
            raise InputError(f"the prompt template must hold {{prompt}}; {prompt_template!r} does not")
        if reduction not in REDUCTIONS:
            raise InputError(f"the service's reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")
        if lora_rank < 1:
            raise InputError(f"the LoRA rank must be at least 1, not {lora_rank}")
        self.service, self.model, self.tokenizer, self.renderer = service, model, tokenizer, renderer
        self.loss, self.loss_config, self.adam = loss, loss_config, adam or AdamSettings()
        self.lora_rank, self.seed, self.prompt_template = lora_rank, seed, prompt_template
        self.reduction = reduction
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0)
        self.steps = 0
        self.last_adam: dict[str, float] = {}
        self._trainer: Any = None
        self._sampler: Any = None
        self._base: Any = None
        self._saves = 0

    @classmethod
    def connect(
        cls,
        model: str,
        *,
        renderer: str,
        loss: str,
        tokenizer: str | Path | Any = None,
        base_url: str | None = None,
        system: str | None = None,
        local_only: bool = True,
        patience_s: float = 120.0,
        timeout_s: float = 3600.0,
        **options: Any,
    ) -> TinkerPolicy:
        """Open a session; the adapters are made at first use, or by `load_service_state`.

        Args:
            model: The base model's name, as the service knows it.
            renderer: See `make_prompt_renderer`.
            loss: One of `LOSSES`.
            tokenizer: A directory, hub id or transformers tokenizer, default ``model``.
            base_url: The service's address, default ``TINKER_BASE_URL``.
            system: A system message.
            local_only: Never ask the hub for the tokenizer.
            patience_s, timeout_s: See `TinkerService`.
            **options: `TinkerPolicy`'s own.
        """
        if tokenizer is None or isinstance(tokenizer, str | Path):
            tokenizer = load_tokenizer(tokenizer or model, local_only=local_only)
        service = TinkerService(base_url, patience_s=patience_s, timeout_s=timeout_s)
        policy = cls(
            service, model, tokenizer, make_prompt_renderer(renderer, tokenizer, system=system), loss=loss, **options
        )
        _ = service.service_client
        return policy

    def facts(self) -> dict[str, Any]:
        """Everything that was said to the service, for a record. No key."""
        return {
            "service": self.service.name,
            "sdk": getattr(load_tinker_sdk(), "__version__", None),
            "model": self.model,
            "renderer": self.renderer.name,
            "stop": list(self.renderer.stop),
            "prompt_template": self.prompt_template,
            "loss": self.loss,
            "loss_config": self.loss_config,
            "reduction": self.reduction,
            "adam": asdict(self.adam),
            "lora_rank": self.lora_rank,
            "seed": self.seed,
        }

    # ---- clients

    @property
    def training_client(self) -> Any:
        """The SDK's training client."""
        if self._trainer is None:
            client = self.service.service_client
            self._trainer = self.service.call_with_watch(
                "creating the adapters",
                lambda: client.create_lora_training_client(base_model=self.model, rank=self.lora_rank, seed=self.seed),
            )
        return self._trainer

    @property
    def sampling_client(self) -> Any:
        """A sampling client with the weights as they are now."""
        if self._sampler is None:
            trainer = self.training_client
            self._sampler = self.service.call_with_watch(
                "saving weights for sampling", lambda: trainer.save_weights_and_get_sampling_client()
            )
        return self._sampler

    # ---- rollouts out

    def encode_prompt(self, prompt: str) -> list[int]:
        """Token ids of the rendered prompt.

        Raises:
            InputError: there are none.
        """
        ids = [int(i) for i in self.renderer.encode(self.prompt_template.replace("{prompt}", prompt))]
        if not ids:
            raise InputError(f"the prompt {prompt!r} has no tokens, and a model cannot begin from nothing")
        return ids

    def sample(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        seed: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> Samples:
        """One rollout per prompt, from the whole vocabulary, with the log-probability of each token.

        Args:
            prompts: B texts.
            max_new_tokens: Limit; a rollout that meets it without a stop is truncated.
            temperature: 0 for greedy.
            seed: Row b is drawn with a seed made of this and b, so that equal prompts give different rollouts and a
                repeated call gives the same ones where the service honours seeds (SkyRL does). None draws one from
                torch's global state.
            generator: What `TransformersPolicy.sample` takes; a seed is drawn from it.
        """
        if not prompts:
            raise InputError("there are no prompts to sample from")
        if max_new_tokens < 1 or not temperature >= 0:
            raise InputError(
                f"max_new_tokens must be at least 1 and temperature at least 0, not {max_new_tokens} and {temperature}"
            )
        if seed is None:
            seed = generator if isinstance(generator, int) else int(torch.randint(2**31, (), generator=generator))
        encoded = [self.encode_prompt(p) for p in prompts]
        # 32 bits are what every service takes; spread by a generator so that (seed, row) and (seed + 1, row - 1) share
        # nothing.
        row_seeds = torch.randint(2**31 - 1, (len(prompts),), generator=torch.Generator().manual_seed(seed)).tolist()
        sequences = sample_sequences(
            self.service,
            self.sampling_client,
            encoded,
            seeds=row_seeds,
            stop=self.renderer.stop,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
        )
        responses = [s.tokens for s in sequences]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
        return pad_rollouts_to_samples(
            prompts=list(prompts),
            texts=texts,
            prompt_ids=encoded,
            response_ids=responses,
            log_probs=[s.log_probs for s in sequences],
            truncated=[s.truncated for s in sequences],
            temperature=temperature,
            pad_id=self.pad_id,
        )

    def compute_log_probs(self, samples: Samples) -> Tensor:
        """Log-probabilities (B, T) float32 of given responses under the weights as they are now (temperature 1), 0 in
        the padding."""
        return response_log_probs(self.service, self.sampling_client, samples)

    def compute_base_log_probs(self, samples: Samples) -> Tensor:
        """The same under the base model, before any training: what a KL is measured to."""
        if self._base is None:
            client = self.service.service_client
            self._base = self.service.call_with_watch(
                "opening the base model", lambda: client.create_sampling_client(base_model=self.model)
            )
        return response_log_probs(self.service, self._base, samples)

    # ---- learning

    def update(self, samples: Samples, advantages: Tensor | Sequence[float], *, learning_rate: float) -> TinkerUpdate:
        """One optimizer step.

        Args:
            samples: B rollouts.
            advantages: (B,), or (B, T).
            learning_rate: Adam's.

        Raises:
            InputError: see `samples_to_datums`; a negative learning rate.
        """
        tinker = load_tinker_sdk()
        if not learning_rate >= 0:
            raise InputError(f"the learning rate must be at least 0, not {learning_rate}")
        data = samples_to_datums(samples, advantages, reduction=self.reduction)
        trainer = self.training_client
        known = getattr(tinker.AdamParams, "model_fields", {})
        sent = {name: value for name, value in asdict(self.adam).items() if name in known or value}
        settings = tinker.AdamParams(learning_rate=learning_rate, **sent)
        self.last_adam = {"learning_rate": learning_rate, **sent}

        def send_optimizer_step() -> tuple[Any, Any]:
            forward = trainer.forward_backward(data, loss_fn=self.loss, loss_fn_config=self.loss_config)
            optimizer = trainer.optim_step(
                settings
            )  # sent before the first is done, so that a service can run both in one cycle
            return wait_for_result(forward), wait_for_result(optimizer)

        forward, optimizer = self.service.call_with_watch("an optimizer step", send_optimizer_step)
        self._sampler = None
        self.steps += 1
        metrics = {
            name: float(v)
            for name, v in (getattr(optimizer, "metrics", None) or {}).items()
            if isinstance(v, int | float)
        }
        log_probs_BT = returned_log_probs(forward.loss_fn_outputs, samples)
        return TinkerUpdate(log_probs_BT, find_gradient_norm(metrics), metrics)

    # ---- checkpoints

    def save_service_state(self) -> dict[str, Any]:
        """Save weights and optimizer on the service; a small JSON record of where."""
        self._saves += 1
        name = f"rollonce-{self.steps:06d}-{self._saves:03d}"
        trainer = self.training_client
        saved = self.service.call_with_watch("saving a checkpoint", lambda: trainer.save_state(name))
        return {
            "path": str(saved.path),
            "steps": self.steps,
            "model": self.model,
            "lora_rank": self.lora_rank,
            "service": self.service.name,
        }

    def load_service_state(self, state: dict[str, Any]) -> None:
        """Go on from what `save_service_state` gave, in this or another session.

        Raises:
            InputError: a checkpoint of another model or rank, or not one at all.
        """
        missing = {"path", "steps", "model", "lora_rank"} - state.keys()
        if missing:
            raise InputError(f"not a checkpoint of a Tinker policy: it has no {sorted(missing)[0]!r}")
        if (state["model"], state["lora_rank"]) != (self.model, self.lora_rank):
            raise InputError(
                f"the checkpoint is of {state['model']} at LoRA rank {state['lora_rank']}, not of {self.model} at rank "
                f"{self.lora_rank}"
            )
        client, path = self.service.service_client, state["path"]
        # A client of its own rather than load_state on the present one: that fails on SkyRL 0.4.0 once the client has
        # done anything else.
        self._trainer = self.service.call_with_watch(
            "loading a checkpoint", lambda: client.create_training_client_from_state_with_optimizer(path)
        )
        self._sampler = None
        self.steps = int(state["steps"])

    def save_for_sampling(self, name: str) -> str:
        """Keep the weights as they are now for sampling later; their ``tinker://`` path.

        Args:
            name: Letters, digits, ``-``, ``_`` and ``.``.
        """
        trainer = self.training_client
        return str(
            self.service.call_with_watch(
                "saving weights for sampling", lambda: trainer.save_weights_for_sampler(name)
            ).path
        )

    def sample_from_saved_weights(self, path: str | None) -> None:
        """Let `sample` and `log_probs` use weights that `save_for_sampling` kept; None for the present ones again."""
        client = self.service.service_client
        self._sampler = None
        if path is not None:
            self._sampler = self.service.call_with_watch(
                "opening saved weights", lambda: client.create_sampling_client(model_path=path)
            )

    def close(self) -> None:
        """End the session on the service."""
        self._trainer = self._sampler = self._base = None
        self.service.close()
