"""What a comparison will take, as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rollonce.training.cost import ComparisonCost


def print_comparison_cost(console: Console, cost: ComparisonCost) -> None:
    """One line per arm, then the whole, then where the figures come from."""
    table = Table(box=None, pad_edge=False)
    for title in ("arm", "runs", "rollouts", "response tokens", "device hours", "memory of a run"):
        table.add_column(title, justify="left" if title == "arm" else "right")
    for arm in cost.arms:
        table.add_row(
            arm.arm,
            str(arm.runs),
            f"{arm.rollouts:,}",
            f"{arm.tokens / 1e6:,.2f} M" if arm.tokens else "?",
            "?" if arm.hours is None else f"{arm.hours:,.2f}",
            "?" if arm.memory is None else f"{arm.memory / 2**30:.1f} GiB",
        )
    console.print(table)
    if cost.hours is not None:
        console.print(f"With {cost.places} at once: {cost.hours:,.2f} hours from start to end.")
    console.print(cost.how)
