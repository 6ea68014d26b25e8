"""A causal language model of transformers, from a directory or a hub id, with or without low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rollonce.errors import InputError, MissingExtraError


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters instead of full fine-tuning.

    Attributes:
        rank: Rank of each adapter.
        alpha: Scale numerator (the update is multiplied by alpha / rank), default 2 x rank.
        targets: Module names, or ``all-linear`` (every linear layer but the output head).
        seed: Of the adapters' initial values.
    """

    rank: int = 32
    alpha: float | None = None
    targets: str | tuple[str, ...] = "all-linear"
    seed: int = 0


def switch_off_dropout(model: Any) -> Any:
    """Switch every dropout off: with it the log-probabilities in the loss would not be those of the policy that
    sampled."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def load_model_and_tokenizer(
    source: str, dtype: torch.dtype, attention: str | None, local_only: bool
) -> tuple[Any, Any]:
    """The model and its tokenizer.

    Raises:
        InputError: nothing loadable there.
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("a policy", "transformers", "train") from error
    from transformers.utils import logging

    logging.disable_progress_bar()  # "Loading weights" beside our own bars
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1
    path = Path(source).expanduser()
    if looks_local and not path.is_dir():
        raise InputError(f"there is no directory {source!r} to load a policy from")
    source = str(path) if path.is_dir() else source
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    try:
        # The configuration first: what is not on this machine fails here at once, rather than after transformers has
        # looked for adapters on the hub, which it does whatever local_files_only says unless told so a second time.
        config = AutoConfig.from_pretrained(source, local_files_only=local_only)
        options["adapter_kwargs"] = {"local_files_only": local_only}
        model = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, local_files_only=local_only, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local_only)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(
            f"no causal language model can be loaded from {source!r}: {str(error).splitlines()[0]}"
        ) from error
    return model, tokenizer


def wrap_with_adapters(model: Any, lora: LoraSettings | None, directory: str | None) -> Any:
    """The model with adapters over it, trainable and in float32: those saved in ``directory``, or fresh ones.

    Raises:
        MissingExtraError: peft is not installed.
    """
    try:
        from peft import LoraConfig, PeftModel, get_peft_model
    except ImportError as error:
        raise MissingExtraError("LoRA", "peft", "train") from error
    if directory is not None:
        wrapped = PeftModel.from_pretrained(model, directory, is_trainable=True)
    else:
        assert lora is not None
        targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
        alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
        # Adapters draw their start from the global state; keep the caller's as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lora.seed)
            config = LoraConfig(
                r=lora.rank,
                lora_alpha=alpha,  # type: ignore[arg-type]
                lora_dropout=0.0,
                target_modules=targets,
                task_type="CAUSAL_LM",
            )
            wrapped = get_peft_model(model, config)
    if hasattr(wrapped, "enable_input_require_grads"):
        wrapped.enable_input_require_grads()  # else gradient checkpointing finds no path to the adapters
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return wrapped
