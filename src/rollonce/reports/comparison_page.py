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
from rollonce.reports.comparison_svg import (
    Line,
    draw_bar_with_seeds,
    draw_level_chart,
    draw_stacked_times,
    make_linear_scale,
)
from rollonce.reports.comparison_words import (
    classify_difference,
    describe_left_out_runs,
    format_learning_rate,
    format_percent,
    format_percent_interval,
    format_points_interval,
    format_rollout_count,
    format_seconds,
    format_signed_points,
    learning_rate_sentences,
    make_comparison_verdict,
    shadow_sentence,
)
from rollonce.reports.html import make_page_environment
from rollonce.reports.page import classify_ratio
from rollonce.reports.words import format_interval, format_number
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
    write_whole_file(path, render_comparison_page(analysis, command))


def render_comparison_page(analysis: Analysis, command: str) -> str:
    """The page as text.

    Args:
        analysis: The comparison.
        command: What made it, shown at the end.
    """
    environment = make_page_environment()
    environment.globals.update(
        number=format_number, interval=format_interval, percent=format_percent, points=format_signed_points,
        bracket=format_points_interval, percent_interval=format_percent_interval, rate=format_learning_rate,
        time=format_seconds, count=format_rollout_count, isnan=math.isnan, p_text=format_p_value,
    )  # fmt: skip
    lines = [
        Line(arm.name, k % COLOURS, [p.rollouts for p in arm.curve], [_scale_to_percent(p.level) for p in arm.curve])
        for k, arm in enumerate(analysis.arms)
    ]
    by_seconds = [
        line._replace(x=[p.seconds for p in arm.curve], name=arm.name)
        for line, arm in zip(lines, analysis.arms, strict=True)
    ]
    clock = "CPU" if analysis.clock == "cpu" else "Wall-clock"
    names = ", ".join(a.name for a in analysis.arms)
    return environment.get_template("comparison.html").render(
        title=f"{len(analysis.arms)} arms compared",
        a=analysis,
        verdict=make_comparison_verdict(analysis),
        tables=[_make_accuracy_section(analysis, mode) for mode in analysis.modes],
        seeds=_format_value_range([len(a.seeds) for a in analysis.arms]),
        steps=_format_value_range([a.steps for a in analysis.arms]),
        rollouts=_format_value_range([round(a.curve[-1].rollouts) for a in analysis.arms]),
        wanted=format_number(100 * analysis.settings.difference, 1).removesuffix(".0"),
        pairings=_group_arms_by_pairing(analysis),
        curves=draw_level_chart(lines, "rollouts", f"Learning curves against rollouts of {names}"),
        curves_seconds=draw_level_chart(
            by_seconds, f"{clock} seconds", f"Learning curves against {clock} seconds of {names}"
        ),
        legend=[(line.name, line.colour) for line in lines],
        clock=clock,
        families=_make_family_rows(analysis),
        n_cells=len(analysis.families) * len(analysis.differences),
        parts=PARTS,
        times=_make_time_rows(analysis),
        rate_lines=learning_rate_sentences(analysis),
        **_make_shadow_section(analysis),
        **_make_rates_section(analysis),
        **_make_diagnostics_section(analysis),
        left_out=describe_left_out_runs(analysis),
        command=command,
        version=__version__,
    )


def format_p_value(p: float) -> str:
    """A p value as people write it."""
    return "-" if math.isnan(p) else "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _scale_to_percent(e: Estimate) -> Estimate:
    return Estimate(*(100 * v for v in e))


def _format_value_range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _make_accuracy_section(analysis: Analysis, mode: str) -> dict[str, Any]:
    levels = {a.name: _scale_to_percent(a.final[mode].estimate) for a in analysis.arms}
    gaps = {d.arm: _scale_to_percent(d.final[mode].estimate) for d in analysis.differences}
    ticks = [Estimate(100 * v, math.nan, math.nan) for a in analysis.arms for v in a.by_seed[mode]]
    # With two seeds an interval can be as wide as everything there is; the scale keeps to what can be read.
    middle = [e.value for e in levels.values()]
    room = max(15.0, max(middle) - min(middle))
    level_scale = make_linear_scale(
        [Estimate(e.value, max(e.low, min(middle) - room), min(e.high, max(middle) + room)) for e in levels.values()]
        + ticks
    )
    widest = max((abs(e.value) for e in gaps.values()), default=1.0)
    scale = make_linear_scale(list(gaps.values()), zero=True, cap=max(3 * widest, 10.0))
    kinds = {
        d.arm: {"better": "won", "worse": "lost"}.get(classify_difference(d, mode), "even")
        for d in analysis.differences
    }
    rows = []
    for arm in analysis.arms:
        level, gap, kind = levels[arm.name], gaps.get(arm.name), kinds.get(arm.name, "even")
        rows.append(
            ArmRow(
                label=arm.name,
                sub=_describe_arm_setup(arm),
                kind=kind,
                reference=gap is None,
                level=draw_bar_with_seeds(level, [100 * v for v in arm.by_seed[mode]], level_scale),
                level_text=format_percent(level.value / 100),
                level_interval=format_percent_interval(Estimate(*(v / 100 for v in level))),
                bar=Markup("") if gap is None else svg.draw_interval_bar(gap, scale, kind),
                text="" if gap is None else format_signed_points(gap.value / 100),
                interval="" if gap is None else format_points_interval(Estimate(*(v / 100 for v in gap))),
            )
        )
    return {
        "mode": mode,
        "rows": rows,
        "level_axis": svg.draw_scale_axis(level_scale),
        "axis": svg.draw_scale_axis(scale),
        "zero": scale.position_in_percent(0.0),
    }


def _describe_arm_setup(arm: ArmSummary) -> str:
    groups = f"{arm.tasks_per_step:g} tasks × {arm.group_size}" if arm.group_size > 1 else ""
    chosen = f"at {format_learning_rate(arm.rate)}" if arm.how else ""
    return ", ".join(filter(None, (groups, chosen)))


def _group_arms_by_pairing(analysis: Analysis) -> list[tuple[str, str]]:
    by_why: dict[str, list[str]] = {}
    for d in analysis.differences:
        by_why.setdefault(d.why, []).append(d.arm)
    return [(why, ", ".join(arms)) for why, arms in by_why.items()]


def _make_coloured_cell(text: str, value: float, full: float, kind: str, title: str) -> dict[str, str]:
    strength = 0.0 if math.isnan(value) else min(abs(value) / full, 1.0)
    return {
        "text": text,
        "way": "up" if value > 0 else "down",
        "kind": kind,
        "strength": f"{55 * strength:.0f}%",
        "interval": title,
    }


def _make_family_rows(analysis: Analysis) -> list[dict[str, Any]]:
    if not analysis.differences:
        return []
    out = []
    for f in analysis.families:
        cells = []
        for d in analysis.differences:
            c = f.cells[d.arm]
            sure = "won" if c.p_holm < 0.05 else ""
            cells.append(
                _make_coloured_cell(
                    format_signed_points(c.difference.value, 0),
                    c.difference.value,
                    0.3,
                    sure,
                    format_points_interval(c.difference),
                )
            )
        level = f.cells[analysis.reference].level.value
        out.append(
            {"family": f.family or "(none)", "n_items": f.n_items, "start": f.start, "level": level, "cells": cells}
        )
    return out


def _make_shadow_section(analysis: Analysis) -> dict[str, Any]:
    known = {k: v for k, v in analysis.shadow.items() if math.isfinite(v.value)}
    scale = svg.make_ratio_scale(list(known.values()))
    rows = []
    for label, ratio in sorted(known.items(), key=lambda x: -x[1].value):
        cells = []
        for arm in analysis.arms:
            own = arm.shadow.get(label, Estimate(math.nan, math.nan, math.nan))
            kind = classify_ratio(own)
            value = math.log(own.value) if own.value > 0 else math.nan
            cells.append(
                _make_coloured_cell(
                    format_number(own.value), value, math.log(1.6), "" if kind == "even" else kind, format_interval(own)
                )
            )
        bar = svg.draw_interval_bar(ratio, scale, classify_ratio(ratio))
        rows.append({"label": label, "ratio": ratio, "kind": classify_ratio(ratio), "bar": bar, "cells": cells})
    return {
        "shadow": rows,
        "shadow_axis": svg.draw_scale_axis(scale),
        "shadow_one": scale.position_in_percent(1.0),
        "shadow_sentence": shadow_sentence(analysis),
    }


def _make_time_rows(analysis: Analysis) -> list[dict[str, Any]]:
    longest = max(sum(a.times.per_step.values()) for a in analysis.arms)
    out = []
    for a in analysis.arms:
        ratio = a.times.ratio
        text = f"× {format_number(ratio.value)} {format_interval(ratio)}" if math.isfinite(ratio.value) else ""
        out.append(
            {
                "name": a.name,
                "bar": draw_stacked_times(a.times.per_step, longest),
                "total": sum(a.times.per_step.values()),
                "ratio": text,
            }
        )
    return out


def _make_rates_section(analysis: Analysis) -> dict[str, Any]:
    if not analysis.rates:
        return {"rates_figure": "", "rates_legend": []}
    names = [a.name for a in analysis.arms]
    lines = [
        Line(
            c.base,
            names.index(c.base) % COLOURS,
            [p.rate for p in c.points],
            [_scale_to_percent(p.final.estimate) for p in c.points],
        )
        for c in analysis.rates
        if all(p.rate > 0 for p in c.points)
    ]
    marks = sorted({x for line in lines for x in line.x})
    if len(marks) > 6:
        marks = marks[:: math.ceil(len(marks) / 6)]
    figure = (
        draw_level_chart(lines, "learning rate", "Final accuracy against learning rate", log=True, marks=marks)
        if lines
        else ""
    )
    return {"rates_figure": figure, "rates_legend": [(line.name, line.colour) for line in lines]}


def _make_diagnostics_section(analysis: Analysis) -> dict[str, Any]:
    names = [
        n
        for n in dict.fromkeys(n for a in analysis.arms for n in a.inside)
        if any(math.isfinite(a.inside.get(n, math.nan)) for a in analysis.arms)
    ]
    rows = []
    for arm in analysis.arms:
        values = [arm.inside.get(n, math.nan) for n in names]
        rows.append((arm, [_format_diagnostic(v) for v in values]))
    return {"inside": rows if names else [], "inside_names": [_SHORT.get(n, n.replace("_", " ")) for n in names]}


def _format_diagnostic(value: float) -> str:
    """Three digits, whole numbers from 100 on."""
    if math.isnan(value):
        return "-"
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")
