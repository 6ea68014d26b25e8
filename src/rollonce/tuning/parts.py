"""Which tasks a search may learn from, which it chooses by, and which it is judged on; the last are looked at once.

Two tasks with one normalised prompt always go together: they are the same task under two ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rollonce.baselines import Baseline, LeaveOneOut
from rollonce.errors import InputError
from rollonce.rollouts import IntArray, Rollouts
from rollonce.scoring import CrossFitted, Estimate, Score, Scorer
from rollonce.tuning.step_objective import StepObjective

# Below this many tasks the report part of a split would be too small to say anything: cross-fitting instead.
CROSS_FIT_BELOW = 150


LONGEST_WINDOW = 512


def window_that_tasks_allow(n_tasks: int, batch_size: int) -> int:
    """Rows of other tasks that a search on three quarters of the tasks has beside a batch, 512 at most; 0 where that is
    less than one batch.

    >>> window_that_tasks_allow(300, 32), window_that_tasks_allow(60, 32)
    (193, 0)
    """
    room = 3 * n_tasks // 4 - batch_size
    return min(LONGEST_WINDOW, room) if room >= batch_size else 0


class Split(NamedTuple):
    """Positions of the tasks of each part."""

    tune: IntArray
    choose: IntArray
    report: IntArray


def divide_tasks_by_shares(rollouts: Rollouts, shares: Sequence[float], seed: int) -> list[IntArray]:
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


def split_for_tuning(rollouts: Rollouts, seed: int) -> Split:
    """Half to tune, a quarter to choose, a quarter to report."""
    return Split(*divide_tasks_by_shares(rollouts, (0.5, 0.25, 0.25), seed))


def fold_of_each_prompt(rollouts: Rollouts, fold_N: IntArray) -> dict[str, int]:
    """The fold of each normalised prompt, from that of each task (equal prompts have one fold)."""
    return {name: int(f) for name, f in zip(rollouts.tasks.identities, fold_N, strict=True)}


class Judged(NamedTuple):
    """What the report part said.

    Attributes:
        score: The baseline's score.
        loo: The in-batch LOO mean's.
        published: The published TF-IDF kernel's.
        over_published: B_eff over the published TF-IDF kernel's (paired).
        self_tuning: The self-tuning baseline's, which needs no search; None where it had too little to learn from.
    """

    score: Score
    loo: Score
    published: Score
    over_published: Estimate
    self_tuning: Score | None


class ReportPart:
    """The tasks that judge, to be looked at once: a second look would make them part of the search.

    Args:
        scorer: With the report part as its targets.
        exponents: Of the surprisal, where a step's progress is to be reported as well.
    """

    def __init__(self, scorer: Scorer, exponents: Sequence[float] | None = None) -> None:
        self._scorer: Scorer | None = scorer
        self._exponents = exponents

    def judge_baselines_once(
        self, baseline: Baseline | CrossFitted, published: Baseline, self_tuning: Baseline | CrossFitted | None = None
    ) -> Judged:
        """The scores.

        Raises:
            RuntimeError: when asked a second time.
        """
        if self._scorer is None:
            raise RuntimeError(
                "the report part was looked at already; a number chosen after looking is no report. Use other tasks"
            )
        scorer, self._scorer = self._scorer, None
        every = [baseline, LeaveOneOut(), published, *([] if self_tuning is None else [self_tuning])]
        scores = [scorer.score_baseline(one) for one in every]
        if self._exponents is not None:
            steps = StepObjective(
                scorer.rollouts,
                scorer.batch_size,
                scorer.n_batches,
                scorer.seed,
                targets=None if scorer.targets is None else np.asarray(scorer.targets),
                exponents=self._exponents,
            )
            scores = [s._replace(progress=steps.predicted_progress(one)) for s, one in zip(scores, every, strict=True)]
        score, loo, of_published, *rest = scores
        return Judged(
            score, loo, of_published, scorer.effective_batch_ratio(baseline, published), rest[0] if rest else None
        )
