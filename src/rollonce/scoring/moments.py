"""How hard the tasks are and how noisy their rewards: s2, tau2 and the difficulty SNR."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollonce.rollouts import FloatArray, Rollouts


class Estimate(NamedTuple):
    """A value with its 95% interval over tasks; NaN bounds where none could be computed."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".3g"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


class Moments(NamedTuple):
    """Moments of a table of rollouts.

    Attributes:
        s2: Mean within-task reward variance (ddof=1, over tasks with at least two rollouts); NaN if there is none.
        tau2: Variance over tasks of the true mean reward, ``var(task means, ddof=1) - mean(s2_x / G_x)``; may be below
            0 by noise.
        snr: Difficulty SNR ``tau2 / s2``; infinite for ``s2 = 0``, NaN where ``tau2`` is 0 as well.
        mean: Mean reward over tasks.
        n_tasks, n_rollouts: N and R.
        group_sizes: Smallest and largest G.
        n_repeated: Tasks with at least two rollouts, on which s2 rests.
        same_prompt: Tasks whose normalised prompt another task has as well.
    """

    s2: Estimate
    tau2: Estimate
    snr: Estimate
    mean: Estimate
    n_tasks: int
    n_rollouts: int
    group_sizes: tuple[int, int]
    n_repeated: int
    same_prompt: int


def variance_of_task_means(rollouts: Rollouts) -> FloatArray:
    """``s2_x / G_x``: the variance of each task's mean (N,). Groups of one take the mean s2 of the others; NaN if all
    are of one."""
    s2_N = rollouts.variances_N
    known = np.isfinite(s2_N)
    pooled = s2_N[known].mean() if known.any() else np.nan
    return np.where(known, s2_N, pooled) / rollouts.group_sizes_N


def variance_of_means(means: FloatArray) -> float:
    """Their variance (ddof=1); exactly 0 where they are equal, which numpy's own mean of them need not be."""
    return float(means.var(ddof=1)) if np.ptp(means) > 0 else 0.0


def moments(rollouts: Rollouts, *, resamples: int = 1000, seed: int = 0) -> Moments:
    """s2, tau2, SNR and the mean with 95% bootstrap intervals over tasks (percentile, N / (N - 1) corrected).

    Args:
        rollouts: The table; s2 needs at least one task with two rollouts.
        resamples: Bootstrap resamples of the tasks.
        seed: Of the resamples.
    """
    n = rollouts.n_tasks
    means, s2_N, noise = rollouts.means_N, rollouts.variances_N, variance_of_task_means(rollouts)
    known = np.isfinite(s2_N)

    def moments_of_tasks(index: np.ndarray) -> tuple[float, float, float, float]:
        s2_i = s2_N[index][known[index]]
        s2 = float(s2_i.mean()) if len(s2_i) else np.nan
        tau2 = variance_of_means(means[index]) - float(noise[index].mean()) if len(index) > 1 else np.nan
        snr = tau2 / s2 if s2 > 0 else (np.inf if s2 == 0 and tau2 > 0 else np.nan)
        return s2, tau2, snr, float(means[index].mean())

    point = moments_of_tasks(np.arange(n))
    rng = np.random.default_rng([seed, 1])
    draws = (
        np.array([moments_of_tasks(rng.integers(n, size=n)) for _ in range(resamples)])
        if n > 1
        else np.full((1, 4), np.nan)
    )
    # The variance of n resampled means is (n - 1) / n of what it estimates; put back, or the interval sits too low.
    draws[:, 1] += (point[1] + noise.mean()) / max(n, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws[:, 2] = np.where(draws[:, 0] > 0, draws[:, 1] / draws[:, 0], np.nan)
    widen = np.sqrt(n / (n - 1)) if n > 1 else 1.0
    estimates = []
    for k in range(4):
        usable = draws[np.isfinite(draws[:, k]), k]
        if len(usable) < 20 or not np.isfinite(point[k]):
            estimates.append(Estimate(point[k], np.nan, np.nan))
            continue
        low, high = np.quantile(usable, [0.025, 0.975])
        middle = np.median(usable)
        estimates.append(
            Estimate(point[k], float(middle - widen * (middle - low)), float(middle + widen * (high - middle)))
        )
    sizes = rollouts.group_sizes_N
    _keys, counts = np.unique(rollouts.tasks.prompt_keys, return_counts=True)
    return Moments(
        estimates[0],
        estimates[1],
        estimates[2],
        estimates[3],
        n,
        rollouts.n_rollouts,
        (int(sizes.min()), int(sizes.max())),
        int(known.sum()),
        int(counts[counts > 1].sum()),
    )


def effective_batch_of_loo(snr: float, batch_size: int) -> float:
    """B_eff of the in-batch leave-one-out mean in closed form: ``B / (1 + SNR B / (B - 1) + 1 / (B - 1))``
    (docs/mathematics.md, "Effective batch size")."""
    b = batch_size
    return b / (1 + snr * b / (b - 1) + 1 / (b - 1))
