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


def print_comparison(console: Console, found: Analysis) -> None:
    """Verdict, final accuracies with differences, time, what else there is in a sentence, and what could not be
    used."""
    verdict = comparison_verdict(found)

    def say(text: str, style: str = "") -> None:
        console.print(Text(encodable(console, text), style=style))

    console.print()
    say(verdict.headline, "bold")
    for line in verdict.more:
        say(line)
    for mode in found.modes:
        console.print()
        say(
            f"Final accuracy, {mode}, {found.n_items} {'hold-out' if found.final_split == 'holdout' else 'test'} items",
            "dim",
        )
        console.print(_finals(console, found, mode))
    say("95% intervals over seeds and items; coloured: p < .05 after Holm's correction.", "dim")
    console.print()
    console.print(_costs(console, found))
    for line in [shadow_sentence(found), *rates_sentence(found)]:
        if line:
            console.print()
            say(line)
    for note in found.notes:
        say(f"Note: {note}", "yellow")
    for line in left_out_lines(found):
        say(f"Not used: {line}", "yellow")


def _finals(console: Console, found: Analysis, mode: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("arm", overflow="fold", max_width=28)
    table.add_column("seeds", justify="right")
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("95%", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("95%", no_wrap=True)
    gaps = {d.arm: d for d in found.differences}
    for arm in found.arms:
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


def _costs(console: Console, found: Analysis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("arm", overflow="fold", max_width=28)
    heads = [f"{found.clock} a step", "critic", "x ref.", "95%"]
    if found.reach:
        heads += [f"to {percent(found.reach.level)}", "time"]
    for head in heads:
        table.add_column(head, justify="left" if head == "95%" else "right", no_wrap=True)
    for arm in found.arms:
        ratio = arm.times.ratio
        relative = [number(ratio.value), interval(ratio)] if math.isfinite(ratio.value) else ["", ""]
        cells = [arm.name, seconds(sum(arm.times.per_step.values())), percent(arm.times.shares["critic"]), *relative]
        if found.reach:
            cells += [count(found.reach.rollouts[arm.name].median), seconds(found.reach.seconds[arm.name].median)]
        table.add_row(*(Text(encodable(console, c)) for c in cells))
    return table
