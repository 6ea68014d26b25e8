"""``rollonce run``: a pre-registered experiment, from its specification to its verdict."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from rollonce.commands.terminal import Bars, Flag, command_line, out, print_json, remark
from rollonce.errors import InputError

HELP = """\
Carry a pre-registered experiment from preflight to verdict, unattended. Every
stage leaves a record in the run's directory, chained by hashes to the
specification; the same command goes on after a kill, and no stage is done twice.
A failed gate stops the run. Start with --check: it says what would be done, what
this design can detect at all, and what it costs at most, and runs nothing.

Exit codes: 0 a verdict was reached (whatever it is), 1 a gate or check failed,
2 bad input.

Examples:
  rollonce run specs/local_twin.spec.json --check
  rollonce run specs/local_twin.spec.json --out out/twin
  rollonce run specs/gs1_vs_grpo_gsm8k.spec.json --gsm8k DIR --base-url URL
"""


@dataclass
class Args:
    """Options of ``rollonce run``."""

    spec: Annotated[str, Positional, arg(metavar="SPEC.json", help_behavior_hint="")]
    """The specification."""
    check: Flag = False
    """Say what would be done, and run nothing."""
    out: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """The run's directory; default out/run/NAME of the specification. One that holds a run goes on with it."""
    gsm8k: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Where GSM8K's train.jsonl(.gz) and test.jsonl(.gz) lie; the hub otherwise."""
    base_url: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None
    """The Tinker-compatible service; default the specification's, then TINKER_BASE_URL. The key comes from the
    environment."""
    json: bool = False
    """Print JSON and nothing else on stdout."""


def run(args: Args) -> int:
    """Check, or run, and write the report.

    Raises:
        InputError: a specification that is wrong, fields that cannot be resolved, a run of another specification in the
            directory.
    """
    from rollonce.experiments.advantages import check_advantages
    from rollonce.experiments.derive import derive
    from rollonce.experiments.loading import load_spec
    from rollonce.experiments.pins import resolve

    loaded = load_spec(args.spec)
    try:
        check_advantages(loaded.spec)
        settings = derive(loaded.spec)
    except InputError as error:
        raise InputError(error.message, file=args.spec) from None
    settings = dataclasses.replace(settings, origin=dict(settings.origin))
    if args.gsm8k is not None:
        if not settings.tasks.startswith("gsm8k:"):
            raise InputError(
                f"--gsm8k was given, but the tasks of this specification are {settings.tasks!r}", file=args.spec
            )
        settings = dataclasses.replace(settings, tasks=f"gsm8k:{Path(args.gsm8k).expanduser().resolve()}")
        settings.origin["tasks"] = "--gsm8k"
    if args.base_url is not None:
        if settings.engine == "local":
            raise InputError("--base-url was given, but this specification runs on this machine", file=args.spec)
        settings = dataclasses.replace(settings, base_url=args.base_url)
    if args.check:
        return _check(args, loaded, settings, resolve(loaded, settings))
    return _run(args, loaded, settings)


def _check(args: Args, loaded: Any, settings: Any, pins: Any) -> int:
    from rollonce.experiments.plan import cost, plan_lines

    sections = plan_lines(loaded, settings, pins)
    if args.json:
        print_json(
            {
                "title": loaded.spec.title,
                "sha256": loaded.sha256,
                "sections": dict(sections),
                "cost": cost(loaded, settings)._asdict(),
                "unresolved": pins.open,
                "pins": pins.resolved,
                "unknown_fields": loaded.unknown,
            }
        )
        return 0
    console = out()
    console.print(f"{loaded.spec.title}\n{args.spec}, sha256 {loaded.sha256}", markup=False, soft_wrap=True)
    for heading, lines in sections:
        console.print(f"\n{heading}", markup=False)
        for line in lines:
            console.print(f"  - {line}", markup=False, soft_wrap=True)
    console.print("\nNothing was run.", markup=False)
    return 0


def _run(args: Args, loaded: Any, settings: Any) -> int:
    from rollonce.experiments.engines import make_engine
    from rollonce.experiments.records import locked
    from rollonce.experiments.run import Run
    from rollonce.experiments.stages import run_experiment
    from rollonce.reports.experiment import write_report

    name = Path(args.spec).name.removesuffix(".json").removesuffix(".spec")
    directory = Path(args.out or f"out/run/{name}").expanduser()
    with locked(directory), Bars() as bars:
        engine = make_engine(loaded.spec, settings)
        run = Run(loaded, settings, engine, directory.resolve(), say=remark, tell=bars.tell)
        try:
            outcome = run_experiment(run)
        finally:
            close = getattr(engine, "close", None)
            if close is not None:
                close()
        pages = write_report(directory, command_line("run", sys.argv[1:]), outcome)
    if args.json:
        print_json({**outcome._asdict(), "directory": str(directory), "report": [str(p) for p in pages]})
    else:
        out().print(outcome.sentence, markup=False, soft_wrap=True)
        remark(f"records: {directory}/records.jsonl   page: {pages[0]}   Markdown: {pages[1]}")
    return outcome.code
