"""What a service asks per million tokens, where it says so publicly; ``--price`` names any other.

A price here is what a page said on a day. Spindle publishes none; for the request's model the table has a comparable
service's, which ``--check`` names.
"""

from __future__ import annotations

from typing import NamedTuple

from rollonce.errors import InputError


class Price(NamedTuple):
    """Dollars per million tokens that are read, sampled and trained on, and where that was said.

    Attributes:
        prefill, sample, train: Of prompts, of responses, and of both again where they are trained on.
        source: Service, page and day.
    """

    prefill: float
    sample: float
    train: float
    source: str


_PRIME = "Prime Intellect's hosted training, docs.primeintellect.ai/hosted-training/models-and-pricing, 2026-09-20"
_TINKER = "Tinker, thinkingmachines.ai/tinker, 2026-01-05"

PRICES = {
    "Qwen/Qwen3.5-0.8B": Price(0.02, 0.06, 0.06, _PRIME),
    "Qwen/Qwen3.5-2B": Price(0.05, 0.15, 0.15, _PRIME),
    "Qwen/Qwen3.5-4B": Price(0.10, 0.30, 0.30, _PRIME),
    "Qwen/Qwen3.5-9B": Price(0.20, 0.60, 0.60, _PRIME),
    "Qwen/Qwen3-4B-Instruct-2507": Price(0.07, 0.22, 0.22, _TINKER),
    "Qwen/Qwen3-8B": Price(0.13, 0.40, 0.40, _TINKER),
}
"""By the model's name."""


def parse_token_price(text: str) -> Price:
    """``--price PREFILL,SAMPLE,TRAIN``.

    Raises:
        InputError: not three numbers of at least 0.
    """
    try:
        prefill, sample, train = (float(word) for word in text.split(","))
    except ValueError:
        prefill = sample = train = -1.0
    if not min(prefill, sample, train) >= 0 or max(prefill, sample, train) == float("inf"):
        raise InputError(
            f"--price takes PREFILL,SAMPLE,TRAIN in dollars per million tokens (0.05,0.15,0.15), not {text!r}"
        )
    return Price(prefill, sample, train, "--price")
