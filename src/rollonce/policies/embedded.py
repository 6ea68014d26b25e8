"""The policy that comes with the package: a 0.7M-parameter Llama that solves small tasks step by step, in varied
wording, and errs.

A shipped directory, loaded by the same code as any other model. How it was made: `tools/build_embedded.py` in the
repository, `docs/embedded_policy.md`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollonce.policies.transformers_policy import TransformersPolicy

EMBEDDED_MAX_NEW_TOKENS = 96
"""The limit that it was made for: 96 tokens, the end-of-sequence token included."""


def embedded_directory() -> Path:
    """Where the shipped model and tokenizer lie, in transformers' own format (`AutoTokenizer`,
    `AutoModelForCausalLM`)."""
    return Path(__file__).parent / "embedded_weights"


def load_embedded(**options: Any) -> TransformersPolicy:
    """The embedded policy, computing in float32 with its shipped bfloat16 weights.

    Args:
        **options: Those of `TransformersPolicy.load`. Attention defaults to ``eager``, twice as fast as ``sdpa`` at
            this size on a CPU.

    Raises:
        MissingExtraError: torch or transformers is not installed.
    """
    options.setdefault("attention", "eager")
    return TransformersPolicy.load(embedded_directory(), **options)
