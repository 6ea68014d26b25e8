"""``rollonce tune``: hill-climb to a baseline, and say what it is worth on tasks it was not tuned on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce.commands.inputs import ReaderOptions, find_rollout_sources, read_source_table
from rollonce.commands.terminal import Bars, command_as_typed, print_json_document, print_remark, results_console
from rollonce.errors import InputError
from rollonce.files import check_files_writable
from rollonce.reports.decision import decide_on_tuning, print_decision
from rollonce.reports.tune import print_tuning_result
from rollonce.scoring.exponent import read_surprisal_exponent
from rollonce.testing.given import load_given_baseline
from rollonce.tuning.parts import window_that_tasks_allow
from rollonce.tuning.provenance import provenance_of_tuning
from rollonce.tuning.search import SAMPLERS, Budget
from rollonce.tuning.step_objective import ObjectiveName
from rollonce.tuning.tune import tune

HELP = """\
Hill-climb to a baseline on rollouts you have, save it as one small file, and
report what it is worth on tasks it was not tuned on.

With 150 tasks or more they are split: half to tune, a quarter to choose, a
quarter to report, which is looked at once. With fewer the whole procedure is
cross-fitted. The self-tuning baseline, which needs no search, is among the
finalists. Where no gain over the leave-one-out mean (LOO) is shown on the choose
part, the LOO mean is what is chosen.

Examples:
  rollonce tune rollouts.jsonl
      200 trials, then baseline.json.
  rollonce tune rollouts.jsonl --budget 60s --window 0 --columns level
      For a minute, with the batch alone; a column of yours may count.
  rollonce tune rollouts.jsonl --storage search.db --budget 2000
      Stop it and start it again, or run it on several machines at once: one
      search. (Any Optuna URL will do.)
  rollonce tune gsm8k --sampler hillclimb
      The plain greedy hill-climb.
"""


@dataclass
class Args:
    """Options of ``rollonce tune``."""

    files: Annotated[tuple[str, ...], Positional, arg(metavar="FILES", help_behavior_hint="")] = ()
    """Files, directories, globs, or the name of a shipped set; all are one table."""
    budget: Annotated[str, arg(metavar="N|TIME")] = "200"
    """Trials (200) or time (60s, 5m). Cross-fitting runs six searches: each has so many trials, or a sixth of the
    time."""
    out: Annotated[str, arg(metavar="FILE", aliases=["-o"])] = "baseline.json"
    """Where the chosen baseline goes."""
    batch_size: Annotated[int, arg(metavar="B", aliases=["-B"])] = 32
    """Rollouts in a step, one per task."""
    window: Annotated[int | None, arg(metavar="ROWS", help_behavior_hint="")] = None
    """The longest history window that may be searched; 0 keeps to the batch. Default: what the tasks allow, 512 rows at
    most."""
    start: Annotated[str | None, arg(metavar="BASELINE", help_behavior_hint="")] = None
    """Begin here as well, and search around its settings: a saved baseline, or your own code as module:name."""
    objective: Annotated[ObjectiveName, arg(metavar="b_eff|step")] = "b_eff"
    """What is climbed: the effective batch size, or the progress of a training step, predicted from
    log-probabilities."""
    exponent: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """For --objective step: how squared gradient norms grow with the surprisal, as `rollonce noise --save` wrote it, or
    a number."""
    sampler: Annotated[str, arg(metavar="NAME")] = "tpe"
    """tpe, cmaes (TPE for the structure, CMA-ES for its numbers) or hillclimb."""
    storage: Annotated[str | None, arg(metavar="FILE|URL", help_behavior_hint="")] = None
    """Keep the search in an SQLite file or any Optuna storage, to resume or share it."""
    ray: Annotated[tuple[str, ...] | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """Let every CPU of a Ray cluster join the search in --storage: HOST:PORT, or nothing for the one that runs on this
    machine (needs the extra 'ray')."""
    embedding: bool = False
    """Search sentence embeddings as well (needs the extra 'embed')."""
    batches: Annotated[int, arg(metavar="N")] = 400
    """Common batches of each trial."""
    resamples: Annotated[int, arg(metavar="N")] = 100
    """Resamples of the tasks behind each reported interval; 0 for none."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of the split, the batches and the search. Machines that join one search must agree on it."""
    json: bool = False
    """Print JSON and nothing else."""
    reader: Annotated[ReaderOptions, OmitArgPrefixes] = field(default_factory=ReaderOptions)


def run(args: Args) -> int:
    """Tune, print, save.

    Raises:
        InputError: for anything wrong with files or options.
    """
    for name, least in (("batch_size", 2), ("window", 0), ("batches", 1), ("resamples", 0), ("seed", 0)):
        if (getattr(args, name) or 0) < least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(args, name)}")
    budget = Budget.from_budget_text(args.budget)
    if args.sampler not in SAMPLERS:
        raise InputError(f"--sampler must be one of {', '.join(SAMPLERS)}, not {args.sampler!r}")
    if args.ray is not None and len(args.ray) > 1:
        raise InputError(f"--ray takes one address, not {len(args.ray)}: {' '.join(args.ray)}")
    exponent = read_surprisal_exponent(args.exponent) if args.exponent is not None else None
    check_files_writable(args.out)
    start = None if args.start is None else load_given_baseline(args.start)
    sources = find_rollout_sources(args.files, args.reader, together=True)
    if len(sources) != 1:
        raise InputError(
            f"rollonce tune works on one set, and these are {len(sources)}; rollonce transfer compares sets"
        )
    with Bars() as bars, contextlib.ExitStack() as stack:
        rollouts = read_source_table(sources[0], args.reader, bars)
        window = window_that_tasks_allow(rollouts.n_tasks, args.batch_size) if args.window is None else args.window
        settings: dict[str, Any] = {
            "budget": budget,
            "batch_size": args.batch_size,
            "window": window,
            "sampler": args.sampler,
            "seed": args.seed,
            "storage": args.storage,
            "embedding": args.embedding,
            "objective": args.objective,
            "exponent": exponent,
            "n_batches": args.batches,
            "resamples": args.resamples,
            "start": start,
        }
        complaints: list[str] = []
        if args.ray is not None:
            from rollonce.tuning.ray_helpers import search_helpers_on_ray

            address = args.ray[0] if args.ray else None
            complaints = stack.enter_context(search_helpers_on_ray(address, rollouts, settings))
        result = tune(rollouts, **settings, progress=_make_trial_reporter(bars, budget))
        stack.close()
        for complaint in dict.fromkeys(complaints):
            print_remark(f"no help: {complaint}")
    result.baseline.save(args.out, provenance_of_tuning(result, sources[0].file_paths, command_as_typed("tune")))
    decision = decide_on_tuning(result, args.out)
    if args.json:
        print_json_document(result.to_dict() | {"decision": decision})
    else:
        print_tuning_result(results_console(), result)
        print_decision(results_console(), decision)
    print_remark(f"wrote {args.out} ({Path(args.out).stat().st_size / 1000:.0f} kB)")
    return 0


def _make_trial_reporter(bars: Bars, budget: Budget) -> Any:
    by_time = budget.trials == float("inf")

    def report_trial_progress(search: str, trials: int, seconds: float, best: float) -> None:
        done, total = (seconds, budget.seconds) if by_time else (trials, budget.trials)
        bars.report_progress(search, f"best {best:.3f} of LOO", int(done), int(total))

    return report_trial_progress
