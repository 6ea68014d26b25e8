"""Figures of a comparison: learning curves, level against learning rate, seeds behind an interval, and where time
goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from rollonce.reports.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    assemble_figure,
    draw_horizontal_line,
    draw_interval_bar,
    format_coordinate,
)
from rollonce.reports.words import format_number
from rollonce.scoring import Estimate


class Line(NamedTuple):
    """A series: its name, colour number, x values and levels (per cent) with intervals."""

    name: str
    colour: int
    x: Sequence[float]
    levels: Sequence[Estimate]


def choose_round_marks(low: float, high: float, most: int = 5) -> tuple[float, ...]:
    """Round values inside a range, at most so many, in steps of 1, 2 or 5 times a power of ten.

    >>> choose_round_marks(0, 47)
    (0.0, 10.0, 20.0, 30.0, 40.0)
    """
    if not high > low:
        return (low,)
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        first, last = math.ceil(low / (step * factor) - 1e-9), math.floor(high / (step * factor) + 1e-9)
        if last - first + 1 <= most:
            return tuple(round(k * step * factor, 12) for k in range(first, last + 1))
    return (low, high)


def make_linear_scale(estimates: Sequence[Estimate], *, zero: bool = False, cap: float = math.inf) -> Scale:
    """A linear scale that holds all intervals (and 0, if asked for), cut at ``cap`` on both sides."""
    values = [v for e in estimates for v in e if math.isfinite(v)] + ([0.0] if zero else [])
    low, high = max(min(values, default=0.0), -cap), min(max(values, default=1.0), cap)
    if zero and max(abs(low), abs(high)) < 1:
        low, high = min(low, -1.0), max(high, 1.0)
    pad = 0.06 * (high - low) or 1.0
    low, high = low - pad, high + pad
    return Scale(low, high, choose_round_marks(low, high, 4))


def draw_bar_with_seeds(estimate: Estimate, seeds: Sequence[float], scale: Scale, kind: str = "") -> Markup:
    """An interval with the value of each seed as a small tick above it."""
    ticks = [
        Markup('<line class="seed" x1="{0}%" x2="{0}%" y1="1" y2="5"/>').format(
            format_coordinate(scale.position_in_percent(v))
        )
        for v in seeds
        if not scale.is_value_outside(v)
    ]
    bar = str(draw_interval_bar(estimate, scale, kind))
    return Markup(bar.replace("</svg>", str(Markup("").join(ticks)) + "</svg>", 1))


def draw_level_chart(
    lines: Sequence[Line], x_title: str, label: str, *, log: bool = False, marks: Sequence[float] | None = None
) -> Markup:
    """Levels in per cent against a quantity.

    Args:
        lines: The series; their intervals are drawn at the end of each (with ``log`` at every point), side by side.
        x_title, label: Under the axis, and for who cannot see it.
        log: A logarithmic x axis; then ``marks`` are what is written on it.
        marks: Values on the x axis; round ones by default.
    """
    xs = [x for line in lines for x in line.x if math.isfinite(x)]
    ys = [
        v
        for line in lines
        for i, e in enumerate(line.levels)
        for v in _list_finite_ends(e, log or i == len(line.levels) - 1)
    ]
    if len(set(xs)) < 2 or not ys:
        return Markup("")
    x_low, x_high = (math.log(min(xs)), math.log(max(xs))) if log else (min(xs), max(xs))
    # An arm of two seeds has an interval as wide as the page; the axis keeps to what the means need, twice over.
    means = [e.value for line in lines for e in line.levels if math.isfinite(e.value)]
    room = max(5.0, max(means) - min(means))
    y_low, y_high = max(min(ys), min(means) - room), min(max(ys), max(means) + room)
    pad = 0.05 * (y_high - y_low) or 1.0
    y_low, y_high = y_low - pad, y_high + pad
    margin = 0.04 if log else 0.0  # whiskers at both ends need room

    def horizontal_position(x: float) -> float:
        share = ((math.log(x) if log else x) - x_low) / (x_high - x_low)
        return LEFT + (WIDTH - LEFT - RIGHT) * (margin + share * (1 - 2 * margin))

    def vertical_position(y: float) -> float:
        share = (min(max(y, y_low), y_high) - y_low) / (y_high - y_low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [
        draw_horizontal_line((v - y_low) / (y_high - y_low), _format_plain_number(v))
        for v in choose_round_marks(y_low, y_high)
    ]
    for v in marks if marks is not None else choose_round_marks(x_low, x_high):
        text = f"{v:.0e}".replace("e-0", "e-").replace("e+0", "e") if log else _format_in_thousands(v)
        x = horizontal_position(v)
        anchor = "end" if x > WIDTH - RIGHT - 8 else "middle"
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
                format_coordinate(x), HEIGHT - BOTTOM + 13, anchor, text
            )
        )
    for k, line in enumerate(lines):
        shift = (k - (len(lines) - 1) / 2) * 2.4  # so that whiskers at the same x stand side by side
        at = [
            (horizontal_position(x) + (shift if log else 0), vertical_position(e.value))
            for x, e in zip(line.x, line.levels, strict=True)
            if math.isfinite(e.value)
        ]
        path = " ".join(f"{format_coordinate(x)},{format_coordinate(y)}" for x, y in at)
        parts.append(
            Markup('<polyline class="c{}" points="{}"><title>{}</title></polyline>').format(
                line.colour, path, line.name
            )
        )
        whiskers = range(len(line.levels)) if log else range(len(line.levels) - 1, len(line.levels))
        for i in whiskers:
            e, x = line.levels[i], horizontal_position(line.x[i]) + (shift if log else -max(0.0, 12 - (k % 6) * 2.4))
            if math.isfinite(e.low):
                parts.append(
                    _draw_interval_whisker(line.colour, x, vertical_position(e.low), vertical_position(e.high))
                )
        parts += [
            Markup('<circle class="c{}" cx="{}" cy="{}" r="2.4"/>').format(
                line.colour, format_coordinate(x), format_coordinate(y)
            )
            for x, y in at
        ]
    return assemble_figure(parts, x_title, label)


def draw_stacked_times(seconds: dict[str, float], longest: float) -> Markup:
    """A step's seconds by part as one bar; ``longest`` fills the cell."""
    parts, x = [], 0.0
    for name, value in seconds.items():
        width = 100 * value / longest if longest > 0 else 0.0
        if width > 0:
            parts.append(
                Markup(
                    '<rect class="part {}" x="{}%" y="4" width="{}%" height="14"><title>{} {:.3g} s</title></rect>'
                ).format(name, format_coordinate(x), format_coordinate(width), name, value)
            )
        x += width
    return Markup('<svg class="bar" width="100%" height="22" aria-hidden="true">{}</svg>').format(
        Markup("").join(parts)
    )


def _list_finite_ends(e: Estimate, with_interval: bool) -> list[float]:
    return [v for v in (e if with_interval else e[:1]) if math.isfinite(v)]


def _draw_interval_whisker(colour: int, x: float, low: float, high: float) -> Markup:
    return Markup('<line class="whisker c{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        colour, format_coordinate(x), format_coordinate(x), format_coordinate(low), format_coordinate(high)
    )


def _format_plain_number(value: float) -> str:
    return format_number(value, 2).rstrip("0").rstrip(".")


def _format_in_thousands(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"
