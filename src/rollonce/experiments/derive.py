"""What a run needs and the registered text says in words: derived from it, each with where it was found.

The section ``rollonce`` of the file comes first, then the command, the method and the gate's texts, then a default of
ours. ``--check`` prints all of them, so nothing is assumed in silence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rollonce.errors import InputError
from rollonce.experiments.advantages import LENGTH_BUCKETS
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.tasks import usual_spec


@dataclass(frozen=True)
class Settings:
    """How the experiment is run. ``origin`` says for each where it came from.

    Attributes:
        engine: ``local``, ``tinker`` (our loop on a service) or ``cookbook`` (the stock recipe there).
        policy: ``embedded``, a directory, or the service's name of the model.
        tasks: A source of `rollonce.tasks.load_tasks`.
        max_tokens: Response tokens, in training and in evaluation.
        calibration_tasks, calibration_group_size, calibration_minutes: The offline part of the gate.
        pilot_steps, pilot_eval_items: The timing pilot.
        item_seconds: Time limit of one evaluation item.
        declared_gpus: What wall time is multiplied by for the budget.
        restoration_atol: How far log-probabilities of fresh clients may lie apart.
        dense_reward: Reward a random model can earn, for tests of the machinery; never for a result.
        baseline, treatment: Names of the two arms that gates and criteria speak of.
        fallbacks: Advantages that a revised specification may put in the treatment's place after a failed offline gate.
        train_tasks, task_seed: For sources that draw.
    """

    engine: str
    policy: str
    tasks: str
    max_tokens: int
    calibration_tasks: int
    calibration_group_size: int
    calibration_minutes: float
    pilot_steps: int
    pilot_eval_items: int
    item_seconds: float
    declared_gpus: float
    restoration_atol: float
    dense_reward: bool
    baseline: str
    treatment: str
    fallbacks: tuple[str, ...]
    train_tasks: int | None
    task_seed: int
    renderer: str | None
    base_url: str | None
    origin: dict[str, str]


def derive(spec: Spec) -> Settings:
    """The settings of a specification.

    Raises:
        InputError: something that has no default and is said nowhere.
    """
    origin: dict[str, str] = {}
    own = spec.rollonce

    def pick(name: str, *found: tuple[Any, str], default: Any = None) -> Any:
        """The first that is there: the file's own section, what was found in its text, the default."""
        value = getattr(own, name)
        if value is not None:
            origin[name] = f"rollonce.{name}"
            return value
        for value, where in found:
            if value is not None:
                origin[name] = where
                return value
        origin[name] = "default"
        return default

    command, gate = spec.command, " ".join(c.measures for c in spec.activation_gate.checks)
    stock = "tinker_cookbook.recipes" in command
    engine = pick("engine", ("cookbook" if stock else None, "the recipe named in command"), default="local")
    tasks = pick("tasks", (usual_spec(spec.dataset.name), "dataset.name"))
    if tasks is None:
        raise InputError(
            f"dataset.name {spec.dataset.name!r} names no source of tasks; give one as rollonce.tasks (gsm8k:DIR, "
            "jsonl:FILE ...)"
        )
    roles = own.roles or {}
    origin["baseline"] = origin["treatment"] = "rollonce.roles" if own.roles else "the order of arms"
    fallback = "length-bucket" in command and "fallback" in command
    fallbacks = pick("fallbacks", ([LENGTH_BUCKETS] if fallback else None, "the fallback named in command"), default=[])
    return Settings(
        engine=engine,
        policy=pick("policy", (spec.base_model, "base_model")),
        tasks=tasks,
        max_tokens=pick(
            "max_tokens",
            (_number(r"max_tokens[= ](\d+)", command), "command"),
            default=96 if engine == "local" else 512,
        ),
        calibration_tasks=pick(
            "calibration_tasks",
            (_number(r"(\d+) tasks x \d+ rollouts", command), "command"),
            (_number(r"on (\d+) held-out", gate), "activation_gate"),
            default=64,
        ),
        calibration_group_size=pick(
            "calibration_group_size",
            (_number(r"\d+ tasks x (\d+) rollouts", command), "command"),
            (_number(r"G=(\d+) rollouts", gate), "activation_gate"),
            default=8,
        ),
        calibration_minutes=float(
            pick("calibration_minutes", (_number(r"capped at (\d+) minutes", command), "command"), default=10)
        ),
        pilot_steps=pick(
            "pilot_steps",
            (_number(r"(\d+) steps per arm", command), "command"),
            (_number(r"first (\d+) pilot steps", gate), "activation_gate"),
            default=3,
        ),
        pilot_eval_items=pick("pilot_eval_items", (_number(r"a (\d+)-item eval", command), "command"), default=100),
        item_seconds=float(pick("item_seconds", default=120)),
        declared_gpus=float(pick("declared_gpus", (_gpus(spec), "budget: gpu_hours over max_wall_minutes"), default=1)),
        restoration_atol=pick(
            "restoration_atol",
            (_float(r"atol ([0-9.e-]+\d)", spec.restoration_preflight.reason), "restoration_preflight.reason"),
            default=1e-4,
        ),
        dense_reward=pick("dense_reward", default=False),
        baseline=roles.get("baseline", spec.arms[0].name),
        treatment=roles.get("treatment", spec.arms[1].name),
        fallbacks=tuple(fallbacks),
        train_tasks=own.train_tasks,
        task_seed=pick("task_seed", default=0),
        renderer=own.renderer,
        base_url=own.base_url,
        origin=origin,
    )


def role(settings: Settings, key: str) -> str:
    """The arm's name behind a criterion's weight: ``baseline``, ``treatment``, or a name itself."""
    return {"baseline": settings.baseline, "treatment": settings.treatment}.get(key, key)


def arm_of(spec: Spec, settings: Settings, key: str) -> ArmSpec:
    """The arm behind a role or name."""
    return spec.arm(role(settings, key))


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def _float(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return float(found[1]) if found else None


def _gpus(spec: Spec) -> float | None:
    """A budget of h GPU hours within m minutes was made for h / (m / 60) GPUs."""
    b = spec.budget
    return b.gpu_hours / (b.max_wall_minutes / 60) if b.gpu_hours and b.max_wall_minutes else None
