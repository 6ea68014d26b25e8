"""What is measured beside the training: time by part, and what a batch says of its baseline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np

from rollonce.rollouts import FloatArray
from rollonce.rounding import rewards_are_equal
from rollonce.run_directory import PARTS, AdvantageFigures


class Stopwatch:
    """Wall and CPU seconds by part of a step. CPU is this process's, all threads; a grader in a process of its own
    counts as wall alone."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.cpu: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def time_step_part(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall[name] += time.perf_counter() - wall
            self.cpu[name] += time.process_time() - cpu


def pearson_correlation(x_B: FloatArray, y_B: FloatArray) -> float | None:
    """Pearson's, or None where one of them is constant."""
    if len(x_B) < 2 or np.ptp(x_B) < 1e-12 or np.ptp(y_B) < 1e-12:
        return None
    return float(np.corrcoef(x_B, y_B)[0, 1])


def mean_gap_to_loo(rewards_B: FloatArray, baseline_B: FloatArray) -> float | None:
    """Mean absolute difference of the baseline from the plain leave-one-out mean of the batch: 0 where a kernel has
    done nothing."""
    B = len(rewards_B)
    return float(np.abs(baseline_B - (rewards_B.sum() - rewards_B) / (B - 1)).mean()) if B > 1 else None


def share_of_dead_groups(rewards_B: FloatArray, group_size: int) -> float | None:
    """Share of groups whose rollouts were all rewarded alike (they teach nothing under a group mean); None without
    groups."""
    if group_size < 2:
        return None
    return float(np.mean([rewards_are_equal(group) for group in rewards_B.reshape(-1, group_size)]))


def advantage_figures(
    rewards_B: FloatArray, advantages_B: FloatArray, baseline_B: FloatArray, group_size: int
) -> AdvantageFigures:
    """What a step's record says of its advantages, the same for every engine."""
    return {
        "reward": float(rewards_B.mean()),
        "advantage_mean": float(advantages_B.mean()),
        "advantage_var": float(advantages_B.var()),
        "advantage_nonzero": float((np.abs(advantages_B) > 1e-6).mean()),
        "baseline_mean": float(baseline_B.mean()),
        "loo_gap": mean_gap_to_loo(rewards_B, baseline_B),
        "baseline_outcome_correlation": pearson_correlation(baseline_B, rewards_B),
        "dead_groups": share_of_dead_groups(rewards_B, group_size),
    }
