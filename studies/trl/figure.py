"""The picture of the study: `python studies/trl/figure.py LOGS...` with the JSON files that the example scripts
wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

ARMS = {
    "gs1": ("32 tasks x 1, self-tuning baseline", "#0072b2"),
    "grpo": ("4 tasks x 8, GRPO as TRL has it", "#d55e00"),
}
SMOOTH = 10


def main() -> None:
    """Left: training reward, a running mean of 10 steps. Right: held-out reward. A thin line a seed, a thick one their
    mean."""
    runs = [json.loads(Path(f).read_text()) for f in sys.argv[1:]]
    matplotlib.rcParams.update({"svg.hashsalt": "rollonce", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    table = []
    for arm, (label, colour) in ARMS.items():
        mine = sorted((r for r in runs if r["arm"] == arm), key=lambda r: r["seed"])
        train = np.array([[row["reward"] for row in r["log"] if "reward" in row] for r in mine])
        held = [[(row["step"], row["eval_reward"]) for row in r["log"] if "eval_reward" in row] for r in mine]
        steps, values = np.array([s for s, _ in held[0]]), np.array([[v for _, v in h] for h in held])
        kernel = np.ones(SMOOTH) / SMOOTH
        smooth = np.array([np.convolve(t, kernel, mode="valid") for t in train])
        x = np.arange(SMOOTH, train.shape[1] + 1)
        for axis, at, lines in ((left, x, smooth), (right, steps, values)):
            axis.plot(at, lines.T, color=colour, lw=0.7, alpha=0.5)
            axis.plot(at, lines.mean(axis=0), color=colour, lw=2, label=label, marker="o" if axis is right else "")
        seconds = [np.sum([row["step_time"] for row in r["log"] if "step_time" in row]) for r in mine]
        dead = np.mean([[row["frac_reward_zero_std"] for row in r["log"] if "reward" in row] for r in mine])
        gain = values[:, -1] - values[:, 0]
        table.append((arm, len(mine), values[:, 0].mean(), values[:, -1].tolist(), gain.mean(), dead, np.mean(seconds)))
    left.set(xlabel="step (32 rollouts)", ylabel="reward", title=f"training, running mean of {SMOOTH} steps")
    right.set(xlabel="step (32 rollouts)", title="480 held-out tasks, one sample each")
    right.legend(frameon=False, loc="lower right")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    out = Path(__file__).parent / "trl.svg"
    figure.savefig(out, metadata={"Date": None})
    print(f"{'arm':6s} seeds  before  after (each seed)            gain   dead groups  seconds of steps")
    for arm, n, before, after, gain, dead, seconds in table:
        print(
            f"{arm:6s} {n:5d}  {before:6.3f}  {', '.join(f'{a:.3f}' for a in after):27s} {gain:+.3f}  {dead:11.2f}  "
            f"{seconds:8.0f}"
        )
    print(out.name)


if __name__ == "__main__":
    main()
