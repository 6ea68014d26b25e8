"""A comparison of arms as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollonce import __version__
from rollonce.comparison import Analysis
from rollonce.reports.comparison_page import format_p_value
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
from rollonce.reports.words import format_interval, format_number
from rollonce.run_directory import PARTS


def render_comparison_markdown(analysis: Analysis, command: str) -> str:
    """The whole comparison, for a repository or an issue."""
    verdict = make_comparison_verdict(analysis)
    out = [f"# {verdict.headline}", ""]
    out += [f"* {line}" for line in verdict.more]
    split = "hold-out" if analysis.final_split == "holdout" else "test"
    for mode in analysis.modes:
        out += ["", f"## Final accuracy, {mode} ({analysis.n_items} {split} items)", ""]
        gaps = {d.arm: d for d in analysis.differences}
        rows = []
        for arm in analysis.arms:
            level, d = arm.final[mode].estimate, gaps.get(arm.name)
            gap = d.final[mode].estimate if d else None
            told = (
                {"better": "above", "worse": "below", "even": "not told apart"}.get(classify_difference(d, mode), "")
                if d
                else "reference"
            )
            rows.append(
                [
                    arm.name,
                    str(len(arm.seeds)),
                    f"{format_percent(level.value)} {format_percent_interval(level)}",
                    f"{format_signed_points(gap.value)} {format_points_interval(gap)}" if gap else "",
                    format_p_value(d.p_holm[mode]) if d else "",
                    told,
                ]
            )
        out += _format_markdown_table(
            ["arm", "seeds", "accuracy, 95%", f"points to {analysis.reference}, 95%", "p (Holm)", ""], rows
        )
    if analysis.differences:
        out += ["", f"## In more ways ({analysis.modes[0]})", ""]
        rows = [
            [
                d.arm,
                f"{format_signed_points(d.iqm.value)} {format_points_interval(d.iqm)}",
                f"{format_percent(d.improvement.value, 0)} {format_percent_interval(d.improvement)}",
                f"{format_signed_points(d.area.estimate.value)} {format_points_interval(d.area.estimate)}",
                "-" if math.isnan(d.smallest) else format_signed_points(d.smallest),
                str(d.seeds_needed or ("-" if math.isnan(d.smallest) else "more items")),
                d.why,
            ]
            for d in analysis.differences
        ]
        wanted = format_number(100 * analysis.settings.difference, 1).removesuffix(".0")
        heads = [
            "arm",
            "interquartile mean",
            "chance to end above",
            "area under the curve",
            "told apart at",
            f"seeds for {wanted} points",
            "pairing",
        ]
        out += _format_markdown_table(heads, rows)
    if analysis.reach:
        out += ["", f"## To reach {format_percent(analysis.reach.level)} ({analysis.reach.why})", ""]
        rows = [
            [
                name,
                f"{r.n_reached} of {r.n_runs}",
                format_rollout_count(r.median),
                f"{format_number(r.ratio.value)} {format_interval(r.ratio)}",
                format_seconds(s.median),
                f"{format_number(s.ratio.value)} {format_interval(s.ratio)}",
            ]
            for name, r in analysis.reach.rollouts.items()
            for s in [analysis.reach.seconds[name]]
        ]
        relative = f"× {analysis.reference}, within the horizon"
        out += _format_markdown_table(
            ["arm", "runs that did", "rollouts (median)", relative, f"{analysis.clock} time (median)", relative], rows
        )
    if analysis.families and analysis.differences:
        out += ["", f"## Families: {analysis.reference}, and points to it", ""]
        rows = []
        for f in analysis.families:
            cells = []
            for d in analysis.differences:
                c = f.cells[d.arm]
                text = format_signed_points(c.difference.value, 0)
                cells.append(f"**{text}**" if c.p_holm < 0.05 else text)
            rows.append(
                [
                    f.family,
                    str(f.n_items),
                    format_percent(f.start, 0),
                    format_percent(f.cells[analysis.reference].level.value, 0),
                    *cells,
                ]
            )
        out += _format_markdown_table(
            ["family", "items", "start", analysis.reference, *(d.arm for d in analysis.differences)], rows
        )
        out += ["", "Bold: p < .05 after Holm's correction over the whole table."]
    if analysis.shadow:
        out += ["", "## B_eff relative to LOO, measured in training", "", shadow_sentence(analysis), ""]
        ordered = sorted(analysis.shadow.items(), key=lambda x: -x[1].value)
        out += _format_markdown_table(
            ["scored alongside", "ratio to LOO, 95%"],
            [[k, f"{format_number(v.value)} {format_interval(v)}"] for k, v in ordered],
        )
    out += ["", f"## Where the time goes ({analysis.clock} seconds)", ""]
    rows = [
        [
            a.name,
            format_seconds(sum(a.times.per_step.values())),
            *(format_percent(a.times.shares[p]) for p in PARTS),
            f"{format_number(a.times.ratio.value)} {format_interval(a.times.ratio)}",
        ]
        for a in analysis.arms
    ]
    out += _format_markdown_table(["arm", "a step", *PARTS, f"× {analysis.reference} a rollout"], rows)
    if analysis.rates:
        out += ["", "## Learning rates", "", *(f"* {line}" for line in learning_rate_sentences(analysis)), ""]
        rows = [
            [
                c.base,
                format_learning_rate(p.rate) + (" (chosen)" if p.arm == c.chosen else ""),
                f"{format_percent(p.final.estimate.value)} {format_percent_interval(p.final.estimate)}",
                format_percent(p.holdout),
                f"{p.n_collapsed} of {p.n_runs}",
            ]
            for c in analysis.rates
            for p in c.points
        ]
        out += _format_markdown_table(["arm", "rate", "final, 95%", "hold-out", "collapsed"], rows)
    if analysis.notes or analysis.left_out:
        out += ["", "## To know", "", *(f"* {note}" for note in analysis.notes)]
        out += [f"* Not used: {line}" for line in describe_left_out_runs(analysis)]
    out += ["", f"Made by `{command}` (rollonce {__version__}).", ""]
    return "\n".join(out)


def _format_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def format_table_line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").strip() for c in cells) + " |"

    return [format_table_line(head), "|" + "---|" * len(head), *map(format_table_line, rows)]
