"""A comparison of arms as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollonce import __version__
from rollonce.comparison import Analysis
from rollonce.reports.comparison_page import p_text
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
from rollonce.reports.words import interval, number
from rollonce.run_directory import PARTS


def comparison_markdown(analysis: Analysis, command: str) -> str:
    """The whole comparison, for a repository or an issue."""
    verdict = comparison_verdict(analysis)
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
                {"better": "above", "worse": "below", "even": "not told apart"}.get(outcome(d, mode), "")
                if d
                else "reference"
            )
            rows.append(
                [
                    arm.name,
                    str(len(arm.seeds)),
                    f"{percent(level.value)} {percent_interval(level)}",
                    f"{points(gap.value)} {bracket(gap)}" if gap else "",
                    p_text(d.p_holm[mode]) if d else "",
                    told,
                ]
            )
        out += _table(["arm", "seeds", "accuracy, 95%", f"points to {analysis.reference}, 95%", "p (Holm)", ""], rows)
    if analysis.differences:
        out += ["", f"## In more ways ({analysis.modes[0]})", ""]
        rows = [
            [
                d.arm,
                f"{points(d.iqm.value)} {bracket(d.iqm)}",
                f"{percent(d.improvement.value, 0)} {percent_interval(d.improvement)}",
                f"{points(d.area.estimate.value)} {bracket(d.area.estimate)}",
                "-" if math.isnan(d.smallest) else points(d.smallest),
                str(d.seeds_needed or ("-" if math.isnan(d.smallest) else "more items")),
                d.why,
            ]
            for d in analysis.differences
        ]
        wanted = number(100 * analysis.settings.difference, 1).removesuffix(".0")
        heads = [
            "arm",
            "interquartile mean",
            "chance to end above",
            "area under the curve",
            "told apart at",
            f"seeds for {wanted} points",
            "pairing",
        ]
        out += _table(heads, rows)
    if analysis.reach:
        out += ["", f"## To reach {percent(analysis.reach.level)} ({analysis.reach.why})", ""]
        rows = [
            [
                name,
                f"{r.n_reached} of {r.n_runs}",
                count(r.median),
                f"{number(r.ratio.value)} {interval(r.ratio)}",
                seconds(s.median),
                f"{number(s.ratio.value)} {interval(s.ratio)}",
            ]
            for name, r in analysis.reach.rollouts.items()
            for s in [analysis.reach.seconds[name]]
        ]
        relative = f"× {analysis.reference}, within the horizon"
        out += _table(
            ["arm", "runs that did", "rollouts (median)", relative, f"{analysis.clock} time (median)", relative], rows
        )
    if analysis.families and analysis.differences:
        out += ["", f"## Families: {analysis.reference}, and points to it", ""]
        rows = []
        for f in analysis.families:
            cells = []
            for d in analysis.differences:
                c = f.cells[d.arm]
                text = points(c.difference.value, 0)
                cells.append(f"**{text}**" if c.p_holm < 0.05 else text)
            rows.append(
                [
                    f.family,
                    str(f.n_items),
                    percent(f.start, 0),
                    percent(f.cells[analysis.reference].level.value, 0),
                    *cells,
                ]
            )
        out += _table(["family", "items", "start", analysis.reference, *(d.arm for d in analysis.differences)], rows)
        out += ["", "Bold: p < .05 after Holm's correction over the whole table."]
    if analysis.shadow:
        out += ["", "## B_eff relative to LOO, measured in training", "", shadow_sentence(analysis), ""]
        ordered = sorted(analysis.shadow.items(), key=lambda x: -x[1].value)
        out += _table(
            ["scored alongside", "ratio to LOO, 95%"], [[k, f"{number(v.value)} {interval(v)}"] for k, v in ordered]
        )
    out += ["", f"## Where the time goes ({analysis.clock} seconds)", ""]
    rows = [
        [
            a.name,
            seconds(sum(a.times.per_step.values())),
            *(percent(a.times.shares[p]) for p in PARTS),
            f"{number(a.times.ratio.value)} {interval(a.times.ratio)}",
        ]
        for a in analysis.arms
    ]
    out += _table(["arm", "a step", *PARTS, f"× {analysis.reference} a rollout"], rows)
    if analysis.rates:
        out += ["", "## Learning rates", "", *(f"* {line}" for line in rates_sentence(analysis)), ""]
        rows = [
            [
                c.base,
                rate(p.rate) + (" (chosen)" if p.arm == c.chosen else ""),
                f"{percent(p.final.estimate.value)} {percent_interval(p.final.estimate)}",
                percent(p.holdout),
                f"{p.n_collapsed} of {p.n_runs}",
            ]
            for c in analysis.rates
            for p in c.points
        ]
        out += _table(["arm", "rate", "final, 95%", "hold-out", "collapsed"], rows)
    if analysis.notes or analysis.left_out:
        out += ["", "## To know", "", *(f"* {note}" for note in analysis.notes)]
        out += [f"* Not used: {line}" for line in left_out_lines(analysis)]
    out += ["", f"Made by `{command}` (rollonce {__version__}).", ""]
    return "\n".join(out)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").strip() for c in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]
