"""``rollonce score``: a board of baselines for each set of rollouts."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from rollonce.boards import BoardSettings, baseline_of_board_row
from rollonce.commands.boards import score_all_tables, separate_scorable_tables
from rollonce.commands.inputs import ReaderOptions, find_rollout_sources, read_source_table
from rollonce.commands.terminal import Bars, Flag, command_as_typed, print_json_document, print_remark, results_console
from rollonce.errors import InputError
from rollonce.scoring.exponent import read_surprisal_exponent

HELP = """\
Which baseline predicts best on these tasks, and how large a batch does it make
out of yours? Reads rollouts (some tasks, several rollouts of each, one policy)
and prints a board: B_eff, its ratio to the in-batch leave-one-out mean (LOO),
95% intervals over tasks, and a bar for each with a mark at 1.

FILES are files, directories, globs, or sets that come with rollonce. Files that
are tables of their own get a board each; the files of one training run are one.

Examples:
  rollonce score rollouts.jsonl --quick
      A first look in seconds; without --quick the whole board.
  rollonce score rollouts.jsonl --save-best baseline.json
      The board, and its best row as a file for a trainer.
  rollonce score rollouts.jsonl --columns level --held-out 0.3
      A declared column gets a baseline of its own; scored on held-out tasks.
  rollonce score --all-datasets --report out.html
      The eight shipped sets, and one page with everything on it.
  rollonce score mine.csv --prompt-key question --reward-key correct --json
  rollonce score gsm8k --baseline baseline.json --baseline mykernel:MyKernel
      A saved baseline, and a kernel of your own, among the others.
"""


@dataclass
class Args:
    """Options of ``rollonce score``."""

    files: Annotated[tuple[str, ...], Positional, arg(metavar="FILES", help_behavior_hint="")] = ()
    """Files, directories, globs, or names of shipped sets (their beginning will do)."""
    all_datasets: Flag = False
    """All sets that come with rollonce."""
    batch_size: Annotated[int, arg(metavar="B", aliases=["-B"])] = 32
    """Rollouts in a step, one per task."""
    window: Annotated[int, arg(metavar="ROWS")] = 512
    """Rows of earlier steps for the baselines that keep any."""
    batches: Annotated[int, arg(metavar="N")] = 2000
    """Batches drawn behind each value."""
    resamples: Annotated[int, arg(metavar="N")] = 100
    """Resamples of the tasks behind each interval; 0 for no intervals."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of batches and resamples: same seed, same board."""
    held_out: Annotated[float, arg(metavar="SHARE")] = 0.0
    """Score only this share of the tasks, with features fitted on the others."""
    baseline: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="BASELINE")] = ()
    """Put this one on the board as well: a saved baseline, as it was fitted, or your own code as module:name."""
    exponent: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """How squared gradient norms grow with the surprisal: what `rollonce noise --save` wrote, or a number. For rollouts
    with log-probabilities, whose training step is then predicted."""
    only: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="NAME")] = ()
    """Only the rows of this name, or whose label contains it (and the LOO mean)."""
    quick: Flag = False
    """A first look: fewer batches and resamples, and only what is fitted on prompts alone."""
    rho: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """How much tasks' gradients differ against one rollout's noise, as `rollonce noise` measures it: for the answer at
    the end."""
    save_best: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the best row as a baseline file, fitted on all of these tasks."""
    save: Annotated[str | None, arg(metavar="ROW", help_behavior_hint="")] = None
    """Write this row instead, to the file of --out."""
    out: Annotated[str, arg(metavar="FILE", aliases=["-o"])] = "baseline.json"
    """Where --save writes to."""
    all: Flag = False
    """Show all rows, not only the first and the yardsticks."""
    together: Flag = False
    """All FILES are one table."""
    separate: Flag = False
    """Every file is a table of its own."""
    jobs: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Sets scored at once, each on one core. Default: as many as there are cores."""
    json: Flag = False
    """Print JSON and nothing else."""
    tasks: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write a CSV with one row per task as well: rollouts, mean, deviation, pass@k, dead groups."""
    csv: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the boards as CSV as well, one row for each set and baseline."""
    markdown: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the boards as Markdown as well, for an issue or a notebook."""
    report: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write one self-contained HTML page as well."""
    open: Flag = False
    """Open that page in a browser; without --report it is a temporary file."""
    reader: Annotated[ReaderOptions, OmitArgPrefixes] = field(default_factory=ReaderOptions)


def run(args: Args) -> int:
    """Score, print and write.

    Raises:
        InputError: for anything wrong with files or options.
    """
    from rollonce.files import check_files_writable
    from rollonce.reports.decision import decide_on_board, print_decision
    from rollonce.reports.files import make_boards_json, write_boards_csv, write_boards_markdown, write_tasks_csv
    from rollonce.reports.table import print_baseline_board

    settings = _make_board_settings(args)
    saving = args.save_best or (args.out if args.save else None)
    report = args.report or (_make_temporary_page() if args.open else None)
    check_files_writable(args.csv, args.markdown, report, args.tasks, saving)
    sources = find_rollout_sources(
        args.files, args.reader, all_datasets=args.all_datasets, together=args.together, separate=args.separate
    )
    if saving and len(sources) > 1:
        raise InputError(
            f"a baseline is saved from one set, and these are {len(sources)}; name one, or give --together"
        )
    command = command_as_typed("score")
    with Bars(delay=0.3) as bars:
        everything = [read_source_table(source, args.reader, bars) for source in sources]
        if args.tasks:
            write_tasks_csv(args.tasks, everything)
        tables, left_out = separate_scorable_tables(everything, args.batch_size)
        boards = score_all_tables(tables, settings, args.jobs, bars)
    if saving:
        baseline = baseline_of_board_row(boards[0], tables[0], settings, args.save, command)
        baseline.save(saving)
        print_remark(f"wrote {saving}: {baseline.label}, fitted on all {tables[0].n_tasks} tasks")
    decisions = [decide_on_board(board, command, saved=saving, rho=args.rho) for board in boards]
    if args.csv:
        write_boards_csv(args.csv, boards)
    if args.markdown:
        write_boards_markdown(args.markdown, boards, decisions)
    if report:
        from rollonce.reports.page import write_board_page

        write_board_page(report, boards, command, decisions)
    if args.json:
        print_json_document(make_boards_json(boards, command, decisions) | {"left_out": left_out})
    else:
        console = results_console()
        for board, decision in zip(boards, decisions, strict=True):
            print_baseline_board(console, board, args.all)
            print_decision(console, decision, with_next=len(boards) == 1)
        _say_how_files_were_taken(args, [s.file_paths for s in sources])
    for sentence in left_out:
        print_remark(f"left out: {sentence}")
    for path in filter(None, (args.csv, args.markdown, report, args.tasks)):
        print_remark(f"wrote {path}")
    if args.open and not webbrowser.open(Path(report or "").resolve().as_uri()):
        print_remark(f"no browser here; open {report} with one")
    return 0


def _make_temporary_page() -> str:
    handle, path = tempfile.mkstemp(prefix="rollonce-", suffix=".html")
    os.close(handle)
    return path


def _make_board_settings(args: Args) -> BoardSettings:
    for name, least in (("batch_size", 2), ("window", 0), ("batches", 1), ("resamples", 0), ("seed", 0)):
        if getattr(args, name) < least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(args, name)}")
    if not 0 <= args.held_out < 1:
        raise InputError(f"--held-out is a share of the tasks, at least 0 and below 1, not {args.held_out:g}")
    if args.jobs is not None and args.jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {args.jobs}")
    if args.save and args.save_best:
        raise InputError("give --save-best FILE or --save ROW, not both")
    if args.rho is not None and not args.rho >= 0:
        raise InputError(f"--rho must be at least 0, not {args.rho:g}")
    return BoardSettings(
        batch_size=args.batch_size,
        window=args.window,
        n_batches=args.batches,
        resamples=args.resamples,
        seed=args.seed,
        held_out=args.held_out,
        given=args.baseline,
        exponent=read_surprisal_exponent(args.exponent) if args.exponent is not None else None,
        only=args.only,
        quick=args.quick,
    )


def _say_how_files_were_taken(args: Args, groups: list[tuple[str, ...]]) -> None:
    files = [g for g in groups if g]
    n = sum(map(len, files))
    if len(files) > 1 and not args.separate:
        print_remark(f"{n} files taken as {len(files)} tables; --together makes one of them")
    elif n > 1 and len(files) == 1 and not args.together:
        print_remark(f"{n} files taken as one table; --separate makes a board of each")
