"""B_eff of baselines that were scored alongside the training, relative to the plain leave-one-out mean's.

``E[A^2] = s2 + MSE`` for a leave-one-out baseline, so ``B_eff / B_eff(LOO)`` is LOO's mean squared advantage over the
baseline's, both summed over the steps (docs/mathematics.md, "Effective batch size").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rollonce.comparison.runs import FinishedRun
from rollonce.rollouts import FloatArray
from rollonce.scoring import Estimate
from rollonce.scoring.intervals import jackknife_standard_error, log_scale_interval

LOO_NAMES = ("loo", "LOO mean", "LOO", "leave_one_out")
BLOCKS = 10


def find_loo_label(runs: Sequence[FinishedRun]) -> str | None:
    """Which of the shadow baselines is the in-batch leave-one-out mean; None if none is."""
    labels = {label for run in runs for label in run.metrics.shadow}
    return next((name for name in LOO_NAMES if name in labels), None)


def compute_shadow_ratios(runs: Sequence[FinishedRun], loo: str) -> dict[str, Estimate]:
    """Each shadow baseline's ratio to LOO over all steps of these runs, with a delete-a-block jackknife interval.

    Neighbouring steps are alike (the policy, a baseline's history), so each run is cut into up to ten blocks of
    consecutive steps and a block is left out at a time; on the log scale, Student's t.

    Args:
        runs: Of one arm, or of all.
        loo: The label of the leave-one-out mean.
    """
    labels = sorted({label for run in runs for label in run.metrics.shadow} - {loo})
    out = {}
    for label in labels:
        blocks = [
            b
            for run in runs
            if label in run.metrics.shadow and loo in run.metrics.shadow
            for b in _sum_step_blocks(run, label, loo)
        ]
        out[label] = _jackknife_ratio(np.array(blocks)) if blocks else Estimate(math.nan, math.nan, math.nan)
    return out


def _sum_step_blocks(run: FinishedRun, label: str, loo: str) -> list[FloatArray]:
    """Summed squared advantages (LOO's, the baseline's) of each block of steps that have both."""
    per_step = np.diff(run.metrics.rollouts_T, prepend=0.0)
    pair = np.stack([run.metrics.shadow[loo], run.metrics.shadow[label]]) * per_step
    pair = pair[:, np.isfinite(pair).all(axis=0)]
    n = pair.shape[1]
    return [part.sum(axis=1) for part in np.array_split(pair, min(BLOCKS, n), axis=1)] if n else []


def _jackknife_ratio(blocks_K2: FloatArray) -> Estimate:
    total = blocks_K2.sum(axis=0)
    if not (total > 0).all():
        return Estimate(math.nan, math.nan, math.nan)
    value, n = float(total[0] / total[1]), len(blocks_K2)
    rest = total - blocks_K2
    if n < 3 or not (rest > 0).all():
        return Estimate(value, math.nan, math.nan)
    logs = np.log(rest[:, 0]) - np.log(rest[:, 1])
    return log_scale_interval(value, jackknife_standard_error(logs), n - 1)
