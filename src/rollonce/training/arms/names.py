"""The names by which configurations call baselines."""

from __future__ import annotations

from collections.abc import Callable

from rollonce.baselines import (
    Baseline,
    BoostedTrees,
    Constant,
    FlashReinforce,
    Grpo,
    Kriging,
    LeaveOneOut,
    NoBaseline,
    ReinforcePlusPlus,
    Ridge,
    Rloo,
    SelfTuning,
    Tracker,
    family_mean,
    published_length_buckets,
    published_tfidf,
)
from rollonce.errors import InputError

ORACLE = "oracle"

BY_NAME: dict[str, Callable[[], Baseline]] = {
    "none": NoBaseline,
    "constant": Constant,
    "flashreinforce": FlashReinforce,
    "loo": LeaveOneOut,
    "loo_window": lambda: LeaveOneOut(window=512),
    "reinforce++": ReinforcePlusPlus,
    "grpo": Grpo,
    "grpo_std": lambda: Grpo(scale="group"),
    "rloo": Rloo,
    "gs1_tfidf": published_tfidf,
    "gs1_buckets": published_length_buckets,
    "gs1_family": family_mean,
    "gs1_kriging": lambda: Kriging(window=128),
    # A fit on 256 rows every 32 steps costs less than the prediction itself; on 500 every 4, ten times a tiny policy's
    # share.
    "gs1_self_tuning": lambda: SelfTuning(window=128, max_rows=256, refit_every=32),
    "critic_prompt": Ridge,
    "critic_trees": BoostedTrees,
    "tracker": Tracker,
}
"""Baselines by the names that configurations use. The oracle has an arm of its own, which measures what it needs."""

NAMES = (*BY_NAME, ORACLE)


def named_baseline(name: str) -> Baseline:
    """A fresh baseline by name.

    Raises:
        InputError: for an unknown name.
    """
    if name not in BY_NAME:
        raise InputError(
            f"there is no baseline {name!r}; there are {', '.join(NAMES)}, or a baseline.json that rollonce tune wrote"
        )
    return BY_NAME[name]()
