"""One value of one row: what it must be, and a sentence where it is not."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np

from rollonce.errors import InputError
from rollonce.prompts import render_messages
from rollonce.readers.values import NUMBERS, describe_value_kind

_BIG = 1 << 62


class RowValues:
    """Checks a row's values one by one; every method raises `InputError` for what it cannot take.

    Args:
        max_prompt_chars: Longer prompts are refused.
        text_numbers: Numbers may come as text, as in CSV.
    """

    def __init__(self, max_prompt_chars: int, text_numbers: bool) -> None:
        self.max_prompt_chars, self.text_numbers = max_prompt_chars, text_numbers

    def check_prompt_length(self, prompt: str) -> None:
        if len(prompt) > self.max_prompt_chars:
            raise InputError(
                f"a prompt of {len(prompt):,} characters, more than max_prompt_chars={self.max_prompt_chars:,}; raise "
                "that limit (--max-prompt-chars) if it is right, or name the right prompt key"
            )

    def render_prompt_text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple):
            return render_messages(value)
        if isinstance(value, dict) and "role" in value:
            return render_messages([value])
        raise InputError(f"the prompt is {describe_value_kind(value)}; it must be text or a list of chat messages")

    def parse_reward_value(self, value: Any) -> float:
        number = self.parse_number_value(value, "reward")
        if math.isnan(number) or math.isinf(number):
            raise InputError(
                f"the reward is {'null' if value is None else number}; it must be a finite number (or true/false for "
                "1/0)"
            )
        return number

    def parse_number_value(self, value: Any, what: str) -> float:
        if type(value) in NUMBERS or isinstance(value, np.number | np.bool_ | Decimal):
            try:
                return float(value)
            except OverflowError:
                return math.inf
        if value is None:
            return math.nan
        if isinstance(value, str) and self.text_numbers:
            text = value.strip().lower()
            if text in ("", "true", "false"):
                return {"": math.nan, "true": 1.0, "false": 0.0}[text]
            try:
                return float(text)
            except ValueError:
                pass
        hint = " (only CSV may write numbers as text)" if isinstance(value, str) and not self.text_numbers else ""
        raise InputError(
            f"the {what} is {describe_value_kind(value)}; it must be a finite number (or true/false for 1/0){hint}"
        )

    def parse_log_prob_value(self, value: Any) -> Any:
        if isinstance(value, str) and self.text_numbers:
            return None if not value.strip() else self.parse_number_value(value, "log-probability")
        return value

    def parse_step_number(self, value: Any) -> int | None:
        if value is None or value == "":
            return None
        number = self.parse_number_value(value, "step")
        if not (math.isfinite(number) and number.is_integer() and abs(number) < _BIG):
            raise InputError(f"the step is {describe_value_kind(value)}; it must be a whole number")
        return int(number)
