"""How the arms of an experiment trained, step by step: read back from the run's directory, and drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from rollonce.experiments.records import Record
from rollonce.experiments.stages.executed import read_executed_steps
from rollonce.reports.comparison_svg import choose_round_marks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 200, 40, 8, 10, 30


class Trace(NamedTuple):
    """One arm's training, one value per step."""

    arm: str
    steps: list[int]
    reward: list[float]
    spread: list[float]
    loo_spread: list[float]
    gap: list[float]
    advantage_sd: list[float]


def read_training_trace(directory: Path, record: Record) -> Trace:
    """Reward, and how the baseline and the LOO mean spread over the tasks of a step (their means are the mean reward,
    or near it)."""
    name = record.stage.partition(":")[2]
    steps = read_executed_steps(directory / f"arms/{name}.steps.jsonl")
    out = Trace(name, [], [], [], [], [], [])
    for s in steps:
        r, b, a = (np.asarray(x, dtype=np.float64) for x in (s.rewards, s.baselines, s.advantages))
        loo = (r.sum() - r) / max(len(r) - 1, 1)
        out.steps.append(s.step)
        values = (r.mean(), b.std(), loo.std(), np.abs(b - loo).mean(), a.std())
        series = (out.reward, out.spread, out.loo_spread, out.gap, out.advantage_sd)
        for line, value in zip(series, values, strict=True):
            line.append(float(value))
    return out


def make_training_figures(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    if not traces:
        return []
    names = [t.arm for t in traces]
    out = [
        _make_titled_figure(
            "Mean reward of each step",
            [compute_running_mean(t.reward) for t in traces],
            names,
            "training reward, mean of five steps",
        ),
        _make_titled_figure(
            "Mean |b − LOO mean|",
            [t.gap for t in traces],
            names,
            "how far the arm's baseline lies from a plain leave-one-out mean",
        ),
        _make_titled_figure(
            "Standard deviation of the advantages",
            [t.advantage_sd for t in traces],
            names,
            "what the update is scaled by",
        ),
    ]
    for t in traces:
        about = "standard deviation over the tasks of a step: how far each tells tasks apart"
        out.append(
            _make_titled_figure(
                f"{t.arm}: spread of b and of the LOO mean", [t.spread, t.loo_spread], ["b", "LOO mean"], about
            )
        )
    return out


def compute_running_mean(values: Sequence[float], over: int = 5) -> list[float]:
    """Mean of the last ``over`` values at each step."""
    return [float(np.mean(values[max(0, i - over + 1) : i + 1])) for i in range(len(values))]


def _make_titled_figure(
    title: str, series: Sequence[Sequence[float]], names: Sequence[str], about: str
) -> dict[str, Any]:
    return {"title": title, "about": about, "names": list(names), "svg": draw_line_chart(series, title)}


def draw_line_chart(series: Sequence[Sequence[float]], label: str) -> Markup:
    """Values by step, one line per series."""
    points = [v for s in series for v in s if math.isfinite(v)]
    n = max((len(s) for s in series), default=0)
    if not points or n == 0:
        return Markup("")
    low, high = min(points), max(points)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    x = lambda i: LEFT + (WIDTH - LEFT - RIGHT) * (i / max(n - 1, 1))  # noqa: E731
    y = lambda v: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (v - low) / (high - low)  # noqa: E731
    parts = []
    for v in choose_round_marks(low, high):
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, y(v), y(v), LEFT - 5, y(v) + 3.5, f"{v:g}")
        )
    for i in sorted({0, (n - 1) // 2, n - 1}):
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x(i), HEIGHT - BOTTOM + 13, i + 1)
        )
    for k, s in enumerate(series):
        path = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(s) if math.isfinite(v))
        parts.append(Markup('<polyline class="s{}" points="{}"/>').format(k % 3 + 1, path))
    parts.append(
        Markup('<text class="title" x="{}" y="{}" text-anchor="middle">step</text>').format(
            (LEFT + WIDTH) / 2, HEIGHT - 2
        )
    )
    return Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join(parts)
    )
