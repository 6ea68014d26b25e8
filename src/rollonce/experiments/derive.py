"""What a run needs, as typed fields: each says which words of the specification it came from.

The section ``rollonce`` of the file comes first. What is not there is read from the registered text by `READINGS`, one
line per phrase, and recorded with the sentence. A sentence that speaks of a setting and cannot be read stops the run,
and so do two sentences that contradict each other; nothing is guessed. What is said nowhere has a default, and
``--check`` prints all of them with their sentences.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rollonce.errors import InputError
from rollonce.experiments.advantages import LENGTH_BUCKETS
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.tasks import usual_source_spec


class Origin(NamedTuple):
    """Where a setting came from: the field (or ``default``, or an option), and the sentence where it is text."""

    where: str
    sentence: str = ""


@dataclass(frozen=True)
class ExperimentSettings:
    """How the experiment is run. ``origins`` says for each setting where it came from.

    Attributes:
        engine: ``local``, ``tinker`` (our loop on a service) or ``cookbook`` (the stock recipe there).
        policy: ``embedded``, a directory, or the service's name of the model.
        tasks: A source of `rollonce.tasks.load_tasks`.
        max_tokens: Response tokens, in training and in evaluation.
        calibration_tasks, calibration_group_size, calibration_minutes: The offline part of the gate.
        pilot_steps, pilot_eval_items: The timing pilot.
        item_seconds: Time limit of one evaluation item.
        item_tries: How often an item is asked before it counts as unanswered.
        declared_gpus: What wall time is multiplied by for the budget.
        restoration_atol: How far log-probabilities of fresh clients may lie apart.
        dense_reward: Reward a random model can earn, for tests of the machinery; never for a result.
        baseline, treatment: Names of the two arms that gates and criteria speak of.
        fallbacks: Advantages that a revised specification may put in the treatment's place after a failed offline gate.
        train_tasks, task_seed: For sources that draw.
        selection_tasks: Hold-out tasks by which one arm of each group of ``rollonce.selection`` is chosen; 0 for none.
        renderer: How prompts become tokens on a service.
        base_url: The service.
        origins: Setting -> where it came from.
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
    item_tries: int
    declared_gpus: float
    restoration_atol: float
    dense_reward: bool
    baseline: str
    treatment: str
    fallbacks: tuple[str, ...]
    train_tasks: int | None
    task_seed: int
    selection_tasks: int
    renderer: str | None
    base_url: str | None
    origins: dict[str, Origin]

    def with_command_option(self, name: str, value: Any, option: str) -> ExperimentSettings:
        """The same with one setting from the command line."""
        return dataclasses.replace(self, **{name: value}, origins={**self.origins, name: Origin(option)})

    def to_plain_settings(self) -> dict[str, Any]:
        """Plain JSON, for the records."""
        return dataclasses.asdict(self) | {
            "fallbacks": list(self.fallbacks),
            "origins": {name: list(origin) for name, origin in self.origins.items()},
        }


class Reading(NamedTuple):
    """One way in which the registered text says a setting.

    Attributes:
        setting: Its name.
        field: The text that is read (`_registered_texts`).
        mentions: What a sentence about it holds (a regular expression).
        value: The regular expression whose group is the value.
        convert: Group to value; KeyError or ValueError where it means nothing.
    """

    setting: str
    field: str
    mentions: str
    value: str
    convert: Callable[[str], Any]


_RECIPES = {"tinker_cookbook.recipes.math_rl.train": "cookbook"}
_FALLBACKS = {"prompt-length-bucket": (LENGTH_BUCKETS,)}

READINGS = (
    Reading("engine", "command", r"\bpython -m\b", r"python -m (\S+)", _RECIPES.__getitem__),
    Reading("max_tokens", "command", r"max_tokens", r"max_tokens[= ](\d+)", int),
    Reading("max_tokens", "method", r"max_tokens", r"max_tokens[= ](\d+)", int),
    Reading("max_tokens", "eval.metric", r"max_tokens", r"max_tokens[= ](\d+)", int),
    Reading("calibration_tasks", "command", r"calibration: ", r"(\d+) tasks x \d+ rollouts", int),
    Reading("calibration_tasks", "activation_gate", r"calibration set", r"on (\d+) held-out", int),
    Reading("calibration_group_size", "command", r"calibration: ", r"\d+ tasks x (\d+) rollouts", int),
    Reading("calibration_group_size", "activation_gate", r"calibration set", r"G=(\d+) rollouts", int),
    Reading("calibration_minutes", "command", r"capped at", r"capped at (\d+(?:\.\d+)?) minutes", float),
    Reading("pilot_steps", "command", r"[Pp]ilot: ", r"(\d+) steps per arm", int),
    Reading("pilot_steps", "activation_gate", r"pilot steps", r"first (\d+) pilot steps", int),
    Reading("pilot_eval_items", "command", r"[Pp]ilot: ", r"a (\d+)-item eval", int),
    Reading("restoration_atol", "restoration_preflight.reason", r"\batol\b", r"atol (\d[0-9.]*(?:e-?\d+)?)", float),
    Reading("fallbacks", "command", r"pre-approved fallback", r"fallback is the post's (\S+) kernel", _FALLBACKS.get),
    Reading("baseline", "method", r"\barm \(baseline\)", r"(\S+) arm \(baseline\)", str.lower),
    Reading("treatment", "method", r"\barm \(treatment\)", r"(\S+) arm \(treatment\)", str.lower),
)
"""Everything that is ever read from a specification's English."""


def derive_settings(spec: Spec) -> ExperimentSettings:
    """The settings of a specification.

    Raises:
        InputError: something that has no default and is said nowhere, a sentence that cannot be read, or a text that
            contradicts the fields beside it.
    """
    origins: dict[str, Origin] = {}
    own = spec.rollonce

    def pick_setting_value(name: str, default: Any = None, *, also: tuple[Any, str] | None = None) -> Any:
        """The file's own section, its text, ``also``, or the default."""
        if (value := getattr(own, name)) is not None:
            origins[name] = Origin(f"rollonce.{name}")
            return value
        if (read := read_registered_setting(spec, name)) is not None:
            value, origins[name] = read
            return value
        if also is not None and also[0] is not None:
            origins[name] = Origin(also[1])
            return also[0]
        origins[name] = Origin("default")
        return default

    engine = pick_setting_value("engine", "local")
    tasks = pick_setting_value("tasks", also=(usual_source_spec(spec.dataset.name), "dataset.name"))
    if tasks is None:
        raise InputError(
            f"dataset.name {spec.dataset.name!r} names no source of tasks; give one as rollonce.tasks (gsm8k:DIR, "
            "jsonl:FILE ...)"
        )
    baseline, treatment = _read_arm_roles(spec, origins)
    if own.selection is not None and own.fallbacks:
        raise InputError("rollonce.fallbacks beside rollonce.selection: a grid of rates has no fallback kernel here")
    settings = ExperimentSettings(
        engine=engine,
        policy=pick_setting_value("policy", also=(spec.base_model, "base_model")),
        tasks=tasks,
        max_tokens=pick_setting_value("max_tokens", 96 if engine == "local" and spec.base_model == "embedded" else 512),
        calibration_tasks=pick_setting_value("calibration_tasks", 64),
        calibration_group_size=pick_setting_value("calibration_group_size", 8),
        calibration_minutes=float(pick_setting_value("calibration_minutes", 10)),
        pilot_steps=pick_setting_value("pilot_steps", 3),
        pilot_eval_items=pick_setting_value("pilot_eval_items", 100),
        item_seconds=float(pick_setting_value("item_seconds", 120)),
        item_tries=pick_setting_value("item_tries", 3),
        declared_gpus=float(
            pick_setting_value(
                "declared_gpus", 1, also=(_infer_budget_gpus(spec), "budget: gpu_hours over max_wall_minutes")
            )
        ),
        restoration_atol=pick_setting_value("restoration_atol", 1e-4),
        dense_reward=pick_setting_value("dense_reward", False),
        baseline=baseline,
        treatment=treatment,
        fallbacks=tuple(pick_setting_value("fallbacks", ())),
        train_tasks=own.train_tasks,
        task_seed=pick_setting_value("task_seed", 0),
        selection_tasks=own.selection.tasks if own.selection is not None else 0,
        renderer=own.renderer,
        base_url=own.base_url,
        origins=origins,
    )
    if own.renderer is not None:
        origins["renderer"] = Origin("rollonce.renderer")
    problems = [*_find_command_contradictions(spec), *_find_evaluation_contradictions(spec, settings)]
    if problems:
        raise InputError("the specification contradicts itself:\n  " + "\n  ".join(problems))
    return settings


def read_registered_setting(spec: Spec, setting: str) -> tuple[Any, Origin] | None:
    """What the registered text says of a setting, and where; None if it says nothing.

    Raises:
        InputError: a sentence that speaks of it and cannot be read, or two that differ.
    """
    found: tuple[Any, Origin] | None = None
    for reading in READINGS:
        if reading.setting != setting:
            continue
        for sentence in split_into_sentences(_registered_texts(spec)[reading.field]):
            if not re.search(reading.mentions, sentence):
                continue
            match = re.search(reading.value, sentence)
            try:
                value = reading.convert(match[1]) if match else None
            except (KeyError, ValueError):
                value = None
            if value is None:
                raise InputError(
                    f"{reading.field} says {sentence!r}, and {setting} cannot be read from it: write it as "
                    f"rollonce.{setting if setting not in ('baseline', 'treatment') else 'roles'}"
                )
            if found is not None and found[0] != value:
                raise InputError(
                    f"{setting} is {found[0]} by {found[1].where} ({found[1].sentence!r}) and {value} by "
                    f"{reading.field} ({sentence!r}): correct one, or write rollonce.{setting}"
                )
            found = found or (value, Origin(reading.field, sentence))
    return found


def split_into_sentences(text: str) -> Iterator[str]:
    """Lines, and sentences within a line.

    >>> list(split_into_sentences("1. Pilot: 3 steps. Then run.\\npython -m x.y lr=3e-5"))
    ['1. Pilot: 3 steps.', 'Then run.', 'python -m x.y lr=3e-5']
    """
    for line in text.splitlines():
        yield from filter(None, (part.strip() for part in re.split(r"(?<=[a-z)%][.;]) (?=[A-Z])", line)))


def _registered_texts(spec: Spec) -> dict[str, str]:
    return {
        "command": spec.command,
        "method": spec.method,
        "eval.metric": spec.eval.metric,
        "activation_gate": "\n".join(c.measures for c in spec.activation_gate.checks),
        "restoration_preflight.reason": spec.restoration_preflight.reason,
    }


def _read_arm_roles(spec: Spec, origins: dict[str, Origin]) -> tuple[str, str]:
    """Which arm is the baseline and which the treatment: by name, never by their order."""
    groups = spec.rollonce.selection.groups if spec.rollonce.selection is not None else {}
    names = list(groups) or [a.name for a in spec.arms]
    usual = {"baseline": "grpo", "treatment": "gs1"}
    out = {}
    for role, word in usual.items():
        if spec.rollonce.roles is not None and role in spec.rollonce.roles:
            out[role], origins[role] = spec.rollonce.roles[role], Origin("rollonce.roles")
            continue
        read = read_registered_setting(spec, role)
        word, origin = read if read is not None else (word, Origin(f"the name that holds {word!r}"))
        match = [n for n in names if word in n.lower()]
        if len(match) != 1:
            raise InputError(
                f"which arm is the {role}? {len(match)} of {', '.join(names)} have {word!r} in their name: write "
                'rollonce.roles = {"baseline": NAME, "treatment": NAME}'
            )
        out[role], origins[role] = match[0], origin
    if out["baseline"] == out["treatment"]:
        raise InputError(f"baseline and treatment are both {out['baseline']!r}: write rollonce.roles")
    return out["baseline"], out["treatment"]


def _find_command_contradictions(spec: Spec) -> Iterator[str]:
    """Options of a recipe's command line that the typed fields say as well."""
    wanted: dict[str, Any] = {
        "model_name": spec.base_model,
        "env": spec.dataset.name,
        "lora_rank": spec.lora_rank,
        "learning_rate": spec.optimizer.lr,
        "max_steps": spec.steps,
        "kl_penalty_coef": 0,
    }
    for sentence in split_into_sentences(spec.command):
        if "python -m" not in sentence:
            continue
        for name, text in re.findall(r"\b(\w+)=(\S+)", sentence):
            if name not in wanted:
                continue
            value = wanted[name]
            if (float(text) if isinstance(value, int | float) and _can_parse_as_number(text) else text) != value:
                yield f"the command says {name}={text}, the fields {value}"


def _find_evaluation_contradictions(spec: Spec, settings: ExperimentSettings) -> Iterator[str]:
    """What ``eval``, ``dataset`` and ``generation_audit`` register and this program does not do is refused."""
    metric = spec.eval.metric.lower()
    if "exact" not in metric or "greedy" not in metric:
        yield f"eval.metric: exact match of a greedy answer is what is graded here, not {spec.eval.metric!r}"
    if spec.eval.aggregation is not None:
        yield f"eval.aggregation: the mean over items is what there is; expected null, found {spec.eval.aggregation!r}"
    graders = {"gsm8k": "numeric_exact"}
    source = settings.tasks.partition(":")[0]
    wanted = graders.get(source, "exact" if source == "jsonl" else "task_grader")
    if spec.generation_audit.answer_comparison != wanted and not (
        source == "jsonl" and spec.generation_audit.answer_comparison == "task_grader"
    ):
        yield (
            f"generation_audit.answer_comparison: answers of {source} tasks are compared by {wanted}, not by "
            f"{spec.generation_audit.answer_comparison}"
        )
    if source == "gsm8k" and spec.dataset.hf_path not in (None, "openai/gsm8k"):
        yield f"dataset.hf_path: gsm8k is openai/gsm8k here, not {spec.dataset.hf_path!r}"
    if spec.max_seq_len is not None and settings.max_tokens >= spec.max_seq_len:
        yield f"max_seq_len: {spec.max_seq_len} leaves no room for a prompt beside {settings.max_tokens} tokens"


def _can_parse_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def resolve_role_name(settings: ExperimentSettings, key: str) -> str:
    """The name behind a criterion's weight: ``baseline``, ``treatment``, or a name itself."""
    return {"baseline": settings.baseline, "treatment": settings.treatment}.get(key, key)


def find_arm_in_role(spec: Spec, settings: ExperimentSettings, key: str) -> ArmSpec:
    """The arm in a role; of a group of ``rollonce.selection`` the first."""
    name = resolve_role_name(settings, key)
    selection = spec.rollonce.selection
    return spec.find_arm_by_name(
        selection.groups[name][0] if selection is not None and name in selection.groups else name
    )


def _infer_budget_gpus(spec: Spec) -> float | None:
    """A budget of h GPU hours within m minutes was made for h / (m / 60) GPUs."""
    b = spec.budget
    return b.gpu_hours / (b.max_wall_minutes / 60) if b.gpu_hours and b.max_wall_minutes else None
