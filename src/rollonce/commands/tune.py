"""``rollonce tune``: hill-climb to a baseline, and say what it is worth on tasks it was not tuned on."""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from rollonce import __version__
from rollonce.commands.inputs import ReaderOptions, find_sources, read
from rollonce.commands.terminal import Bars, command_line, out, print_json, remark
from rollonce.errors import InputError
from rollonce.tuning.search import SAMPLERS, Budget
from rollonce.tuning.tune import TuneResult, tune

HELP = """\
Hill-climb to a baseline on rollouts you have, save it as one small file, and
report what it is worth on tasks it was not tuned on.

With 150 tasks or more they are split: half to tune, a quarter to choose, a
quarter to report, which is looked at once. With fewer the whole procedure is
cross-fitted. Where no gain over the leave-one-out mean (LOO) is shown on the
choose part, the LOO mean is what is chosen.

Examples:
  rollonce tune rollouts.jsonl
      200 trials, then baseline.json.
  rollonce tune rollouts.jsonl --budget 60s --window 512 --columns level
      For a minute; earlier batches may count, and so may a column of yours.
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
    window: Annotated[int, arg(metavar="ROWS")] = 0
    """The longest history window that may be searched; 0 keeps to the batch."""
    sampler: Annotated[str, arg(metavar="NAME")] = "tpe"
    """tpe, cmaes (TPE for the structure, CMA-ES for its numbers) or hillclimb."""
    storage: Annotated[str | None, arg(metavar="FILE|URL", help_behavior_hint="")] = None
    """Keep the search in an SQLite file or any Optuna storage, to resume or share it."""
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
        if getattr(args, name) < least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(args, name)}")
    budget = Budget.parse(args.budget)
    if args.sampler not in SAMPLERS:
        raise InputError(f"--sampler must be one of {', '.join(SAMPLERS)}, not {args.sampler!r}")
    if not Path(args.out).parent.is_dir():
        raise InputError("the folder to write to does not exist", file=args.out)
    sources = find_sources(args.files, args.reader, together=True)
    if len(sources) != 1:
        raise InputError(
            f"rollonce tune works on one set, and these are {len(sources)}; rollonce transfer compares sets"
        )
    with Bars() as bars:
        rollouts = read(sources[0], args.reader, bars)
        result = tune(
            rollouts,
            budget=budget,
            batch_size=args.batch_size,
            window=args.window,
            sampler=args.sampler,
            seed=args.seed,
            storage=args.storage,
            embedding=args.embedding,
            n_batches=args.batches,
            resamples=args.resamples,
            progress=_progress(bars, budget),
        )
    result.baseline.save(args.out, provenance(result, [str(f) for f in sources[0].files]))
    if args.json:
        print_json(result.to_dict())
    else:
        out().print(text(result), soft_wrap=True, markup=False)
    remark(f"wrote {args.out} ({Path(args.out).stat().st_size / 1000:.0f} kB)")
    return 0


def _progress(bars: Bars, budget: Budget) -> Any:
    """Bars in a terminal; where stderr is none, a line every ten seconds."""
    last = [time.monotonic()]

    def tell(label: str, n: int, seconds: float, best: float) -> None:
        by_time = budget.trials == float("inf")
        bars.tell(
            label, f"best {best:.3f}", int(seconds if by_time else n), int(budget.seconds if by_time else budget.trials)
        )
        if not sys.stderr.isatty() and time.monotonic() - last[0] > 10:
            last[0] = time.monotonic()
            remark(f"{label}: {n} trials, {seconds:.0f} s, best so far {best:.3f} of LOO")

    return tell


def provenance(result: TuneResult, files: list[str]) -> dict[str, Any]:
    """What the saved file says of where it comes from."""
    import numpy

    ratio = result.judged.score.ratio
    space = {k: v for k, v in result.settings.items() if k != "space"}
    return {
        "command": command_line("tune"),
        "tuned_on": result.name,
        "source": result.source,
        "file_sha256": {Path(f).name: hashlib.sha256(Path(f).read_bytes()).hexdigest()[:16] for f in files},
        "tasks": result.settings["n_tasks"],
        "rollouts": result.settings["n_rollouts"],
        "rollouts_hash": result.settings["rollouts_hash"],
        "settings": space,
        "reported_ratio_to_loo": [_number(x) for x in ratio],
        "reported_b_eff": [_number(x) for x in result.judged.score.b_eff],
        "reported_how": "cross-fitted procedure" if result.cross_fitted else "held-out report part",
        "tuned_ratio_to_loo": _number(result.tuned),
        "fell_back_to_loo": result.is_loo,
        "versions": {"rollonce": __version__, "numpy": numpy.__version__},
    }


def _number(x: float) -> float | None:
    return round(float(x), 6) if x == x and abs(x) != float("inf") else None


def text(r: TuneResult) -> str:
    """What the command prints."""
    j = r.judged
    how = (
        "cross-fitted, every task judged by a search that never saw it"
        if r.cross_fitted
        else f"{r.counts.get('report')} tasks that the search never saw"
    )
    lines = [
        f"{r.name}: {r.settings['n_tasks']} tasks, {r.settings['n_rollouts']} rollouts, B = {r.batch_size}",
        "",
        f"chosen     {r.baseline.label}",
        f"best trial {r.best_trial}" if r.best_trial != r.baseline.label else "",
        "",
        "B_eff relative to the in-batch LOO mean",
        f"  tuned     {r.tuned:.3f}   best of {r.n_trials} trials on the tune part: optimistic",
        f"  chosen    {r.chosen:.3f}   best finalist on the choose part ({r.chosen_z:+.1f} standard errors over LOO)",
        f"  reported  {j.score.ratio:.3f}   {how}",
        f"  optimism  {r.optimism:+.3f}   tuned minus reported",
        "",
        "reported B_eff"
        + ("" if j.score.b_eff.value == j.score.b_eff.value else " (unknown without repeated rollouts)"),
        f"  tuned baseline    {j.score.b_eff:.3g}" + (f"   window {j.score.window}" if j.score.window else ""),
        f"  LOO mean          {j.loo.b_eff:.3g}",
        f"  published TF-IDF  {j.published.b_eff:.3g}",
        f"  tuned over published TF-IDF, paired: {j.over_published:.3f}",
        "",
        f"How easy it was: best so far on the tune part ({r.n_trials} trials, {r.seconds_of_trials:.1f} s)",
        *(f"  after {n:>5} trials, {s:7.1f} s   {best:.3f} {_bar(best, r.curve)}" for n, s, best in _thinned(r.curve)),
    ]
    if r.trials_for_95 is not None:
        lines.append(f"  95% of the final gain after {r.trials_for_95} trials")
    for label, shares in r.importances.items():
        top = sorted(shares.items(), key=lambda p: -p[1])[:5]
        lines.append(f"What mattered ({label}): " + ", ".join(f"{k} {v:.0%}" for k, v in top if v >= 0.005))
    if r.fold_labels:
        lines += ["", "Chosen in each fold:", *(f"  {label}" for label in r.fold_labels)]
    lines += ["", *(f"Note: {n}" for n in r.notes)]
    return "\n".join(line for i, line in enumerate(lines) if line or (i and lines[i - 1])).rstrip()


def _thinned(curve: list[tuple[int, float, float]], most: int = 10) -> list[tuple[int, float, float]]:
    if len(curve) <= most:
        return curve
    keep = {round(i * (len(curve) - 1) / (most - 1)) for i in range(most)}
    return [c for i, c in enumerate(curve) if i in keep]


def _bar(best: float, curve: list[tuple[int, float, float]]) -> str:
    low, high = min(c[2] for c in curve), max(c[2] for c in curve)
    return "#" * round(1 + 24 * (best - low) / (high - low)) if high > low else "#"
