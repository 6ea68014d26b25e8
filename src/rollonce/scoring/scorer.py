"""Scores baselines on one table of rollouts: common batches, common resamples, paired intervals.

``MSE(b) = E[(b_i - mu_i)^2]``, ``B_eff = B s2 / (s2 + MSE)``, and ``E[A^2] = s2 + MSE`` (MATH: section 3). The tasks
are the sample, so the interval on a B_eff comes from resampling *tasks*; copies of a task in one resample are hidden
from each other, or each would meet itself in the batch at similarity 1. The ratio to the in-batch LOO mean uses the
same batches and resamples for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy.stats

from rollonce.baselines import (
    Baseline,
    Batch,
    BoostedTrees,
    History,
    KernelBaseline,
    LeaveOneOut,
    LinearSmoother,
    Oracle,
)
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring.batches import draw_columns
from rollonce.scoring.closed_form import smoother_errors
from rollonce.scoring.moments import Estimate, noise_of_means
from rollonce.scoring.recipe import draw_rewards, recipe_errors, tracker_errors


class Score(NamedTuple):
    """How one baseline does on one table.

    Attributes:
        label: What it is called in tables.
        b_eff: Effective batch size, in rollouts; NaN where no task has two rollouts.
        ratio: Its ratio to the in-batch leave-one-out mean (paired interval).
        mse: ``E[(b - mu)^2]``; may be below 0 by noise.
        advantage_variance: ``E[A^2] = s2 + MSE`` of the leave-one-out form.
        explained: Share of the difficulty variance it explains, ``1 - MSE / tau2``; NaN where tau2 is not above 0.
        dead: Fraction of advantages that are zero (below 1e-6 of the rewards' spread).
        window: Rows of other tasks used beside the batch; ``window_asked`` what was asked for.
        method: ``closed form``, ``recipe`` (sampled) or ``analytic``.
        scored_as: Label of the leave-one-out twin that stood in, or "".
        n_batches: Batches behind the value.
        needs: "" if it can be used at one rollout per task, else ``repeats``, ``groups`` or ``extra rollouts``.
    """

    label: str
    b_eff: Estimate
    ratio: Estimate
    mse: float
    advantage_variance: float
    explained: float
    dead: float
    window: int
    window_asked: int
    method: str
    scored_as: str
    n_batches: int
    needs: str


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
        n_batches_dear: At most this many batches where each needs a large solve (Kriging or ridge with a long window).

    Raises:
        InputError: if there are fewer tasks than the batch size, or only one.

    >>> from rollonce.baselines import LeaveOneOut
    >>> table = Rollouts.from_groups([[0, 1, 1, 0]] * 8, [f"task {i}" for i in range(8)])
    >>> Scorer(table, batch_size=4, n_batches=50, resamples=0).score(LeaveOneOut()).window
    0
    """

    rollouts: Rollouts
    batch_size: int = 32
    n_batches: int = 2000
    resamples: int = 100
    batches_per_resample: int = 100
    seed: int = 0
    targets: Sequence[int] | IntArray | None = None
    n_batches_dear: int = 400
    _cache: dict = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_scorable(self.rollouts, self.batch_size)
        table = self.rollouts
        self.s2_N = table.variances_N
        known = np.isfinite(self.s2_N)
        self.has_repeats = bool(known.any())
        self.s2 = float(self.s2_N[known].mean()) if self.has_repeats else np.nan
        # Without repeats nothing can be subtracted: then errors are E[A^2] itself, and only ratios can be told.
        self.noise_N = noise_of_means(table) if self.has_repeats else np.zeros(table.n_tasks)
        self.tau2 = float(table.means_N.var(ddof=1) - noise_of_means(table).mean()) if self.has_repeats else np.nan
        self.is_target_N = np.ones(table.n_tasks, dtype=bool)
        if self.targets is not None:
            self.is_target_N[:] = False
            self.is_target_N[np.asarray(self.targets)] = True

    @property
    def n_tasks(self) -> int:
        """N."""
        return self.rollouts.n_tasks

    def usable_window(self, asked: int) -> int:
        """Rows of other tasks that a window can really hold: ``min(asked, N - B)``."""
        return min(asked, self.n_tasks - self.batch_size)

    def columns(self, window: int) -> IntArray:
        """The common batches with a window of that many other tasks (K, B + window); the batches are the same for every
        window."""
        key = ("columns", window)
        if key not in self._cache:
            # One stream for the batch and its window: a shorter window is a prefix of a longer one.
            rng = np.random.default_rng([self.seed, 2])
            self._cache[key] = self._draw(rng, self.n_batches, window)
        return self._cache[key]

    def _is_dear(self, baseline: Baseline, window: int) -> bool:
        """A solve over more than 128 rows for each batch, unless every batch sees all tasks (then one solve serves
        all)."""
        plain = isinstance(baseline, KernelBaseline | LeaveOneOut)
        return window > 128 and not plain and (self.batch_size + window < self.n_tasks or baseline.type != "kriging")

    def _draw(self, rng: np.random.Generator, n_batches: int, window: int) -> IntArray:
        heads = draw_columns(self.n_tasks, self.batch_size, n_batches, rng)
        if not window:
            return heads
        out = np.empty((n_batches, self.batch_size + window), dtype=np.int64)
        out[:, : self.batch_size] = heads
        mask = np.ones(self.n_tasks, dtype=bool)
        picks = draw_columns(self.n_tasks - self.batch_size, window, n_batches, rng)
        for k in range(n_batches):
            mask[heads[k]] = False
            out[k, self.batch_size :] = (
                np.flatnonzero(mask)[picks[k]] if self.n_tasks < 20_000 else _pick_others(heads[k], picks[k])
            )
            mask[heads[k]] = True
        return out

    def ages(self, window: int) -> IntArray:
        """Steps ago of each column: 0 for the batch, then one step per B rows; the newest rows last (B + window,)."""
        steps = 1 + np.arange(window)[::-1] // self.batch_size
        return np.concatenate([np.zeros(self.batch_size, np.int64), steps])

    def errors(self, baseline: Baseline, columns_KM: IntArray, window: int) -> FloatArray:
        """Unbiased squared errors of b against the true mean (K, B); E[A^2] terms where no task has repeats. NaN: not a
        target."""
        n_rows = self.batch_size
        rows = columns_KM[:, :n_rows]
        if isinstance(baseline, LinearSmoother):
            table = self.rollouts
            e = smoother_errors(
                baseline, table.tasks, columns_KM, n_rows, self.ages(window), table.means_N, table.biased_variances_N
            )
        else:
            rng = np.random.default_rng([self.seed, 3])
            e = recipe_errors(baseline, self.rollouts, columns_KM, n_rows, self.ages(window), rng)
        e = e - self.noise_N[rows]
        return e if self.targets is None else np.where(self.is_target_N[rows], e, np.nan)

    def score(self, baseline: Baseline, label: str | None = None) -> Score:
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
        if tags.needs_repeats:
            return self._score_repeats(baseline, label)
        twin = baseline.twin()
        asked = getattr(twin, "window", 0)
        window = self.usable_window(asked)
        if isinstance(twin, LinearSmoother):
            columns, method = self.columns(window), "closed form"
            if self._is_dear(twin, window):
                columns = columns[: self.n_batches_dear]
        else:
            # Sampled, and slow where a model is fitted a batch: fewer batches, whose noise is part of the interval.
            few = min(self.n_batches, 48 if isinstance(twin, BoostedTrees) else 2000)
            columns, method = self.columns(window)[:few], "recipe"
        e = self.errors(twin, columns, window)
        e_loo = self.errors(LeaveOneOut(), columns[:, : self.batch_size], 0)
        mse, mse_loo = _mean(e), _mean(e_loo)
        se_level, se_ratio, spread = self._standard_errors(twin, window, e, e_loo, mse, mse_loo)
        a2, a2_loo = self._a2(mse), self._a2(mse_loo)
        b_eff = self.batch_size * self.s2 / a2 if self.has_repeats and a2 > 0 else np.nan
        return Score(
            label,
            log_interval(b_eff, se_level, spread),
            log_interval(a2_loo / a2 if a2 > 0 else np.nan, se_ratio, spread),
            mse if self.has_repeats else np.nan,
            a2,
            1 - mse / self.tau2 if self.has_repeats and self.tau2 > 0 else np.nan,
            self._dead(baseline, columns, window),
            window,
            asked,
            method,
            twin.label if twin is not baseline else "",
            len(columns),
            "",
        )

    def _a2(self, mse: float) -> float:
        return self.s2 + mse if self.has_repeats else mse

    def _standard_errors(
        self, baseline: Baseline, window: int, e: FloatArray, e_loo: FloatArray, mse: float, mse_loo: float
    ) -> tuple[float, float, float]:
        """Standard errors of log B_eff and of the log ratio, and the degrees of freedom of their t intervals."""
        if not self.resamples:
            return np.nan, np.nan, 1.0
        n_resamples, per = self._effort(baseline, window)
        level, ratio, mc_level, mc_ratio = [], [], [], []
        for r in range(n_resamples):
            task_of, columns = self._resample(r, window, per)
            er = self.errors(baseline, columns, window)
            er_loo = self.errors(LeaveOneOut(), columns[:, : self.batch_size], 0)
            s2_r = self.s2_N[task_of]
            s2_r = float(np.nanmean(s2_r)) if np.isfinite(s2_r).any() else np.nan
            a2 = (s2_r if self.has_repeats else 0.0) + _mean(er)
            a2_loo = (s2_r if self.has_repeats else 0.0) + _mean(er_loo)
            if not (a2 > 0 and a2_loo > 0):
                continue
            per_batch, per_batch_loo = _means(er) / a2, _means(er_loo) / a2_loo
            if self.has_repeats and s2_r > 0:
                level.append(np.log(s2_r) - np.log(a2))
            ratio.append(np.log(a2_loo) - np.log(a2))
            mc_level.append(np.nanvar(per_batch) / per)
            mc_ratio.append(np.nanvar(per_batch - per_batch_loo) / per)
        n = self.n_tasks
        own_a2, own_loo = self._a2(mse), self._a2(mse_loo)
        k = len(e)
        mc_own_level = np.nanvar(_means(e)) / own_a2**2 / k if own_a2 > 0 else np.nan
        mc_own_ratio = (
            np.nanvar(_means(e) / own_a2 - _means(e_loo) / own_loo) / k if own_a2 > 0 and own_loo > 0 else np.nan
        )
        v_level = _task_variance(level, mc_level, n) + mc_own_level
        v_ratio = _task_variance(ratio, mc_ratio, n) + mc_own_ratio
        return float(np.sqrt(v_level)), float(np.sqrt(v_ratio)), float(max(min(n, len(ratio)) - 1, 1))

    def _effort(self, baseline: Baseline, window: int) -> tuple[int, int]:
        """(resamples, batches in each); fewer where a batch is dear."""
        if isinstance(baseline, BoostedTrees):
            return min(self.resamples, 8), 3
        if not isinstance(baseline, LinearSmoother):
            return min(self.resamples, 50), min(self.batches_per_resample, 20)
        # A resample holds copies, so that no single solve serves all its batches.
        if (window > 128 and self._is_dear(baseline, window)) or (window and baseline.type == "kriging"):
            return min(self.resamples, 40), (4 if self.batch_size + window > 128 else 20)
        return self.resamples, self.batches_per_resample

    def _resample(self, r: int, window: int, per: int) -> tuple[IntArray, IntArray]:
        """Tasks drawn with replacement (N,), and batches of them (per, B + window) as positions in the table."""
        key = ("resample", r, window, per)
        if key not in self._cache:
            rng = np.random.default_rng([self.seed, 4, r])
            task_of = rng.integers(self.n_tasks, size=self.n_tasks)
            self._cache[key] = (task_of, task_of[self._draw(np.random.default_rng([self.seed, 5, r]), per, window)])
        return self._cache[key]

    def _score_repeats(self, baseline: Baseline, label: str) -> Score:
        n, needs = self.n_tasks, "extra rollouts" if isinstance(baseline, Oracle) else "repeats"
        if isinstance(baseline, Oracle):
            mse_N, method = np.zeros(n), "analytic"
        else:
            mse_N, method = tracker_errors(baseline, self.rollouts), "closed form"
        known = np.isfinite(mse_N) & self.is_target_N
        e_loo = self.errors(LeaveOneOut(), self.columns(0), 0)
        mse = float(mse_N[known].mean()) if known.any() else np.nan
        a2, a2_loo = self._a2(mse), self._a2(_mean(e_loo))
        # Task-level errors are independent: a jackknife of the ratio of means.
        rest_s2 = _leave_one_out_means(np.where(np.isfinite(self.s2_N), self.s2_N, np.nan))
        rest_mse = _leave_one_out_means(np.where(known, mse_N, np.nan))
        log_level = (
            np.log(rest_s2) - np.log(rest_s2 + rest_mse)
            if self.has_repeats and self.s2 > 0 and a2 > 0
            else np.full(n, np.nan)
        )
        se = (
            float(np.sqrt((n - 1) / n * np.nansum((log_level - np.nanmean(log_level)) ** 2)))
            if np.isfinite(log_level).any()
            else np.nan
        )
        loo = self.score(LeaveOneOut())
        se_loo = (
            (np.log(loo.b_eff.high) - np.log(loo.b_eff.low)) / 2 / _t975(n - 1)
            if np.isfinite(loo.b_eff.low)
            else np.nan
        )
        b_eff = self.batch_size * self.s2 / a2 if self.has_repeats and a2 > 0 else np.nan
        explained = 1 - mse / self.tau2 if self.has_repeats and self.tau2 > 0 else np.nan
        ratio = log_interval(a2_loo / a2 if a2 > 0 else np.nan, float(np.hypot(se, se_loo)), max(n - 1, 1))
        level = log_interval(b_eff, se, max(n - 1, 1))
        return Score(label, level, ratio, mse, a2, explained, np.nan, 0, 0, method, "", 0, needs)

    def _dead(self, baseline: Baseline, columns: IntArray, window: int) -> float:
        """Fraction of zero advantages over 50 sampled batches (5 where a model is fitted a batch)."""
        rng = np.random.default_rng([self.seed, 6])
        table, b = self.rollouts, self.batch_size
        size = max(float(table.rewards_R.std()), 1e-300)
        zero, count = 0, 0
        for c in columns[: 50 if window <= 128 else 5]:
            reward, _ = draw_rewards(table, c, rng)
            history = History(table.tasks.take(c[b:]), reward[b:], self.ages(window)[b:])
            a = baseline.advantages(Batch(table.tasks.take(c[:b]), reward[:b]), history)
            zero, count = zero + int((np.abs(a) <= 1e-6 * size).sum()), count + b
        return zero / count


def check_scorable(rollouts: Rollouts, batch_size: int) -> None:
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


def _pick_others(head: IntArray, picks: IntArray) -> IntArray:
    """The picks-th elements of range(N) without ``head``, without listing them all."""
    taken = np.sort(head)
    out = picks.copy()
    for t in taken:
        out[out >= t] += 1
    return out


def _mean(e: FloatArray) -> float:
    return float(np.nanmean(e)) if np.isfinite(e).any() else np.nan


def _means(e: FloatArray) -> FloatArray:
    """Mean of each batch (K,), NaN for a batch without targets, without numpy's warning."""
    known = np.isfinite(e)
    count = known.sum(axis=1)
    return np.divide(np.where(known, e, 0.0).sum(axis=1), count, out=np.full(len(e), np.nan), where=count > 0)


def _task_variance(values: list[float], monte_carlo: list[float], n: int) -> float:
    """Variance over resamples, less what the batches within a resample add, with the bootstrap's n / (n - 1)."""
    if len(values) < 4:
        return np.nan
    total = float(np.var(values, ddof=1))
    return max(total - float(np.mean(monte_carlo)), 0.1 * total) * n / (n - 1)


def _leave_one_out_means(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    count = known.sum() - known
    return np.divide(
        np.nansum(values) - np.where(known, values, 0.0), count, out=np.full(len(values), np.nan), where=count > 0
    )


def _t975(df: float) -> float:
    return float(scipy.stats.t.ppf(0.975, df))


def log_interval(value: float, se_of_log: float, df: float) -> Estimate:
    """A 95% interval symmetric on the log scale, by Student's t."""
    if not (np.isfinite(value) and value > 0 and np.isfinite(se_of_log)):
        return Estimate(float(value), np.nan, np.nan)
    half = _t975(df) * se_of_log
    return Estimate(float(value), float(value * np.exp(-half)), float(value * np.exp(half)))
