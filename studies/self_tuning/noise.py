"""Would a noise of its own for each task help? A ceiling: the tasks' *true* noise (from all their rollouts) in place of
one for all.

``python studies/self_tuning/noise.py`` writes noise.json: for the six sets whose window holds every other task, E[A^2]
with one noise over E[A^2] with each task's own (``oracle``), or halfway (``half``). Above 1 is better. Shares are
cross-fitted as in run.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rollonce import datasets
from rollonce.baselines import SelfTuning
from rollonce.baselines.kriging_solver import residual_precision
from rollonce.rollouts import Rollouts
from rollonce.scoring.crossfit import fit_copy_per_fold

OWN = {"one": 0.0, "half": 0.5, "oracle": 1.0}


def gains(table: Rollouts, draws: int = 3) -> dict[str, float]:
    """For each share of the tasks' own noise, how E[A^2] compares with one noise for all."""
    mean_N, s2_N, n_N = table.means_N, table.variances_N, table.group_sizes_N
    s2 = float(s2_N.mean())
    tau2 = max(float(mean_N.var(ddof=1) - (s2_N / n_N).mean()), 0.0)
    errors: dict[str, list[float]] = {k: [] for k in OWN}
    every = np.arange(table.n_tasks)
    for draw in range(draws):
        parts, fold_N = fit_copy_per_fold(SelfTuning(), table, 5, np.random.default_rng([0, 7, draw]))
        for f, part in enumerate(parts):
            assert isinstance(part, SelfTuning)
            c = part.reward_covariance(table.tasks, every[None])[0]
            noise = min(
                float(part.variance_shares_K1[-1]), s2 / (s2 + tau2)
            )  # the rest of that share is difficulty that no kernel explains
            for name, own in OWN.items():
                scaled = c.copy()
                scaled[every, every] += noise * own * (np.maximum(s2_N / s2, 0.05) - 1)
                p = residual_precision(scaled[None])[0]
                w = -p / np.diag(p)[:, None]
                w[every, every] = 0.0
                e = (w @ mean_N - mean_N) ** 2 + w**2 @ table.biased_variances_N - s2_N / n_N
                errors[name] += e[fold_N == f].tolist()
    one = s2 + float(np.mean(errors["one"]))
    return {name: one / (s2 + float(np.mean(e))) for name, e in errors.items() if name != "one"}


def main() -> None:
    """Measure, print and write."""
    out = {}
    for name in datasets.list_dataset_names():
        table = datasets.load(name)
        if table.n_tasks <= 544:
            out[name] = gains(table)
            print(name, {k: round(v, 4) for k, v in out[name].items()}, flush=True)
    (Path(__file__).parent / "noise.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
