"""What an arm's ``advantage`` means: a name in the specification -> one baseline of this package.

A name of `rollonce.baselines.catalogue`, where the specification's own (``group_mean``, ``length_buckets_loo``,
``tfidf_kernel_loo_T0.1`` ...) are aliases; or a name given a configuration in the specification's
``rollonce.baselines``. ``critic_token`` is a value head with GAE, local engine only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollonce.baselines import Baseline, Batch
from rollonce.baselines.catalogue import named_baseline
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.rollouts import FloatArray
from rollonce.tasks import Task

LENGTH_BUCKETS = "length_buckets_loo"
TOKEN_CRITIC = "critic_token"


def make_advantage_baseline(spec: Spec, advantage: str) -> Baseline:
    """A fresh, unfitted baseline.

    Raises:
        InputError: a name that means nothing, or the token-level critic, which is no function of prompts and rewards.
    """
    if advantage in spec.rollonce.baselines:
        made = from_config(spec.rollonce.baselines[advantage])
        if not isinstance(made, Baseline):
            raise InputError(f"rollonce.baselines.{advantage}: a baseline was expected, not a {type(made).__name__}")
        return made
    if advantage == TOKEN_CRITIC:
        raise InputError("critic_token is a value head, not a baseline of prompts and rewards")
    try:
        return named_baseline(advantage)
    except InputError as error:
        raise InputError(
            f"the advantage {advantage!r} means nothing here: {error.message}; besides {TOKEN_CRITIC}, "
            "tfidf_kernel_loo_T0.1 at any temperature, and what has a configuration in rollonce.baselines"
        ) from None


def check_advantages(spec: Spec) -> None:
    """Refuse a specification with an arm that could not be built, before anything is run.

    Raises:
        InputError: naming the arm.
    """
    for i, arm in enumerate(spec.arms):
        try:
            if arm.advantage == TOKEN_CRITIC:
                continue
            needs_groups = make_advantage_baseline(spec, arm.advantage).tags.needs_groups
        except InputError as error:
            raise InputError(f"arms[{i}].advantage: {error.message}") from None
        if needs_groups and arm.group_size < 2:
            raise InputError(f"arms[{i}]: {arm.advantage} needs group_size of at least 2, not {arm.group_size}")


def make_advantage_config(spec: Spec, advantage: str) -> dict[str, Any]:
    """The baseline's configuration as plain JSON, for records and trainers."""
    return {"type": TOKEN_CRITIC} if advantage == TOKEN_CRITIC else make_advantage_baseline(spec, advantage).config()


def dummy_advantages(spec: Spec, arm: ArmSpec, tasks: Sequence[Task], fitted_on: Sequence[str]) -> FloatArray:
    """Advantages (B,) of rewards 0, 1, 0, 1 ... by the arm's own baseline; deviations from the mean for a token-level
    critic."""
    rewards = np.arange(len(tasks), dtype=np.float64) % 2
    if arm.advantage == TOKEN_CRITIC:
        return rewards - rewards.mean()
    baseline = make_advantage_baseline(spec, arm.advantage).fit(list(fitted_on))
    return baseline.advantages(Batch.of([t.prompt for t in tasks], rewards, task_ids=[t.id for t in tasks]))
