"""The page's plots as small SVGs: text stays text, colours are the page's CSS variables, so both colour schemes and
print work.

Interval bars use percentages, so that they are as wide as their cell and their dots stay round; the others have a view
box about as wide as a phone, so that their text is readable there without zooming.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from rollonce.reports.words import format_number
from rollonce.scoring import Estimate

_MARKS_BELOW = (0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
_MARKS_ABOVE = (1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 10.0, 20.0, 50.0, 100.0)
_LEAST_GAP = 0.13  # between two marks, of the axis; their text needs it on a phone
WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 34, 8, 10, 34


class Scale(NamedTuple):
    """A range of values, linear or logarithmic, on 0 to 100 per cent; ``marks`` are the values written on the axis."""

    low: float
    high: float
    marks: tuple[float, ...]
    log: bool = False

    def position_in_percent(self, value: float) -> float:
        """Where a value lies, in per cent, held a little inside the edges."""
        if self.log:
            share = math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(100 * share, 1.0), 99.0)

    def is_value_outside(self, value: float) -> bool:
        """Whether a value lies outside."""
        return value < self.low or value > self.high


def make_level_scale(batch_size: int) -> Scale:
    return Scale(-0.02 * batch_size, 1.04 * batch_size, (0, batch_size / 2, batch_size))


def make_ratio_scale(ratios: Sequence[Estimate], low: float = 0.5, high: float = 4.0) -> Scale:
    """Ratios on a log axis with marks on both sides of 1: all values and intervals, but not beyond ``low`` and ``high``
    unless a value itself lies there."""
    values = [r.value for r in ratios if math.isfinite(r.value) and r.value > 0]
    ends = [min(max(v, low), high) for r in ratios for v in r if math.isfinite(v) and v > 0]
    left, right = min([0.95, *values, *ends]), max([1.05, *values, *ends])
    left, right = left * 0.98, right * 1.02
    for _ in range(3):  # room on the short side for a mark whose text has room beside that of 1; that widens the scale
        apart = _LEAST_GAP * math.log(right / left)
        left = min(left, 0.98 * next((v for v in _MARKS_BELOW if -math.log(v) >= apart), 1.0))
        right = max(right, 1.02 * next((v for v in _MARKS_ABOVE if math.log(v) >= apart), 1.0))
    apart = _LEAST_GAP * math.log(right / left)
    marks = [1.0]
    for fine_to_coarse in (_MARKS_BELOW, _MARKS_ABOVE):
        inside = [v for v in fine_to_coarse if left <= v <= right]
        kept = 1.0
        for v in inside:
            if abs(math.log(v / kept)) >= apart and (v == inside[-1] or abs(math.log(v / inside[-1])) >= apart):
                marks.append(v)
                kept = v
    return Scale(left, right, tuple(sorted(marks)), log=True)


def make_logarithmic_scale(estimates: Sequence[Estimate]) -> Scale:
    """Positive values on a log axis with a mark at each power of ten (SNR)."""
    values = [v for e in estimates for v in e if math.isfinite(v) and v > 0] or [0.1, 10.0]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    low, high = max(low, 1e-3), max(high, low * 10, 1e-2)
    steps = round(math.log10(high / low))
    return Scale(low, high, tuple(low * 10.0**k for k in range(steps + 1)), log=True)


def draw_interval_bar(estimate: Estimate, scale: Scale, kind: str = "") -> Markup:
    """A dot with its interval, as wide as its cell; what goes on outside the scale ends in an arrow."""
    if not math.isfinite(estimate.value):
        return Markup("")
    parts = []
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        a, b = scale.position_in_percent(estimate.low), scale.position_in_percent(estimate.high)
        parts.append(
            Markup('<line class="ci" x1="{}%" x2="{}%" y1="11" y2="11"/>').format(
                format_coordinate(a), format_coordinate(b)
            )
        )
    for value, sign, anchor, x in ((estimate.low, "‹", "start", 0), (estimate.high, "›", "end", 100)):
        side = value if math.isfinite(value) else estimate.value
        if scale.is_value_outside(side) and (side < scale.low) == (x == 0):
            parts.append(Markup('<text class="more" x="{}%" y="16" text-anchor="{}">{}</text>').format(x, anchor, sign))
    if not scale.is_value_outside(estimate.value):
        parts.append(
            Markup('<circle class="dot" cx="{}%" cy="11" r="4.5"/>').format(
                format_coordinate(scale.position_in_percent(estimate.value))
            )
        )
    return Markup('<svg class="bar {}" width="100%" height="22" aria-hidden="true">{}</svg>').format(
        kind, Markup("").join(parts)
    )


def draw_scale_axis(scale: Scale, digits: int = 2) -> Markup:
    """The values above a column of interval bars."""
    parts = []
    for value in scale.marks:
        x = scale.position_in_percent(value)
        anchor = "start" if x < 6 else "end" if x > 94 else "middle"
        text = f"{value:g}" if digits < 0 else format_number(value, digits).rstrip("0").rstrip(".") or "0"
        parts.append(
            Markup('<text x="{}%" y="11" text-anchor="{}">{}</text>').format(format_coordinate(x), anchor, text)
        )
    return Markup('<svg class="axis" width="100%" height="14" aria-hidden="true">{}</svg>').format(
        Markup("").join(parts)
    )


def draw_reward_histogram(values: Sequence[float]) -> Markup:
    """How many tasks have which mean reward."""
    low, high = min(0.0, *values), max(1.0, *values)
    counts, edges = np.histogram(np.asarray(values), bins=20, range=(low, high))
    top = max(int(counts.max()), 1)
    step = max(1, math.ceil(top / 4))
    parts = [draw_horizontal_line(t / top, str(t)) for t in range(0, top + 1, step)]
    slot = (WIDTH - LEFT - RIGHT) / len(counts)
    for k, count in enumerate(counts):
        height = (HEIGHT - TOP - BOTTOM) * count / top
        x, y = LEFT + k * slot + 1, HEIGHT - BOTTOM - height
        title = f"{count} tasks with a mean reward from {edges[k]:.3g} to {edges[k + 1]:.3g}"
        parts.append(
            Markup('<rect class="col" x="{}" y="{}" width="{}" height="{}" rx="1.5"><title>{}</title></rect>').format(
                format_coordinate(x),
                format_coordinate(y),
                format_coordinate(slot - 2),
                format_coordinate(height),
                title,
            )
        )
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(_draw_x_axis_text(share, f"{low + share * (high - low):.3g}"))
    return assemble_figure(parts, "mean reward of a task", f"Histogram of the mean rewards of {len(values)} tasks")


def draw_batch_size_curve(series: Mapping[str, Sequence[tuple[int, float]]]) -> Markup:
    """B_eff against the batch size, both on log axes; the first series is the ceiling (B_eff = B), drawn dashed."""
    points = [(b, v) for line in series.values() for b, v in line if math.isfinite(v) and v > 0]
    if len({b for b, _ in points}) < 2:
        return Markup("")
    sizes = sorted({b for b, _ in points})
    x_low, x_high = math.log(sizes[0]), math.log(sizes[-1])
    y_low = math.floor(math.log2(min(v for _, v in points)))
    y_high = math.ceil(math.log2(max(v for _, v in points)))
    every = 2 if y_high - y_low > 6 else 1
    parts = [
        draw_horizontal_line((k - y_low) / (y_high - y_low), f"{2.0**k:g}") for k in range(y_low, y_high + 1, every)
    ]
    parts += [_draw_x_axis_text((math.log(b) - x_low) / (x_high - x_low), str(b)) for b in sizes]
    for k, (name, line) in enumerate(series.items()):
        at = [
            (
                LEFT + (WIDTH - LEFT - RIGHT) * (math.log(b) - x_low) / (x_high - x_low),
                HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log2(v) - y_low) / (y_high - y_low),
            )
            for b, v in line
            if math.isfinite(v) and v > 0
        ]
        path = " ".join(f"{format_coordinate(x)},{format_coordinate(y)}" for x, y in at)
        parts.append(Markup('<polyline class="s{}" points="{}"><title>{}</title></polyline>').format(k, path, name))
        if k:
            parts += [
                Markup('<circle class="s{}" cx="{}" cy="{}" r="2.6"/>').format(
                    k, format_coordinate(x), format_coordinate(y)
                )
                for x, y in at
            ]
    return assemble_figure(parts, "batch size B", "B_eff against the batch size for " + ", ".join(series))


def assemble_figure(parts: Sequence[Markup], x_title: str, label: str) -> Markup:
    """A figure of parts with a title under its axis; ``label`` is for who cannot see it."""
    title = Markup('<text class="title" x="{}" y="{}" text-anchor="middle">{}</text>').format(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_title
    )
    return Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join([*parts, title])
    )


def draw_horizontal_line(share: float, text: str) -> Markup:
    """A line across a figure at a share of its height, with its value on the left."""
    y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
    return Markup(
        '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{}</text>'
    ).format(
        LEFT, WIDTH - RIGHT, format_coordinate(y), format_coordinate(y), LEFT - 5, format_coordinate(y + 3.5), text
    )


def _draw_x_axis_text(share: float, text: str) -> Markup:
    x = LEFT + (WIDTH - LEFT - RIGHT) * share
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        format_coordinate(x), HEIGHT - BOTTOM + 13, "end" if share == 1 else "middle", text
    )


def format_coordinate(value: float) -> str:
    """A coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
