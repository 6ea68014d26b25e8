"""What README.md expects of the demonstration: does the training reward rise, and how far apart are the arms?

python studies/smollm2/gain.py out/smollm2_bf16
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import scipy.stats

STEPS = 8


def mean_with_interval(values: list[float]) -> str:
    """Mean over runs and its 95% t-interval, in points; the mean alone of a single run."""
    mean = 100 * float(np.mean(values))
    if len(values) < 2:
        return f"{mean:+.1f}"
    half = 100 * float(scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def sampled_test_reward(file: Path) -> float:
    """Mean reward of the sampled test rollouts of one evaluation."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return float(np.mean([r["reward"] for r in rows if r["split"] == "test" and r["mode"] == "sampled"]))


def main() -> None:
    """Print a table over the runs that have ended, by arm and together."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    gains: dict[str, list[tuple[float, float, float, float]]] = {}
    for run in sorted((options.out / "runs").glob("*/seed*")):
        if not (run / "result.json").exists():
            continue
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        rewards = [s["reward"] for s in steps]
        evaluations = sorted((run / "evaluations").glob("step_*.jsonl"))
        seconds = float(np.median([sum(s["cpu_seconds"].values()) for s in steps]))
        gains.setdefault(run.parent.name, []).append(
            (
                float(np.mean(rewards[:STEPS])),
                float(np.mean(rewards[-STEPS:])),
                sampled_test_reward(evaluations[-1]),
                seconds,
            )
        )
    print(f"| arm | runs | reward, first {STEPS} steps | last {STEPS} | gain, points | test, sampled | CPU s a step |")
    print("|" + "---|" * 7)
    together = [row for rows in gains.values() for row in rows]
    for name, rows in [*gains.items(), ("all", together)]:
        first, last, test, seconds = (float(np.mean(column)) for column in zip(*rows, strict=True))
        gain = mean_with_interval([row[1] - row[0] for row in rows])
        print(f"| {name} | {len(rows)} | {first:.2f} | {last:.2f} | {gain} | {test:.2f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
