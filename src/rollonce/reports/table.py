"""A board as a table in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollonce.reports.bars import axis, bar_range, can_draw, draw_bar, encodable
from rollonce.reports.words import (
    beats,
    interval,
    moments_sentence,
    number,
    precision,
    step_sentences,
    verdict,
    with_interval,
)
from rollonce.scoring import Board, GroupScore, Score

GROUPS = (
    "Groups of G at the same {} rollouts (the B_eff is of their baseline alone). One rollout per task has the smaller "
    "gradient variance where rho, the between-task over the within-task gradient variance, is above the value given:"
)


def print_board(console: Console, board: Board) -> None:
    """Headline, moments, the list, what stands apart, groups and notes."""
    words = verdict(board)
    console.print()
    console.print(Text(board.name, style="bold"), Text(f"  batches of {board.batch_size}", style="dim"))
    console.print(Text(words.headline, style="green" if words.apart else ""))
    for sentence in words.more:
        console.print(Text(sentence))
    console.print(Text(encodable(console, moments_sentence(board)), style="dim"))
    console.print()
    levels = any(math.isfinite(s.b_eff.value) for s in board.scores)
    console.print(score_table(console, board.scores, levels))
    twins = [s for s in board.scores if s.scored_as]
    if twins:
        console.print(Text("* counts its own reward; scored as its leave-one-out twin", style="dim"))
    if board.steps:
        console.print()
        console.print(Text("What a training step feels, predicted from log-probabilities", style="bold"))
        for sentence in step_sentences(board):
            console.print(Text(encodable(console, sentence)))
        console.print(step_table(console, board))
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
            Padding(
                Text(f"Note: {encodable(console, note)}", style="yellow"), (1 if note is board.notes[0] else 0, 0, 0, 0)
            )
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
    table.add_column(axis(low, high, size), no_wrap=True, min_width=size)
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
            Text(encodable(console, label)),
            *(Text(encodable(console, c), style=style if i >= len(level) else "") for i, c in enumerate(cells)),
            bar,
        )
    return table


def step_table(console: Console, board: Board) -> Table:
    """Predicted progress over LOO's and the equivalent batch, most first; for each exponent of its own."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("baseline", overflow="fold", max_width=24 if console.width <= 110 else None)
    several = len(next(iter(board.steps.values()))) > 1
    for p in next(iter(board.steps.values())):
        power = f" (S^{p.exponent:g})" if several else ""
        table.add_column(f"progress / LOO{power}", justify="right", no_wrap=True)
        if not several:
            table.add_column("equivalent batch", justify="right", no_wrap=True)
    ranked = sorted(board.scores, key=lambda s: -(s.progress.value if s.progress is not None else -math.inf))
    for score in ranked:
        cells = []
        for p in board.steps.get(score.label, []):
            cells.append(with_interval(p.progress))
            if not several:
                cells.append(with_interval(p.equivalent_batch, 0) + ("*" if p.beyond_curve else ""))
        table.add_row(*(Text(encodable(console, cell)) for cell in (score.label, *cells)))
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
