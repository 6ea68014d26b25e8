"""Directories of runs as ``rollonce compare`` writes them, with effects planted so that every figure can be worked out
by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ITEMS = tuple((f"family{k % 2}", f"t{k:03d}") for k in range(20))
"""Family and id."""

Level = Callable[[int, int, int], float]
"""Reward of (seed, step, number of the item)."""


@dataclass
class Planted:
    """An arm.

    Attributes:
        level: Its sampled reward; greedy is 0.1 above.
        seconds: CPU seconds a step, by part; wall is twice that.
        shadow: Mean squared advantage of each shadow baseline by step; may be a number.
        entry: Its entry in compare.json.
        ends: ``(status, step)`` of the seeds that ended early.
        holdout: Reward on the hold-out; None for none.
    """

    level: Level
    seconds: Mapping[str, float] = field(
        default_factory=lambda: {"sample": 0.5, "grade": 0.1, "advantage": 0.01, "critic": 0.0, "update": 0.39}
    )
    shadow: Mapping[str, float | Callable[[int], float]] = field(
        default_factory=lambda: {"loo": 0.25, "gs1_tfidf": 0.2}
    )
    entry: Mapping[str, Any] = field(
        default_factory=lambda: {"group_size": 1, "rollouts_per_step": 32, "learning_rate": 2e-4}
    )
    ends: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    holdout: Level | None = None


def line(start: float, end: float, steps: int = 40) -> Level:
    """From start to end in a straight line, alike for all seeds and items."""
    return lambda seed, step, item: start + (end - start) * step / steps


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def write_runs(
    root: Path,
    arms: Mapping[str, Planted],
    *,
    seeds: Iterable[int] = (0, 1, 2),
    steps: int = 40,
    every: int = 20,
    items: Iterable[tuple[str, str]] = ITEMS,
    greedy: bool = True,
    along: str = "test",
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the directory.

    Args:
        root: Made if need be.
        arms: By name.
        seeds, steps, every, items: Of all runs; evaluations at 0, every, ..., steps.
        greedy: Evaluate greedily as well.
        along: ``test``: all items at each evaluation; ``holdout``: the hold-out at each, the test items at the start
            and the end alone.
        config: Goes into compare.json as well.
    """
    root.mkdir(parents=True, exist_ok=True)
    entries = {name: dict(arm.entry) for name, arm in arms.items()}
    (root / "compare.json").write_text(
        json.dumps({"arms": entries, "seeds": list(seeds), "steps": steps, **(config or {})})
    )
    (root / "runs").mkdir(exist_ok=True)
    for name, arm in arms.items():
        for seed in seeds:
            folder = root / "runs" / name / f"seed{seed}"
            status, end = arm.ends.get(seed, ("done", steps))
            write_lines(folder / "metrics.jsonl", [_step(arm, step) for step in range(1, end + 1)])
            for step in sorted({*range(0, end, every), end}):
                whole = along == "test" or step in (0, end)
                rows = _rows(arm, seed, step, list(items), greedy, whole)
                write_lines(folder / "evaluations" / f"step_{step:06d}.jsonl", rows)
            (folder / "config.json").write_text("{}")
            message = f"{end} steps" if status == "done" else "entropy 1e-05 for 5 steps"
            (folder / "result.json").write_text(json.dumps({"status": status, "message": message, "steps": end}))
    return root


def _step(arm: Planted, step: int) -> dict[str, Any]:
    shadow = {label: {"mean_square_advantage": v(step) if callable(v) else v} for label, v in arm.shadow.items()}
    return {
        "step": step,
        "rollouts": 32 * step,
        "reward": 0.5,
        "advantage_mean": 0.0,
        "advantage_var": 0.2,
        "shadow": shadow,
        "baseline_outcome_correlation": 0.25,
        "dead_groups": None,
        "entropy": 1.0,
        "kl": 0.01,
        "truncated": 0.0,
        "tokens": 640,
        "loss": 0.0,
        "grad_norm": 1.0,
        "cpu_seconds": dict(arm.seconds),
        "wall_seconds": {k: 2 * v for k, v in arm.seconds.items()},
    }


def _rows(
    arm: Planted, seed: int, step: int, items: list[tuple[str, str]], greedy: bool, whole: bool
) -> Iterable[dict[str, Any]]:
    for k, (family, task) in enumerate(items):
        row = {"task_id": task, "family": family, "repeat": 0, "truncated": False, "tokens": 40}
        if whole:
            level = arm.level(seed, step, k)
            yield row | {"mode": "sampled", "reward": level}
            if greedy:
                yield row | {"mode": "greedy", "reward": level + 0.1}
        if arm.holdout is not None:
            yield row | {
                "mode": "sampled",
                "split": "holdout",
                "task_id": f"h{task}",
                "reward": arm.holdout(seed, step, k),
            }
