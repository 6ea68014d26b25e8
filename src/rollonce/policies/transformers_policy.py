"""Any causal language model of transformers as a policy: directory or hub id, full or LoRA, CPU or GPU. The embedded
one is no exception."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollonce.errors import InputError
from rollonce.policies.model_loading import (
    LoraSettings,
    load_model_and_tokenizer,
    switch_off_dropout,
    wrap_with_adapters,
)
from rollonce.policies.objective import token_log_probs
from rollonce.policies.samples import Evaluation, Samples
from rollonce.policies.sampling import Drawn, draw_padded_rollouts
from rollonce.policies.shared_prefix import NOTHING_SHARED, compute_shared_prefix
from rollonce.policies.small_llama import SmallLlama, is_small_plain_llama, packed_hidden_states

_META = "rollonce_policy.json"
MOST_SAMPLE_ROWS = 2048
"""Prompts sampled at once unless told otherwise: the cache of 12,000 takes gigabytes even for the smallest model."""


def _make_input_contiguous(head: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Before the output head: torch multiplies a slice of three dimensions row by row, and in bfloat16 on a CPU copies
    the head's weights for each row of the batch (three quarters of the time of sampling, SmolLM2 with 32 rows)."""
    return (inputs[0].contiguous(), *inputs[1:])


class TransformersPolicy:
    """A causal language model that samples with exact log-probabilities and can be trained.

    Args:
        model: A transformers causal language model (or a peft model of one).
        tokenizer: Its tokenizer.
        device: Where it runs.
        autocast: Run the forward passes in bfloat16 over float32 weights (wants a GPU, or a CPU with bf16
            instructions).
        gradient_checkpointing: Recompute activations in the backward pass: less memory, about a third more time.
        sample_rows: Prompts sampled at once; None for at most 2,048.
        prompt_template: ``{prompt}`` with what the model should be told besides, before the chat template ("... Put the
            answer in \\boxed{{}}.").
        system: A system message for models with a chat template.
        base: Where the frozen weights under a LoRA came from, noted when saving.

    `TransformersPolicy.load` makes one from a directory or hub id.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        device: str | torch.device = "cpu",
        autocast: bool = False,
        gradient_checkpointing: bool = False,
        sample_rows: int | None = None,
        prompt_template: str = "{prompt}",
        system: str | None = None,
        base: str | None = None,
    ) -> None:
        if "{prompt}" not in prompt_template:
            raise InputError(f"the prompt template must hold {{prompt}}; {prompt_template!r} does not")
        self.device = torch.device(device)
        self.model = switch_off_dropout(model.to(self.device))
        if (head := self.model.get_output_embeddings()) is not None:
            head.register_forward_pre_hook(_make_input_contiguous)
        self.tokenizer = tokenizer
        self.autocast = autocast
        self.sample_rows = sample_rows
        self.prompt_template = prompt_template
        self.system = system
        self.base = base
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.eval()
        self.eos_ids = self._find_end_of_sequence_ids()
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.eos_ids)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        lora: LoraSettings | None = None,
        device: str | torch.device = "cpu",
        bf16: bool = False,
        attention: str | None = None,
        local_only: bool = True,
        **options: Any,
    ) -> TransformersPolicy:
        """From a directory (of transformers, or one that `save` wrote) or a hub id.

        Args:
            source: Directory or hub id.
            lora: Train adapters and freeze the rest; None trains everything (or the adapters that ``source`` already
                holds).
            device: ``cpu``, ``cuda`` ...
            bf16: Compute in bfloat16. Full training keeps float32 weights under autocast, since updates of a small rate
                vanish in bfloat16 weights; under LoRA the frozen weights are stored in bfloat16 as well, the adapters
                in float32.
            attention: transformers' ``attn_implementation``.
            local_only: Never ask the hub. Set it False to download an id.
            **options: `TransformersPolicy`'s own.

        Raises:
            InputError: nothing loadable there.
            MissingExtraError: transformers (or peft, for LoRA) is not installed.
        """
        name = str(source)
        adapter = Path(name).expanduser() / "adapter_config.json"
        meta_file = Path(name).expanduser() / _META
        meta = json.loads(meta_file.read_text(encoding="utf-8")) if meta_file.is_file() else {}
        for key in ("prompt_template", "system"):
            options.setdefault(key, meta.get(key, "{prompt}" if key == "prompt_template" else None))
        saved_adapter = adapter.is_file()
        if saved_adapter and lora is not None:
            raise InputError(f"{name} holds adapters already; load it without LoRA settings to go on training them")
        base = json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"] if saved_adapter else name
        frozen_base = lora is not None or saved_adapter
        dtype = torch.bfloat16 if bf16 and frozen_base else torch.float32
        model, tokenizer = load_model_and_tokenizer(base, dtype, attention, local_only)
        if frozen_base:
            model = wrap_with_adapters(model, lora, name if saved_adapter else None)
        return cls(model, tokenizer, device=device, autocast=bf16, base=base if frozen_base else None, **options)

    def _find_end_of_sequence_ids(self) -> frozenset[int]:
        configured = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        ids = set(configured if isinstance(configured, list | tuple) else [configured]) | {self.tokenizer.eos_token_id}
        found = frozenset(int(i) for i in ids if i is not None)
        if not found:
            raise InputError("the tokenizer names no end-of-sequence token, so no rollout of this model could ever end")
        return found

    # ---- text in

    def render_prompt(self, prompt: str) -> str:
        """The prompt as the model reads it: template, then the tokenizer's chat template where it has one."""
        text = self.prompt_template.replace("{prompt}", prompt)
        if not getattr(self.tokenizer, "chat_template", None):
            return text if self.system is None else f"{self.system}\n\n{text}"
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self.tokenizer.apply_chat_template(
            [*messages, {"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )

    def encode_prompts(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids and mask of rendered prompts, padded on the left (B, P)."""
        # A chat template writes the special tokens itself; adding them again would double the first.
        special = not getattr(self.tokenizer, "chat_template", None)
        rows = [self.tokenizer(self.render_prompt(p), add_special_tokens=special)["input_ids"] for p in prompts]
        for prompt, row in zip(prompts, rows, strict=True):
            if not row:
                raise InputError(f"the prompt {prompt!r} has no tokens, and a model cannot begin from nothing")
        P = max(len(r) for r in rows)
        ids_BP = torch.tensor([[self.pad_id] * (P - len(r)) + list(r) for r in rows], dtype=torch.long)
        mask_BP = torch.tensor([[False] * (P - len(r)) + [True] * len(r) for r in rows])
        return ids_BP, mask_BP

    # ---- rollouts out

    def sample(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        generator: torch.Generator | int | Sequence[int] | None = None,
    ) -> Samples:
        """One rollout a prompt, from the whole vocabulary (no top-k, no top-p).

        Args:
            prompts: B texts.
            max_new_tokens: Limit; a rollout that meets it without an end-of-sequence token is truncated.
            temperature: What logits are divided by; 0 for greedy.
            generator: A CPU generator, or a seed; None draws a seed from torch's global state. B x max_new_tokens
                numbers are taken from it whatever the rollouts turn out to be, so the state after a call is known and a
                resumed run goes on alike. A sequence of B seeds gives each rollout its own: then it does not depend on
                which others are asked for with it, but for the rounding of a forward pass over another batch.

        Raises:
            InputError: no prompts, an empty one, a limit below 1 or a negative temperature.
        """
        if not prompts:
            raise InputError("there are no prompts to sample from")
        if max_new_tokens < 1 or not temperature >= 0:
            raise InputError(
                f"max_new_tokens must be at least 1 and temperature at least 0, not {max_new_tokens} and {temperature}"
            )
        uniform_BT = None
        if temperature > 0:
            if generator is None:
                generator = int(torch.randint(2**62, ()))
            if isinstance(generator, int):
                generator = torch.Generator().manual_seed(generator)
            if isinstance(generator, Sequence):
                if len(generator) != len(prompts):
                    raise InputError(f"{len(prompts)} prompts, but {len(generator)} seeds")
                each = [torch.Generator().manual_seed(seed) for seed in generator]
                uniform_BT = torch.stack([torch.rand(max_new_tokens, generator=g, dtype=torch.float64) for g in each])
            else:
                uniform_BT = torch.rand((len(prompts), max_new_tokens), generator=generator, dtype=torch.float64)
        rows = self.sample_rows or MOST_SAMPLE_ROWS
        parts = []
        for start in range(0, len(prompts), rows):
            some = list(prompts[start : start + rows])
            ids_BP, mask_BP = self.encode_prompts(some)
            with self._drawing_from_model() as draw_rollouts:
                drawn = draw_rollouts(
                    ids_BP.to(self.device),
                    mask_BP.to(self.device),
                    max_new_tokens=max_new_tokens,
                    temperature=temperature,
                    uniform_BT=None if uniform_BT is None else uniform_BT[start : start + rows],
                    eos_ids=self.eos_ids,
                    pad_id=self.pad_id,
                )
            ids_BT, mask_BT, log_probs_BT, truncated_B = (x.cpu() for x in drawn)
            texts = [
                self.tokenizer.decode(i[m], skip_special_tokens=True) for i, m in zip(ids_BT, mask_BT, strict=True)
            ]
            parts.append(
                Samples(
                    prompts=some,
                    texts=texts,
                    prompt_ids_BP=ids_BP,
                    prompt_mask_BP=mask_BP,
                    response_ids_BT=ids_BT,
                    response_mask_BT=mask_BT,
                    log_probs_BT=log_probs_BT,
                    truncated_B=truncated_B,
                    temperature=temperature,
                )
            )
        return parts[0] if len(parts) == 1 else Samples.concatenate_samples(parts)

    def evaluate_rollouts(self, samples: Samples, *, hidden: bool = False) -> Evaluation:
        """Log-probabilities (with gradient, unless under ``torch.no_grad``) and entropies of given rollouts, all in one
        forward pass.

        For micro-batches call it on the parts of `Samples.split_into_micro_batches` and give each loss the whole
        batch's token count.
        """
        if not self.autocast and not self.gradient_checkpointing and is_small_plain_llama(self.model):
            return self._evaluate_packed(samples, hidden=hidden)
        return self._evaluate_padded(samples, hidden=hidden)

    def _evaluate_packed(self, samples: Samples, *, hidden: bool) -> Evaluation:
        """A small Llama's: no padding anywhere, and logits of the response tokens alone."""
        length_B = samples.prompt_mask_BP.sum(dim=1)
        order = torch.argsort(length_B + samples.lengths_B, descending=True, stable=True)
        both_BL = torch.cat([samples.prompt_mask_BP, samples.response_mask_BT], dim=1)[order]
        ids_N = torch.cat([samples.prompt_ids_BP, samples.response_ids_BT], dim=1)[order][both_BL]
        hidden_ND = packed_hidden_states(self.model, ids_N, both_BL.sum(dim=1).tolist())
        # A token's distribution, and its value, come from the hidden state one token before it.
        is_response_N = torch.cat([torch.zeros_like(samples.prompt_mask_BP), samples.response_mask_BT], dim=1)[order][
            both_BL
        ]
        before_nD = hidden_ND[is_response_N.nonzero().squeeze(1) - 1]
        row_n, column_n = samples.response_mask_BT[order].nonzero(as_tuple=True)
        places = (order[row_n], column_n)
        log_probs_n, entropies_n = token_log_probs(
            self.model.lm_head(before_nD).double(), ids_N[is_response_N], samples.temperature
        )
        mask_BT = samples.response_mask_BT
        zeros_BT = torch.zeros(mask_BT.shape)
        return Evaluation(
            zeros_BT.index_put(places, log_probs_n.float()),
            zeros_BT.index_put(places, entropies_n.float()),
            mask_BT,
            before_nD.new_zeros((*mask_BT.shape, before_nD.shape[1])).index_put(places, before_nD) if hidden else None,
        )

    def _evaluate_padded(self, samples: Samples, *, hidden: bool) -> Evaluation:
        """Prompt and response stand end to end and are padded on the right: causal attention then needs no mask, which
        is faster, and the padding cannot reach a token before it. What all prompts begin with is computed once, unless
        activations are recomputed, which transformers does without a cache alone."""
        length_B = samples.prompt_mask_BP.sum(dim=1)
        T = samples.response_ids_BT.shape[1]
        L = int((length_B + samples.lengths_B).max())
        ids_BL = torch.full((len(samples), L), self.pad_id, dtype=torch.long)
        for b, n in enumerate(length_B.tolist()):
            row = torch.cat(
                [
                    samples.prompt_ids_BP[b, samples.prompt_ids_BP.shape[1] - n :],
                    samples.response_ids_BT[b, samples.response_mask_BT[b]],
                ]
            )
            ids_BL[b, : len(row)] = row
        # Logits only from the last token of the shortest prompt on: at 151k words a vocabulary the rest would be most
        # of the memory.
        first = int(length_B.min()) - 1
        take_BT = (length_B[:, None] - 1 - first + torch.arange(T)).clamp_(max=L - first - 1).to(self.device)
        recompute = self.gradient_checkpointing and torch.is_grad_enabled()
        if recompute:  # which transformers does in training mode alone; dropout is off either way
            self.model.train()
        with self._autocast_context():
            n_shared, cache = NOTHING_SHARED
            if not recompute:
                n_shared, cache = compute_shared_prefix(self.model, samples.prompt_ids_BP, samples.prompt_mask_BP)
            output = self.model(
                input_ids=ids_BL[:, n_shared:].to(self.device),
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=L - first,
                output_hidden_states=hidden,
                return_dict=True,
            )
        if recompute:
            self.model.eval()
        mask_BT = samples.response_mask_BT.to(self.device)
        tokens_BT = samples.response_ids_BT.to(self.device)
        rows_B1 = torch.arange(len(samples), device=self.device)[:, None]
        logits_BTV = output.logits[rows_B1, take_BT].float()
        log_probs_BT, entropies_BT = token_log_probs(logits_BTV, tokens_BT, samples.temperature)
        hidden_BTD = output.hidden_states[-1][rows_B1, take_BT + first - n_shared].float() if hidden else None
        return Evaluation(
            log_probs_BT.masked_fill(~mask_BT, 0.0), entropies_BT.masked_fill(~mask_BT, 0.0), mask_BT, hidden_BTD
        )

    def compute_log_probs(self, samples: Samples) -> Tensor:
        """``evaluate(samples).log_probs_BT``: (B, T), with gradient, 0 in the padding."""
        return self.evaluate_rollouts(samples).log_probs_BT

    @contextlib.contextmanager
    def _drawing_from_model(self) -> Iterator[Callable[..., Drawn]]:
        """What draws rollouts from the model as it is now: a small Llama on a CPU has code of its own for it."""
        self.model.eval()
        with torch.no_grad(), self._autocast_context():
            if not self.autocast and is_small_plain_llama(self.model):
                yield SmallLlama(self.model).draw_padded_rollouts
            else:
                yield partial(draw_padded_rollouts, self.model)

    def _autocast_context(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()

    # ---- what is trained

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Names and tensors that an optimizer should move (under LoRA the adapters alone)."""
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]

    def parameters(self) -> list[torch.nn.Parameter]:
        """The tensors of `named_parameters`."""
        return [p for _, p in self.named_parameters()]

    def state_dict(self) -> dict[str, Any]:
        """Copies of the trained tensors by name, on the CPU: small under LoRA, everything otherwise."""
        return {name: p.detach().cpu().clone() for name, p in self.named_parameters()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave.

        Raises:
            InputError: the names differ: a checkpoint of another model, or of LoRA into full.
        """
        mine = dict(self.named_parameters())
        if mine.keys() != state.keys():
            odd = sorted(mine.keys() ^ state.keys())
            raise InputError(
                f"the checkpoint is of another policy: {len(odd)} trained tensors differ in name, {odd[0]!r} among them"
            )
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(state[name])

    def make_frozen_copy(self) -> TransformersPolicy:
        """This policy as it is now, untrainable: the reference of a KL penalty, or the stale policy of an off-policy
        lag."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model).requires_grad_(False).eval()
        other.gradient_checkpointing = False
        return other

    def save(self, directory: str | Path) -> None:
        """Model (or adapters) and tokenizer as transformers and peft write them, so that others can load them without
        rollonce."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        meta = {"prompt_template": self.prompt_template, "system": self.system, "base": self.base}
        (directory / _META).write_text(json.dumps(meta) + "\n", encoding="utf-8")
