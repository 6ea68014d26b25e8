"""``rollonce watch``: baselines ranked on the log of a training run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from rollonce.commands.inputs import ReaderOptions, find_rollout_sources, read_source_table
from rollonce.commands.terminal import Bars, Flag, command_as_typed, print_json_document, print_remark, results_console
from rollonce.errors import InputError
from rollonce.files import convert_to_plain_json

if TYPE_CHECKING:
    from rollonce.baselines import Baseline, Batch
    from rollonce.readers.follow import Rows
    from rollonce.rollouts import Tasks
    from rollonce.scoring import WatchScore

HELP = """\
Which baseline would have served this training run better? Replays its log step
by step; each baseline sees only the batch and earlier steps, and is ranked by
E[A^2], the mean squared advantage, which needs no second rollout of any task.
Rows of the same prompt are hidden from each other, so groups do no harm.

LOG is a log of any format that `rollonce score` reads: a file, a directory of
step files, or a glob.

Examples:
  rollonce watch runs/math/rollout_data/
  rollonce watch rollouts.jsonl --follow
      While the run is writing it; Ctrl-C ends it.
  rollonce watch rollouts.jsonl --batch-size 64 --json
      A log without a step column, in steps of 64 rows.
"""
_SHOWN_SO_FAR = 8


@dataclass
class Args:
    """Options of ``rollonce watch``."""

    log: Annotated[tuple[str, ...], Positional, arg(metavar="LOG", help_behavior_hint="")] = ()
    """The log: files, a directory, or a glob."""
    follow: Flag = False
    """Go on as the log grows (JSON Lines)."""
    idle: Annotated[float | None, arg(metavar="SECONDS", help_behavior_hint="")] = None
    """With --follow: end once nothing was written for so long."""
    poll: Annotated[float, arg(metavar="SECONDS")] = 1.0
    """With --follow: how often to look."""
    batch_size: Annotated[int | None, arg(metavar="B", aliases=["-B"], help_behavior_hint="")] = None
    """Rows in a step. Default: the log's own steps, or 32 where it has none."""
    window: Annotated[int, arg(metavar="ROWS")] = 512
    """Rows of earlier steps for the baselines that keep any."""
    trees: Flag = False
    """Fit the boosted-trees critic as well (slow: a model each step)."""
    baseline: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="BASELINE")] = ()
    """Rank this one as well: a saved baseline, as it was fitted, or your own code as module:name."""
    exponent: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """How squared gradient norms grow with the surprisal (what `rollonce noise --save` wrote, or a number): predicts
    the progress of each baseline's step where the log has log-probabilities."""
    json: Flag = False
    """Print JSON and nothing else; with --follow a line each time something was added."""
    reader: Annotated[ReaderOptions, OmitArgPrefixes] = field(default_factory=ReaderOptions)


def run(args: Args) -> int:
    """Replay, rank and print.

    Raises:
        InputError: for anything wrong with the log or the options.
    """
    if args.batch_size is not None and args.batch_size < 2:
        raise InputError(f"--batch-size must be at least 2, not {args.batch_size}")
    if args.window < 0 or args.poll <= 0 or (args.idle is not None and args.idle < 0):
        raise InputError("--window and --idle must be at least 0, --poll above 0")
    if not args.log:
        raise InputError("no LOG given; name a file, a directory or a glob")
    return _follow_growing_log(args) if args.follow else _replay_whole_log(args)


def _replay_whole_log(args: Args) -> int:
    from rollonce.reports.decision import decide_on_log, print_decision
    from rollonce.reports.watch import describe_step_leader, make_watch_view
    from rollonce.scoring import Watcher, split_into_steps

    source = find_rollout_sources(args.log, args.reader, together=True)
    if len(source) > 1:
        raise InputError("watch reads one log at a time; name one")
    with Bars() as bars:
        table = read_source_table(source[0], args.reader, bars)
        baselines, unfitted = _fitted_baselines(args, table.tasks)
        watcher = Watcher(baselines, _read_requested_exponent(args))
        steps = list(split_into_steps(table, args.batch_size))
        shown = -math.inf
        for i, step in enumerate(steps, 1):
            watcher.score_next_step(step)
            if time.monotonic() - shown > 0.5 and (scores := watcher.rank_scores_so_far()):
                shown = time.monotonic()
                bars.report_progress("replaying", describe_step_leader(scores), i, len(steps))
                bars.show_above_bars(make_watch_view(bars.stderr_console, table.name, scores[:_SHOWN_SO_FAR]))
    scores = watcher.rank_scores_so_far()
    if not scores:
        raise InputError(_sentence_on_no_steps(table.n_rollouts, table.n_tasks, args.batch_size), file=table.source)
    n_open = None if table.steps_R is None else int((table.steps_R == table.steps_R[-1]).sum())
    notes = [*_sentences_on_left_out(args, table.n_rollouts, n_open, steps, scores), *unfitted]
    if table.skipped:
        notes.append(f"{table.n_skipped} bad rows were skipped; the first: {table.skipped[0]}")
    decision = decide_on_log(scores, " ".join(args.log))
    if args.json:
        print_json_document(
            {
                "command": command_as_typed("watch"),
                "log": table.source,
                "scores": scores,
                "notes": notes,
                "decision": decision,
            }
        )
        return 0
    console = results_console()
    console.print(make_watch_view(console, table.name, scores))
    for note in notes:
        console.print(f"Note: {note}", style="yellow", markup=False)
    print_decision(console, decision)
    return 0


def _read_requested_exponent(args: Args) -> float | None:
    from rollonce.scoring.exponent import read_surprisal_exponent

    return read_surprisal_exponent(args.exponent) if args.exponent is not None else None


def _sentences_on_left_out(
    args: Args, n_rows: int, n_open: int | None, steps: Sequence[Batch], scores: Sequence[WatchScore]
) -> list[str]:
    """What the ranking does not rest on, in sentences. ``n_open``: rows of the newest step of a log that has steps of
    its own; None where it has none and is cut by --batch-size."""
    notes = []
    in_steps = sum(map(len, steps))
    if in_steps < n_rows:
        rest, size = n_rows - in_steps, args.batch_size or 32
        if n_open is None and rest < size:
            why = f"which make no whole step of {size} (--batch-size)"
        elif n_open is not None and rest <= n_open:
            why = "of a step still being written"
        else:
            why = "not scored yet when following ended"
        notes.append(f"Left out: the last {rest} of {n_rows} rollouts, {why}.")
    if scores[0].steps < len(steps):
        notes.append(
            f"Left out: {len(steps) - scores[0].steps} of {len(steps)} steps, in which all rollouts were of one task."
        )
    if not args.trees and args.window:
        notes.append("Left out: the boosted trees, which fit a model in each step (--trees).")
    notes.append("Left out: baselines that need the same task again in an earlier step (tracker), and the oracle.")
    return notes


def _sentence_on_no_steps(n_rows: int, n_tasks: int, batch_size: int | None) -> str:
    if n_tasks == 1:
        return f"all {n_rows} rollouts are of one task: there is no other task to compare with"
    size = batch_size or 32
    return f"{n_rows} rollouts make no whole step of {size} rows with two tasks in it; pass a smaller --batch-size"


def _fitted_baselines(args: Args, tasks: Tasks) -> tuple[list[Baseline], list[str]]:
    """What can run along at one rollout per task, fitted on these prompts, and a sentence for each that cannot be
    fitted on them."""
    from rollonce.baselines import BoostedTrees
    from rollonce.baselines.catalogue import default_board_baselines
    from rollonce.testing.given import load_given_baseline

    chosen = [
        b
        for b in default_board_baselines(tasks, args.window)
        if not b.tags.needs_repeats
        and not hasattr(b, "fit_rewards")
        and (args.trees or not isinstance(b, BoostedTrees))
    ]
    fitted, left_out = [], []
    for baseline in chosen:
        try:
            fitted.append(baseline.fit(tasks))
        except InputError as error:
            left_out.append(f"Left out: {baseline.label}: {error.message}")
    return [*fitted, *(load_given_baseline(path).fit(tasks) for path in args.baseline)], left_out


def _follow_growing_log(args: Args) -> int:
    from rich.live import Live

    from rollonce.reports.decision import decide_on_log, print_decision
    from rollonce.reports.watch import describe_step_leader, make_watch_view
    from rollonce.scoring import GrowingWatcher, steps_as_they_come

    console = results_console()
    unfitted: list[str] = []
    n_rows = 0  # read so far; the newest may make no whole step yet
    newest: tuple[int, int] | None = None  # the newest step of a log that has steps, and its rows

    def fit_watched_baselines(tasks: Tasks) -> list[Baseline]:
        baselines, unfitted[:] = _fitted_baselines(args, tasks)
        return baselines

    def count_passing_rows(blocks: Iterable[Rows]) -> Iterator[Rows]:
        nonlocal n_rows, newest
        for rows in blocks:
            n_rows += len(rows.prompts)
            if rows.steps_B is not None and len(rows.steps_B):
                step, before = int(rows.steps_B[-1]), newest
                n_of_step = int((rows.steps_B == step).sum())
                newest = step, n_of_step + (before[1] if before is not None and before[0] == step else 0)
            yield rows

    growing = GrowingWatcher(fit_watched_baselines, _read_requested_exponent(args))
    live: Live | None = None
    if console.is_terminal and not args.json:
        live = Live(console=console, refresh_per_second=2)
        live.start()
    try:
        for step in steps_as_they_come(count_passing_rows(_rows_as_they_come(args)), args.batch_size):
            growing.score_next_step(step)
            scores = growing.rank_scores_so_far()
            if not scores:
                continue
            if args.json:
                print(json.dumps({"scores": convert_to_plain_json(scores)}, allow_nan=False), flush=True)
            elif live is not None:
                live.update(make_watch_view(console, args.log[0], scores))
            else:
                print(describe_step_leader(scores), flush=True)
    except KeyboardInterrupt:  # which is how following ends
        if not growing.rank_scores_so_far():
            raise
    finally:
        if live is not None:
            live.stop()
    if not growing.rank_scores_so_far():
        raise InputError(_sentence_on_no_steps(n_rows, growing.n_distinct_prompts, args.batch_size), file=args.log[0])
    if live is None and not args.json:
        console.print(make_watch_view(console, args.log[0], growing.rank_scores_so_far()))
    if not args.json:
        n_open = None if newest is None else newest[1]
        scores = growing.rank_scores_so_far()
        for note in [*_sentences_on_left_out(args, n_rows, n_open, growing.steps, scores), *unfitted]:
            console.print(f"Note: {note}", style="yellow", markup=False)
        print_decision(console, decide_on_log(growing.rank_scores_so_far(), args.log[0]))
    return 0


def _rows_as_they_come(args: Args) -> Iterator[Rows]:
    """Rows of a growing log as they come; it ends after --idle seconds without any."""
    from rollonce.readers import follow

    log, *others = args.log
    if others:
        raise InputError("--follow takes one file, directory or (quoted) glob")
    last = time.monotonic()
    told = False

    def should_stop_following() -> bool:
        nonlocal told
        if not told:
            print_remark(f"rollonce: following {log}; Ctrl-C ends it")
            told = True
        return args.idle is not None and time.monotonic() - last > args.idle

    for rows in follow(log, poll=args.poll, stop=should_stop_following, **args.reader.as_read_options()):
        last = time.monotonic()
        yield rows
