"""``rollonce plan``: one rollout per task or groups at a budget, and what a decision rule can see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce.commands.inputs import ReaderOptions, find_rollout_sources, read_source_table
from rollonce.commands.terminal import print_json_document, results_console
from rollonce.errors import InputError
from rollonce.reports.decision import decide_on_plan, print_decision
from rollonce.reports.plan import print_decision_power, print_plan_summary
from rollonce.scoring.exponent import read_surprisal_exponent
from rollonce.testing.given import load_given_baseline
from rollonce.tuning.planning import Plan, difficulty_from_moments, plan_from_moments, plan_from_rollouts
from rollonce.tuning.power import tabulate_rule_power
from rollonce.tuning.step_objective import ObjectiveName

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
    baseline: Annotated[str | None, arg(metavar="BASELINE", help_behavior_hint="")] = None
    """A saved baseline, or your own code as module:name, scored on the rollouts."""
    objective: Annotated[ObjectiveName, arg(metavar="b_eff|step")] = "b_eff"
    """What that baseline is worth: its effective batch size, or the batch with which LOO makes the progress that
    is predicted of its training step from log-probabilities."""
    exponent: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """For --objective step: how squared gradient norms grow with the surprisal, as `rollonce noise --save` wrote it, or
    a number."""
    rho: Annotated[float | None, _Optional] = None
    """How much tasks' gradients differ against one rollout's noise, as `rollonce noise` measures it. Default: 0, which
    favours groups most."""
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
        return _print_power_of_rules(args)
    if args.n is not None or args.true_difference is not None:
        raise InputError("--n and --true-difference belong to --power")
    if not args.baseline and (args.objective != "b_eff" or args.exponent is not None):
        raise InputError("--objective and --exponent are for a baseline's step; give --baseline FILE")
    made = _make_plan_from_rollouts(args) if args.files else _make_plan_from_moments(args)
    decision = decide_on_plan(made, " ".join(args.files) or "FILE", rho_known=args.rho is not None)
    if args.json:
        print_json_document(made._asdict() | {"decision": decision})
    else:
        print_plan_summary(results_console(), made)
        print_decision(results_console(), decision)
    return 0


def _print_power_of_rules(args: Args) -> int:
    if args.n is None:
        raise InputError("--power needs --n, the number of items that both policies are graded on")
    rules = tabulate_rule_power(
        args.n,
        args.alpha,
        args.margin,
        true=args.true_difference,
        discordance=args.discordance,
        power=args.target_power,
    )
    settings = {name: getattr(args, name) for name in ("alpha", "margin", "true_difference", "discordance")}
    if args.json:
        print_json_document({"n": args.n, **settings, "target_power": args.target_power, "rules": rules})
    else:
        print_decision_power(results_console(), rules, n_items=args.n, target_power=args.target_power, **settings)
    return 0


def _make_plan_from_moments(args: Args) -> Plan:
    if args.baseline:
        raise InputError("--baseline is scored on rollouts; name a file, or give --b-eff-ratio")
    moments = difficulty_from_moments(s2=args.s2, tau2=args.tau2, snr=args.snr, mean=args.mean)
    return plan_from_moments(
        args.budget, moments, ratio=args.b_eff_ratio, rho=args.rho or 0.0, mean_known=args.mean is not None
    )


def _make_plan_from_rollouts(args: Args) -> Plan:
    if any(x is not None for x in (args.s2, args.tau2, args.snr, args.mean)):
        raise InputError("moments are measured on the file; give either FILES or --s2, --tau2, --snr, --mean")
    if args.baseline and args.b_eff_ratio is not None:
        raise InputError("give --baseline or --b-eff-ratio, not both")
    sources = find_rollout_sources(args.files, args.reader, together=True)
    if len(sources) != 1:
        raise InputError(f"rollonce plan works on one set, and these are {len(sources)}")
    rollouts = read_source_table(sources[0], args.reader)
    return plan_from_rollouts(
        rollouts,
        args.budget,
        baseline=load_given_baseline(args.baseline).fit(rollouts.tasks) if args.baseline else None,
        ratio=args.b_eff_ratio,
        rho=args.rho or 0.0,
        objective=args.objective,
        exponent=read_surprisal_exponent(args.exponent) if args.exponent is not None else None,
    )
