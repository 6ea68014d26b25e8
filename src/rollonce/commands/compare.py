"""``rollonce compare``: arms x seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from rollonce.commands.terminal import Bars, Flag, print_json_document, print_remark
from rollonce.errors import InputError

if TYPE_CHECKING:
    from rollonce.training.config import ExperimentConfig

HELP = """\
Train every arm of a configuration with every seed, several at once, and compare
them: final held-out accuracy, learning curves, time, with intervals over seeds
and items, and a verdict in words. Stopped or killed, the same command goes on;
with more seeds or arms in the file it adds them. `rollonce report DIR` shows
the comparison again, also while it runs. Needs the extra:
pip install 'rollonce[train]'.

Examples:
  rollonce compare specs/embedded_small.toml --out out/small
      Five arms, three seeds, the policy that comes with rollonce: minutes.
  rollonce compare my.toml --seeds 0 1 2 3 --processes 4 --report out.html
      Your own; docs/training.md has all keys.
  rollonce compare my.toml --out /shared/mine --ray head:6379
      The runs as tasks of a Ray cluster (extra 'ray'); a node that dies costs
      the steps since the last checkpoint. --out s3://bucket/mine will do too.
"""


@dataclass
class Args:
    """Options of ``rollonce compare``."""

    config: Annotated[Positional[str], arg(metavar="CONFIG.toml")]
    """Policy, tasks, loss, arms, seeds."""
    out: Annotated[str | None, arg(metavar="DIR")] = None
    """Where to; default runs/ and the file's name. With --ray also a URL of an object store."""
    seeds: Annotated[tuple[int, ...], arg(metavar="N ...")] = ()
    """Instead of the file's."""
    processes: Annotated[int | None, arg(metavar="N")] = None
    """Runs at once, one thread each; default one per device, or per core."""
    devices: Annotated[tuple[str, ...], arg(metavar="DEVICE ...")] = ()
    """A device for each run: auto (every GPU), or cuda:0 cuda:1 ..."""
    ray: Annotated[tuple[str, ...] | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """Make every run a task of a Ray cluster: HOST:PORT, or nothing for the one that runs on this machine. DIR must be
    a directory that all nodes share, or a URL like s3://bucket/mine (docs/scale.md)."""
    check: Flag = False
    """Run nothing: see that everything can be run, measure a step of each arm, and say what the whole will take."""
    tokens_per_second: Annotated[float | None, arg(metavar="N")] = None
    """With --check: response tokens per second of one device, of another machine, instead of measuring here."""
    response_tokens: Annotated[float | None, arg(metavar="N")] = None
    """With --tokens-per-second: mean length of a response. Default: half the limit."""
    report: Annotated[str | None, arg(metavar="FILE.html")] = None
    """Write the page there; default DIR/report.html."""
    json: Flag = False
    """Print the comparison as JSON."""


def run(args: Args) -> int:
    """Run what is missing, then report. Exit code 1 if a run could not be made, 130 if stopped."""
    from rollonce.training import check_training_extra
    from rollonce.training.config import CompareConfig, ExperimentConfig
    from rollonce.training.loading import list_comparison_runs, load_experiment_config
    from rollonce.training.sections import validate_section

    config = load_experiment_config(args.config)
    check_training_extra()
    from rollonce.files import check_files_writable
    from rollonce.training.compare import compare_in_processes
    from rollonce.training.comparison_runs import Progress, check_comparison_start
    from rollonce.training.cost import Pace
    from rollonce.training.object_store import is_store_url
    from rollonce.training.stored_runs import open_comparison_directory

    changes = {
        "seeds": args.seeds or config.compare.seeds,
        "processes": config.compare.processes if args.processes is None else args.processes,
        "devices": ("auto" if args.devices == ("auto",) else args.devices) or config.compare.devices,
    }
    section = validate_section(CompareConfig, {**config.compare.model_dump(), **changes}, "the options")
    # Checked with the rest of the file: some options exclude some of its keys.
    config = validate_section(
        ExperimentConfig, {**config.model_dump(exclude_unset=True), "compare": section.model_dump()}, "the options"
    )
    out = args.out or f"runs/{Path(args.config).stem}"
    if is_store_url(out) and args.ray is None:
        raise InputError(f"--out {out} is an object store, which runs on a Ray cluster write to; give --ray as well")
    check_comparison_start(config, runs_here=args.ray is None)
    made = (Path(out).resolve(), *Path(out).resolve().parents)  # directories that there will be
    if args.report and not is_store_url(args.report) and Path(args.report).resolve().parent not in made:
        check_files_writable(args.report)
    with open_comparison_directory(out) as directory:
        if args.check:
            return estimate_comparison_cost(config, directory, args)
        pace = Pace(directory)
    if args.tokens_per_second is not None or args.response_tokens is not None:
        raise InputError("--tokens-per-second and --response-tokens are for --check")
    if args.ray is not None and len(args.ray) > 1:
        raise InputError(f"--ray takes one address, not {len(args.ray)}: {' '.join(args.ray)}")
    total = len(list_comparison_runs(config))
    print_remark(
        f"{total // len(section.seeds)} arms x {len(section.seeds)} seeds, {config.train.steps} steps each, into {out}"
    )
    with Bars() as bars:

        def report_steps_done(p: Progress) -> None:
            if sentence := pace.sentence_when_due(p.steps_done):
                print_remark(sentence)
            bars.report_progress("steps of all runs", "; ".join(p.running), p.steps_done, p.steps_total)

        if args.ray is None:
            outcome = compare_in_processes(config, Path(out), report_steps_done)
        else:
            from rollonce.training.ray_cluster import compare_on_ray_cluster

            outcome = compare_on_ray_cluster(
                config, out, address=args.ray[0] if args.ray else None, tell=report_steps_done
            )
    for error in outcome.errors:
        print_remark(f"not run: {error}")
    if outcome.interrupted:
        print_remark(f"stopped with {outcome.done} of {total} runs done; the same command goes on")
        return 130
    if not outcome.done:
        raise InputError(f"no run could be made: {outcome.errors[0] if outcome.errors else 'nothing was asked for'}")
    from rollonce.commands import report

    report.run(report.Args(out, report=args.report or f"{out.rstrip('/')}/report.html", json=args.json))
    return 1 if outcome.errors else 0


def estimate_comparison_cost(config: ExperimentConfig, out: Path, args: Args) -> int:
    """Say what the comparison will take, and leave it in OUT/cost.json for its first minutes to be held against."""
    from rollonce.commands.terminal import results_console as console
    from rollonce.reports.cost import print_comparison_cost
    from rollonce.training.cost import (
        estimate_comparison_cost,
        measure_step_costs,
        save_comparison_cost,
        step_costs_from_throughput,
    )
    from rollonce.training.devices import assign_run_devices
    from rollonce.training.rolling import load_configured_tasks

    config, places = assign_run_devices(config)
    if args.tokens_per_second is not None:
        limit = config.train.max_new_tokens or (96 if config.policy.source == "embedded" else 512)
        tokens = args.response_tokens or limit / 2
        if not args.tokens_per_second > 0 or not tokens > 0:
            raise InputError("--tokens-per-second and --response-tokens must be above 0")
        steps = step_costs_from_throughput(config, args.tokens_per_second, tokens)
        how = f"Computed from {args.tokens_per_second:g} response tokens per second and {tokens:g} tokens per response."
    elif config.policy.engine == "tinker":
        steps = {}
        how = "Nothing was measured: steps on a service cost money. Give --tokens-per-second for hours."
    else:
        with Bars() as bars:
            arms = len(config.arms)
            steps = measure_step_costs(
                config, lambda arm: bars.report_progress("measuring a step of each arm", arm, 0, arms)
            )
        how = (
            "Measured: one step of each arm and some held-out answers, on this machine, one at a time, with the start "
            "policy. Responses change in length as the policy learns."
        )
    cost = estimate_comparison_cost(config, load_configured_tasks(config.tasks), steps, places=len(places), how=how)
    save_comparison_cost(cost, out)
    if args.json:
        print_json_document(cost)
    else:
        print_comparison_cost(console(), cost)
    return 0
