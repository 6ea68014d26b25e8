"""``rollonce run``: a pre-registered experiment, from its specification to its verdict."""

from __future__ import annotations

import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from rollonce.commands.terminal import Bars, Flag, command_as_typed, print_json_document, print_remark, results_console
from rollonce.errors import InputError

HELP = """\
Carry a pre-registered experiment from preflight to verdict, unattended. Every
stage leaves a record in the run's directory, chained by hashes to the
specification; the same command goes on after a kill, and no stage is done twice.
A failed gate stops the run. Start with --check: within seconds it says what would
be done, what this design can detect at all, what it costs at most in tokens and
dollars, and whether key, service, model, tokenizer, renderer and data are there.
It runs nothing.

Exit codes: 0 a verdict was reached (whatever it is), 1 a gate or check failed and
nothing else, 2 bad input, or something that the run needs is not there, 70 a fault
of the program.

Examples:
  rollonce run specs/local_twin.spec.json --check
  rollonce run specs/local_twin.spec.json --out out/twin
  rollonce run specs/gs1_vs_grpo_gsm8k.spec.json --renderer qwen3_5_disable_thinking \\
      --base-url URL --check
"""


FAULT = 70  # EX_SOFTWARE


@dataclass
class Args:
    """Options of ``rollonce run``."""

    spec: Annotated[str, Positional, arg(metavar="SPEC.json", help_behavior_hint="")]
    """The specification."""
    check: Flag = False
    """Say what would be done and whether it can start, and run nothing."""
    out: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """The run's directory; default out/run/NAME of the specification. One that holds a run goes on with it."""
    renderer: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """How prompts become tokens on a service, where the specification names none: a renderer of tinker-cookbook
    (qwen3_5_disable_thinking), or text or chat for our own loop. Recorded, outside of the specification's hash; it can
    be mended until something was spent."""
    engine: Annotated[Literal["local", "tinker", "cookbook"] | None, arg(help_behavior_hint="")] = None
    """What trains, where the specification's own section does not say: our loop here (local) or on a service (tinker),
    or the stock recipe (cookbook). Another than the registered one is a deviation in the report."""
    gsm8k: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Where GSM8K's train.jsonl(.gz) and test.jsonl(.gz) lie; the hub otherwise."""
    base_url: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None
    """The Tinker-compatible service; default the specification's, then TINKER_BASE_URL. The key comes from the
    environment."""
    price: Annotated[str | None, arg(metavar="PREFILL,SAMPLE,TRAIN", help_behavior_hint="")] = None
    """Dollars per million tokens read, sampled and trained on; default a small table with its date."""
    json: bool = False
    """Print JSON and nothing else on stdout."""


def run(args: Args) -> int:
    """Check, or run, and write the report.

    Raises:
        InputError: a specification that is wrong, fields that cannot be resolved, something that is not there, a run of
            another specification in the directory.
    """
    from rollonce.experiments.advantages import check_advantages
    from rollonce.experiments.derive import derive_settings
    from rollonce.experiments.loading import load_specification
    from rollonce.experiments.prices import parse_token_price

    loaded = load_specification(args.spec)
    try:
        check_advantages(loaded.spec)
        settings = _apply_command_options(args, derive_settings(loaded.spec))
    except InputError as error:
        raise InputError(error.message, file=args.spec) from None
    price = parse_token_price(args.price) if args.price is not None else None
    if args.check:
        return _print_experiment_check(args, loaded, settings, price)
    try:
        return _run_experiment_to_verdict(args, loaded, settings, price)
    except InputError:
        raise
    except Exception:
        # Python's own exit code for a traceback is 1, which here means that a gate or check failed.
        traceback.print_exc()
        print("rollonce: a fault of the program and no failed gate; the same command goes on here", file=sys.stderr)
        return FAULT


def _apply_command_options(args: Args, settings: Any) -> Any:
    """The settings with what the command line says; never against what the specification says."""
    if args.engine is not None and args.engine != settings.engine:
        if settings.origins["engine"].where == "rollonce.engine":
            raise InputError(f"--engine {args.engine} was given, but rollonce.engine is {settings.engine}")
        settings = settings.with_command_option("engine", args.engine, "--engine")
    if args.gsm8k is not None:
        if not settings.tasks.startswith("gsm8k:"):
            raise InputError(f"--gsm8k was given, but the tasks of this specification are {settings.tasks!r}")
        settings = settings.with_command_option("tasks", f"gsm8k:{Path(args.gsm8k).expanduser().resolve()}", "--gsm8k")
    for name, value in (("base_url", args.base_url), ("renderer", args.renderer), ("price", args.price)):
        if value is not None and settings.engine == "local":
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} was given, but this specification runs on this machine")
    if args.base_url is not None:
        settings = settings.with_command_option("base_url", args.base_url, "--base-url")
    if args.renderer is not None:
        if settings.renderer not in (None, args.renderer):
            raise InputError(f"--renderer {args.renderer} was given, but rollonce.renderer is {settings.renderer}")
        settings = settings.with_command_option("renderer", args.renderer, "--renderer")
    return settings


def _print_experiment_check(args: Args, loaded: Any, settings: Any, price: Any) -> int:
    from rollonce.experiments.pins import resolve_field_pins
    from rollonce.experiments.plan import estimate_largest_cost, format_plan_sections
    from rollonce.experiments.readiness import check_readiness

    began = time.monotonic()
    pins = resolve_field_pins(loaded, settings)
    ready = check_readiness(settings)
    missing = [r for r in ready if not r.ready]
    sections = format_plan_sections(loaded, settings, pins, price)
    if args.json:
        cost = estimate_largest_cost(loaded, settings, price)._asdict()
        cost["price"] = cost["price"] and cost["price"]._asdict()
        print_json_document(
            {
                "title": loaded.spec.title,
                "sha256": loaded.sha256,
                "sections": dict(sections),
                "cost": cost,
                "unresolved": pins.open,
                "pins": pins.resolved,
                "unknown_fields": loaded.unknown,
                "readiness": [r._asdict() for r in ready],
                "can_start": not missing and not pins.open,
                "seconds": round(time.monotonic() - began, 1),
            }
        )
        return 2 if missing or pins.open else 0
    sections.append(("Can it start?", [f"{r.what}: {'' if r.ready else 'NO, '}{r.sentence}" for r in ready]))
    console = results_console()
    console.print(f"{loaded.spec.title}\n{args.spec}, sha256 {loaded.sha256}", markup=False, soft_wrap=True)
    for heading, lines in sections:
        console.print(f"\n{heading}", markup=False)
        for line in lines:
            console.print(f"  - {line}", markup=False, soft_wrap=True)
    lacking = [r.what for r in missing] + list(pins.open)
    end = f"It cannot start yet: {', '.join(lacking)}." if lacking else "It can start."
    seconds = time.monotonic() - began
    console.print(f"\nNothing was run; looking took {seconds:.1f} s. {end}", markup=False, soft_wrap=True)
    return 2 if lacking else 0


def _run_experiment_to_verdict(args: Args, loaded: Any, settings: Any, price: Any) -> int:
    from rollonce.experiments.engines import make_experiment_engine
    from rollonce.experiments.pins import resolve_field_pins
    from rollonce.experiments.readiness import Readiness, check_readiness, refuse_unready_run
    from rollonce.experiments.records import locked_directory
    from rollonce.experiments.run import ExperimentRun
    from rollonce.experiments.stages import run_experiment
    from rollonce.reports.experiment import write_experiment_report

    name = Path(args.spec).name.removesuffix(".json").removesuffix(".spec")
    directory = Path(args.out or f"out/run/{name}").expanduser().resolve()
    with locked_directory(directory), Bars() as bars:
        engine = make_experiment_engine(loaded.spec, settings)
        run = ExperimentRun(loaded, settings, engine, directory, say=print_remark, show_progress=bars.report_progress)
        if run.chain.latest_of_stage("decision") is None:
            still_open = [
                Readiness(path, False, why) for path, why in resolve_field_pins(loaded, settings).open.items()
            ]
            refuse_unready_run([*check_readiness(settings), *still_open])
        try:
            outcome = run_experiment(run)
        finally:
            close = getattr(engine, "close", None)
            if close is not None:
                close()
        pages = write_experiment_report(directory, command_as_typed("run", sys.argv[1:]), outcome, price)
    if args.json:
        print_json_document({**outcome._asdict(), "directory": str(directory), "report": [str(p) for p in pages]})
    else:
        results_console().print(outcome.sentence, markup=False, soft_wrap=True)
        print_remark(f"records: {directory}/records.jsonl   page: {pages[0]}   Markdown: {pages[1]}")
        print_remark(
            f"head of the records: {run.chain.records[-1].hash} (whoever has it can tell whether any was dropped)"
        )
    return outcome.code
