"""Scoring: moments, effective batch sizes, intervals."""

from rollonce.scoring.board import Board, score_rollouts
from rollonce.scoring.crossfit import CrossFitted, cross_fit
from rollonce.scoring.estimator import Scorer, check_scorable
from rollonce.scoring.groups import GroupScore, dead_group_fraction, group_scores
from rollonce.scoring.log_steps import steps_as_they_come, steps_of
from rollonce.scoring.moments import Estimate, Moments, loo_b_eff, moments
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
    "check_scorable",
    "cross_fit",
    "dead_group_fraction",
    "group_scores",
    "loo_b_eff",
    "moments",
    "score_rollouts",
    "steps_as_they_come",
    "steps_of",
]
