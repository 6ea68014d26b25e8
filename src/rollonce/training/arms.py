"""The arms: from a name in a configuration to one advantage function. Nothing else differs between arms.

Shapes: ``_B`` rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.rollouts import Tasks
from rollonce.training.config import ArmConfig

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
"""Baselines by the names that configurations use; ``oracle`` besides, which the loop feeds with extra rollouts."""

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


def make_baseline(arm: ArmConfig, train_tasks: Tasks) -> Baseline | None:
    """The arm's baseline, fitted to the prompts it will train on; None for a token-level critic and the oracle.

    A ``baseline.json`` keeps the vocabulary it was tuned with, and starts without the history of its tuning: those
    rewards are another policy's.

    Raises:
        InputError: an unknown name, a bad file, a baseline that needs groups in an arm without, or one that needs
            repeats.
    """
    spec: Any = arm.baseline
    if spec is None or spec == ORACLE:
        return None
    if isinstance(spec, str) and (spec.endswith(".json") or "/" in spec):
        baseline = Baseline.load(Path(spec))
        from rollonce.baselines import copy_without_history

        baseline = copy_without_history(baseline)
    else:
        made = named_baseline(spec) if isinstance(spec, str) else from_config(spec)
        if not isinstance(made, Baseline):
            raise InputError(f"{spec!r} is no baseline but a part of one")
        baseline = made.fit(train_tasks)
    if baseline.tags.needs_groups and arm.group_size < 2:
        raise InputError(
            f"baseline {baseline.type!r} needs several rollouts of each task: give the arm group_size = 8, say"
        )
    return baseline
