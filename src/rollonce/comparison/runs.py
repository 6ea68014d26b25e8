"""Reads a directory of runs: ``compare.json``, and for each arm and seed its metrics, evaluations and result.

What cannot be used is never dropped in silence: every run that is left out is named with its reason. A run that ended
badly (a NaN loss, a collapse) *is* used, since leaving it out would flatter its arm; see `FinishedRun.has_ended_badly`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollonce.comparison.reading import Item, Metrics, OddError, RawRun, Sums, read_run_folder
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray
from rollonce.run_directory import BAD_ENDS, MODES, PLAN_FILE, RUNS_FOLDER, SEED_NAME, path_of_run_folder


class Series(NamedTuple):
    """Evaluations of one run in one mode on one split: the steps they were made at (E,), and each item's mean reward
    (E, items)."""

    at_E: np.ndarray
    levels_EI: FloatArray


@dataclass(frozen=True)
class FinishedRun:
    """One arm with one seed.

    Attributes:
        arm, seed: Which.
        status, message: How it ended.
        steps: Steps it took.
        metrics: Its training.
        series: Its evaluations by ``(mode, split)``.
        truncated, tokens: Of the sampled answers of the last evaluation: share cut off, and mean length.
        stood_in: True if it ended badly without an evaluation afterwards, and zeros stand for the missing one.
    """

    arm: str
    seed: int
    status: str
    message: str
    steps: int
    metrics: Metrics
    series: dict[tuple[str, str], Series]
    truncated: float
    tokens: float
    stood_in: bool = False

    @property
    def has_ended_badly(self) -> bool:
        """Whether training itself went wrong."""
        return self.status in BAD_ENDS

    def final_item_levels(self, mode: str, split: str) -> FloatArray:
        """Mean reward of each item at the end (items,)."""
        return self.series[mode, split].levels_EI[-1]

    def cumulative_total_at(self, of_T: FloatArray, at_E: np.ndarray) -> FloatArray:
        """A cumulative quantity of the metrics after the steps ``at_E``; 0 before the first, its end after the last."""
        known = np.concatenate([[0.0], of_T])
        return known[np.searchsorted(self.metrics.steps_T, at_E, side="right")]


class LeftOut(NamedTuple):
    """A run that is not part of the comparison, and why."""

    arm: str
    seed: str
    reason: str


@dataclass(frozen=True)
class Runs:
    """Everything a comparison needs.

    Attributes:
        directory: Where it was read.
        config: ``compare.json``.
        arms: Runs of each arm by rising seed; only arms with at least one.
        items: Held-out items by ``(mode, split)``, the columns of `Series.levels_EI`.
        modes: ``sampled``, ``greedy`` or both: what every run has of the final split.
        left_out: What could not be used.
    """

    directory: str
    config: dict[str, Any]
    arms: dict[str, list[FinishedRun]]
    items: dict[tuple[str, str], list[Item]]
    modes: tuple[str, ...]
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def final_split(self) -> str:
        """What the final figures are of: ``test``, or ``holdout`` where nothing else was evaluated."""
        return "test" if any(split == "test" for _, split in self.items) else "holdout"

    @property
    def curve_split(self) -> str:
        """What learning curves are of: of the splits that every run has, the one that was evaluated more often on the
        way."""
        runs = [r for some in self.arms.values() for r in some]
        return _most_evaluated_split(runs, self.modes[0], len(runs))

    def arm_without_rate(self, arm: str) -> str:
        """The arm's name without its learning rate."""
        return str(self.config["arms"].get(arm, {}).get("arm", arm))

    def learning_rate_of_arm(self, arm: str) -> float:
        """Its learning rate; NaN if the configuration does not say."""
        rate = self.config["arms"].get(arm, {}).get("learning_rate")
        return float(rate) if isinstance(rate, int | float) else math.nan


def load_finished_runs(directory: str | Path) -> Runs:
    """Read a directory that ``rollonce compare`` wrote (or is still writing).

    Raises:
        InputError: if it is no such directory, or holds no run that could be used.
    """
    root = Path(directory)
    if not root.is_dir():
        raise InputError("no such directory; name the one that `rollonce compare` wrote", file=root)
    config = _read_comparison_plan(root / PLAN_FILE)
    folders = root / RUNS_FOLDER
    if not folders.is_dir():
        raise InputError("has no folder runs/: nothing has been run yet", file=root)
    found: list[RawRun] = []
    left_out: list[LeftOut] = []
    for arm, seed, folder in _list_expected_runs(config, root):
        try:
            found.append(read_run_folder(arm, seed, folder))
        except OddError as odd:
            left_out.append(LeftOut(arm, str(seed), str(odd)))
    for extra in sorted(p.name for p in folders.iterdir() if p.is_dir() and p.name not in config["arms"]):
        left_out.append(LeftOut(extra, "all", "the arm is not in compare.json"))
    usable, items, modes = _keep_same_item_runs(found, left_out)
    if not usable:
        reasons = "; ".join(f"{x.arm} seed {x.seed}: {x.reason}" for x in left_out[:4])
        raise InputError(f"no run in it can be used yet ({reasons or 'compare.json names none'})", file=root)
    arms: dict[str, list[FinishedRun]] = {}
    for run in _keep_comparable_curves([_make_finished_run(raw, items, modes) for raw in usable], modes[0], left_out):
        arms.setdefault(run.arm, []).append(run)
    ordered = {name: sorted(arms[name], key=lambda r: r.seed) for name in config["arms"] if name in arms}
    return Runs(str(directory), config, ordered, items, modes, left_out)


def _read_comparison_plan(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("is not there; is this a directory that `rollonce compare` wrote?", file=path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON: {error}", file=path) from None
    if not isinstance(config, dict) or not isinstance(config.get("arms"), dict) or not config["arms"]:
        raise InputError('must be an object with "arms": {"name": {...}}', file=path)
    seeds = config.get("seeds")
    if (
        not isinstance(seeds, list)
        or not seeds
        or not all(isinstance(s, int) and not isinstance(s, bool) for s in seeds)
    ):
        raise InputError('must have "seeds": a list of whole numbers', file=path)
    for name, arm in config["arms"].items():
        if not isinstance(arm, dict):
            raise InputError(f'arm {name!r} must be an object, as in {{"learning_rate": 2e-4}}', file=path)
    return config


def _list_expected_runs(config: dict[str, Any], root: Path) -> list[tuple[str, int, Path]]:
    out = []
    for arm in config["arms"]:
        seeds = set(config["seeds"])
        if (folder := root / RUNS_FOLDER / arm).is_dir():
            seeds |= {int(m[1]) for p in folder.iterdir() if (m := SEED_NAME.match(p.name))}
        out += [(arm, seed, path_of_run_folder(root, arm, seed)) for seed in sorted(seeds)]
    return out


# The same items for all
# -------------------------------------------------------------------------------------------------------


def _keep_same_item_runs(
    found: Sequence[RawRun], left_out: list[LeftOut]
) -> tuple[list[RawRun], dict[tuple[str, str], list[Item]], tuple[str, ...]]:
    """The runs that share the items most of them have. A run with other items could be better by having easier ones."""
    sets: dict[tuple[str, str], Counter[frozenset[Item]]] = {}
    for raw in found:
        for evaluation in raw.evaluations.values():
            for kind, items in evaluation.items():
                sets.setdefault(kind, Counter())[frozenset(items)] += 1
    common = {kind: counter.most_common(1)[0][0] for kind, counter in sets.items()}
    if not common:
        return [], {}, ()
    split = "test" if any(s == "test" for _, s in common) else "holdout"
    needed = [kind for kind in common if kind[1] == split]
    # A mode that only some runs have is no mode of the comparison; one that most have, others lack by accident.
    have = {kind: sum(kind in raw.evaluations[max(raw.evaluations)] for raw in found) for kind in needed}
    needed = [kind for kind in needed if have[kind] > len(found) / 2] or [max(needed, key=lambda kind: have[kind])]
    usable = []
    for raw in found:
        reason = _describe_odd_items(raw, common, needed)
        if reason:
            left_out.append(LeftOut(raw.arm, str(raw.seed), reason))
        else:
            usable.append(raw)
    modes = tuple(m for m in MODES if (m, split) in needed)
    return usable, {kind: sorted(items) for kind, items in common.items()}, modes


def _describe_odd_items(
    raw: RawRun, common: dict[tuple[str, str], frozenset[Item]], needed: list[tuple[str, str]]
) -> str:
    for step, evaluation in sorted(raw.evaluations.items()):
        for (mode, split), items in evaluation.items():
            want = common[mode, split]
            if set(items) != want:
                both = len(want & set(items))
                what = f"{split} items ({mode})"
                return (
                    f"its evaluation of step {step} has {len(items)} {what} where most have {len(want)}, {both} in "
                    "common"
                )
    last = max(raw.evaluations)
    stands_in = raw.result.status in BAD_ENDS and last < raw.result.steps
    for mode, split in needed:
        at = [step for step, evaluation in raw.evaluations.items() if (mode, split) in evaluation]
        if not at or (max(at) < last and not stands_in):
            return f"its last evaluation (step {last}) lacks the {split} items ({mode})"
    return ""


def _most_evaluated_split(runs: Sequence[FinishedRun], mode: str, least: int) -> str:
    """The split evaluated most often on the way, of those that at least so many runs have; the test items in case of
    doubt."""
    counts = {}
    for split in ("test", "holdout"):
        have = [len(r.series[mode, split].at_E) for r in runs if (mode, split) in r.series]
        if len(have) >= least:
            counts[split] = min(have)
    return max(counts, key=lambda s: counts[s])


def _keep_comparable_curves(runs: list[FinishedRun], mode: str, left_out: list[LeftOut]) -> list[FinishedRun]:
    """The runs whose learning curves can be held against each other: of the split that most have, with a step that most
    share."""
    if not runs:
        return runs
    split = _most_evaluated_split(runs, mode, len(runs) // 2 + 1)
    words = {"test": "test", "holdout": "hold-out"}[split]
    usable = []
    for run in runs:
        if (mode, split) in run.series:
            usable.append(run)
        else:
            left_out.append(
                LeftOut(
                    run.arm,
                    str(run.seed),
                    f"has no evaluation of the {words} items, which most runs' learning curves are of",
                )
            )
    whole = [r for r in usable if not r.has_ended_badly] or usable
    steps = {id(r): set(r.series[mode, split].at_E.tolist()) for r in whole}
    if set.intersection(*steps.values()):
        return usable
    step, n = Counter(step for some in steps.values() for step in sorted(some)).most_common(1)[0]
    odd = {key for key, some in steps.items() if step not in some}
    reason = (
        f"was not evaluated on the {words} items at step {step}, as {n} others were; without a common step there are "
        "no curves to compare"
    )
    left_out += [LeftOut(r.arm, str(r.seed), reason) for r in usable if id(r) in odd]
    return [r for r in usable if id(r) not in odd]


def _make_finished_run(raw: RawRun, items: dict[tuple[str, str], list[Item]], modes: tuple[str, ...]) -> FinishedRun:
    status, message, steps = raw.result[:3]
    last = max(raw.evaluations)
    stood_in = status in BAD_ENDS and last < steps
    series = {}
    for kind, columns in items.items():
        at = [step for step in sorted(raw.evaluations) if kind in raw.evaluations[step]]
        if not at:
            continue
        levels = np.array([[_mean_reward_of_item(raw.evaluations[step][kind][i]) for i in columns] for step in at])
        if stood_in:
            # Its last evaluation is of a policy from before the accident: to count that one would hide the accident.
            at, levels = [*at, steps], np.vstack([levels, np.zeros(len(columns))])
        series[kind] = Series(np.array(at), levels)
    split = "test" if any(s == "test" for _, s in items) else "holdout"
    rows = [] if stood_in else list(raw.evaluations[last].get((modes[0], split), {}).values())
    n = sum(r.n for r in rows)
    truncated, tokens = (
        (sum(r.truncated for r in rows) / n, sum(r.tokens for r in rows) / n) if n else (math.nan, math.nan)
    )
    return FinishedRun(
        arm=raw.arm,
        seed=raw.seed,
        status=status,
        message=message,
        steps=steps,
        metrics=raw.metrics,
        series=series,
        truncated=truncated,
        tokens=tokens,
        stood_in=stood_in,
    )


def _mean_reward_of_item(sums: Sums) -> float:
    return sums.reward / sums.n
