"""Scores of baselines that learn from rewards: what a task is scored with was learned from *other* tasks only.

Tasks are dealt into folds by normalised prompt. For each fold a baseline is fitted on one rollout a task of the other
folds (`fit_rewards`), and serves the fold's rows; its neighbours are, as for any baseline, the batch, or the batch and
a window of other tasks of other normalised prompts, one rollout each. The draw of the neighbours' rollouts integrates
out in closed form (`rollonce.scoring.closed_form`), and the ratio is to the in-batch leave-one-out mean on the same
batches.

Features (vocabulary, IDF, scales) are fitted on all prompts, as a trainer would: they hold no reward.

In the resamples behind the intervals the fitted hyper-parameters stay as they are: refitting each would be dear, so an
interval holds the sampling of tasks as targets and neighbours, but not the (smaller) part that comes through the fit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rollonce.baselines import Baseline, Batch, History, LinearSmoother, Prediction, Tags
from rollonce.errors import InputError
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray, Rollouts, Tasks, normalise_prompt
from rollonce.scoring.batches import draw_columns
from rollonce.scoring.recipe import draw_rewards
from rollonce.scoring.scorer import Score, Scorer


def prompt_folds(tasks: Tasks, folds: int, rng: np.random.Generator) -> IntArray:
    """A fold for each task (N,), equal for equal normalised prompts; folds differ by at most one prompt in size."""
    keys = tasks.prompt_keys
    n_prompts = int(keys.max()) + 1
    return rng.permutation(np.arange(n_prompts) % folds)[keys]


def fit_folds(
    make: Callable[[], Baseline], rollouts: Rollouts, folds: int, rng: np.random.Generator
) -> tuple[list[Baseline], IntArray]:
    """A baseline a fold, fitted on one random rollout of each task of the *other* folds; and the folds (N,).

    Baselines without ``fit_rewards`` learn nothing from rewards offline; theirs are all the same.

    Raises:
        InputError: for fewer than two folds, or fewer prompts than folds.
    """
    n_prompts = len(np.unique(rollouts.tasks.prompt_keys))
    if not 2 <= folds <= n_prompts:
        raise InputError(
            f"cross-fitting needs at least 2 folds and a prompt in each: {folds} folds, {n_prompts} distinct prompts"
        )
    fold_N = prompt_folds(rollouts.tasks, folds, rng)
    reward_N, _ = draw_rewards(rollouts, np.arange(rollouts.n_tasks), rng)
    made = make().fit(rollouts.tasks)
    fitted: list[Baseline] = []
    for f in range(folds):
        one: Any = copy.deepcopy(made) if f else made
        if hasattr(one, "fit_rewards"):
            if f == 0:
                one = copy.deepcopy(made)
            others = np.flatnonzero(fold_N != f)
            others = rng.permutation(others)  # a baseline that uses the newest rows only gets any of them
            one.fit_rewards(rollouts.tasks.take(others), reward_N[others])
        fitted.append(one)
    return fitted, fold_N


class _ByFold:
    """Which fold's baseline serves a row."""

    parts: Sequence[Baseline]
    fold_of: dict[str, int]

    def folds_of(self, tasks: Tasks) -> IntArray:
        """(N,) from the prompts, so that it holds for any view or concatenation of the table's tasks."""
        known = self.fold_of
        return tasks.cached(
            ("fold", id(self)),
            lambda root: np.fromiter(
                (known.get(normalise_prompt(p), 0) for p in root.prompts), dtype=np.int64, count=len(root)
            ),
        )


@dataclass
class CrossFitted(LinearSmoother, _ByFold):
    """Smoothers fitted on other folds' rewards, each serving the rows of its own fold.

    Args:
        parts: A fitted smoother a fold.
        fold_of: The fold of each normalised prompt.
    """

    type: ClassVar[str] = "cross_fitted"
    parts: Sequence[Any] = ()
    fold_of: dict[str, int] = field(default_factory=dict)

    @property
    def tags(self) -> Tags:
        """As its parts."""
        return self.parts[0].tags

    def describe(self) -> str:
        """As its parts."""
        return self.parts[0].label

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """(K, B, M)."""
        fold_KB = self.folds_of(tasks)[columns_KM[:, :n_rows]]
        out = np.zeros(visible_KBM.shape)
        for f, part in enumerate(self.parts):
            mine = fold_KB == f
            some = np.flatnonzero(mine.any(axis=1))
            if len(some):
                w = part.weight_blocks(tasks, columns_KM[some], n_rows, visible_KBM[some], ages_M)
                k, i = np.nonzero(mine[some])
                out[some[k], i] = w[k, i]
        return out


@dataclass
class CrossFittedAny(Baseline, _ByFold):
    """The same for baselines that are no linear smoothers; scored by drawing rollouts."""

    type: ClassVar[str] = "cross_fitted_any"
    parts: Sequence[Any] = ()
    fold_of: dict[str, int] = field(default_factory=dict)
    window: int = 0

    @property
    def tags(self) -> Tags:
        """As its parts."""
        return self.parts[0].tags

    def describe(self) -> str:
        """As its parts."""
        return self.parts[0].label

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """(B,): each row from its fold's baseline."""
        fold_B = self.folds_of(batch.tasks)
        out = np.zeros(len(batch))
        prior_B = np.zeros(len(batch), dtype=bool)
        for f in np.unique(fold_B):
            served = self.parts[f].predict(batch, history)
            out = np.where(fold_B == f, served.baseline_B, out)
            prior_B |= (fold_B == f) & served.only_prior_B
        return Prediction.of(batch, out, prior_B)


@dataclass
class CrossFitScorer(Scorer):
    """A `Scorer` whose batches with a long window come in runs that see the same tasks, so that a run needs one solve.

    A draw of ``B + window`` tasks is dealt into batches of B, each with all the rest as its window: each is distributed
    as a batch with its window drawn afresh, and since weights do not depend on which of the other tasks came in the
    batch, one solve serves all. Batches of a run are not independent of each other; the intervals over tasks do not
    rest on that.
    """

    draws: Sequence[Baseline] = ()

    def _draw(self, rng: np.random.Generator, n_batches: int, window: int) -> IntArray:
        b = self.batch_size
        if window < 4 * b or n_batches < 200:
            return super()._draw(rng, n_batches, window)
        m = b + window
        run = m // b
        out = np.empty((n_batches, m), dtype=np.int64)
        sets = draw_columns(self.n_tasks, m, -(-n_batches // run), rng)
        for k in range(n_batches):
            one, at = sets[k // run], (k % run) * b
            out[k] = np.concatenate([one[at : at + b], one[:at], one[at + b :]])
        return out

    def _effort(self, baseline: Baseline, window: int) -> tuple[int, int]:
        """A resample holds copies, so that no solve serves several batches; there one draw of the fit and few batches
        must do."""
        if not isinstance(baseline, CrossFitted) or not window:
            return super()._effort(baseline, window)
        return min(self.resamples, 40), (4 if self.batch_size + window > 128 else 12)

    def errors(self, baseline: Baseline, columns_KM: IntArray, window: int) -> FloatArray:
        """As of a `Scorer`; of a cross-fitted baseline the mean over the draws of folds and rollouts (of the first in a
        resample)."""
        if not isinstance(baseline, CrossFitted | CrossFittedAny):
            return super().errors(baseline, columns_KM, window)
        draws = self.draws if len(columns_KM) >= 200 else self.draws[:1]
        total = np.zeros((len(columns_KM), self.batch_size))
        for one in draws:
            total += super().errors(one, columns_KM, window)
        return total / len(draws)


def crossfit_score(
    baseline_factory: Callable[[], Baseline],
    rollouts: Rollouts,
    batch_size: int = 32,
    window: int = 0,
    folds: int = 5,
    n_batches: int = 4000,
    resamples: int = 100,
    seed: int = 0,
    *,
    draws: int = 1,
    label: str | None = None,
) -> Score:
    """Effective batch size, and its ratio to the in-batch LOO mean, with everything learned from other folds' rewards.

    Args:
        baseline_factory: Makes a new baseline without arguments. Its ``window`` is set to the one asked for here.
        rollouts: The table.
        batch_size: B.
        window: Rows of other tasks that it may use: ``min(window, N - B)``.
        folds: How many, dealt by normalised prompt.
        n_batches: Common batches behind the values.
        resamples: Of the tasks, behind the intervals; fitted hyper-parameters stay fixed in them.
        seed: Of folds, rollouts, batches and resamples. Batches are the same for every baseline scored with one seed.
        draws: Draws of folds and rollouts to fit on; errors are averaged over them.
        label: What to call it.

    Raises:
        InputError: for tables that no batch can be drawn from, and for more folds than prompts.
    """
    scorer = CrossFitScorer(
        rollouts, batch_size=batch_size, n_batches=n_batches, resamples=resamples, seed=seed, n_batches_dear=n_batches
    )
    fitted = cross_fitted(baseline_factory, rollouts, window=window, folds=folds, seed=seed, draws=draws)
    scorer.draws = fitted
    return scorer.score(fitted[0], label)


def cross_fitted(
    baseline_factory: Callable[[], Baseline],
    rollouts: Rollouts,
    *,
    window: int = 0,
    folds: int = 5,
    seed: int = 0,
    draws: int = 1,
) -> list[Any]:
    """The cross-fitted baselines, one for each draw of folds and rollouts (see `crossfit_score`)."""
    keys = [normalise_prompt(p) for p in rollouts.tasks.prompts]
    out: list[Any] = []
    for draw in range(draws):
        parts, fold_N = fit_folds(baseline_factory, rollouts, folds, np.random.default_rng([seed, 7, draw]))
        for part in parts:
            if isinstance(part, LinearSmoother):
                part.window = window
        fold_of = dict(zip(keys, fold_N.tolist(), strict=True))
        if all(isinstance(p, LinearSmoother) for p in parts):
            out.append(CrossFitted(parts, fold_of, window=window))
        else:
            out.append(CrossFittedAny(parts, fold_of, window=window))
    return out
