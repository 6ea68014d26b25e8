"""``rollonce transfer``: kernels tuned on each set, on every set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce.commands.inputs import ReaderOptions, find_rollout_sources, read_source_table
from rollonce.commands.terminal import Bars, command_as_typed, print_json_document, print_remark, results_console
from rollonce.errors import InputError
from rollonce.files import check_files_writable, write_whole_file
from rollonce.reports.transfer import draw_transfer_heat_map, print_transfer_matrix
from rollonce.scoring.exponent import read_surprisal_exponent
from rollonce.tuning.step_objective import ObjectiveName
from rollonce.tuning.transfer import measure_kernel_transfer

HELP = """\
Does a kernel tuned on one set of tasks work on another, or must each have its
own? Prints kernels x sets as ratios to each set's in-batch leave-one-out mean
(LOO), with paired 95% intervals, and a sentence for each. A set's own cell, and
the pool's, are cross-fitted: no task is judged by a choice it had part in.

Examples:
  rollonce transfer gsm8k rg_smollm2 game24
  rollonce transfer mine.jsonl theirs.jsonl --figure transfer.svg
  rollonce transfer --all-datasets --candidates 60 --json
"""


@dataclass
class Args:
    """Options of ``rollonce transfer``."""

    files: Annotated[tuple[str, ...], Positional, arg(metavar="FILES", help_behavior_hint="")] = ()
    """Files, directories, globs, or names of shipped sets; two or more sets."""
    all_datasets: bool = False
    """All sets that come with rollonce."""
    candidates: Annotated[int, arg(metavar="N")] = 120
    """Length of the list of candidate kernels that every set chooses from."""
    batch_size: Annotated[int, arg(metavar="B", aliases=["-B"])] = 32
    """Rollouts in a step, one per task."""
    batches: Annotated[int, arg(metavar="N")] = 200
    """Common batches behind a candidate's value."""
    resamples: Annotated[int, arg(metavar="N")] = 60
    """Resamples of the tasks behind each interval."""
    objective: Annotated[ObjectiveName, arg(metavar="b_eff|step")] = "b_eff"
    """What is compared: effective batch sizes, or the progress of a training step, predicted from log-probabilities."""
    exponent: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """For --objective step: how squared gradient norms grow with the surprisal, as `rollonce noise --save` wrote it, or
    a number."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of candidates, folds and batches."""
    figure: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the heat map as SVG."""
    json: bool = False
    """Print JSON and nothing else."""
    reader: Annotated[ReaderOptions, OmitArgPrefixes] = field(default_factory=ReaderOptions)


def run(args: Args) -> int:
    """Compute, print, draw.

    Raises:
        InputError: for anything wrong with files or options.
    """
    for name, least in (("candidates", 2), ("batch_size", 2), ("batches", 1), ("resamples", 0), ("seed", 0)):
        if getattr(args, name) < least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(args, name)}")
    if args.figure and not args.figure.lower().endswith(".svg"):
        raise InputError("--figure is drawn as SVG; give it a name that ends in .svg", file=args.figure)
    exponent = read_surprisal_exponent(args.exponent) if args.exponent is not None else None
    check_files_writable(args.figure)
    sources = find_rollout_sources(args.files, args.reader, all_datasets=args.all_datasets)
    with Bars() as bars:
        result = measure_kernel_transfer(
            [read_source_table(s, args.reader, bars) for s in sources],
            n_candidates=args.candidates,
            batch_size=args.batch_size,
            n_batches=args.batches,
            resamples=args.resamples,
            objective=args.objective,
            exponent=exponent,
            seed=args.seed,
            progress=lambda what, done, total: bars.report_progress("transfer", what, done, total),
        )
    command = command_as_typed("transfer")
    if args.figure:
        write_whole_file(args.figure, draw_transfer_heat_map(result))
        print_remark(f"wrote {args.figure}")
    if args.json:
        print_json_document(result.to_dict() | {"command": command})
    else:
        print_transfer_matrix(results_console(), result)
    return 0
