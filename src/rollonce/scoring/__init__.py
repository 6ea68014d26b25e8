"""Scoring: moments, effective batch sizes, intervals."""

from rollonce.scoring.board import Board, score_rollouts
from rollonce.scoring.crossfit import CrossFitted, cross_fit
from rollonce.scoring.estimator import Score, Scorer, check_scorable
from rollonce.scoring.groups import GroupScore, dead_group_fraction, group_scores
from rollonce.scoring.moments import Estimate, Moments, loo_b_eff, moments
from rollonce.scoring.watch import Watcher, WatchScore, steps_of

__all__ = [
    "Board",
    "CrossFitted",
    "Estimate",
    "GroupScore",
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
    "steps_of",
]
