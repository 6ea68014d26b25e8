"""``rollonce check``: the audit of a baseline."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce.commands.inputs import ReaderOptions, find_sources, read
from rollonce.commands.terminal import Flag, out, print_json
from rollonce.errors import InputError
from rollonce.reports.check import audit_json, print_audit
from rollonce.reports.decision import decide_on_audit, print_decision

HELP = """\
Does a baseline leak? Changes each rollout's own reward, response and length and
looks whether its baseline moves, and holds the baseline to everything else it
promises: order, finite output, save and load, weights that sum to 1 ...

BASELINE is a file that `rollonce tune` or Baseline.save wrote, or your own code
as module:name: a Baseline, a class of one, or a function of (batch) or
(prompts, rewards). Exit code 0: all checks hold; 1: one failed.

Examples:
  rollonce check baseline.json
  rollonce check mypackage.baselines:my_baseline
  rollonce check baseline.json --on rollouts.jsonl
      With the prompts and columns of your own tasks.
"""


@dataclass
class Args:
    """Options of ``rollonce check``."""

    baseline: Annotated[str, Positional, arg(metavar="BASELINE")]
    """A baseline file, or module:name."""
    on: Annotated[str | None, arg(metavar="FILES", help_behavior_hint="")] = None
    """Rollouts whose prompts and columns are used; made-up prompts otherwise."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of everything random in the audit."""
    json: Flag = False
    """Print JSON and nothing else."""
    reader: Annotated[ReaderOptions, OmitArgPrefixes] = field(default_factory=ReaderOptions)


def run(args: Args) -> int:
    """Audit and print; 1 if a check failed.

    Raises:
        InputError: if there is no such baseline.
    """
    from rollonce.baselines import Baseline
    from rollonce.testing import check_baseline

    baseline = load(args.baseline)
    prompts = None
    if args.on is not None:
        prompts = read(find_sources([args.on], args.reader, together=True)[0], args.reader).tasks
    results = check_baseline(baseline, prompts=prompts, seed=args.seed)
    label = baseline.label if isinstance(baseline, Baseline) else args.baseline
    provenance = baseline.provenance if isinstance(baseline, Baseline) else None
    decision = decide_on_audit(results, args.baseline, provenance)
    if args.json:
        print_json(audit_json(args.baseline, label, results, provenance) | {"decision": decision})
    else:
        print_audit(out(), label, results, provenance)
        print_decision(out(), decision)
    return 0 if all(r.passed for r in results) else 1


def load(what: str) -> Any:
    """A baseline file's baseline, or the object that ``module:name`` names.

    Raises:
        InputError: if it is not there, cannot be imported, or is nothing that can be audited.
    """
    from rollonce.baselines import Baseline

    module_name, colon, name = what.partition(":")
    if os.path.exists(what) or not colon or what.endswith(".json"):
        if not os.path.exists(what) and not what.endswith(".json"):
            raise InputError(
                f"{what!r} is neither a baseline file nor module:name, like mypackage.baselines:my_baseline"
            )
        return Baseline.load(what)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise InputError(f"cannot import {module_name!r} ({type(error).__name__}: {error})") from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = [n for n, v in inspect.getmembers(found) if not n.startswith("_") and callable(v)]
            public.sort(key=lambda n: n[:1].lower() != part[:1].lower())  # those that begin alike come first
            shown = f"{', '.join(public[:12])}{' ...' if len(public) > 12 else ''}" or "nothing that can be called"
            raise InputError(f"{module_name!r} has no {part!r}; it has {shown}") from None
    return found
