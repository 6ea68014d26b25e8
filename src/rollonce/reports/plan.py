"""A plan, and the power of a decision rule, in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rollonce.tuning.planning import Plan
from rollonce.tuning.power import Power


def print_plan_summary(console: Console, plan: Plan) -> None:
    """One rollout per task beside groups at the same number of rollouts, and what of it is assumption."""
    moments = plan.difficulty
    _print_plain_text(
        console,
        f"{plan.budget} rollouts per step; mean reward {moments.mean:.3g}, s2 {moments.s2:.3g}, "
        f"tau2 {moments.tau2:.3g}, SNR {moments.snr:.3g}",
    )
    if plan.beta:
        a, b = plan.beta
        _print_plain_text(console, f"Beta({a:.2f}, {b:.2f}) difficulty, fitted by moments")
    table = Table(box=None, pad_edge=False)
    for heading in ("", "tasks", "B_eff", "variance", "crossing", "dead, Beta", "dead, data"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("one each", f"{plan.budget}", f"{plan.b_eff:.1f}", f"{plan.variance:.2f}", "", "", "")
    for group in plan.groups:
        table.add_row(
            f"groups of {group.group_size}",
            f"{group.tasks:g}",
            f"{group.b_eff:.1f}",
            f"{group.variance:.2f}",
            f"{group.crossing:.3f}",
            _format_percent(group.dead_beta),
            _format_percent(group.dead_data),
        )
    console.print()
    console.print(table)
    console.print()
    _print_plain_text(
        console,
        f"one each: one rollout per task; groups: RLOO, or GRPO without std. B_eff of the LOO mean: "
        f"{plan.loo_b_eff:.1f} (closed form). variance: predicted gradient variance at rho = {plan.rho:g}, in units of "
        "one rollout's noise over B. crossing: the rho above which one rollout per task has the smaller variance. "
        "dead: groups whose rewards all agree, which teach nothing.",
    )
    best = min(plan.groups, key=lambda group: group.variance, default=None)
    if best is not None:
        winner = "one rollout per task" if plan.variance <= best.variance else f"groups of {best.group_size}"
        _print_plain_text(console, f"At rho = {plan.rho:g} the smallest predicted variance is that of {winner}.")
    console.print()
    _print_plain_text(console, "What of it is assumption:")
    for line in plan.assumed:
        _print_plain_text(console, f"  - {line}")


def print_decision_power(
    console: Console,
    rules: Sequence[Power],
    *,
    n_items: int,
    alpha: float,
    margin: float,
    true_difference: float | None,
    discordance: float,
    target_power: float,
) -> None:
    """What each decision rule can pass at all, and the items that a true difference needs."""
    _print_plain_text(
        console,
        f"{n_items} items, alpha {alpha:g} two-sided; passes if the interval's lower end lies above {margin:+g}",
    )
    table = Table(box=None, pad_edge=False)
    headings = ["rule", "smallest difference that passes", "net items"]
    if true_difference is not None:
        headings.append("items needed")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for rule in rules:
        possible = rule.smallest <= 1
        cells = [
            rule.rule,
            f"{rule.smallest:+.4f}" if possible else "none can",
            f"{rule.smallest_items:+d}" if possible else "",
        ]
        if true_difference is not None:
            cells.append(f"{rule.n_needed:,}" if rule.n_needed else "never")
        table.add_row(*cells)
    console.print()
    console.print(table)
    console.print()
    if true_difference is not None:
        _print_plain_text(
            console,
            f"Items needed: a true difference of {true_difference:+g} passes with a chance of {target_power:.0%}.",
        )
    _print_plain_text(
        console,
        f"Assumed: {discordance:.0%} of items are graded differently (Bernstein, normal, items needed). "
        "Normal is approximate and has no guarantee.",
    )


def _print_plain_text(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _format_percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"
