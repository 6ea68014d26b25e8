"""A board as a table in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollonce.reports.words import beats, interval, moments_sentence, number, precision, verdict
from rollonce.scoring import Board, Estimate, GroupScore, Score, WatchScore

GROUPS = (
    "Groups of G at the same {} rollouts (the B_eff is of their baseline alone). One rollout per task has the smaller "
    "gradient variance where rho, the between-task over the within-task gradient variance, is above the value given:"
)
_FANCY = {"line": "─", "dot": "●", "mark": "│", "low": "‹", "high": "›", "cross": "┼"}
_PLAIN = {"line": "-", "dot": "o", "mark": "|", "low": "<", "high": ">", "cross": "+"}


def print_board(console: Console, board: Board) -> None:
    """Headline, moments, the list, what stands apart, groups and notes."""
    words = verdict(board)
    console.print()
    console.print(Text(board.name, style="bold"), Text(f"  batches of {board.batch_size}", style="dim"))
    console.print(Text(words.headline, style="green" if words.apart else ""))
    for sentence in words.more:
        console.print(Text(sentence))
    console.print(Text(safe(console, moments_sentence(board)), style="dim"))
    console.print()
    levels = any(math.isfinite(s.b_eff.value) for s in board.scores)
    console.print(score_table(console, board.scores, levels))
    twins = [s for s in board.scores if s.scored_as]
    if twins:
        console.print(Text("* counts its own reward; scored as its leave-one-out twin", style="dim"))
    if board.apart:
        console.print()
        console.print(
            Text("Apart: these need the same task again, or extra rollouts. Ceilings, not choices.", style="dim")
        )
        console.print(score_table(console, board.apart, levels, board.scores))
    if board.groups and math.isfinite(board.groups[0].crossing):
        console.print()
        console.print(Text(GROUPS.format(board.batch_size), style="dim"))

        console.print(group_table(board.groups))
    for note in board.notes:
        console.print(
            Padding(Text(f"Note: {safe(console, note)}", style="yellow"), (1 if note is board.notes[0] else 0, 0, 0, 0))
        )


def score_table(
    console: Console, scores: Sequence[Score], levels: bool, scale_of: Sequence[Score] | None = None
) -> Table:
    """Baselines with B_eff, ratio to LOO and the ratio's interval as a bar with a mark at 1."""
    width = console.width
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
    table.add_column(
        "baseline", ratio=1 if width > 110 else None, overflow="fold", max_width=None if width > 110 else 24
    )
    if levels:
        table.add_column("B_eff", justify="right", no_wrap=True)
        table.add_column("95%", no_wrap=True)
    else:
        table.add_column("E[A^2]", justify="right", no_wrap=True)
    table.add_column("x LOO", justify="right", no_wrap=True)
    table.add_column("95%", no_wrap=True)
    size = max(9, min(41, width - 67))
    low, high = bar_range([*(scale_of or scores)])
    table.add_column(_axis(low, high, size), no_wrap=True, min_width=size)
    fancy = can_draw(console)
    for score in scores:
        won = beats(score)
        style = "" if won is None else "green" if won else "red" if score.ratio.high < 1 else ""
        bar = Text(draw_bar(score.ratio, low, high, size, fancy), style=style)
        if levels:
            level = [number(score.b_eff.value, 1), interval(score.b_eff, 1)]
        else:
            level = [f"{score.advantage_variance:.4g}"]
        cells = [*level, number(score.ratio.value, precision(score.ratio)), interval(score.ratio)]
        label = score.label + ("*" if score.scored_as else "")
        table.add_row(
            Text(safe(console, label)),
            *(Text(safe(console, c), style=style if i >= len(level) else "") for i, c in enumerate(cells)),
            bar,
        )
    return table


def group_table(groups: Sequence[GroupScore]) -> Table:
    """RLOO and centred GRPO at equal rollouts."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("G", "tasks a step", "B_eff", "variance", "rho above", "dead groups"):
        table.add_column(name, justify="right")
    for g in groups:
        dead = f"{g.dead_groups:.0%}" if math.isfinite(g.dead_groups) else "-"
        variance = f"{g.variance:.2f} + {g.group_size} rho"
        table.add_row(
            f"{g.group_size}", f"{g.tasks_per_step:g}", number(g.b_eff, 1), variance, number(g.crossing, 3), dead
        )
    return table


def watch_view(console: Console, name: str, scores: Sequence[WatchScore]) -> Group:
    """The ranking of a training log: ratios to LOO over all steps with bars, and over the newest 20."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("baseline", overflow="fold", max_width=None if console.width > 110 else 25)
    for column in ("E[A^2]", "x LOO"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("95%", no_wrap=True)
    table.add_column("last 20", justify="right", no_wrap=True)
    size = max(9, min(41, console.width - 70))
    low, high = bar_range(scores)
    table.add_column(_axis(low, high, size), no_wrap=True, min_width=size)
    for score in scores:
        ratio = score.ratio
        style = "green" if ratio.low > 1 else "red" if ratio.high < 1 else ""
        cells = [
            f"{score.mean_squared_advantage:.4g}",
            number(ratio.value, precision(ratio)),
            interval(ratio),
            number(score.recent),
        ]
        bar = Text(draw_bar(ratio, low, high, size, can_draw(console)), style=style)
        label = score.label + ("*" if score.scored_as else "")
        table.add_row(Text(safe(console, label)), *(Text(safe(console, c)) for c in cells), bar)
    head = Text.assemble(
        (safe(console, name), "bold"), (f"  {scores[0].steps} steps, {scores[0].rows} rollouts", "dim")
    )
    foot = (
        [Text("* counts its own reward; scored as its leave-one-out twin", style="dim")]
        if any(s.scored_as for s in scores)
        else []
    )
    return Group(head, table, *foot)


def bar_range(scores: Sequence[Any]) -> tuple[float, float]:
    """The range of ratios that bars are drawn over: all intervals and 1, but not below half of LOO."""
    values = [v for s in scores for v in s.ratio if math.isfinite(v)]
    low, high = min([1.0, *values]), max([1.0, *values])
    low, high = max(low, 0.5), min(high, 4.0)
    return (low, high) if high > low else (0.9, 1.1)


def draw_bar(estimate: Estimate, low: float, high: float, size: int, fancy: bool = True) -> str:
    """An interval as text: a line with a dot at the value, a mark at 1, arrows where it goes on outside.

    >>> draw_bar(Estimate(1.5, 1.25, 1.75), 0.5, 2.0, 13, fancy=False)
    '    | --o--  '
    """
    signs = _FANCY if fancy else _PLAIN
    cells = [" "] * size

    def at(value: float) -> int:
        return round((value - low) / (high - low) * (size - 1))

    one = at(1.0)
    if 0 <= one < size:
        cells[one] = signs["mark"]
    if not math.isfinite(estimate.value):
        return "".join(cells)
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        for i in range(max(at(estimate.low), 0), min(at(estimate.high), size - 1) + 1):
            cells[i] = signs["cross"] if i == one else signs["line"]
    if at(estimate.low if math.isfinite(estimate.low) else estimate.value) < 0:
        cells[0] = signs["low"]
    if at(estimate.high if math.isfinite(estimate.high) else estimate.value) >= size:
        cells[-1] = signs["high"]
    if 0 <= at(estimate.value) < size:
        cells[at(estimate.value)] = signs["dot"]
    return "".join(cells)


def can_draw(console: Console) -> bool:
    """Whether the output's encoding has the signs of the bars."""
    try:
        "".join(_FANCY.values()).encode(console.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _axis(low: float, high: float, size: int) -> Text:
    """``0.50   1   1.35`` above the bars."""
    left, right = f"{low:.2f}", f"{high:.2f}"
    cells = list(left + " " * (size - len(left) - len(right)) + right)
    one = round((1 - low) / (high - low) * (size - 1))
    if len(left) < one < size - len(right) - 1:
        cells[one] = "1"
    return Text("".join(cells), style="dim not bold")


def safe(console: Console, text: str) -> str:
    """Without signs that the output cannot encode."""
    if can_draw(console):
        return text
    return text.replace("−", "-").replace("·", "|").replace("∞", "inf")
