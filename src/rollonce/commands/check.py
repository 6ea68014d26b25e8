"""``rollonce check``: the audit of a baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce.commands.inputs import ReaderOptions, find_rollout_sources, read_source_table
from rollonce.commands.terminal import Flag, print_json_document, results_console
from rollonce.reports.check import make_audit_json, print_audit_results
from rollonce.reports.decision import decide_on_audit, print_decision

HELP = """\
Does a baseline leak? Changes each rollout's own reward, response and length and
looks whether its baseline moves, and holds the baseline to everything else it
promises: order, finite output, save and load, weights that sum to 1 ...

BASELINE is a file that `rollonce tune` or Baseline.save wrote, a name that
`rollonce baselines` lists, or your own code as module:name: a baseline or a
kernel, a class of one, or a function of (batch) or (prompts, rewards). Exit
code 0: all checks hold; 1: one failed.

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
    """A baseline file, a name, or module:name."""
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

    baseline = _load_audit_subject(args.baseline)
    prompts = None
    if args.on is not None:
        prompts = read_source_table(find_rollout_sources([args.on], args.reader, together=True)[0], args.reader).tasks
    results = check_baseline(baseline, prompts=prompts, seed=args.seed)
    label = baseline.label if isinstance(baseline, Baseline) else args.baseline
    provenance = baseline.provenance if isinstance(baseline, Baseline) else None
    decision = decide_on_audit(results, args.baseline, provenance)
    if args.json:
        print_json_document(make_audit_json(args.baseline, label, results, provenance) | {"decision": decision})
    else:
        print_audit_results(results_console(), label, results, provenance)
        print_decision(results_console(), decision)
    return 0 if all(r.passed for r in results) else 1


def _load_audit_subject(what: str) -> Any:
    """What is audited: a named or saved baseline, or the object that ``module:name`` names. A plain function stays one:
    it may ask for responses here, so that a leak can show."""
    from rollonce.baselines import load_baseline
    from rollonce.importing import import_named_object

    return import_named_object(what) if ":" in what and not what.endswith(".json") else load_baseline(what)
