"""Scores baselines on one table of rollouts: common batches, common resamples, paired intervals.

``MSE(b) = E[(b_i - mu_i)^2]``, ``B_eff = B s2 / (s2 + MSE)``, and ``E[A^2] = s2 + MSE`` (docs/mathematics.md,
"Effective batch size"). The tasks are the sample, so the interval on a B_eff comes from resampling *tasks*; copies of a
task in one resample are hidden from each other, or each would meet itself in the batch at similarity 1. The ratio to
the in-batch LOO mean uses the same batches and resamples for both.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rollonce.baselines import Baseline, LeaveOneOut, LinearSmoother
from rollonce.errors import InputError
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring.batches import (
    ages_of_columns,
    draw_one_reward_each,
    draw_runs_of_batches,
    draw_task_resamples,
    draw_windowed_batches,
)
from rollonce.scoring.closed_form import smoother_squared_errors
from rollonce.scoring.crossfit import CrossFitted
from rollonce.scoring.effort import Effort, affordable_effort
from rollonce.scoring.intervals import (
    jackknife_standard_error,
    leave_one_out_means,
    log_scale_interval,
    student_t_quantile,
)
from rollonce.scoring.moments import Estimate, variance_of_means, variance_of_task_means
from rollonce.scoring.paired import PairedErrors, compare_paired_errors, known_means_of_last_axis, mean_of_known_values
from rollonce.scoring.recipe import drawn_baselines, recipe_squared_errors
from rollonce.scoring.repeats import errors_needing_repeats
from rollonce.scoring.score import Score

_ROUNDING = 1e-12
"""What sums of a batch's rewards, weighted or solved for, are off by in float64, relative to the largest reward."""


@dataclass
class Scorer:
    """Scores any number of baselines on the same batches of one table.

    Args:
        rollouts: The table.
        batch_size: B.
        n_batches: Common random batches behind each value.
        resamples: Bootstrap resamples of the tasks behind each interval; 0 for none.
        batches_per_resample: Batches drawn in each; their Monte-Carlo variance is estimated and taken out.
        seed: Of batches, rollouts and resamples.
        targets: Tasks (positions) that count as targets; neighbours may be any task. All by default.
        n_batches_expensive: At most this many batches where each needs a large solve (Kriging or ridge with a long
            window).
        shared_windows: Whether batches with a window of four batches and more come in runs that see the same tasks
            (`batches.draw_runs_of_batches`).

    Raises:
        InputError: if there are fewer tasks than the batch size, or only one.

    >>> from rollonce.baselines import LeaveOneOut
    >>> table = Rollouts.from_groups([[0, 1, 1, 0]] * 8, [f"task {i}" for i in range(8)])
    >>> Scorer(table, batch_size=4, n_batches=50, resamples=0).score_baseline(LeaveOneOut()).window
    0
    """

    rollouts: Rollouts
    batch_size: int = 32
    n_batches: int = 2000
    resamples: int = 100
    batches_per_resample: int = 100
    seed: int = 0
    targets: Sequence[int] | IntArray | None = None
    n_batches_expensive: int = 400
    shared_windows: bool = False
    _cache: dict = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_can_be_scored(self.rollouts, self.batch_size)
        table = self.rollouts
        self.s2_N = table.variances_N
        known = np.isfinite(self.s2_N)
        self.has_repeats = bool(known.any())
        self.s2 = float(self.s2_N[known].mean()) if self.has_repeats else np.nan
        # Without repeats nothing can be subtracted: then errors are E[A^2] itself, and only ratios can be told.
        self.noise_N = variance_of_task_means(table) if self.has_repeats else np.zeros(table.n_tasks)
        self.tau2 = (
            variance_of_means(table.means_N) - float(variance_of_task_means(table).mean())
            if self.has_repeats
            else np.nan
        )
        self.is_target_N = np.ones(table.n_tasks, dtype=bool)
        if self.targets is not None:
            self.is_target_N[:] = False
            self.is_target_N[np.asarray(self.targets)] = True

    @property
    def n_tasks(self) -> int:
        return self.rollouts.n_tasks

    def usable_window_rows(self, asked: int) -> int:
        """Rows of other tasks that a window can really hold: ``min(asked, N - B)``."""
        return min(asked, self.n_tasks - self.batch_size)

    def ages_with_window(self, window: int) -> IntArray:
        """Steps ago of each column (B + window,), see `batches.ages_of_columns`."""
        return ages_of_columns(self.batch_size, window)

    def draw_common_batches(self, window: int) -> IntArray:
        """The common batches with a window of that many other tasks (K, B + window); the batches are the same for every
        window, unless windows are shared."""
        key = ("columns", window)
        if key not in self._cache:
            # A run is worth its while only where many batches can share a solve.
            runs = self.shared_windows and window >= 4 * self.batch_size and self.n_batches >= 200
            draw = draw_runs_of_batches if runs else draw_windowed_batches
            rng = np.random.default_rng([self.seed, 2])
            self._cache[key] = draw(self.n_tasks, self.batch_size, window, self.n_batches, rng)
        return self._cache[key]

    def unbiased_squared_errors(
        self,
        baseline: Baseline | CrossFitted,
        columns_KM: IntArray,
        window: int,
        wanted_KB: BoolArray | None = None,
    ) -> FloatArray:
        """Unbiased squared errors of b against the true mean (K, B); E[A^2] terms where no task has repeats. NaN: not a
        target. Rows that are not wanted may be NaN or not."""
        n_rows, table = self.batch_size, self.rollouts
        rows_KB = columns_KM[:, :n_rows]
        if isinstance(baseline, CrossFitted):
            # A part with a shorter window has the first of these other tasks in its own.
            drawn = [
                one.evaluate_by_fold(
                    table.tasks,
                    rows_KB,
                    lambda part, wanted_KB: self._errors_up_to_window(part, columns_KM, window, wanted_KB),
                )
                for one in (baseline, *baseline.further_draws)
            ]
            return sum(drawn[1:], drawn[0]) / len(drawn)
        if isinstance(baseline, LinearSmoother):
            e = smoother_squared_errors(
                baseline,
                table.tasks,
                columns_KM,
                n_rows,
                ages_M=self.ages_with_window(window),
                mean_N=table.means_N,
                v_N=table.biased_variances_N,
                wanted_KB=wanted_KB,
            )
        else:
            rng = np.random.default_rng([self.seed, 3])
            e = recipe_squared_errors(baseline, table, columns_KM, n_rows, self.ages_with_window(window), rng)
        e = self._errors_beyond_rounding(e - self.noise_N[rows_KB])
        return e if self.targets is None else np.where(self.is_target_N[rows_KB], e, np.nan)

    def _errors_beyond_rounding(self, errors: FloatArray) -> FloatArray:
        """The squared errors, 0 where they are no more than the float rounding of a weighted mean of such rewards."""
        size = _ROUNDING * float(np.abs(self.rollouts.rewards_R).max())
        return np.where(np.abs(errors) <= size**2, 0.0, errors)

    def score_baseline(self, baseline: Baseline | CrossFitted, label: str | None = None) -> Score:
        """The score of one baseline, fitted already.

        Raises:
            InputError: for baselines that need groups: see `rollonce.scoring.groups`.
        """
        tags = baseline.tags
        if tags.needs_groups:
            raise InputError(
                f"{baseline.label} needs groups and has no score at one rollout per task; see the group table"
            )
        label = label or baseline.label
        if isinstance(baseline, Baseline) and tags.needs_repeats:
            return self._score_what_needs_repeats(baseline, label)
        twin = baseline.twin()
        asked = getattr(twin, "window", 0)
        window = self.usable_window_rows(asked)
        pair, columns_KM = self._compare_on_common_batches(twin, LeaveOneOut())
        a2, a2_loo = self._squared_advantage(pair.mse), self._squared_advantage(pair.mse_other)
        b_eff = self.batch_size * self.s2 / a2 if self.has_repeats and a2 > 0 else np.nan
        return Score(
            label=label,
            b_eff=log_scale_interval(b_eff, pair.se_level, pair.degrees_of_freedom),
            ratio=log_scale_interval(a2_loo / a2 if a2 > 0 else np.nan, pair.se_ratio, pair.degrees_of_freedom),
            mse=pair.mse if self.has_repeats else np.nan,
            advantage_variance=a2,
            explained=1 - pair.mse / self.tau2 if self.has_repeats and self.tau2 > 0 else np.nan,
            dead=self._share_of_zero_advantages(baseline, columns_KM, window),
            window=window,
            window_asked=asked,
            method="closed form" if _is_linear_smoother(twin) else "recipe",
            scored_as=twin.label if twin is not baseline else "",
            n_batches=len(columns_KM),
            needs="",
        )

    def effective_batch_size(self, baseline: Baseline | CrossFitted) -> float:
        """The effective batch size alone, without its interval and all else that `score` says."""
        twin = baseline.twin()
        window = self.usable_window_rows(getattr(twin, "window", 0))
        n_batches = self.affordable_batches(twin, window)
        a2 = self._squared_advantage(mean_of_known_values(self._errors_on_common_batches(twin, window, n_batches)))
        return self.batch_size * self.s2 / a2 if self.has_repeats and a2 > 0 else np.nan

    def copy_with_settings(self, **settings: Any) -> Scorer:
        """A scorer of the same table with other settings; what was checked and computed of the table is taken over."""
        other = copy.copy(self)
        other.__dict__.update(settings, _cache={})
        return other

    def effective_batch_ratio(self, baseline: Baseline | CrossFitted, other: Baseline | CrossFitted) -> Estimate:
        """B_eff of one over that of another, on common batches and resamples (a paired interval over tasks)."""
        pair, _ = self._compare_on_common_batches(baseline, other)
        a2, other_a2 = self._squared_advantage(pair.mse), self._squared_advantage(pair.mse_other)
        return log_scale_interval(other_a2 / a2 if a2 > 0 else np.nan, pair.se_ratio, pair.degrees_of_freedom)

    def affordable_batches(self, baseline: Baseline | CrossFitted, window: int) -> int:
        """How many of the common batches a baseline is scored on: fewer where it is expensive."""
        return self._effort_for_baseline(baseline, window).n_batches

    def _effort_for_baseline(self, baseline: Baseline | CrossFitted, window: int) -> Effort:
        asked = Effort(self.n_batches, self.resamples, self.batches_per_resample)
        return affordable_effort(
            baseline,
            window,
            batch_size=self.batch_size,
            n_tasks=self.n_tasks,
            asked=asked,
            n_batches_expensive=self.n_batches_expensive,
        )

    def _errors_up_to_window(
        self,
        baseline: Baseline | CrossFitted,
        columns_KM: IntArray,
        window: int,
        wanted_KB: BoolArray | None = None,
    ) -> FloatArray:
        """Errors (K, B) of one that may see less than these columns: the first of them."""
        own = min(window, self.usable_window_rows(getattr(baseline, "window", 0)))
        return self.unbiased_squared_errors(baseline, columns_KM[:, : self.batch_size + own], own, wanted_KB)

    def _squared_advantage(self, mse: float) -> float:
        return self.s2 + mse if self.has_repeats else mse

    def _compare_on_common_batches(
        self, baseline: Baseline | CrossFitted, other: Baseline | CrossFitted
    ) -> tuple[PairedErrors, IntArray]:
        """Their errors on common batches, and these batches (K, B + window)."""
        both = (baseline, other)
        windows = [self.usable_window_rows(getattr(b, "window", 0)) for b in both]
        window = max(windows)
        efforts = [self._effort_for_baseline(b, w) for b, w in zip(both, windows, strict=True)]
        n_batches, resamples, per = efforts[0].elementwise_least(efforts[1])
        e, e_other = (self._errors_on_common_batches(b, window, n_batches) for b in both)
        resampled, s2_R = None, np.zeros(0)
        if resamples:
            er, er_other = (self._resampled_errors(b, window, resamples, per) for b in both)
            resampled, s2_R = (
                (er, er_other),
                known_means_of_last_axis(self.s2_N[self._resamples_of_tasks(window, resamples, per)[0]]),
            )
        s2 = self.s2 if self.has_repeats else None
        pair = compare_paired_errors((e, e_other), resampled, s2=s2, s2_R=s2_R, n_tasks=self.n_tasks)
        return pair, self.draw_common_batches(window)[:n_batches]

    def _errors_on_common_batches(self, baseline: Baseline | CrossFitted, window: int, n_batches: int) -> FloatArray:
        """Errors on the common batches with that window (K, B); those of the in-batch LOO mean are kept, since
        everything is compared with it."""
        if not _is_in_batch_loo(baseline):
            return self._errors_up_to_window(baseline, self.draw_common_batches(window)[:n_batches], window)
        key = ("LOO", window)
        if key not in self._cache:
            self._cache[key] = self._errors_up_to_window(baseline, self.draw_common_batches(window), window)
        return self._cache[key][:n_batches]

    def _resamples_of_tasks(self, window: int, resamples: int, per: int) -> tuple[IntArray, IntArray]:
        """See `batches.draw_task_resamples`; positions in the table."""
        key = ("resamples", window, resamples, per)
        if key not in self._cache:
            self._cache[key] = draw_task_resamples(self.n_tasks, self.batch_size, window, per, resamples, self.seed)
        return self._cache[key]

    def _resampled_errors(self, baseline: Baseline | CrossFitted, window: int, resamples: int, per: int) -> FloatArray:
        """Errors on the batches of the resamples (R, K, B); those of the in-batch LOO mean are kept."""
        key = ("LOO resampled", window, resamples, per)
        if _is_in_batch_loo(baseline) and key in self._cache:
            return self._cache[key]
        _, columns_RKM = self._resamples_of_tasks(window, resamples, per)
        if isinstance(baseline, CrossFitted):
            baseline = replace(baseline, further_draws=())  # one draw of the fit must do
        if _is_linear_smoother(baseline):
            every = columns_RKM.reshape(resamples * per, -1)
            errors = self._errors_up_to_window(baseline, every, window).reshape(resamples, per, -1)
        else:  # each resample draws its rollouts from the beginning of the same stream
            errors = np.stack([self._errors_up_to_window(baseline, one, window) for one in columns_RKM])
        if _is_in_batch_loo(baseline):
            self._cache[key] = errors
        return errors

    def _share_of_zero_advantages(self, baseline: Baseline | CrossFitted, columns_KM: IntArray, window: int) -> float:
        """Fraction of zero advantages over 50 sampled batches (5 with a long window)."""
        table, n_rows = self.rollouts, self.batch_size
        columns = columns_KM[: 50 if window <= 128 else 5, : n_rows + window]
        rewards, _ = draw_one_reward_each(table, columns, np.random.default_rng([self.seed, 6]))
        b_KB = drawn_baselines(baseline, table, columns, rewards, n_rows, self.ages_with_window(window))
        spread = max(float(table.rewards_R.std()), 1e-300)
        return float((np.abs(rewards[:, :n_rows] - b_KB) <= 1e-6 * spread).mean())

    def _score_what_needs_repeats(self, baseline: Baseline, label: str) -> Score:
        n = self.n_tasks
        mse_N, method, needs = errors_needing_repeats(baseline, self.rollouts)
        mse_N = self._errors_beyond_rounding(mse_N)
        known = np.isfinite(mse_N) & self.is_target_N
        e_loo = self.unbiased_squared_errors(LeaveOneOut(), self.draw_common_batches(0), 0)
        mse = float(mse_N[known].mean()) if known.any() else np.nan
        a2, a2_loo = self._squared_advantage(mse), self._squared_advantage(mean_of_known_values(e_loo))
        # Task-level errors are independent: a jackknife of the ratio of means.
        rest_s2 = leave_one_out_means(self.s2_N)
        rest_mse = leave_one_out_means(np.where(known, mse_N, np.nan))
        with_level = self.has_repeats and self.s2 > 0 and a2 > 0
        se = jackknife_standard_error(np.log(rest_s2) - np.log(rest_s2 + rest_mse)) if with_level else np.nan
        loo = self.score_baseline(LeaveOneOut()).b_eff
        se_loo = (
            (np.log(loo.high) - np.log(loo.low)) / 2 / student_t_quantile(n - 1) if np.isfinite(loo.low) else np.nan
        )
        b_eff = self.batch_size * self.s2 / a2 if self.has_repeats and a2 > 0 else np.nan
        df = max(n - 1, 1)
        return Score(
            label=label,
            b_eff=log_scale_interval(b_eff, se, df),
            ratio=log_scale_interval(a2_loo / a2 if a2 > 0 else np.nan, float(np.hypot(se, se_loo)), df),
            mse=mse,
            advantage_variance=a2,
            explained=1 - mse / self.tau2 if self.has_repeats and self.tau2 > 0 else np.nan,
            dead=np.nan,
            window=0,
            window_asked=0,
            method=method,
            scored_as="",
            n_batches=0,
            needs=needs,
        )


def check_can_be_scored(rollouts: Rollouts, batch_size: int) -> None:
    """Refuse a table that no batch can be drawn from, in a sentence.

    Raises:
        InputError: one task only, fewer tasks than the batch size, or a batch size below 2.
    """
    n, where = rollouts.n_tasks, rollouts.source or None
    if batch_size < 2:
        raise InputError(
            f"batch size must be at least 2, not {batch_size}: a batch of one has no other rollout to compare with"
        )
    if n == 1:
        raise InputError(
            f"only one task ({rollouts.n_rollouts} rollouts of it): baselines are compared over tasks. If there should "
            "be more, check --task-key and --prompt-key",
            file=where,
        )
    if n < batch_size:
        raise InputError(
            f"{n} tasks, fewer than the batch size of {batch_size}: collect more tasks or pass --batch-size {n}",
            file=where,
        )
    if len(np.unique(rollouts.tasks.prompt_keys)) == 1:
        raise InputError(
            f"all {n} tasks have the same prompt, so no rollout has another task to compare with", file=where
        )


def _is_in_batch_loo(baseline: Baseline | CrossFitted) -> bool:
    return isinstance(baseline, LeaveOneOut) and not baseline.window


def _is_linear_smoother(baseline: Baseline | CrossFitted) -> bool:
    return baseline.is_linear_smoother if isinstance(baseline, CrossFitted) else isinstance(baseline, LinearSmoother)
