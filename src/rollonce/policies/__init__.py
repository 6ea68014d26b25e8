"""What can sample and learn. Importing this loads neither torch nor transformers; the first use of a name does (extra
``train``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rollonce.errors import MissingExtraError

if TYPE_CHECKING:
    from rollonce.policies.embedded import EMBEDDED_MAX_NEW_TOKENS, embedded_directory, load_embedded
    from rollonce.policies.model_loading import LoraSettings
    from rollonce.policies.objective import bernoulli_kl_BT, policy_loss, token_mean
    from rollonce.policies.samples import Evaluation, Policy, Samples
    from rollonce.policies.tinker_policy import AdamSettings, TinkerPolicy
    from rollonce.policies.transformers_policy import TransformersPolicy

_WHERE = {
    "EMBEDDED_MAX_NEW_TOKENS": "embedded",
    "embedded_directory": "embedded",
    "load_embedded": "embedded",
    "bernoulli_kl_BT": "objective",
    "policy_loss": "objective",
    "token_mean": "objective",
    "Evaluation": "samples",
    "Policy": "samples",
    "Samples": "samples",
    "AdamSettings": "tinker_policy",
    "TinkerPolicy": "tinker_policy",
    "LoraSettings": "model_loading",
    "TransformersPolicy": "transformers_policy",
}

__all__ = [
    "EMBEDDED_MAX_NEW_TOKENS",
    "AdamSettings",
    "Evaluation",
    "LoraSettings",
    "Policy",
    "Samples",
    "TinkerPolicy",
    "TransformersPolicy",
    "bernoulli_kl_BT",
    "embedded_directory",
    "load_embedded",
    "policy_loss",
    "token_mean",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "torch").partition(".")[0]
        if missing in {"torch", "transformers", "peft", "safetensors", "tokenizers"}:
            raise MissingExtraError("a policy", missing, "train") from error
        raise
