"""What a trial is worth: the ratio of its B_eff to the in-batch LOO mean, on common batches, over the targets it may
learn from. (`rollonce.tuning.step_objective` has another worth.)"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rollonce.baselines import LeaveOneOut, LinearSmoother
from rollonce.baselines.tags import Cost
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring import Scorer
from rollonce.tuning.space import Bank

# With a long window each batch of Kriging needs a solve over all it sees; a search can only afford this many.
EXPENSIVE_BATCHES = 12


class Comparison(NamedTuple):
    """A finalist on the tasks that choose.

    Attributes:
        over_loo: Worth relative to the in-batch LOO mean.
        over_plain: Relative to the LOO mean with the longest window searched.
        z: How many standard errors over tasks that gain is.
    """

    over_loo: float
    over_plain: float
    z: float


@dataclass
class Objective:
    """Errors of a baseline on the common batches of one table, by target task.

    Args:
        rollouts: The table; batches (targets and neighbours) come from it.
        batch_size: B.
        n_batches: Common batches of every trial.
        seed: Of the batches.
        targets: Positions in ``rollouts`` that a trial's value is taken over; None is all.
        bank: Fitted features to share between objectives on views of the same tasks.
    """

    rollouts: Rollouts
    batch_size: int = 32
    n_batches: int = 400
    seed: int = 0
    targets: IntArray | None = None
    bank: Bank | None = None
    seconds_scoring: float = field(default=0.0, init=False)
    _loo: dict[Any, FloatArray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.scorer = Scorer(self.rollouts, self.batch_size, self.n_batches, resamples=0, seed=self.seed)
        self.bank = self.bank or Bank(self.rollouts.tasks)
        self.is_target_N = np.ones(self.rollouts.n_tasks, dtype=bool)
        if self.targets is not None:
            self.is_target_N[:] = False
            self.is_target_N[self.targets] = True

    def squared_advantages(
        self, baseline: LinearSmoother, like: LinearSmoother | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """``E[A^2]`` of the baseline and of the in-batch LOO mean for each task as a target (N,), on the same batches.

        With ``like``, on as many batches as that baseline can afford. NaN for tasks that no batch drew.

        The within-task variance is the table's mean, so that the ratio of means is the ratio
        of B_eff; without repeated rollouts the errors are E[A^2] already.
        """
        begin = time.perf_counter()
        window = self.scorer.usable_window_rows(baseline.window)
        columns = self.scorer.draw_common_batches(window)
        priced = like or baseline
        if (
            priced.window
            and priced.tags.cost >= Cost.SOLVE
            and self.batch_size + self.scorer.usable_window_rows(priced.window) < self.rollouts.n_tasks
        ):
            columns = columns[:EXPENSIVE_BATCHES]
        rows = columns[:, : self.batch_size]
        e = _mean_error_by_task(
            self.scorer.unbiased_squared_errors(baseline, columns, window), rows, self.rollouts.n_tasks
        )
        key = len(columns)
        if key not in self._loo:
            self._loo[key] = _mean_error_by_task(
                self.scorer.unbiased_squared_errors(LeaveOneOut(), rows, 0), rows, self.rollouts.n_tasks
            )
        s2 = self.scorer.s2 if self.scorer.has_repeats else 0.0
        self.seconds_scoring += time.perf_counter() - begin
        return s2 + e, s2 + self._loo[key]

    def value_of_baseline(self, baseline: LinearSmoother) -> float:
        """Ratio of B_eff to the in-batch LOO mean over the targets (every target counts once)."""
        return b_eff_ratio_over_tasks(*self.squared_advantages(baseline), self.is_target_N)

    def compare_with_plain(self, baseline: LinearSmoother, plain: LinearSmoother) -> Comparison:
        """A baseline beside the in-batch LOO mean and a plain mean, on the same batches."""
        a2_N, loo_a2_N = self.squared_advantages(baseline)
        plain_a2_N, _ = self.squared_advantages(plain, like=baseline)
        return Comparison(
            b_eff_ratio_over_tasks(a2_N, loo_a2_N, self.is_target_N),
            b_eff_ratio_over_tasks(a2_N, plain_a2_N, self.is_target_N),
            paired_z_over_tasks(a2_N, plain_a2_N, self.is_target_N),
        )


def b_eff_ratio_over_tasks(a2_N: FloatArray, loo_a2_N: FloatArray, mask_N: np.ndarray) -> float:
    """``sum E[A_LOO^2] / sum E[A^2]`` over the tasks of the mask that were drawn; NaN if it cannot be told."""
    known = mask_N & np.isfinite(a2_N) & np.isfinite(loo_a2_N)
    total = float(a2_N[known].sum())
    return float(loo_a2_N[known].sum()) / total if total > 0 else np.nan


def paired_z_over_tasks(a2_N: FloatArray, loo_a2_N: FloatArray, mask_N: np.ndarray) -> float:
    """How many standard errors over target tasks the gain over LOO is; 0 where nothing differs, NaN for fewer than 3
    tasks."""
    known = mask_N & np.isfinite(a2_N) & np.isfinite(loo_a2_N)
    gain = (loo_a2_N - a2_N)[known]
    if len(gain) < 3:
        return np.nan
    se = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    return float(gain.mean()) / se if se > 0 else 0.0


def _mean_error_by_task(e_KB: FloatArray, rows_KB: IntArray, n: int) -> FloatArray:
    """Mean error of each task over the batches that drew it (N,), NaN for those never drawn."""
    known = np.isfinite(e_KB)
    total = np.bincount(rows_KB[known], weights=e_KB[known], minlength=n)
    count = np.bincount(rows_KB[known], minlength=n)
    return np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
