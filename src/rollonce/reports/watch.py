"""The ranking of a training log in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rollonce.reports.bars import (
    can_encode_bars,
    choose_bar_range,
    draw_bar_as_text,
    draw_bar_axis,
    replace_unencodable,
)
from rollonce.reports.words import choose_decimals, format_interval, format_number, format_with_interval
from rollonce.scoring import WatchScore


def make_watch_view(console: Console, name: str, scores: Sequence[WatchScore]) -> Group:
    """Ratios to LOO over all steps with bars, and over the newest 20."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("baseline", overflow="fold", max_width=None if console.width > 110 else 25)
    for column in ("E[A^2]", "x LOO"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("95%", no_wrap=True)
    table.add_column("last 20", justify="right", no_wrap=True)
    predicted = any(s.progress is not None for s in scores)
    if predicted:
        table.add_column("progress / LOO", justify="right", no_wrap=True)
    size = max(9, min(41, console.width - (90 if predicted else 70)))
    low, high = choose_bar_range(scores)
    table.add_column(draw_bar_axis(low, high, size), no_wrap=True, min_width=size)
    for score in scores:
        ratio = score.ratio
        style = "green" if ratio.low > 1 else "red" if ratio.high < 1 else ""
        cells = [
            f"{score.mean_squared_advantage:.4g}",
            format_number(ratio.value, choose_decimals(ratio)),
            format_interval(ratio),
            format_number(score.recent),
        ]
        if predicted:
            cells.append(format_with_interval(score.progress) if score.progress is not None else "-")
        bar = Text(draw_bar_as_text(ratio, low, high, size, can_encode_bars(console)), style=style)
        label = score.label + ("*" if score.scored_as else "")
        table.add_row(
            Text(replace_unencodable(console, label)), *(Text(replace_unencodable(console, c)) for c in cells), bar
        )
    heading = Text.assemble(
        (replace_unencodable(console, name), "bold"), (f"  {scores[0].steps} steps, {scores[0].rows} rollouts", "dim")
    )
    own_reward = Text("* counts its own reward; scored as its leave-one-out twin", style="dim")
    return Group(heading, table, *([own_reward] if any(s.scored_as for s in scores) else []))


def describe_step_leader(scores: Sequence[WatchScore]) -> str:
    """The same in one line, for logs: which baseline is ahead after this step."""
    best = scores[0]
    return f"step {best.steps}: {best.label} ahead, {best.ratio.value:.3f} x LOO (last 20 steps: {best.recent:.3f})"
