"""Cross-fitting: what a task is scored with was learned from *other* tasks only.

Tasks are dealt into folds by normalised prompt. For each fold a baseline is fitted on one rollout of each task of the
other folds (`fit_rewards`), and serves the fold's rows; its neighbours are, as for any baseline, the batch, or the
batch and a window of other tasks of other normalised prompts, one rollout each.

Features (vocabulary, IDF, scales) are fitted on all prompts, as a trainer would: they hold no reward.

In the resamples behind the intervals the fitted hyper-parameters stay as they are: refitting each would be slow, so an
interval holds the sampling of tasks as targets and neighbours, but not the (smaller) part that comes through the fit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rollonce.baselines import Baseline, LinearSmoother, Tags
from rollonce.baselines.base import find_nested_features
from rollonce.errors import InputError
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray, Rollouts, Tasks
from rollonce.scoring.batches import draw_one_reward_each

FOLDS = 5


@dataclass
class CrossFitted:
    """A baseline for each fold of tasks, each serving the rows of its own fold. For scoring only: a scorer asks the
    parts, by `evaluate_by_fold`.

    Args:
        parts: A fitted baseline for each fold. One object may serve several.
        fold_of: The fold of each normalised prompt, so that it holds for any view of the tasks.
        further_draws: The same from other draws of folds and rollouts; a scorer averages errors over all of them.
        name: What to call it; as the first part by default.
    """

    parts: Sequence[Baseline]
    fold_of: dict[str, int]
    further_draws: Sequence[CrossFitted] = ()
    name: str = ""
    _folds: tuple[Tasks, IntArray] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def tags(self) -> Tags:
        return self.parts[0].tags

    @property
    def label(self) -> str:
        return self.name or self.parts[0].label

    @property
    def window(self) -> int:
        """The longest of its parts' windows."""
        return max(getattr(part, "window", 0) for part in self.parts)

    @property
    def is_linear_smoother(self) -> bool:
        """Whether every part is a linear smoother."""
        return all(isinstance(part, LinearSmoother) for part in self.parts)

    def copy_with_window(self, window: int) -> CrossFitted:
        """The same fits with another window, for smoothers whose fit does not depend on it."""
        copies: dict[int, Any] = {id(part): copy.copy(part) for part in self.parts}
        for part in copies.values():
            part.window = window
        return replace(
            self,
            parts=[copies[id(part)] for part in self.parts],
            further_draws=[one.copy_with_window(window) for one in self.further_draws],
        )

    def twin(self) -> CrossFitted:
        """Itself: parts that include the own reward cannot be cross-fitted."""
        return self

    def evaluate_by_fold(
        self, tasks: Tasks, rows: IntArray, values: Callable[[Baseline, BoolArray], FloatArray]
    ) -> FloatArray:
        """``values(part, wanted)`` where the part's fold is, which ``wanted`` says, both in the shape of ``rows``
        (positions in ``tasks``); a part that serves several folds is asked once."""
        fold = self._fold_of_each_task_N(tasks.root)[rows if tasks.index_N is None else tasks.index_N[rows]]
        out = np.full(rows.shape, np.nan)
        for part in {id(p): p for p in self.parts}.values():
            mine = np.isin(fold, [f for f, p in enumerate(self.parts) if p is part])
            if mine.any():
                out[mine] = values(part, mine)[mine]
        return out

    def _fold_of_each_task_N(self, root: Tasks) -> IntArray:
        if self._folds is None or self._folds[0] is not root:
            fold_N = np.array([self.fold_of.get(name, 0) for name in root.identities], np.int64)
            self._folds = (root, fold_N)
        return self._folds[1]


def deal_prompts_to_folds(tasks: Tasks, folds: int, rng: np.random.Generator) -> IntArray:
    """A fold for each task (N,), equal for equal normalised prompts; folds differ by at most one prompt in size."""
    keys = tasks.prompt_keys
    n_prompts = int(keys.max()) + 1
    return rng.permutation(np.arange(n_prompts) % folds)[keys]


def fit_copy_per_fold(
    baseline: Baseline, rollouts: Rollouts, folds: int, rng: np.random.Generator
) -> tuple[list[Baseline], IntArray]:
    """A copy of the baseline for each fold, fitted on one random rollout of each task of the *other* folds; and the
    folds (N,).

    A baseline without ``fit_rewards`` learns nothing from rewards offline: one copy serves all folds.

    Raises:
        InputError: for fewer than two folds, or fewer prompts than folds.
    """
    n_prompts = len(np.unique(rollouts.tasks.prompt_keys))
    if not 2 <= folds <= n_prompts:
        raise InputError(
            f"cross-fitting needs at least 2 folds and a prompt in each: {folds} folds, {n_prompts} distinct prompts"
        )
    fold_N = deal_prompts_to_folds(rollouts.tasks, folds, rng)
    reward_N, log_prob_N = draw_rollout_per_task(rollouts, rng)
    made: Any = copy.deepcopy(baseline).fit(rollouts.tasks)
    if not hasattr(made, "fit_rewards"):
        return [made] * folds, fold_N
    fitted: list[Baseline] = []
    for f in range(folds):
        part = copy.deepcopy(
            made, {id(feature): feature for feature in find_nested_features(made)}
        )  # those hold no reward
        others = rng.permutation(np.flatnonzero(fold_N != f))  # one that uses the newest rows only gets any of them
        learn_from_rewards(part, rollouts, others, reward_N, log_prob_N)
        fitted.append(part)
    return fitted, fold_N


def draw_rollout_per_task(rollouts: Rollouts, rng: np.random.Generator) -> tuple[FloatArray, FloatArray | None]:
    """Reward and log-probability of one random rollout of each task (N,); None for the second where no rollout has
    one."""
    reward_N, place_N = draw_one_reward_each(rollouts, np.arange(rollouts.n_tasks), rng)
    known_R = rollouts.log_probs_R
    return reward_N, None if known_R is None else known_R[rollouts.offsets_N1[:-1] + place_N]


def learn_from_rewards(
    baseline: Any, rollouts: Rollouts, at: IntArray, reward_N: FloatArray, log_prob_N: FloatArray | None
) -> None:
    """``baseline.fit_rewards`` on one rollout each of the tasks ``at``, with log-probabilities where it reads them."""
    tasks = rollouts.tasks.take(at)
    if baseline.tags.uses_log_probs and log_prob_N is not None:
        baseline.fit_rewards(tasks, reward_N[at], log_prob_N[at])
    else:
        baseline.fit_rewards(tasks, reward_N[at])


def cross_fit_baseline(
    baseline: Baseline, rollouts: Rollouts, *, folds: int = FOLDS, seed: int = 0, draws: int = 1
) -> CrossFitted:
    """The baseline cross-fitted over tasks.

    Args:
        baseline: Unfitted; with the window that it is to have.
        rollouts: The table.
        folds: How many, dealt by normalised prompt.
        seed: Of folds and rollouts.
        draws: Draws of folds and rollouts to fit on.

    Raises:
        InputError: for more folds than prompts.
    """
    keys = rollouts.tasks.identities
    drawn: list[CrossFitted] = []
    for draw in range(draws):
        parts, fold_N = fit_copy_per_fold(baseline, rollouts, folds, np.random.default_rng([seed, 7, draw]))
        drawn.append(CrossFitted(parts, dict(zip(keys, fold_N.tolist(), strict=True))))
    drawn[0].further_draws = drawn[1:]
    return drawn[0]
