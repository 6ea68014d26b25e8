"""Which tasks a search may learn from, which it chooses by, and which it is judged on; the last are looked at once.

Two tasks with one normalised prompt always go together: they are the same task under two ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from rollonce.baselines import Baseline, LeaveOneOut, LinearSmoother
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray, IntArray, Rollouts, Tasks
from rollonce.scoring import Estimate, Score, Scorer
from rollonce.scoring.scorer import _mean, _means, _task_variance, log_interval

# Below this many tasks the report part of a split would be too small to say anything: cross-fitting instead.
CROSS_FIT_BELOW = 150


class Split(NamedTuple):
    """Positions of the tasks of each part."""

    tune: IntArray
    choose: IntArray
    report: IntArray


def divide(rollouts: Rollouts, shares: Sequence[float], seed: int) -> list[IntArray]:
    """The tasks in parts of about these shares at random, equal prompts together; sorted positions.

    Raises:
        InputError: if there are fewer different prompts than parts.
    """
    keys = rollouts.tasks.prompt_keys
    distinct = np.unique(keys)
    if len(distinct) < len(shares):
        raise InputError(
            f"{len(distinct)} different prompts cannot be divided into {len(shares)} parts; collect more tasks"
        )
    order = np.random.default_rng([seed, 21]).permutation(distinct)
    edges = np.round(np.cumsum([0.0, *shares]) / sum(shares) * len(order)).astype(int)
    edges = np.maximum.accumulate(np.maximum(edges, np.minimum(np.arange(len(edges)), len(order))))
    return [np.flatnonzero(np.isin(keys, order[a:z])) for a, z in pairwise(edges)]


def split(rollouts: Rollouts, seed: int) -> Split:
    """Half to tune, a quarter to choose, a quarter to report."""
    return Split(*divide(rollouts, (0.5, 0.25, 0.25), seed))


@dataclass
class PerTarget(LinearSmoother):
    """For scoring only: another baseline for the targets of each fold, so that each task is judged by one that never
    learned from it."""

    type: ClassVar[str] = "per_target"
    experts: Sequence[LinearSmoother] = ()
    fold_of_N: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    name: str = "cross-fitted"

    def __post_init__(self) -> None:
        self.window = max(e.window for e in self.experts)

    def describe(self) -> str:
        """Its name."""
        return self.name

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: np.ndarray, ages_M: IntArray
    ) -> FloatArray:
        """Not used: `FoldScorer` asks the experts."""
        raise NotImplementedError


class FoldScorer(Scorer):
    """A scorer that knows `PerTarget`, and the paired ratio of any two baselines."""

    def errors(self, baseline: Baseline, columns_KM: IntArray, window: int) -> FloatArray:
        """See `Scorer.errors`; each row by its own fold's expert."""
        if not isinstance(baseline, PerTarget):
            return super().errors(baseline, columns_KM, window)
        fold_KB = baseline.fold_of_N[columns_KM[:, : self.batch_size]]
        out = np.full(fold_KB.shape, np.nan)
        done: dict[str, FloatArray] = {}
        for f, expert in enumerate(baseline.experts):
            w = min(expert.window, window)
            key = str(expert.config())
            if key not in done:
                done[key] = super().errors(expert, columns_KM[:, : self.batch_size + w], w)
            out = np.where(fold_KB == f, done[key], out)
        return out

    def _dead(self, baseline: Baseline, columns: IntArray, window: int) -> float:
        return np.nan if isinstance(baseline, PerTarget) else super()._dead(baseline, columns, window)

    def ratio_to(self, a: LinearSmoother, b: LinearSmoother) -> Estimate:
        """B_eff of ``a`` over that of ``b``, on common batches and resamples (a paired interval over tasks)."""
        window_a, window_b = self.usable_window(a.window), self.usable_window(b.window)
        size_a, size_b = self.batch_size + window_a, self.batch_size + window_b
        window = max(window_a, window_b)
        columns = self.columns(window)
        if self._is_dear(a, window_a) or self._is_dear(b, window_b):
            columns = columns[: self.n_batches_dear]
        ea, eb = self.errors(a, columns[:, :size_a], window_a), self.errors(b, columns[:, :size_b], window_b)
        a2, b2 = self._a2(_mean(ea)), self._a2(_mean(eb))
        logs, noise = [], []
        n_resamples, per = min(self._effort(a, window_a), self._effort(b, window_b)) if self.resamples else (0, 1)
        for r in range(n_resamples):
            task_of, drawn = self._resample(r, window, per)
            s2 = float(np.nanmean(self.s2_N[task_of])) if self.has_repeats else 0.0
            ra, rb = self.errors(a, drawn[:, :size_a], window_a), self.errors(b, drawn[:, :size_b], window_b)
            xa, xb = s2 + _mean(ra), s2 + _mean(rb)
            if xa > 0 and xb > 0:
                logs.append(np.log(xb) - np.log(xa))
                noise.append(np.nanvar(_means(ra) / xa - _means(rb) / xb) / per)
        own = np.nanvar(_means(ea) / a2 - _means(eb) / b2) / len(columns) if a2 > 0 and b2 > 0 else np.nan
        se = float(np.sqrt(_task_variance(logs, noise, self.n_tasks) + own))
        return log_interval(b2 / a2 if a2 > 0 else np.nan, se, max(self.n_tasks - 1, 1))


class Judged(NamedTuple):
    """What the report part said.

    Attributes:
        score: The baseline's score.
        loo: The in-batch LOO mean's.
        published: The published TF-IDF kernel's.
        over_published: B_eff over the published TF-IDF kernel's (paired).
    """

    score: Score
    loo: Score
    published: Score
    over_published: Estimate


class ReportPart:
    """The tasks that judge, to be looked at once: a second look would make them part of the search.

    Args:
        scorer: With the report part as its targets.
    """

    def __init__(self, scorer: FoldScorer) -> None:
        self._scorer: FoldScorer | None = scorer

    def judge(self, baseline: LinearSmoother, published: LinearSmoother) -> Judged:
        """The scores.

        Raises:
            RuntimeError: when asked a second time.
        """
        if self._scorer is None:
            raise RuntimeError(
                "the report part was looked at already; a number chosen after looking is no report. Use other tasks"
            )
        scorer, self._scorer = self._scorer, None
        return Judged(
            scorer.score(baseline),
            scorer.score(LeaveOneOut()),
            scorer.score(published),
            scorer.ratio_to(baseline, published),
        )
