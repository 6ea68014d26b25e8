"""Intervals drawn in characters, for tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from rollonce.scoring import Estimate

_FANCY = {"line": "─", "dot": "●", "mark": "│", "low": "‹", "high": "›", "cross": "┼"}
_PLAIN = {"line": "-", "dot": "o", "mark": "|", "low": "<", "high": ">", "cross": "+"}


def choose_bar_range(scores: Sequence[Any]) -> tuple[float, float]:
    """The range of ratios that bars are drawn over: all intervals and 1, but not below half of LOO."""
    values = [v for s in scores for v in s.ratio if math.isfinite(v)]
    low, high = min([1.0, *values]), max([1.0, *values])
    low, high = max(low, 0.5), min(high, 4.0)
    return (low, high) if high > low else (0.9, 1.1)


def draw_bar_as_text(estimate: Estimate, low: float, high: float, size: int, fancy: bool = True) -> str:
    """An interval as text: a line with a dot at the value, a mark at 1, arrows where it goes on outside.

    >>> draw_bar_as_text(Estimate(1.5, 1.25, 1.75), 0.5, 2.0, 13, fancy=False)
    '    | --o--  '
    """
    signs = _FANCY if fancy else _PLAIN
    cells = [" "] * size

    def find_cell_index(value: float) -> int:
        return round((value - low) / (high - low) * (size - 1))

    one = find_cell_index(1.0)
    if 0 <= one < size:
        cells[one] = signs["mark"]
    if not math.isfinite(estimate.value):
        return "".join(cells)
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        for i in range(max(find_cell_index(estimate.low), 0), min(find_cell_index(estimate.high), size - 1) + 1):
            cells[i] = signs["cross"] if i == one else signs["line"]
    if find_cell_index(estimate.low if math.isfinite(estimate.low) else estimate.value) < 0:
        cells[0] = signs["low"]
    if find_cell_index(estimate.high if math.isfinite(estimate.high) else estimate.value) >= size:
        cells[-1] = signs["high"]
    if 0 <= find_cell_index(estimate.value) < size:
        cells[find_cell_index(estimate.value)] = signs["dot"]
    return "".join(cells)


def can_encode_bars(console: Console) -> bool:
    """Whether the output's encoding has the signs of the bars."""
    try:
        "".join(_FANCY.values()).encode(console.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def draw_bar_axis(low: float, high: float, size: int) -> Text:
    """``0.50   1   1.35`` above the bars."""
    left, right = f"{low:.2f}", f"{high:.2f}"
    cells = list(left + " " * (size - len(left) - len(right)) + right)
    one = round((1 - low) / (high - low) * (size - 1))
    if len(left) < one < size - len(right) - 1:
        cells[one] = "1"
    return Text("".join(cells), style="dim not bold")


def replace_unencodable(console: Console, text: str) -> str:
    """Without signs that the output cannot encode."""
    if can_encode_bars(console):
        return text
    return text.replace("−", "-").replace("·", "|").replace("∞", "inf")
