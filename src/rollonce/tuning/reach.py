"""What can be had beside a search: the longest window that tasks allow, and what the self-tuning baseline reaches."""

from __future__ import annotations

import numpy as np

from rollonce.baselines import SelfTuning
from rollonce.rollouts import Rollouts
from rollonce.scoring import Score, Scorer
from rollonce.scoring.crossfit import FOLDS, cross_fit

LONGEST_WINDOW = 512
N_BATCHES, RESAMPLES = 600, 24


def window_that_tasks_allow(n_tasks: int, batch_size: int) -> int:
    """Rows of other tasks that a search on three quarters of the tasks has beside a batch, 512 at most; 0 where that is
    less than one batch.

    >>> window_that_tasks_allow(300, 32), window_that_tasks_allow(60, 32)
    (193, 0)
    """
    room = 3 * n_tasks // 4 - batch_size
    return min(LONGEST_WINDOW, room) if room >= batch_size else 0


def self_tuning_reaches(rollouts: Rollouts, batch_size: int, window: int, seed: int = 0) -> Score | None:
    """The self-tuning baseline's score on all tasks, cross-fitted, so that it needs no search and no tasks set aside;
    None where there are too few prompts for that or all rewards are the same."""
    n_prompts = len(np.unique(rollouts.tasks.prompt_keys))
    if n_prompts < 2 * FOLDS or np.ptp(rollouts.rewards_R) == 0:
        return None
    scorer = Scorer(
        rollouts,
        batch_size,
        N_BATCHES,
        RESAMPLES,
        seed=seed,
        n_batches_expensive=N_BATCHES,
        shared_windows=True,
    )
    return scorer.score(cross_fit(SelfTuning(window=window), rollouts, seed=seed))
