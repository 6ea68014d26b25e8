"""``rollonce compare``: arms x seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from rollonce.commands.terminal import Bars, Flag, remark
from rollonce.errors import InputError

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
"""


@dataclass
class Args:
    """Options of ``rollonce compare``."""

    config: Annotated[Positional[str], arg(metavar="CONFIG.toml")]
    """Policy, tasks, loss, arms, seeds."""
    out: Annotated[str | None, arg(metavar="DIR")] = None
    """Where to; default runs/ and the file's name."""
    seeds: Annotated[tuple[int, ...], arg(metavar="N ...")] = ()
    """Instead of the file's."""
    processes: Annotated[int | None, arg(metavar="N")] = None
    """Runs at once, one thread each; default one per device, or per core."""
    devices: Annotated[tuple[str, ...], arg(metavar="DEVICE ...")] = ()
    """A device for each run: auto (every GPU), or cuda:0 cuda:1 ..."""
    report: Annotated[str | None, arg(metavar="FILE.html")] = None
    """Write the page there; default DIR/report.html."""
    json: Flag = False
    """Print the comparison as JSON."""


def run(args: Args) -> int:
    """Run what is missing, then report. Exit code 1 if a run could not be made, 130 if stopped."""
    from rollonce.training import need_extra
    from rollonce.training.config import CompareConfig, ExperimentConfig, validated
    from rollonce.training.loading import load_config, runs_of

    config = load_config(args.config)
    need_extra()
    from rollonce.files import check_writable
    from rollonce.training.compare import Progress, check_start, compare

    changes = {
        "seeds": args.seeds or config.compare.seeds,
        "processes": config.compare.processes if args.processes is None else args.processes,
        "devices": ("auto" if args.devices == ("auto",) else args.devices) or config.compare.devices,
    }
    section = validated(CompareConfig, {**config.compare.model_dump(), **changes}, "the options")
    # Checked with the rest of the file: some options exclude some of its keys.
    config = validated(
        ExperimentConfig, {**config.model_dump(exclude_unset=True), "compare": section.model_dump()}, "the options"
    )
    check_start(config)
    out = Path(args.out or f"runs/{Path(args.config).stem}")
    if args.report and Path(args.report).resolve().parent not in (
        out.resolve(),
        *out.resolve().parents,
    ):  # those it will make
        check_writable(args.report)
    total = len(runs_of(config))
    remark(
        f"{total // len(section.seeds)} arms x {len(section.seeds)} seeds, {config.train.steps} steps each, into {out}"
    )
    with Bars() as bars:

        def tell(p: Progress) -> None:
            bars.tell("steps of all runs", "; ".join(p.running), p.steps_done, p.steps_total)

        outcome = compare(config, out, tell)
    for error in outcome.errors:
        remark(f"not run: {error}")
    if outcome.interrupted:
        remark(f"stopped with {outcome.done} of {total} runs done; the same command goes on")
        return 130
    if not outcome.done:
        raise InputError(f"no run could be made: {outcome.errors[0] if outcome.errors else 'nothing was asked for'}")
    from rollonce.commands import report

    report.run(report.Args(str(out), report=args.report or str(out / "report.html"), json=args.json))
    return 1 if outcome.errors else 0
