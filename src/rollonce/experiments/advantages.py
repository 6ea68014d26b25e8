"""What an arm's ``advantage`` means: a name in the specification -> one baseline of this package.

``group_mean``; ``tfidf_kernel_loo_T<temperature>``; ``length_buckets_loo`` (five quantile buckets of log prompt length,
in batch); ``batch_mean``; ``loo_mean``; ``none``; any name of `rollonce.training.arms` (``critic_prompt``,
``gs1_kriging`` ...); or a name given a configuration in the specification's ``rollonce.baselines``. ``critic_token`` is
a value head with GAE, local engine only.
"""

from __future__ import annotations

import re
from typing import Any

from rollonce.baselines import Baseline, FlashReinforce, Grpo, KernelBaseline, LeaveOneOut, NoBaseline
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.experiments.spec import Spec
from rollonce.kernels import Buckets, Softmax

LENGTH_BUCKETS = "length_buckets_loo"
TOKEN_CRITIC = "critic_token"
_TFIDF = re.compile(r"tfidf_kernel_loo_T(\d+(?:\.\d+)?)")


def tfidf_temperature(name: str) -> float | None:
    """The temperature in ``tfidf_kernel_loo_T0.1``; None for other names."""
    found = _TFIDF.fullmatch(name)
    return float(found[1]) if found else None


def baseline_of(spec: Spec, advantage: str) -> Baseline:
    """A fresh, unfitted baseline.

    Raises:
        InputError: a name that means nothing, or the token-level critic, which is no function of prompts and rewards.
    """
    if advantage in spec.rollonce.baselines:
        made = from_config(spec.rollonce.baselines[advantage])
        if not isinstance(made, Baseline):
            raise InputError(f"rollonce.baselines.{advantage}: a baseline was expected, not a {type(made).__name__}")
        return made
    temperature = tfidf_temperature(advantage)
    if temperature is not None:
        return KernelBaseline(Softmax(temperature=temperature))
    plain = {
        "group_mean": Grpo,
        "batch_mean": FlashReinforce,
        "loo_mean": LeaveOneOut,
        "none": NoBaseline,
        LENGTH_BUCKETS: lambda: KernelBaseline(Buckets()),
    }
    if advantage in plain:
        return plain[advantage]()
    if advantage == TOKEN_CRITIC:
        raise InputError("critic_token is a value head, not a baseline of prompts and rewards")
    from rollonce.training.arms import BY_NAME

    if advantage in BY_NAME:
        return BY_NAME[advantage]()
    names = ", ".join(["tfidf_kernel_loo_T0.1", *plain, TOKEN_CRITIC, *BY_NAME])
    raise InputError(
        f"the advantage {advantage!r} means nothing here; there are {names}, or give it a configuration in "
        "rollonce.baselines"
    )


def check_advantages(spec: Spec) -> None:
    """Refuse a specification with an arm that could not be built, before anything is run.

    Raises:
        InputError: naming the arm.
    """
    for i, arm in enumerate(spec.arms):
        try:
            if arm.advantage == TOKEN_CRITIC:
                continue
            needs_groups = baseline_of(spec, arm.advantage).tags.needs_groups
        except InputError as error:
            raise InputError(f"arms[{i}].advantage: {error.message}") from None
        if needs_groups and arm.group_size < 2:
            raise InputError(f"arms[{i}]: {arm.advantage} needs group_size of at least 2, not {arm.group_size}")


def config_of(spec: Spec, advantage: str) -> dict[str, Any]:
    """The baseline's configuration as plain JSON, for records and trainers."""
    return {"type": TOKEN_CRITIC} if advantage == TOKEN_CRITIC else baseline_of(spec, advantage).config()
