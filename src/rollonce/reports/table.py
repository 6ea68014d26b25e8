"""A board as a table in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollonce.baselines import LeaveOneOut
from rollonce.reports.bars import (
    can_encode_bars,
    choose_bar_range,
    draw_bar_as_text,
    draw_bar_axis,
    replace_unencodable,
)
from rollonce.reports.columns import B_EFF, RATIO, Column, select_known_columns
from rollonce.reports.decision import B_EFF_SAYS
from rollonce.reports.labels import fit_label_to_console, is_published_example
from rollonce.reports.words import (
    choose_decimals,
    describe_best_step,
    format_interval,
    format_number,
    format_with_interval,
    is_better_than_loo,
    make_board_verdict,
    moments_sentence,
)
from rollonce.scoring import Board, GroupScore, Score

GROUPS = (
    "Groups of G at the same {} rollouts (the B_eff is of their baseline alone). One rollout per task has the smaller "
    "gradient variance where rho, the between-task over the within-task gradient variance, is above the value given:"
)


TOP_ROWS = 12
"""Rows shown unless all are asked for; some always are, see `select_top_rows`."""


def print_baseline_board(console: Console, board: Board, show_all: bool = False) -> None:
    """Headline, moments, the list, what stands apart, groups and notes."""
    words = make_board_verdict(board)
    console.print()
    console.print(Text(board.name, style="bold"), Text(f"  batches of {board.batch_size}", style="dim"))
    console.print(Text(words.headline, style="green" if words.apart else ""))
    for sentence in words.more:
        console.print(Text(sentence))
    console.print(Text(replace_unencodable(console, moments_sentence(board)), style="dim"))
    console.print()
    columns = select_known_columns([*board.scores, *board.apart])
    shown = board.scores if show_all else select_top_rows(board.scores, board.settings.get("given", ()))
    console.print(make_score_table(console, shown, columns, board.scores))
    hidden = len(board.scores) - len(shown)
    marks = []
    if hidden:
        marks.append(f"{hidden} more rows: --all shows them")
    if any(s.scored_as for s in shown):
        marks.append("* counts its own reward; scored as its leave-one-out twin")
    if any(is_published_example(s.label) for s in shown):
        marks.append("+ an example of GS1 as it was published")
    for line in marks:
        console.print(Text(line, style="dim"))
    if board.steps:
        console.print()
        console.print(Text("What a training step feels, predicted from log-probabilities", style="bold"))
        for sentence in describe_best_step(board):
            console.print(Text(replace_unencodable(console, sentence)))
        console.print(make_step_table(console, board))
    if board.apart:
        console.print()
        console.print(
            Text("Apart: these need the same task again, or extra rollouts. Ceilings, not choices.", style="dim")
        )
        console.print(make_score_table(console, board.apart, columns, board.scores))
    if board.groups and math.isfinite(board.groups[0].crossing):
        console.print()
        console.print(Text(GROUPS.format(board.batch_size), style="dim"))
        console.print(make_group_table(board.groups))
    for i, note in enumerate([*board.notes, B_EFF_SAYS]):
        text = Text(f"Note: {replace_unencodable(console, note)}", style="yellow")
        console.print(Padding(text, (0 if i else 1, 0, 0, 0)))


def select_top_rows(scores: Sequence[Score], given: Sequence[str] = ()) -> list[Score]:
    """The first of a ranking, the LOO mean, the published examples, and those that the user has given (labels)."""
    wanted = {LeaveOneOut().label, *given}
    return [s for i, s in enumerate(scores) if i < TOP_ROWS or s.label in wanted or is_published_example(s.label)]


def make_score_table(
    console: Console, scores: Sequence[Score], columns: Sequence[Column], scale_of: Sequence[Score]
) -> Table:
    """Baselines with their figures, and the ratio's interval as a bar with a mark at 1.

    Args:
        console: What it is for: its width decides what is shortened.
        scores: The rows.
        columns: The figures.
        scale_of: The rows whose ratios the bars' scale must hold.
    """
    width = console.width
    wide = width > 110
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
    table.add_column(
        "baseline", ratio=1 if wide else None, no_wrap=True, overflow="ellipsis", max_width=None if wide else 24
    )
    if B_EFF not in columns:
        table.add_column("E[A^2]", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
        if width >= column.interval_from_width:
            table.add_column("95%", no_wrap=True)
    size = max(9, min(41, width - 67))
    low, high = choose_bar_range(scale_of)
    table.add_column(draw_bar_axis(low, high, size), no_wrap=True, min_width=size)
    fancy = can_encode_bars(console)
    for score in scores:
        won = is_better_than_loo(score)
        style = "" if won is None else "green" if won else "red" if score.ratio.high < 1 else ""
        label = fit_label_to_console(console, score.label)
        label += ("*" if score.scored_as else "") + ("+" if is_published_example(score.label) else "")
        cells = [Text(replace_unencodable(console, label))]
        if B_EFF not in columns:
            cells.append(Text(f"{score.advantage_variance:.4g}"))
        for column in columns:
            estimate = column.get_score_estimate(score)
            digits = choose_decimals(estimate) if column.digits is None else column.digits
            texts = [format_number(estimate.value, digits)]
            if width >= column.interval_from_width:
                texts.append(format_interval(estimate, 2 if column.digits is None else column.digits))
            cells += [Text(replace_unencodable(console, t), style=style if column is RATIO else "") for t in texts]
        table.add_row(*cells, Text(draw_bar_as_text(score.ratio, low, high, size, fancy), style=style))
    return table


def make_step_table(console: Console, board: Board) -> Table:
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
            cells.append(format_with_interval(p.progress))
            if not several:
                cells.append(format_with_interval(p.equivalent_batch, 0) + ("*" if p.beyond_curve else ""))
        table.add_row(
            *(Text(replace_unencodable(console, cell)) for cell in (fit_label_to_console(console, score.label), *cells))
        )
    return table


def make_partial_board(console: Console, name: str, scores: Sequence[Score]) -> Group:
    """The first rows of a board that is still being computed."""
    ranked = sorted((s for s in scores if math.isfinite(s.ratio.value)), key=lambda s: -s.ratio.value)[:8]
    heading = Text.assemble((name, "bold"), (f"  {len(scores)} rows so far", "dim"))
    return Group(heading, make_score_table(console, ranked, select_known_columns(ranked), ranked))


def describe_leader_so_far(scores: Sequence[Score]) -> str:
    """The same in a few words, for a log."""
    ranked = [s for s in scores if math.isfinite(s.ratio.value) and not s.needs]
    if not ranked:
        return ""
    best = max(ranked, key=lambda s: s.ratio.value)
    return f"{best.label} ahead, {format_with_interval(best.ratio)} x LOO"


def describe_board_row(score: Score) -> str:
    """One row that has just come, as a line of a log: ``LOO mean: B_eff 17.7 [14.4, 21.9], 1.00 x LOO``."""
    if not math.isfinite(score.ratio.value):
        return f"{score.label}: nothing to compare"
    b_eff = (
        f"B_eff {format_number(score.b_eff.value, 1)} {format_interval(score.b_eff, 1)}, "
        if math.isfinite(score.b_eff.value)
        else ""
    )
    step = f", a step {format_with_interval(score.progress)} x LOO's" if score.progress is not None else ""
    return f"{score.label}: {b_eff}{format_with_interval(score.ratio)} x LOO{step}"


def make_group_table(groups: Sequence[GroupScore]) -> Table:
    """RLOO and centred GRPO at equal rollouts."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("G", "tasks a step", "B_eff", "variance", "rho above", "dead groups"):
        table.add_column(name, justify="right")
    for g in groups:
        dead = f"{g.dead_groups:.0%}" if math.isfinite(g.dead_groups) else "-"
        variance = f"{g.variance:.2f} + {g.group_size} rho"
        table.add_row(
            f"{g.group_size}",
            f"{g.tasks_per_step:g}",
            format_number(g.b_eff, 1),
            variance,
            format_number(g.crossing, 3),
            dead,
        )
    return table
