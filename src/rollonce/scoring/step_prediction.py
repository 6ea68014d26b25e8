"""Progress of a training step, predicted from rewards and log-probabilities alone.

A rollout's squared gradient norm goes as a power ``a`` of its surprisal ``S = -log pi(rollout)``, and what an optimizer
makes of a batch is a step of nearly fixed length, so with advantages A

    progress of a baseline over LOO's  ~  E[(sum_i A_i^2 S_i^a)^(-1/2)]  /  the same under LOO.

A batch without any advantage makes no step and counts 0. The equivalent batch is read off LOO's own curve under the
same formula. The exponent belongs to a policy: `rollonce noise --save` measures it. docs/mathematics.md, "What a step
feels".

Shapes: ``_K`` batches, ``_B`` rollouts of one, ``_M`` what it can see, ``_R`` rollouts in task order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rollonce.baselines import Baseline
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring.batch_curve import SIZES, BatchCurve
from rollonce.scoring.batches import ages_of_columns
from rollonce.scoring.crossfit import CrossFitted
from rollonce.scoring.estimator import Scorer
from rollonce.scoring.moments import Estimate
from rollonce.scoring.quantities import Design, Quantity
from rollonce.scoring.recipe import drawn_baselines

UNMEASURED = (1.0, 2.0)
"""The exponents between which every policy lies whose own was not measured."""


class StepPrediction(NamedTuple):
    """What is predicted of a step for one exponent.

    Attributes:
        exponent: Of the surprisal.
        progress: Over LOO's, with its 95% interval over tasks.
        equivalent_batch: The batch with which LOO makes the same progress. Its interval is that of the progress, put
            through LOO's curve; the error of the curve itself is not in it.
        beyond_curve: It lies outside of half to twice the batch: extrapolated.
    """

    exponent: float
    progress: Estimate
    equivalent_batch: Estimate
    beyond_curve: bool


class DrawnSteps:
    """Common batches with one drawn rollout at each place, and the inverse norms of the steps that baselines make of
    them.

    Args:
        rollouts: The table.
        batch_size: B.
        columns: From a window to the tasks that each batch sees (K, B + window), the batches the same for every window.
        seed: Of the draws; they do not depend on the window either.
        exponents: Of the surprisal.
        n_batches: At most so many batches.

    Raises:
        InputError: if a task has no rollout with a log-probability.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        batch_size: int,
        columns: Callable[[int], IntArray],
        *,
        seed: int,
        exponents: Sequence[float],
        n_batches: int,
    ) -> None:
        if rollouts.log_probs_R is None:
            raise InputError(
                "these rollouts have no log-probabilities to predict a training step from; log their sum for each "
                "rollout as log_prob (rollonce collect does)",
                file=rollouts.source or None,
            )
        self.rollouts, self.batch_size, self.exponents, self.n_batches = rollouts, batch_size, exponents, n_batches
        self._columns, self._seed = columns, seed
        self._surprisals_R = np.maximum(-rollouts.log_probs_R, 0.0)
        self._known_R, self._counts_N, self._starts_N = _rollouts_with_log_probs(rollouts)

    def draw_step_rollouts(self, window: int, n_batches: int | None = None) -> tuple[IntArray, FloatArray, FloatArray]:
        """Columns, rewards and surprisals of the drawn rollouts (K, B + window)."""
        n_batches = min(self.n_batches, n_batches or self.n_batches)
        columns_KM = self._columns(window)[:n_batches]
        # A uniform number for each batch and place, one stream for each place, so that draws do not depend on M.
        u_MK = np.random.default_rng([self._seed, 31]).random((columns_KM.shape[1], self.n_batches))
        at = self._starts_N[columns_KM] + (u_MK.T[:n_batches] * self._counts_N[columns_KM]).astype(np.int64)
        rollout_KM = self._known_R[at]
        return columns_KM, self.rollouts.rewards_R[rollout_KM], self._surprisals_R[rollout_KM]

    def baseline_inverse_norms(
        self, baseline: Baseline | CrossFitted, window: int, n_batches: int | None = None
    ) -> list[FloatArray]:
        """``(sum_i A_i^2 S_i^a)^(-1/2)`` of each batch (K,), for each exponent a.

        Args:
            baseline: A leave-one-out one.
            window: Rows of other tasks that it sees.
            n_batches: The first so many.
        """
        b = self.batch_size
        columns_KM, rewards_KM, surprisals_KM = self.draw_step_rollouts(window, n_batches)
        b_KB = drawn_baselines(baseline, self.rollouts, columns_KM, rewards_KM, b, ages_of_columns(b, window))
        advantages_KB, surprisals_KB = rewards_KM[:, :b] - b_KB, surprisals_KM[:, :b]
        return [inverse_step_norms(advantages_KB, surprisals_KB, a) for a in self.exponents]


class StepPredictor:
    """Predicts for many baselines on common batches and draws of rollouts.

    Args:
        scorer: Whose batches, windows and seed.
        exponents: For which.
        n_batches: At most so many of its batches.

    Raises:
        InputError: if a task has no rollout with a log-probability.
    """

    def __init__(self, scorer: Scorer, exponents: tuple[float, ...], n_batches: int = 2000) -> None:
        b = scorer.batch_size
        self._scorer, self.exponents = scorer, exponents
        self._steps = DrawnSteps(
            scorer.rollouts,
            b,
            scorer.draw_common_batches,
            seed=scorer.seed,
            exponents=exponents,
            n_batches=min(n_batches, scorer.n_batches),
        )
        extra = min(b, scorer.n_tasks - b)
        wide_KM, rewards_KM, surprisals_KM = self._steps.draw_step_rollouts(extra)
        self._design = Design(wide_KM[:, :b], scorer.n_tasks)

        def inverse_norms_of_loo(size: int, exponent: float) -> FloatArray:
            advantages = rewards_KM[:, :size] - _leave_one_out_means(rewards_KM[:, :size])
            return inverse_step_norms(advantages / size * b, surprisals_KM[:, :size], exponent)

        self._loo_inverse_norms = [inverse_norms_of_loo(b, a) for a in exponents]
        sizes = [round(f * b) for f in SIZES if 2 <= round(f * b) <= b + extra]
        self._curves = []
        for a, own_K in zip(exponents, self._loo_inverse_norms, strict=True):
            logs = []
            for size in sizes:
                value = inverse_norms_of_loo(size, a).mean()
                logs.append(np.log(value / own_K.mean()) if value > 0 and own_K.mean() > 0 else np.nan)
            usable = np.isfinite(logs)
            self._curves.append(BatchCurve(np.array(sizes)[usable] / b, np.array(logs)[usable]))

    def predict_step_progress(self, baseline: Baseline | CrossFitted) -> list[StepPrediction]:
        """One prediction for each exponent. A baseline that includes the own reward is taken as its twin."""
        scorer, b = self._scorer, self._scorer.batch_size
        twin = baseline.twin()
        window = scorer.usable_window_rows(int(getattr(twin, "window", 0)))
        values = self._steps.baseline_inverse_norms(twin, window, scorer.affordable_batches(twin, window))
        design = Design(scorer.draw_common_batches(window)[: len(values[0]), :b], scorer.n_tasks)
        out = []
        for a, curve, own_K, loo_K in zip(self.exponents, self._curves, values, self._loo_inverse_norms, strict=True):
            mine, loo = design.mean_over_batches(own_K), design.mean_over_batches(loo_K[: len(own_K)])
            out.append(_prediction_from_norms(a, mine, loo, curve, b))
        return out


def _rollouts_with_log_probs(table: Rollouts) -> tuple[IntArray, IntArray, IntArray]:
    """Rollouts with a log-probability, end to end in task order; how many each task has, and where they start."""
    assert table.log_probs_R is not None
    known_R = np.isfinite(table.log_probs_R)
    task_R = np.repeat(np.arange(table.n_tasks), table.group_sizes_N)
    counts_N = np.bincount(task_R[known_R], minlength=table.n_tasks)
    if not counts_N.all():
        first = str(table.tasks.task_ids[int(np.flatnonzero(counts_N == 0)[0])])
        raise InputError(
            f"{int((counts_N == 0).sum())} of {table.n_tasks} tasks have no rollout with a log-probability (task "
            f"{first!r} first)",
            file=table.source or None,
        )
    return np.flatnonzero(known_R), counts_N, np.concatenate([[0], np.cumsum(counts_N)[:-1]])


def _leave_one_out_means(rewards_KB: FloatArray) -> FloatArray:
    n = rewards_KB.shape[1]
    return (rewards_KB.sum(axis=1, keepdims=True) - rewards_KB) / (n - 1)


def inverse_step_norms(advantages_KB: FloatArray, surprisals_KB: FloatArray, exponent: float) -> FloatArray:
    """``(sum A^2 S^a)^(-1/2)`` of each batch (K,); 0 where no advantage is left but rounding."""
    scale = max(float(np.abs(advantages_KB).max(initial=0.0)), 1e-300)
    advantages_KB = np.where(np.abs(advantages_KB) > 1e-9 * scale, advantages_KB, 0.0)
    total_K = (advantages_KB**2 * surprisals_KB**exponent).sum(axis=1)
    return np.divide(1.0, np.sqrt(total_K), out=np.zeros(len(total_K)), where=total_K > 0)


def _prediction_from_norms(exponent: float, mine: Quantity, loo: Quantity, curve: BatchCurve, b: int) -> StepPrediction:
    if not (mine.value > 0 and loo.value > 0):
        nothing = Estimate(float("nan"), float("nan"), float("nan"))
        return StepPrediction(exponent, nothing, nothing, False)
    progress = (mine / loo).estimate_with_interval()
    x = curve.log_size_for_progress(float(np.log(progress.value)))
    if not np.isfinite(x):
        return StepPrediction(exponent, progress, Estimate(float("nan"), float("nan"), float("nan")), False)
    ends = [
        curve.log_size_for_progress(float(np.log(e))) if e > 0 else float("nan") for e in (progress.low, progress.high)
    ]
    equivalent = Estimate(*(b * float(np.exp(at)) for at in (x, *ends)))
    return StepPrediction(exponent, progress, equivalent, not curve.is_measured_size(x))


def join_over_exponents(predictions: Sequence[StepPrediction]) -> tuple[Estimate, Estimate]:
    """Progress and equivalent batch over the exponents that were asked for, their geometric mean
    (`geometric_mean_estimate`)."""
    return geometric_mean_estimate([p.progress for p in predictions]), geometric_mean_estimate(
        [p.equivalent_batch for p in predictions]
    )


def geometric_mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Of one estimate itself; of several the geometric mean, with an interval that holds all of theirs."""
    if len(estimates) == 1:
        return estimates[0]
    value = float(np.exp(np.mean(np.log([e.value for e in estimates]))))
    return Estimate(value, float(np.min([e.low for e in estimates])), float(np.max([e.high for e in estimates])))


def exponents_to_predict(exponent: float | None) -> tuple[float, ...]:
    """The measured one, or those between which every policy lies."""
    return UNMEASURED if exponent is None else (exponent,)


__all__ = [
    "UNMEASURED",
    "DrawnSteps",
    "StepPrediction",
    "StepPredictor",
    "exponents_to_predict",
    "geometric_mean_estimate",
    "inverse_step_norms",
    "join_over_exponents",
]
