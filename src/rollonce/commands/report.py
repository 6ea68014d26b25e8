"""``rollonce report``: a directory of runs, compared."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from rollonce.commands.terminal import Flag, command_as_typed, print_json_document, print_remark, results_console
from rollonce.errors import InputError

if TYPE_CHECKING:
    from rollonce.comparison import Analysis

HELP = """\
Which arm ended higher, by how much, and can that be told at all? Reads the runs
that `rollonce compare` wrote to a directory and compares every arm with one:
final accuracy (sampled and greedy, by family) with 95% intervals over seeds and
items, learning curves, rollouts and time to a level, where the time went, the
effective batch sizes measured along the way, and learning rates where several
were tried. Where no difference can be shown, how many seeds it would take.

Runs that have not finished, or are damaged, are named and left out.

Examples:
  rollonce report runs/embedded
  rollonce report runs/embedded --report out.html --markdown out.md
  rollonce report s3://bucket/mine
  rollonce report runs/embedded --reference grpo --difference 0.01 --json
"""


@dataclass
class Args:
    """Options of ``rollonce report``."""

    directory: Annotated[str, Positional, arg(metavar="DIR", help_behavior_hint="")] = ""
    """The directory that `rollonce compare` wrote, or the URL of an object store."""
    reference: Annotated[str | None, arg(metavar="ARM", help_behavior_hint="")] = None
    """The arm that others are compared with. Default: compare.json's, or flashreinforce, or the first."""
    pairing: Annotated[Literal["auto", "seed", "none"], arg(metavar="HOW")] = "auto"
    """Take differences seed by seed: where a seed means the same tasks in the same order (auto), always, or never."""
    difference: Annotated[float, arg(metavar="SHARE")] = 0.02
    """The difference worth telling, for the number of seeds needed; 0.02 is 2 points."""
    level: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="")] = None
    """Accuracy for "rollouts to reach". Default: half-way from the start to where the reference ends."""
    drop: Annotated[float, arg(metavar="SHARE")] = 0.05
    """A run that ends so far below its start, and farther than the noise of its items, has collapsed."""
    resamples: Annotated[int, arg(metavar="N")] = 2000
    """Of the bootstrap behind the interquartile mean."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of the bootstrap."""
    report: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write one self-contained HTML page as well."""
    markdown: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write Markdown as well."""
    json: Flag = False
    """Print JSON and nothing else."""


def run(args: Args) -> int:
    """Compare, print and write. `rollonce compare` ends with it.

    Raises:
        InputError: for a directory without usable runs, or bad options.
    """
    from rollonce.comparison import ComparisonSettings, analyse_comparison, load_finished_runs
    from rollonce.files import check_files_writable, write_whole_file
    from rollonce.training.object_store import is_store_url
    from rollonce.training.stored_runs import open_finished_runs, open_output_file

    if not args.directory:
        raise InputError("no DIR given; name the directory that `rollonce compare` wrote")
    check_files_writable(*(path for path in (args.report, args.markdown) if path and not is_store_url(path)))
    command = command_as_typed("report")
    with open_finished_runs(args.directory) as directory:
        runs = dataclasses.replace(load_finished_runs(directory), directory=args.directory)
    analysis = analyse_comparison(
        runs,
        ComparisonSettings(
            reference=args.reference,
            pairing=args.pairing,
            difference=args.difference,
            level=args.level,
            drop=args.drop,
            resamples=args.resamples,
            seed=args.seed,
        ),
    )
    if args.report:
        from rollonce.reports.comparison_page import write_comparison_page

        with open_output_file(args.report) as path:
            write_comparison_page(str(path), analysis, command)
    if args.markdown:
        from rollonce.reports.comparison_markdown import render_comparison_markdown

        with open_output_file(args.markdown) as path:
            write_whole_file(path, render_comparison_markdown(analysis, command))
    if args.json:
        print_json_document(comparison_json(analysis, command))
    else:
        from rollonce.reports.comparison_table import print_comparison

        print_comparison(results_console(), analysis)
    for path in filter(None, (args.report, args.markdown)):
        print_remark(f"wrote {path}")
    return 0


def comparison_json(analysis: Analysis, command: str) -> dict[str, Any]:
    """What ``--json`` prints: the whole comparison and its verdict in words."""
    from rollonce import __version__
    from rollonce.reports.comparison_words import make_comparison_verdict

    return {
        "rollonce": __version__,
        "command": command,
        "verdict": make_comparison_verdict(analysis)._asdict(),
        **analysis.to_dict(),
    }
