"""Scoring: moments, effective batch sizes, intervals."""

from rollonce.scoring.board import Board, score_rollouts
from rollonce.scoring.crossfit import CrossFitted, cross_fit_baseline
from rollonce.scoring.estimator import Scorer, check_can_be_scored
from rollonce.scoring.groups import GroupScore, dead_group_fraction, score_group_baselines
from rollonce.scoring.log_steps import split_into_steps, steps_as_they_come
from rollonce.scoring.moments import Estimate, Moments, effective_batch_of_loo, moments
from rollonce.scoring.score import Score
from rollonce.scoring.watch import GrowingWatcher, Watcher, WatchScore

__all__ = [
    "Board",
    "CrossFitted",
    "Estimate",
    "GroupScore",
    "GrowingWatcher",
    "Moments",
    "Score",
    "Scorer",
    "WatchScore",
    "Watcher",
    "check_can_be_scored",
    "cross_fit_baseline",
    "dead_group_fraction",
    "effective_batch_of_loo",
    "moments",
    "score_group_baselines",
    "score_rollouts",
    "split_into_steps",
    "steps_as_they_come",
]
