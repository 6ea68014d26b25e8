"""``rollonce plan``: one rollout per task or groups at a budget, and what a decision rule can see."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce.commands.inputs import ReaderOptions, find_sources, read
from rollonce.commands.terminal import out, print_json
from rollonce.errors import InputError
from rollonce.tuning.planning import Difficulty, Plan, difficulty, plan
from rollonce.tuning.power import Power, power_table

HELP = """\
Before any GPU time is spent. From rollouts, or from moments you know: what one
rollout per task promises at your budget, what groups of 2, 4, 8, 16 promise,
where the two cross, and how many groups would teach nothing. With --power: the
smallest difference that a decision rule can pass, and the items it needs.

Examples:
  rollonce plan gsm8k --budget 64
  rollonce plan rollouts.jsonl --baseline baseline.json --rho 0.5
  rollonce plan --snr 0.75 --mean 0.4 --b-eff-ratio 1.1
  rollonce plan --power --n 1319 --margin -0.05 --true-difference 0.03
"""
_Optional = arg(metavar="X", help_behavior_hint="")


@dataclass
class Args:
    """Options of ``rollonce plan``."""

    files: Annotated[tuple[str, ...], Positional, arg(metavar="FILES", help_behavior_hint="")] = ()
    """Rollouts to measure the moments on; all are one table."""
    budget: Annotated[int, arg(metavar="B")] = 32
    """Rollouts in a step."""
    s2: Annotated[float | None, _Optional] = None
    """Mean within-task reward variance."""
    tau2: Annotated[float | None, _Optional] = None
    """Variance over tasks of the mean reward."""
    snr: Annotated[float | None, _Optional] = None
    """tau2 / s2."""
    mean: Annotated[float | None, _Optional] = None
    """Mean reward, for 0/1 rewards."""
    b_eff_ratio: Annotated[float | None, _Optional] = None
    """B_eff of your baseline over that of the in-batch LOO mean (rollonce score or tune). Default 1."""
    baseline: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """A saved baseline, scored on the rollouts."""
    rho: Annotated[float, arg(metavar="X")] = 0.0
    """How much tasks' gradients differ against one rollout's noise; 0 favours groups most. Measured, or an
    assumption."""
    power: bool = False
    """The decision rule's power instead."""
    n: Annotated[int | None, arg(metavar="ITEMS", help_behavior_hint="")] = None
    """Items that both policies are graded on."""
    margin: Annotated[float, arg(metavar="D")] = 0.0
    """What the interval must lie above; -0.05 is "not worse by more than 5 points"."""
    alpha: Annotated[float, arg(metavar="A")] = 0.05
    """Two-sided level of the interval."""
    true_difference: Annotated[float | None, arg(metavar="D", help_behavior_hint="")] = None
    """A true difference, to find the items that it needs."""
    discordance: Annotated[float, arg(metavar="Q")] = 0.2
    """Share of items graded differently: an assumption until measured; Hoeffding's smallest difference does not need
    it."""
    target_power: Annotated[float, arg(metavar="P")] = 0.8
    """The wanted chance that the true difference passes."""
    json: bool = False
    """Print JSON and nothing else."""
    reader: Annotated[ReaderOptions, OmitArgPrefixes] = field(default_factory=ReaderOptions)


def run(args: Args) -> int:
    """Plan and print.

    Raises:
        InputError: for numbers that make no sense or contradict each other.
    """
    if args.power:
        if args.n is None:
            raise InputError("--power needs --n, the number of items that both policies are graded on")
        rules = power_table(
            args.n,
            args.alpha,
            args.margin,
            true=args.true_difference,
            discordance=args.discordance,
            power=args.target_power,
        )
        if args.json:
            settings = {
                k: getattr(args, k) for k in ("n", "alpha", "margin", "true_difference", "discordance", "target_power")
            }
            print_json(settings | {"rules": [r._asdict() for r in rules]})
        else:
            _show_power(args, rules)
        return 0
    if args.n is not None or args.true_difference is not None:
        raise InputError("--n and --true-difference belong to --power")
    made, assumed = _from_file(args) if args.files else _from_moments(args)
    if args.json:
        print_json(made._asdict() | {"assumed": assumed})
    else:
        _show_plan(made, assumed)
    return 0


def _from_moments(args: Args) -> tuple[Plan, list[str]]:
    if args.baseline:
        raise InputError("--baseline is scored on rollouts; name a file, or give --b-eff-ratio")
    d = difficulty(s2=args.s2, tau2=args.tau2, snr=args.snr, mean=args.mean)
    assumed = ["The moments are as given.", *_always(args)]
    if args.mean is None:
        assumed.append(
            f"Rewards are 0/1, with a mean of {d.mean:.2f} or {1 - d.mean:.2f} (degenerate groups are the same for "
            "both)."
        )
    if args.b_eff_ratio is None:
        assumed.append("The baseline is the LOO mean (--b-eff-ratio 1).")
    return plan(args.budget, d, ratio=args.b_eff_ratio or 1.0, rho=args.rho), assumed


def _from_file(args: Args) -> tuple[Plan, list[str]]:
    from rollonce.commands.saved import load_saved
    from rollonce.scoring import Scorer, dead_group_fraction, moments

    if any(x is not None for x in (args.s2, args.tau2, args.snr, args.mean)):
        raise InputError("moments are measured on the file; give either FILES or --s2, --tau2, --snr, --mean")
    sources = find_sources(args.files, args.reader, together=True)
    if len(sources) != 1:
        raise InputError(f"rollonce plan works on one set, and these are {len(sources)}")
    rollouts = read(sources[0], args.reader)
    m = moments(rollouts)
    if not m.n_repeated:
        raise InputError(
            "every task has a single rollout, so s2 and tau2 cannot be told apart; sample some tasks twice or more",
            file=rollouts.source,
        )
    d = Difficulty(m.mean.value, m.s2.value, max(m.tau2.value, 0.0))
    if d.s2 == 0:
        raise InputError(
            "rollouts of a task never differ (s2 = 0): there is no noise to plan for", file=rollouts.source
        )
    ratio = args.b_eff_ratio or 1.0
    assumed = _always(args)
    if args.baseline:
        if args.b_eff_ratio is not None:
            raise InputError("give --baseline or --b-eff-ratio, not both")
        size = min(args.budget, rollouts.n_tasks)
        ratio = Scorer(rollouts, size, resamples=0).score(load_saved(args.baseline)).ratio.value
        assumed.append(
            f"The baseline's ratio to LOO, {ratio:.3f}, was measured on this file at B = {size}; if it was tuned on "
            "it, that is optimistic."
        )
    elif args.b_eff_ratio is None:
        assumed.append("The baseline is the LOO mean; --baseline or --b-eff-ratio for a better one.")
    if set(rollouts.rewards_R.tolist()) - {0.0, 1.0}:
        assumed.append(
            "Rewards are not all 0/1, so the Beta column is of a 0/1 reward with these moments; the counted column is "
            "of the data."
        )
    assumed.append(
        f"The moments have intervals of their own: s2 {m.s2:.3g}, tau2 {m.tau2:.3g}, SNR {m.snr:.3g} (95%, over tasks)."
    )
    counted = {g: dead_group_fraction(rollouts, g) for g in (2, 4, 8, 16)}
    return plan(args.budget, d, ratio=ratio, rho=args.rho, dead_data=counted), assumed


def _always(args: Args) -> list[str]:
    rho = (
        "rho = 0: tasks' true gradients do not differ, the case that favours groups most"
        if args.rho == 0
        else f"rho = {args.rho:g} as given"
    )
    return [
        f"{rho}. It is not known from rewards; it can be measured on a starting policy.",
        "A rollout's gradient noise is unrelated to its advantage's size (an approximation); measure gradient noise "
        "beside it.",
    ]


def _show_plan(p: Plan, assumed: list[str]) -> None:
    console = out()
    d = p.difficulty
    console.print(
        f"{p.budget} rollouts a step; mean reward {d.mean:.3g}, s2 {d.s2:.3g}, tau2 {d.tau2:.3g}, SNR {d.snr:.3g}",
        markup=False,
    )
    if p.beta:
        console.print(f"Beta({p.beta[0]:.2f}, {p.beta[1]:.2f}) difficulty, fitted by moments", markup=False)
    table = Table(box=None, pad_edge=False)
    for name in ("", "tasks", "B_eff", "variance", "crossing", "dead, Beta", "dead, data"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row("one each", f"{p.budget}", f"{p.b_eff:.1f}", f"{p.variance:.2f}", "", "", "")
    for g in p.groups:
        table.add_row(
            f"groups of {g.group_size}",
            f"{g.tasks:g}",
            f"{g.b_eff:.1f}",
            f"{g.variance:.2f}",
            f"{g.crossing:.3f}",
            _percent(g.dead_beta),
            _percent(g.dead_data),
        )
    console.print()
    console.print(table)
    console.print()
    console.print(
        f"one each: one rollout per task; groups: RLOO, or GRPO without std. B_eff of the LOO mean: {p.loo_b_eff:.1f} "
        f"(closed form). variance: predicted gradient variance at rho = {p.rho:g}, in units of one rollout's noise "
        "over B. crossing: the rho above which one rollout per task has the smaller variance. dead: groups whose "
        "rewards all agree, which teach nothing.",
        markup=False,
        soft_wrap=True,
    )
    best = min(p.groups, key=lambda g: g.variance, default=None)
    if best is not None:
        winner = "one rollout per task" if p.variance <= best.variance else f"groups of {best.group_size}"
        console.print(f"At rho = {p.rho:g} the smallest predicted variance is that of {winner}.", markup=False)
    console.print()
    console.print("What of it is assumption:", markup=False)
    for line in assumed:
        console.print(f"  - {line}", markup=False, soft_wrap=True)


def _show_power(args: Args, rules: list[Power]) -> None:
    console = out()
    console.print(
        f"{args.n} items, alpha {args.alpha:g} two-sided; passes if the interval's lower end lies above "
        f"{args.margin:+g}",
        markup=False,
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for name in (
        "rule",
        "smallest difference that passes",
        "net items",
        *(("items needed",) if args.true_difference is not None else ()),
    ):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for r in rules:
        needed = () if args.true_difference is None else (f"{r.n_needed:,}" if r.n_needed else "never",)
        table.add_row(
            r.rule,
            f"{r.smallest:+.4f}" if r.smallest <= 1 else "none can",
            f"{r.smallest_items:+d}" if r.smallest <= 1 else "",
            *needed,
        )
    console.print()
    console.print(table)
    console.print()
    if args.true_difference is not None:
        console.print(
            f"Items needed: a true difference of {args.true_difference:+g} passes with a chance of "
            f"{args.target_power:.0%}.",
            markup=False,
            soft_wrap=True,
        )
    console.print(
        f"Assumed: {args.discordance:.0%} of items are graded differently (Bernstein, normal, items needed). "
        "Normal is approximate and has no guarantee.",
        markup=False,
        soft_wrap=True,
    )


def _percent(x: float) -> str:
    return "" if math.isnan(x) else f"{x:.0%}"
