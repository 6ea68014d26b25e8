"""A comparison of arms in the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollonce.comparison import Analysis
from rollonce.reports.bars import replace_unencodable
from rollonce.reports.comparison_words import (
    classify_difference,
    describe_left_out_runs,
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


def print_comparison(console: Console, analysis: Analysis) -> None:
    """Verdict, final accuracies with differences, time, what else there is in a sentence, and what could not be
    used."""
    verdict = make_comparison_verdict(analysis)

    def print_encodable(text: str, style: str = "") -> None:
        console.print(Text(replace_unencodable(console, text), style=style))

    console.print()
    print_encodable(verdict.headline, "bold")
    for line in verdict.more:
        print_encodable(line)
    for mode in analysis.modes:
        console.print()
        split = "hold-out" if analysis.final_split == "holdout" else "test"
        print_encodable(f"Final accuracy, {mode}, {analysis.n_items} {split} items", "dim")
        console.print(_make_accuracy_table(console, analysis, mode))
    print_encodable("95% intervals over seeds and items; coloured: p < .05 after Holm's correction.", "dim")
    console.print()
    console.print(_make_cost_table(console, analysis))
    for line in [shadow_sentence(analysis), *learning_rate_sentences(analysis)]:
        if line:
            console.print()
            print_encodable(line)
    for note in analysis.notes:
        print_encodable(f"Note: {note}", "yellow")
    for line in describe_left_out_runs(analysis):
        print_encodable(f"Not used: {line}", "yellow")


def _make_accuracy_table(console: Console, analysis: Analysis, mode: str) -> Table:
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
        cells = [arm.name, str(len(arm.seeds)), format_percent(level.value), format_percent_interval(level)]
        style = ""
        if d is None:
            cells += ["", "reference"]
        else:
            style = {"better": "green", "worse": "red"}.get(classify_difference(d, mode), "")
            cells += [
                format_signed_points(d.final[mode].estimate.value),
                format_points_interval(d.final[mode].estimate),
            ]
        table.add_row(
            *(Text(replace_unencodable(console, c), style=style if i >= 4 else "") for i, c in enumerate(cells))
        )
    return table


def _make_cost_table(console: Console, analysis: Analysis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("arm", overflow="fold", max_width=28)
    heads = [f"{analysis.clock} a step", "critic", "x ref.", "95%"]
    if analysis.reach:
        heads += [f"to {format_percent(analysis.reach.level)}", "time"]
    for head in heads:
        table.add_column(head, justify="left" if head == "95%" else "right", no_wrap=True)
    for arm in analysis.arms:
        ratio = arm.times.ratio
        relative = [format_number(ratio.value), format_interval(ratio)] if math.isfinite(ratio.value) else ["", ""]
        cells = [
            arm.name,
            format_seconds(sum(arm.times.per_step.values())),
            format_percent(arm.times.shares["critic"]),
            *relative,
        ]
        if analysis.reach:
            cells += [
                format_rollout_count(analysis.reach.rollouts[arm.name].median),
                format_seconds(analysis.reach.seconds[arm.name].median),
            ]
        table.add_row(*(Text(replace_unencodable(console, c)) for c in cells))
    return table
