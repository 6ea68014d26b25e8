"""A comparison of arms as one HTML page: no scripts, no fonts, no requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from rollonce import __version__
from rollonce.comparison import Analysis, ArmSummary
from rollonce.files import write_whole_file
from rollonce.reports import svg
from rollonce.reports.comparison_svg import Line, chart, linear_scale, seed_bar, stack
from rollonce.reports.comparison_words import (
    bracket,
    comparison_verdict,
    count,
    left_out_lines,
    outcome,
    percent,
    percent_interval,
    points,
    rate,
    rates_sentence,
    seconds,
    shadow_sentence,
)
from rollonce.reports.html import page_environment
from rollonce.reports.page import kind_of
from rollonce.reports.words import interval, number
from rollonce.run_directory import PARTS
from rollonce.scoring import Estimate

COLOURS = 10
_SHORT = {
    "baseline_outcome_correlation": "correlation of baseline and outcome",
    "advantage_var": "variance of advantages",
    "tokens": "tokens a step",
    "truncated": "truncated in training",
}


class ArmRow(NamedTuple):
    """An arm's line in the table of final accuracies; ``kind`` colours the difference."""

    label: str
    sub: str
    kind: str
    reference: bool
    level: Markup
    level_text: str
    level_interval: str
    bar: Markup
    text: str
    interval: str


def write_comparison_page(path: str, analysis: Analysis, command: str) -> None:
    """Render the page and write it, whole or not at all.

    Raises:
        InputError: if it cannot be written.
    """
    write_whole_file(path, render_comparison(analysis, command))


def render_comparison(analysis: Analysis, command: str) -> str:
    """The page as text.

    Args:
        analysis: The comparison.
        command: What made it, shown at the end.
    """
    environment = page_environment()
    environment.globals.update(
        number=number, interval=interval, percent=percent, points=points, bracket=bracket,
        percent_interval=percent_interval, rate=rate,
        time=seconds, count=count, isnan=math.isnan, p_text=p_text,
    )  # fmt: skip
    lines = [Line(arm.name, k % COLOURS, [p.rollouts for p in arm.curve], [_times_100(p.level) for p in arm.curve])
             for k, arm in enumerate(analysis.arms)]  # fmt: skip
    by_seconds = [
        line._replace(x=[p.seconds for p in arm.curve], name=arm.name)
        for line, arm in zip(lines, analysis.arms, strict=True)
    ]
    clock = "CPU" if analysis.clock == "cpu" else "Wall-clock"
    names = ", ".join(a.name for a in analysis.arms)
    return environment.get_template("comparison.html").render(
        title=f"{len(analysis.arms)} arms compared",
        a=analysis,
        verdict=comparison_verdict(analysis),
        tables=[_table(analysis, mode) for mode in analysis.modes],
        seeds=_span([len(a.seeds) for a in analysis.arms]),
        steps=_span([a.steps for a in analysis.arms]),
        rollouts=_span([round(a.curve[-1].rollouts) for a in analysis.arms]),
        wanted=number(100 * analysis.settings.difference, 1).removesuffix(".0"),
        pairings=_pairings(analysis),
        curves=chart(lines, "rollouts", f"Learning curves against rollouts of {names}"),
        curves_seconds=chart(by_seconds, f"{clock} seconds", f"Learning curves against {clock} seconds of {names}"),
        legend=[(line.name, line.colour) for line in lines],
        clock=clock,
        families=_families(analysis),
        n_cells=len(analysis.families) * len(analysis.differences),
        parts=PARTS,
        times=_times(analysis),
        rate_lines=rates_sentence(analysis),
        **_shadow(analysis),
        **_rates(analysis),
        **_inside(analysis),
        left_out=left_out_lines(analysis),
        command=command,
        version=__version__,
    )


def p_text(p: float) -> str:
    """A p value as people write it."""
    return "-" if math.isnan(p) else "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _times_100(e: Estimate) -> Estimate:
    return Estimate(*(100 * v for v in e))


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _table(analysis: Analysis, mode: str) -> dict[str, Any]:
    levels = {a.name: _times_100(a.final[mode].estimate) for a in analysis.arms}
    gaps = {d.arm: _times_100(d.final[mode].estimate) for d in analysis.differences}
    ticks = [Estimate(100 * v, math.nan, math.nan) for a in analysis.arms for v in a.by_seed[mode]]
    # With two seeds an interval can be as wide as everything there is; the scale keeps to what can be read.
    middle = [e.value for e in levels.values()]
    room = max(15.0, max(middle) - min(middle))
    level_scale = linear_scale(
        [Estimate(e.value, max(e.low, min(middle) - room), min(e.high, max(middle) + room)) for e in levels.values()]
        + ticks
    )
    widest = max((abs(e.value) for e in gaps.values()), default=1.0)
    scale = linear_scale(list(gaps.values()), zero=True, cap=max(3 * widest, 10.0))
    kinds = {d.arm: {"better": "won", "worse": "lost"}.get(outcome(d, mode), "even") for d in analysis.differences}
    rows = []
    for arm in analysis.arms:
        level, gap, kind = levels[arm.name], gaps.get(arm.name), kinds.get(arm.name, "even")
        rows.append(
            ArmRow(
                label=arm.name,
                sub=_sub(arm),
                kind=kind,
                reference=gap is None,
                level=seed_bar(level, [100 * v for v in arm.by_seed[mode]], level_scale),
                level_text=percent(level.value / 100),
                level_interval=percent_interval(Estimate(*(v / 100 for v in level))),
                bar=Markup("") if gap is None else svg.interval_bar(gap, scale, kind),
                text="" if gap is None else points(gap.value / 100),
                interval="" if gap is None else bracket(Estimate(*(v / 100 for v in gap))),
            )
        )
    return {
        "mode": mode,
        "rows": rows,
        "level_axis": svg.axis(level_scale),
        "axis": svg.axis(scale),
        "zero": scale.at(0.0),
    }


def _sub(arm: ArmSummary) -> str:
    groups = f"{arm.tasks_per_step:g} tasks × {arm.group_size}" if arm.group_size > 1 else ""
    chosen = f"at {rate(arm.rate)}" if arm.how else ""
    return ", ".join(filter(None, (groups, chosen)))


def _pairings(analysis: Analysis) -> list[tuple[str, str]]:
    by_why: dict[str, list[str]] = {}
    for d in analysis.differences:
        by_why.setdefault(d.why, []).append(d.arm)
    return [(why, ", ".join(arms)) for why, arms in by_why.items()]


def _cell(text: str, value: float, full: float, kind: str, title: str) -> dict[str, str]:
    strength = 0.0 if math.isnan(value) else min(abs(value) / full, 1.0)
    return {
        "text": text,
        "way": "up" if value > 0 else "down",
        "kind": kind,
        "strength": f"{55 * strength:.0f}%",
        "interval": title,
    }


def _families(analysis: Analysis) -> list[dict[str, Any]]:
    if not analysis.differences:
        return []
    out = []
    for f in analysis.families:
        cells = []
        for d in analysis.differences:
            c = f.cells[d.arm]
            sure = "won" if c.p_holm < 0.05 else ""
            cells.append(_cell(points(c.difference.value, 0), c.difference.value, 0.3, sure, bracket(c.difference)))
        level = f.cells[analysis.reference].level.value
        out.append(
            {"family": f.family or "(none)", "n_items": f.n_items, "start": f.start, "level": level, "cells": cells}
        )
    return out


def _shadow(analysis: Analysis) -> dict[str, Any]:
    known = {k: v for k, v in analysis.shadow.items() if math.isfinite(v.value)}
    scale = svg.ratio_scale(list(known.values()))
    rows = []
    for label, ratio in sorted(known.items(), key=lambda x: -x[1].value):
        cells = []
        for arm in analysis.arms:
            own = arm.shadow.get(label, Estimate(math.nan, math.nan, math.nan))
            kind = kind_of(own)
            value = math.log(own.value) if own.value > 0 else math.nan
            cells.append(_cell(number(own.value), value, math.log(1.6), "" if kind == "even" else kind, interval(own)))
        bar = svg.interval_bar(ratio, scale, kind_of(ratio))
        rows.append({"label": label, "ratio": ratio, "kind": kind_of(ratio), "bar": bar, "cells": cells})
    return {
        "shadow": rows,
        "shadow_axis": svg.axis(scale),
        "shadow_one": scale.at(1.0),
        "shadow_sentence": shadow_sentence(analysis),
    }


def _times(analysis: Analysis) -> list[dict[str, Any]]:
    longest = max(sum(a.times.per_step.values()) for a in analysis.arms)
    out = []
    for a in analysis.arms:
        ratio = a.times.ratio
        text = f"× {number(ratio.value)} {interval(ratio)}" if math.isfinite(ratio.value) else ""
        out.append(
            {
                "name": a.name,
                "bar": stack(a.times.per_step, longest),
                "total": sum(a.times.per_step.values()),
                "ratio": text,
            }
        )
    return out


def _rates(analysis: Analysis) -> dict[str, Any]:
    if not analysis.rates:
        return {"rates_figure": "", "rates_legend": []}
    names = [a.name for a in analysis.arms]
    lines = [
        Line(
            c.base,
            names.index(c.base) % COLOURS,
            [p.rate for p in c.points],
            [_times_100(p.final.estimate) for p in c.points],
        )
        for c in analysis.rates
        if all(p.rate > 0 for p in c.points)
    ]
    marks = sorted({x for line in lines for x in line.x})
    if len(marks) > 6:
        marks = marks[:: math.ceil(len(marks) / 6)]
    figure = (
        chart(lines, "learning rate", "Final accuracy against learning rate", log=True, marks=marks) if lines else ""
    )
    return {"rates_figure": figure, "rates_legend": [(line.name, line.colour) for line in lines]}


def _inside(analysis: Analysis) -> dict[str, Any]:
    names = [
        n
        for n in dict.fromkeys(n for a in analysis.arms for n in a.inside)
        if any(math.isfinite(a.inside.get(n, math.nan)) for a in analysis.arms)
    ]
    rows = []
    for arm in analysis.arms:
        values = [arm.inside.get(n, math.nan) for n in names]
        rows.append((arm, ["-" if math.isnan(v) else f"{v:.3g}".replace("-", "−") for v in values]))
    return {"inside": rows if names else [], "inside_names": [_SHORT.get(n, n.replace("_", " ")) for n in names]}
