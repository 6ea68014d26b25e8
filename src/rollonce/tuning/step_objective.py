"""What a trial is worth by the training step: its progress over that of the in-batch LOO mean, as predicted from
rewards and log-probabilities (`rollonce.scoring.step_prediction`).

A batch's step belongs to all of its tasks at once, so batches are drawn from the targets alone; whatever else the
search may see stands in windows only. Where the targets are fewer than one and a half batches, batches hold two thirds
of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rollonce.baselines import Baseline, LeaveOneOut, LinearSmoother
from rollonce.baselines.tags import Cost
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring import CrossFitted, Estimate
from rollonce.scoring.batches import draw_distinct_columns, permutation_heads, pick_other_tasks
from rollonce.scoring.quantities import Design, Quantity
from rollonce.scoring.step_prediction import UNMEASURED, DrawnSteps, exponents_to_predict, geometric_mean_estimate
from rollonce.tuning.objective import Comparison, Objective
from rollonce.tuning.space import Bank

ObjectiveName = Literal["b_eff", "step"]
OBJECTIVES: tuple[ObjectiveName, ...] = ("b_eff", "step")
# With a long window each batch of Kriging needs a solve over all it sees.
_EXPENSIVE_BATCHES = 60


@dataclass
class StepObjective:
    """Predicted progress on common batches of one table's targets.

    Args:
        rollouts: The table.
        batch_size: B; of few targets less is drawn.
        n_batches: Common batches of every trial.
        seed: Of batches and rollouts.
        targets: Positions in ``rollouts`` that batches are drawn from; None is all.
        bank: Fitted features to share between objectives on views of the same tasks.
        exponents: Of the surprisal; of several, the geometric mean of what is predicted for each counts.

    Raises:
        InputError: if a task has no rollout with a log-probability.
    """

    rollouts: Rollouts
    batch_size: int = 32
    n_batches: int = 400
    seed: int = 0
    targets: IntArray | None = None
    bank: Bank | None = None
    exponents: Sequence[float] = UNMEASURED
    seconds_scoring: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        n = self.rollouts.n_tasks
        self.bank = self.bank or Bank(self.rollouts.tasks)
        targets = np.arange(n) if self.targets is None else np.asarray(self.targets)
        self.batch_size = min(self.batch_size, max(2, 2 * len(targets) // 3))
        heads_KB = draw_distinct_columns(
            len(targets), self.batch_size, self.n_batches, np.random.default_rng([self.seed, 32])
        )
        self.design, self._rows_KB = Design(heads_KB, len(targets)), targets[heads_KB]
        self._columns: dict[int, IntArray] = {0: self._rows_KB}
        self._steps = DrawnSteps(
            self.rollouts,
            self.batch_size,
            self.columns_with_window,
            seed=self.seed,
            exponents=self.exponents,
            n_batches=self.n_batches,
        )
        self._loo = self._steps.baseline_inverse_norms(LeaveOneOut(), 0)

    def columns_with_window(self, window: int) -> IntArray:
        """The common batches, each with a window of that many other tasks of the table (K, B + window)."""
        if window not in self._columns:
            u_KH = np.random.default_rng([self.seed, 33]).random((window, self.n_batches)).T
            picks = permutation_heads(self.rollouts.n_tasks - self.batch_size, u_KH)
            others = pick_other_tasks(self._rows_KB, picks, self.rollouts.n_tasks)
            self._columns[window] = np.concatenate([self._rows_KB, others], axis=1)
        return self._columns[window]

    def value_of_baseline(self, baseline: LinearSmoother) -> float:
        """Predicted progress over the in-batch LOO mean's; NaN where LOO makes no step at all."""
        own = self._timed_inverse_norms(baseline)
        return _ratio_of_means(own, [loo_K[: len(own[0])] for loo_K in self._loo])

    def compare_with_plain(self, baseline: LinearSmoother, plain: LinearSmoother) -> Comparison:
        """A baseline beside the in-batch LOO mean and a plain mean, on the same batches: standard errors of the gain
        over tasks, of several exponents the smallest."""
        own = self._timed_inverse_norms(baseline)
        n = len(own[0])
        mean = [values_K[:n] for values_K in self._timed_inverse_norms(plain)]
        gains = [self._quantity_of_batches(own_K - plain_K) for own_K, plain_K in zip(own, mean, strict=True)]
        z = min(g.value / g.standard_error if g.standard_error > 0 else 0.0 for g in gains)
        return Comparison(_ratio_of_means(own, [loo_K[:n] for loo_K in self._loo]), _ratio_of_means(own, mean), z)

    def predicted_progress(self, baseline: Baseline | CrossFitted) -> Estimate:
        """Predicted progress over the in-batch LOO mean's, with its paired 95% interval over tasks."""
        own = self._timed_inverse_norms(baseline.twin())
        ratios = []
        for own_K, loo_K in zip(own, self._loo, strict=True):
            ratios.append(
                (
                    self._quantity_of_batches(own_K) / self._quantity_of_batches(loo_K[: len(own_K)])
                ).estimate_with_interval()
            )
        return geometric_mean_estimate(ratios)

    def _timed_inverse_norms(self, baseline: Baseline | CrossFitted) -> list[FloatArray]:
        begin = time.perf_counter()
        window = min(int(getattr(baseline, "window", 0)), self.rollouts.n_tasks - self.batch_size)
        expensive = window > 0 and baseline.tags.cost >= Cost.SOLVE
        norms = self._steps.baseline_inverse_norms(baseline, window, _EXPENSIVE_BATCHES if expensive else None)
        self.seconds_scoring += time.perf_counter() - begin
        return norms

    def _quantity_of_batches(self, values_K: FloatArray) -> Quantity:
        return Design(self.design.tasks_KB[: len(values_K)], self.design.n_tasks).mean_over_batches(values_K)


def exponents_of_objective(
    name: str, exponent: float | None, rollouts: Sequence[Rollouts]
) -> tuple[Sequence[float] | None, str]:
    """The exponents of a step's objective, None for that of B_eff; and what the reader must know of them, or "".

    Raises:
        InputError: for a name that means nothing, an exponent without use, or rollouts without log-probabilities.
    """
    if name not in OBJECTIVES:
        raise InputError(f"--objective must be one of {', '.join(OBJECTIVES)}, not {name!r}")
    if name == "b_eff":
        if exponent is not None:
            raise InputError("--exponent is for --objective step; B_eff does not look at log-probabilities")
        return None, ""
    for table in rollouts:
        if table.log_probs_R is None:
            raise InputError(
                "--objective step predicts a training step from log-probabilities, and these rollouts have none; log "
                "their sum for each rollout as log_prob (rollonce collect does), or use --objective b_eff",
                file=table.source or None,
            )
    unmeasured = (
        "The exponent of the surprisal was not measured for this policy (rollonce noise --save exponent.json, then "
        "--exponent exponent.json): what counts is the geometric mean of the progress predicted for 1 and for 2."
    )
    return exponents_to_predict(exponent), unmeasured if exponent is None else ""


def make_tuning_objective(
    exponents: Sequence[float] | None,
    rollouts: Rollouts,
    batch_size: int,
    n_batches: int,
    seed: int,
    *,
    targets: IntArray | None = None,
    bank: Bank | None = None,
) -> Objective | StepObjective:
    """The objective of B_eff (``exponents`` None) or of a training step."""
    if exponents is None:
        return Objective(rollouts, batch_size, n_batches, seed, targets, bank)
    return StepObjective(rollouts, batch_size, n_batches, seed, targets, bank, exponents)


def _ratio_of_means(own: Sequence[FloatArray], other: Sequence[FloatArray]) -> float:
    """Ratio of the means over the batches, of several exponents their geometric mean; NaN where one is 0."""
    means = np.array([[own_K.mean(), other_K.mean()] for own_K, other_K in zip(own, other, strict=True)])
    return float(np.exp(np.log(means[:, 0] / means[:, 1]).mean())) if (means > 0).all() else np.nan


__all__ = ["OBJECTIVES", "ObjectiveName", "StepObjective", "exponents_of_objective", "make_tuning_objective"]
