"""The files of one run, checked as they are read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from rollonce.rollouts import FloatArray
from rollonce.run_directory import (
    BAD_ENDS,
    DONE,
    EVALUATION_NAME,
    EVALUATIONS_FOLDER,
    METRICS_FILE,
    MODES,
    PARTS,
    RESULT_FILE,
    SPLITS,
    RunResult,
)


class Item(NamedTuple):
    family: str
    task_id: str


@dataclass(frozen=True)
class Metrics:
    """A run's training, a value a step (``_T``).

    Attributes:
        steps_T, rollouts_T: Step and cumulative rollouts.
        cpu: Seconds of each of `PARTS` (T,).
        wall: The same by the clock.
        shadow: Mean squared advantage of each baseline that was scored alongside (T,), NaN where a step had none.
        values: The other numbers (reward, entropy, kl, truncated ...), NaN where a step had none.
    """

    steps_T: np.ndarray
    rollouts_T: FloatArray
    cpu: dict[str, FloatArray]
    wall: dict[str, FloatArray]
    shadow: dict[str, FloatArray]
    values: dict[str, FloatArray]

    def cumulative_seconds_T(self, clock: str) -> FloatArray:
        """Seconds of all parts up to and with each step (T,), by ``cpu`` or ``wall``."""
        return np.cumsum(np.sum([*(self.cpu if clock == "cpu" else self.wall).values()], axis=0))


class OddError(Exception):
    """A run that cannot be used; its text is the reason."""


class Sums(NamedTuple):
    """Of the n answers to an item."""

    reward: float
    truncated: float
    tokens: float
    n: int


RawEvaluation = dict[tuple[str, str], dict[Item, Sums]]  # by mode and split


class RawRun(NamedTuple):
    """A run's files, each sound in itself."""

    arm: str
    seed: int
    result: RunResult
    metrics: Metrics
    evaluations: dict[int, RawEvaluation]


def read_run_folder(arm: str, seed: int, folder: Path) -> RawRun:
    """Read a run's directory.

    Raises:
        OddError: it has not finished, or something in it is not as it should be.
    """
    if not folder.is_dir():
        raise OddError("has not been started")
    if not (folder / RESULT_FILE).is_file():
        raise OddError("has no result.json: it has not finished, or was stopped")
    written = _read_json_object(folder / RESULT_FILE)
    status, steps = written.get("status"), written.get("steps")
    if not isinstance(status, str) or not isinstance(steps, int) or steps < 0:
        raise OddError('result.json needs "status" (text) and "steps" (a whole number)')
    result = RunResult(status, str(written.get("message") or ""), steps)
    if status != DONE and status not in BAD_ENDS:
        raise OddError(f"ended as {status!r}: {result.message or 'no message'}")
    metrics = _read_metrics_file(folder / METRICS_FILE)
    if len(metrics.steps_T) < steps:
        raise OddError(f"result.json says {steps} steps, metrics.jsonl holds {len(metrics.steps_T)}")
    evaluations: dict[int, RawEvaluation] = {}
    where = folder / EVALUATIONS_FOLDER
    for path in sorted(where.iterdir()) if where.is_dir() else ():
        if match := EVALUATION_NAME.match(path.name):
            evaluations[int(match[1])] = _read_evaluation_file(path)
    if not evaluations:
        raise OddError("has no evaluations")
    for step in sorted(step for step, sums in evaluations.items() if not sums):
        # Runs without a hold-out used to leave such a file at every evaluation on the way: nothing was to be evaluated.
        if step in (min(evaluations), max(evaluations)):
            raise OddError(f"step_{step:06d}.jsonl is empty")
    evaluations = {step: sums for step, sums in evaluations.items() if sums}
    if status == DONE and max(evaluations) < steps:
        raise OddError(f"was not evaluated at its end: the last evaluation is of step {max(evaluations)} of {steps}")
    return RawRun(arm, seed, result, metrics, evaluations)


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OddError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise OddError(f"{path.name} is not an object")
    return value


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OddError(f"{path.name} cannot be read: {error.strerror or error}") from None
    rows = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            try:
                row = json.loads(line)  # knows NaN, which a run that went wrong writes
            except ValueError:
                raise OddError(f"{path.name}, line {number} is not JSON (half-written?)") from None
        if not isinstance(row, dict):
            raise OddError(f"{path.name}, line {number} is not an object")
        rows.append(row)
    return rows


def _as_number_or_nan(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _read_metrics_file(path: Path) -> Metrics:
    if not path.is_file():
        raise OddError("has no metrics.jsonl")
    rows = _read_json_lines(path)
    steps = np.array([_as_number_or_nan(r.get("step")) for r in rows])
    if not np.array_equal(steps, np.arange(1, len(rows) + 1)):
        k = int(np.flatnonzero(steps != np.arange(1, len(rows) + 1))[0])
        raise OddError(f'metrics.jsonl, line {k + 1}: "step" is {rows[k].get("step")!r}, not {k + 1}')
    rollouts = np.array([_as_number_or_nan(r.get("rollouts")) for r in rows])
    if not np.isfinite(rollouts).all() or (np.diff(rollouts, prepend=0.0) <= 0).any():
        raise OddError('metrics.jsonl: "rollouts" must be a number that rises from step to step')

    def read_seconds_by_part(key: str) -> dict[str, FloatArray]:
        return {
            p: np.array(
                [_as_number_or_nan(r[key].get(p, 0.0)) if isinstance(r.get(key), dict) else math.nan for r in rows],
                dtype=float,
            )
            for p in PARTS
        }

    cpu, wall = read_seconds_by_part("cpu_seconds"), read_seconds_by_part("wall_seconds")
    for name, times in (("cpu_seconds", cpu), ("wall_seconds", wall)):
        if not all(np.isfinite(v).all() and (v >= 0).all() for v in times.values()):
            raise OddError(f'metrics.jsonl: "{name}" must hold seconds for {", ".join(PARTS)} at each step')
    labels = sorted({label for r in rows if isinstance(r.get("shadow"), dict) for label in r["shadow"]})
    shadow = {label: np.array([_shadow_mean_square(r, label) for r in rows]) for label in labels}
    names = sorted({k for r in rows for k in r} - {"step", "rollouts", "shadow", "cpu_seconds", "wall_seconds"})
    values = {name: np.array([_as_number_or_nan(r.get(name)) for r in rows]) for name in names}
    return Metrics(steps.astype(int), rollouts, cpu, wall, shadow, values)


def _shadow_mean_square(row: dict[str, Any], label: str) -> float:
    entry = (row.get("shadow") or {}).get(label)
    return _as_number_or_nan(entry.get("mean_square_advantage")) if isinstance(entry, dict) else math.nan


def _read_evaluation_file(path: Path) -> RawEvaluation:
    sums: RawEvaluation = {}
    seen: set[tuple[Any, ...]] = set()
    for number, row in enumerate(_read_json_lines(path), 1):
        reward, task, mode = _as_number_or_nan(row.get("reward")), row.get("task_id"), row.get("mode")
        if not math.isfinite(reward) or not isinstance(task, str | int) or mode not in MODES:
            raise OddError(
                f'{path.name}, line {number} needs "task_id", "mode" (sampled or greedy) and a finite "reward"'
            )
        split = row.get("split") or "test"
        if split not in SPLITS:
            raise OddError(f'{path.name}, line {number}: "split" must be "test" or "holdout", not {split!r}')
        item = Item(str(row.get("family") or ""), str(task))
        if (once := (mode, split, item, row.get("repeat", 0))) in seen:
            raise OddError(f"{path.name}, line {number}: task {task!r} has this repeat twice")
        seen.add(once)
        old = sums.setdefault((mode, split), {}).get(item, Sums(0.0, 0.0, 0.0, 0))
        tokens = old.tokens + _as_number_or_nan(row.get("tokens"))
        sums[mode, split][item] = Sums(
            old.reward + reward, old.truncated + bool(row.get("truncated")), tokens, old.n + 1
        )
    return sums
