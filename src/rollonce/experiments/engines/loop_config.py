"""An arm of a specification as the configuration of our own loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rollonce.errors import InputError
from rollonce.experiments.advantages import TOKEN_CRITIC, make_advantage_config
from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.training.config import RunConfig
from rollonce.training.sections import validate_section

OURS_TO_CHOOSE = ("kl_every", "shadow", "audit_weights")
"""Of the loop's settings those that no specification registers."""
REGISTERED_OF_AN_ARM = ("group_size", "baseline")


def make_loop_config(spec: Spec, settings: ExperimentSettings, arm: ArmSpec, steps: int, *, service: bool) -> RunConfig:
    """What the loop is given for an arm.

    Raises:
        InputError: ``rollonce.training`` or ``arm_training`` would replace what the specification's own fields say.
    """
    own, optimizer = spec.rollonce, spec.find_optimizer_settings(arm.name)
    arm_table: dict[str, Any] = {"group_size": arm.group_size, **own.arm_training.get(arm.name, {})}
    if arm.advantage == TOKEN_CRITIC:
        arm_table.setdefault("critic", {})
    else:
        arm_table["baseline"] = make_advantage_config(spec, arm.advantage)
    policy = {
        "source": settings.policy,
        "engine": "tinker" if service else "local",
        "lora_rank": spec.lora_rank or 0,
        "seed": arm.seed,
        "base_url": settings.base_url,
        "renderer": settings.renderer,
    }
    train = {
        "steps": steps,
        "rollouts": spec.batch_size,
        "learning_rate": arm.lr,
        "beta1": optimizer["beta1"],
        "beta2": optimizer["beta2"],
        "epsilon": optimizer["eps"],
        "max_new_tokens": settings.max_tokens,
        "kl_every": 0,
        "shadow": (),
        "audit_weights": True,
    }
    _refuse_replaced_fields(
        own.training, {"policy": policy, "train": train, "tasks": ("source",)}, "rollonce.training."
    )
    _refuse_replaced_fields(
        {arm.name: own.arm_training.get(arm.name, {})}, {arm.name: REGISTERED_OF_AN_ARM}, "rollonce.arm_training."
    )
    data = {
        "name": arm.name,
        "arm": arm_table,
        "seed": arm.seed,
        "policy": policy | own.training.get("policy", {}),
        "tasks": {"source": settings.tasks, **own.training.get("tasks", {})},
        "train": train | own.training.get("train", {}),
        "loss": own.training.get("loss", {}),
        "evaluation": {"every": 0},
    }
    return validate_section(RunConfig, data, f"the configuration of arm {arm.name!r}")


def _refuse_replaced_fields(sections: Mapping[str, Any], registered: Mapping[str, Collection[str]], at: str) -> None:
    for section, names in registered.items():
        given = sections.get(section) or {}
        if replaced := sorted(set(given) & set(names) - set(OURS_TO_CHOOSE)):
            raise InputError(
                f"{at}{section}.{replaced[0]} would replace what the specification's own fields say; change it there"
            )
