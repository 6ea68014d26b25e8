"""A comparison of arms in the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollonce.comparison import Analysis
from rollonce.reports.bars import encodable
from rollonce.reports.comparison_words import (
    bracket,
    comparison_verdict,
    count,
    left_out_lines,
    outcome,
    percent,
    percent_interval,
    points,
    rates_sentence,
    seconds,
    shadow_sentence,
)
from rollonce.reports.words import interval, number


def print_comparison(console: Console, analysis: Analysis) -> None:
    """Verdict, final accuracies with differences, time, what else there is in a sentence, and what could not be
    used."""
    verdict = comparison_verdict(analysis)

    def say(text: str, style: str = "") -> None:
        console.print(Text(encodable(console, text), style=style))

    console.print()
    say(verdict.headline, "bold")
    for line in verdict.more:
        say(line)
    for mode in analysis.modes:
        console.print()
        split = "hold-out" if analysis.final_split == "holdout" else "test"
        say(f"Final accuracy, {mode}, {analysis.n_items} {split} items", "dim")
        console.print(_finals(console, analysis, mode))
    say("95% intervals over seeds and items; coloured: p < .05 after Holm's correction.", "dim")
    console.print()
    console.print(_costs(console, analysis))
    for line in [shadow_sentence(analysis), *rates_sentence(analysis)]:
        if line:
            console.print()
            say(line)
    for note in analysis.notes:
        say(f"Note: {note}", "yellow")
    for line in left_out_lines(analysis):
        say(f"Not used: {line}", "yellow")


def _finals(console: Console, analysis: Analysis, mode: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("arm", overflow="fold", max_width=28)
    table.add_column("seeds", justify="right")
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("95%", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("95%", no_wrap=True)
    gaps = {d.arm: d for d in analysis.differences}
    for arm in analysis.arms:
        level, d = arm.final[mode].estimate, gaps.get(arm.name)
        cells = [arm.name, str(len(arm.seeds)), percent(level.value), percent_interval(level)]
        style = ""
        if d is None:
            cells += ["", "reference"]
        else:
            style = {"better": "green", "worse": "red"}.get(outcome(d, mode), "")
            cells += [points(d.final[mode].estimate.value), bracket(d.final[mode].estimate)]
        table.add_row(*(Text(encodable(console, c), style=style if i >= 4 else "") for i, c in enumerate(cells)))
    return table


def _costs(console: Console, analysis: Analysis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("arm", overflow="fold", max_width=28)
    heads = [f"{analysis.clock} a step", "critic", "x ref.", "95%"]
    if analysis.reach:
        heads += [f"to {percent(analysis.reach.level)}", "time"]
    for head in heads:
        table.add_column(head, justify="left" if head == "95%" else "right", no_wrap=True)
    for arm in analysis.arms:
        ratio = arm.times.ratio
        relative = [number(ratio.value), interval(ratio)] if math.isfinite(ratio.value) else ["", ""]
        cells = [arm.name, seconds(sum(arm.times.per_step.values())), percent(arm.times.shares["critic"]), *relative]
        if analysis.reach:
            cells += [count(analysis.reach.rollouts[arm.name].median), seconds(analysis.reach.seconds[arm.name].median)]
        table.add_row(*(Text(encodable(console, c)) for c in cells))
    return table
