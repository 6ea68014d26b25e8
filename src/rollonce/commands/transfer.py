"""``rollonce transfer``: kernels tuned on each set, on every set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce.commands.inputs import ReaderOptions, find_sources, read
from rollonce.commands.terminal import Bars, command_line, out, print_json, remark
from rollonce.errors import InputError
from rollonce.rollouts import Rollouts
from rollonce.tuning.transfer import Cell, TransferResult, geometric_mean, transfer

HELP = """\
Does a kernel tuned on one set of tasks work on another, or must each have its
own? Prints kernels x sets as ratios to each set's in-batch leave-one-out mean
(LOO), with paired 95% intervals, and a sentence a row. A set's own cell, and
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
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of candidates, folds and batches."""
    figure: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the heat map, SVG or PNG."""
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
    if args.figure and (
        Path(args.figure).suffix.lower() not in (".svg", ".png") or not Path(args.figure).parent.is_dir()
    ):
        raise InputError("--figure must end in .svg or .png, in a folder that exists", file=args.figure)
    sources = find_sources(args.files, args.reader, all_datasets=args.all_datasets)
    with Bars() as bars:
        result = transfer(
            [read(s, args.reader, bars) for s in sources],
            n_candidates=args.candidates,
            batch_size=args.batch_size,
            n_batches=args.batches,
            resamples=args.resamples,
            seed=args.seed,
            extra=self_tuning_cell(args),
            progress=lambda what, done, total: bars.tell("transfer", what, done, total),
        )
    command = command_line("transfer")
    if args.figure:
        draw(result, args.figure)
        remark(f"wrote {args.figure}")
    if args.json:
        print_json(result.to_dict() | {"command": command})
    else:
        show(result)
    return 0


def self_tuning_cell(args: Args) -> Callable[[Rollouts], Cell] | None:
    """The self-tuning baseline's cell, cross-fitted (it needs no transfer); None where this installation has none."""
    try:
        from rollonce.baselines.self_tuning import SelfTuning
        from rollonce.tuning.crossfit import crossfit_score
    except ImportError:
        return None

    def cell(rollouts: Rollouts) -> Cell:
        score = crossfit_score(SelfTuning, rollouts, batch_size=args.batch_size, seed=args.seed)
        return Cell(score.ratio, "self-tuning", True)

    return cell


def show(result: TransferResult) -> None:
    """The matrix with a letter a set, and the sentences."""
    console = out()
    letters = [chr(ord("A") + i) if i < 26 else str(i) for i in range(len(result.columns))]
    for letter, name in zip(letters, result.columns, strict=True):
        console.print(f"{letter}  {name}", markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("ratio to LOO")
    for letter in letters:
        table.add_column(letter, justify="right")
    table.add_column("mean", justify="right")
    for name, cells in result.rows.items():
        short = name
        for letter, column in zip(letters, result.columns, strict=True):
            short = f"tuned on {letter}" if name == f"tuned on {column}" else short
        table.add_row(short, *(mark(c) for c in cells), f"{geometric_mean(cells):.2f}")
    console.print()
    console.print(table)
    console.print("+ / -: the 95% interval lies above / below 1.  c: cross-fitted.", markup=False)
    console.print()
    for line in result.sentences:
        console.print(line, markup=False, soft_wrap=True)


def mark(cell: Cell) -> str:
    """A cell as text."""
    sign = "+" if cell.ratio.low > 1 else "-" if cell.ratio.high < 1 else ""
    return f"{cell.ratio.value:.2f}{sign}{'c' if cell.cross_fitted else ''}"


def draw(result: TransferResult, path: str) -> None:
    """The heat map."""
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    values = np.array([[c.ratio.value for c in cells] for cells in result.rows.values()])
    height = 0.42 * len(result.rows) + 2.2
    figure, axes = plt.subplots(figsize=(1.05 * len(result.columns) + 4.2, height), layout="constrained")
    image = axes.imshow(np.log(values), cmap="RdBu", vmin=-np.log(1.25), vmax=np.log(1.25), aspect="auto")
    for i, cells in enumerate(result.rows.values()):
        for j, cell in enumerate(cells):
            sure = cell.ratio.low > 1 or cell.ratio.high < 1
            axes.text(j, i, f"{cell.ratio.value:.2f}", ha="center", va="center", fontsize=9,
                      fontweight="bold" if sure else "normal",
                      color="white" if abs(np.log(cell.ratio.value)) > 0.16 else "black")  # fmt: skip
    axes.set_xticks(range(len(result.columns)), result.columns, rotation=35, ha="right", fontsize=8)
    axes.set_yticks(range(len(result.rows)), list(result.rows), fontsize=8)
    axes.set_title("B_eff relative to the set's LOO mean (bold: the 95% interval excludes 1)", fontsize=9, loc="left")
    bar = figure.colorbar(image, ax=axes, shrink=0.7, ticks=[np.log(x) for x in (0.8, 0.9, 1, 1.1, 1.25)])
    bar.ax.set_yticklabels(["0.8", "0.9", "1", "1.1", "1.25"])
    figure.savefig(path)
    plt.close(figure)
