"""The specification of a pre-registered experiment, read as it is.

Fields that we do not know are kept and listed; fields that are wrong are named with their path, what was expected and what was found.
Our own additions live under the key ``rollonce`` (`Extension`); a file without it gets them derived, see `rollonce.experiments.derive`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollonce.errors import InputError
from rollonce.experiments.files import digest

UNRESOLVED = "UNRESOLVED"
GATE_METRICS = {
    "offline_beff_ratio_tfidf_vs_loo_mean": "offline",
    "offline_beff_ratio_vs_loo_mean": "offline",
    "pilot_mean_abs_gs1_minus_batchmean_baseline": "pilot",
    "pilot_mean_abs_treatment_minus_batchmean_baseline": "pilot",
    "self_weight_max": "pilot",
    "executed_rollouts_per_step": "pilot",
    "executed_group_size_gs1": "pilot",
    "executed_group_size_treatment": "pilot",
    "executed_group_size_grpo": "pilot",
    "executed_group_size_baseline": "pilot",
    "nonzero_advantage_fraction_gs1": "pilot",
    "nonzero_advantage_fraction_treatment": "pilot",
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)


class GateCheck(_Part):
    """One predicate of the activation gate: ``min <= metric <= max``, either end may be open."""

    metric: str
    min: float | None = None
    max: float | None = None
    measures: str = ""


class ActivationGate(_Part):
    """What must hold before the arms may run."""

    applicable: bool
    checks: list[GateCheck]
    reason: str = ""


class ArmSpec(_Part):
    """One arm as specified."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")
    advantage: str
    group_size: int = Field(ge=1)
    groups_per_batch: int = Field(ge=1)
    lr: float = Field(gt=0)
    seed: int = Field(ge=0)
    steps: int = Field(ge=1)

    @property
    def rollouts(self) -> int:
        """Rollouts in a step."""
        return self.group_size * self.groups_per_batch


class Budget(_Part):
    """What may be spent: GPU hours (wall time x declared GPUs) and wall minutes; None is no limit."""

    gpu_hours: float | None = Field(default=None, ge=0)
    max_wall_minutes: float | None = Field(default=None, gt=0)


class Tolerance(_Part):
    """``|a - b| <= atol + rtol |b|`` everywhere, and for gradients a cosine of at least ``min_cosine``."""

    atol: float = Field(ge=0)
    rtol: float = Field(ge=0)
    min_cosine: float | None = Field(default=None, ge=-1, le=1)


class Tolerances(_Part):
    """Of the two comparisons: with the stock baseline (treatment off) and with the reference (treatment on)."""

    baseline_loss: Tolerance
    baseline_gradient: Tolerance
    reference_loss: Tolerance
    reference_gradient: Tolerance


class PreflightPath(_Part):
    """One custom path to be shown correct."""

    id: str
    kind: Literal["loss"]
    baseline_revision: str
    reference_revision: str
    tolerances: Tolerances


class CorrectnessPreflight(_Part):
    """Custom paths and their tolerances."""

    paths: list[PreflightPath]
    required: bool
    status: str = ""


class Dataset(_Part):
    """Where the tasks come from."""

    name: str
    hf_path: str | None = None
    n_examples: int | None = Field(default=None, ge=1)
    split: str = ""


class Criterion(_Part):
    """One comparison: ``sum of weight x mean metric`` over arms must lie above ``margin``. ``bounds`` are the metric's."""

    id: str
    metric: Literal["accuracy"]
    bounds: list[float] = Field(min_length=2, max_length=2)
    margin: float
    weights: dict[str, float]


class DecisionRule(_Part):
    """How the verdict is reached; nothing else decides."""

    alpha: float = Field(gt=0, lt=1)
    criteria: list[Criterion] = Field(min_length=1)
    estimand: str = ""
    method: Literal["paired_hoeffding"]
    seeds: list[int] = Field(min_length=1)
    unit: Literal["fixed_checkpoint_items"]
    version: Literal[1]


class EvalSpec(_Part):
    """What is graded at the end."""

    aggregation: str | None = None
    benchmark: str
    metric: str
    n_examples: int = Field(ge=2)


class Feasibility(_Part):
    """A slot for measured feasibility; ours is in the run's records."""

    gpu_hours: float | None = None
    known_gpu_hours: float | None = None
    phases: dict[str, Any] = {}
    problems: list[str] = []
    status: str = "unknown"
    wall_seconds: float | None = None


class GenerationAudit(_Part):
    """Limits of the data audit."""

    answer_comparison: Literal["numeric_exact", "exact", "task_grader"] = "numeric_exact"
    max_eval_overlaps: int = Field(default=0, ge=0)
    max_label_errors: int = Field(default=0, ge=0)
    min_sample_size: int = Field(default=100, ge=1)
    required: bool = False


class Optimizer(_Part):
    """Shared by the arms."""

    lr: float = Field(gt=0)
    name: Literal["adam"]


class PreflightNotes(_Part):
    """Text for readers."""

    probe: str = ""
    riskiest_assumption: str = ""
    tuning: str = ""


class OptimizerConfig(_Part):
    """What must be sent to the optimizer."""

    beta1: float
    beta2: float
    eps: float
    learning_rate: float
    lora_rank: int | None = None
    seed: int


class RestorationArm(_Part):
    """One arm's start."""

    name: str
    optimizer: Literal["adam"]
    optimizer_config: OptimizerConfig


class RestorationGroup(_Part):
    """Arms that must start alike."""

    arms: list[RestorationArm]


class RestorationPreflight(_Part):
    """Do the arms start from the same policy?"""

    applicable: bool
    fixed_batch_required: bool = False
    groups: list[RestorationGroup] = []
    reason: str = ""


class SpecPreflight(_Part):
    """What whoever wrote the file found."""

    findings: list[Any] = []
    status: str = ""


class Revision(_Part):
    """A specification that replaces another before any training: only the pre-approved fallback may differ."""

    of: str = Field(min_length=64, max_length=64)
    reason: str = Field(min_length=10)


class Extension(_Part):
    """What a runner needs beside the registered text. Anything left out is derived (`rollonce.experiments.derive`)."""

    engine: Literal["local", "tinker", "cookbook"] | None = None
    policy: str | None = None
    tasks: str | None = None
    train_tasks: int | None = Field(default=None, ge=1)
    task_seed: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    calibration_tasks: int | None = Field(default=None, ge=2)
    calibration_group_size: int | None = Field(default=None, ge=2)
    calibration_minutes: float | None = Field(default=None, gt=0)
    pilot_steps: int | None = Field(default=None, ge=1)
    pilot_eval_items: int | None = Field(default=None, ge=1)
    item_seconds: float | None = Field(default=None, gt=0)
    declared_gpus: float | None = Field(default=None, ge=0)
    restoration_atol: float | None = Field(default=None, gt=0)
    dense_reward: bool | None = None
    renderer: str | None = None
    base_url: str | None = None
    roles: dict[Literal["baseline", "treatment"], str] | None = None
    baselines: dict[str, dict[str, Any]] = {}
    training: dict[str, Any] = {}
    arm_training: dict[str, dict[str, Any]] = {}
    fallbacks: list[str] | None = None
    revision: Revision | None = None


class Spec(_Part):
    """The whole file."""

    title: str
    hypothesis: str = ""
    method: str = ""
    command: str = ""
    baseline: str = ""
    success_criterion: str = ""
    primary_endpoint: str = ""
    training_type: Literal["rl"]
    base_model: str
    lora_rank: int | None = Field(default=None, ge=1)
    max_seq_len: int | None = Field(default=None, ge=1)
    batch_size: int = Field(ge=1)
    steps: int = Field(ge=1)
    arms: list[ArmSpec] = Field(min_length=2)
    optimizer: Optimizer
    dataset: Dataset
    eval: EvalSpec
    budget: Budget
    activation_gate: ActivationGate
    correctness_preflight: CorrectnessPreflight
    restoration_preflight: RestorationPreflight
    generation_audit: GenerationAudit = GenerationAudit()
    feasibility_check: Feasibility = Feasibility()
    feasibility_required: bool = False
    preflight: PreflightNotes = PreflightNotes()
    spec_preflight: SpecPreflight = SpecPreflight()
    experiment_features: dict[str, bool] = {}
    decision_rule: DecisionRule
    rollonce: Extension = Extension()

    def arm(self, name: str) -> ArmSpec:
        """The arm of this name."""
        return next(a for a in self.arms if a.name == name)


@dataclass(frozen=True)
class LoadedSpec:
    """A specification and the file it came from.

    Attributes:
        path: The file.
        raw: The document as read.
        spec: The same, typed.
        sha256: Of the document's canonical JSON: layout does not count, everything else does.
        unknown: Paths of fields that we do not know; they are kept, and have no effect.
        unresolved: Paths of fields written ``UNRESOLVED: ...``, with their text.
    """

    path: Path
    raw: dict[str, Any]
    spec: Spec
    sha256: str
    unknown: list[str]
    unresolved: dict[str, str]


def load_spec(path: str | Path) -> LoadedSpec:
    """Read and check a specification.

    Raises:
        InputError: no such file, no JSON, a repeated key, or fields that are wrong: all of them, each with its path.
    """
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text: {error.reason}", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    try:
        raw = json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constants)
    except json.JSONDecodeError as error:
        raise InputError(f"is no JSON: {error.msg}", file=path, line=error.lineno) from None
    except InputError as error:
        raise InputError(error.message, file=path) from None
    if not isinstance(raw, dict):
        raise InputError(f"a specification is a JSON object, not {type(raw).__name__}", file=path)
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        problems = [_sentence(e) for e in error.errors()]
    else:
        problems = [f"{where}: {what}" for where, what in _contradictions(spec)]
        if not problems:
            return LoadedSpec(path, raw, spec, digest(raw), list(_unknown(spec)), dict(_unresolved(raw)))
    head = "one field is wrong" if len(problems) == 1 else f"{len(problems)} fields are wrong"
    raise InputError(head + ":\n  " + "\n  ".join(problems), file=path)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise InputError(f"the key {key!r} stands twice in one object; which of the two holds cannot be known")
        out[key] = value
    return out


def _no_constants(name: str) -> Any:
    raise InputError(f"holds {name}, which is no JSON number")


def _sentence(error: Any) -> str:
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    if error["type"] == "missing":
        return f"{where}: missing"
    found = json.dumps(error["input"], ensure_ascii=False, default=str)
    found = found if len(found) <= 60 else found[:57] + "..."
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{where}: {message.replace('input should be', 'expected')}; found {found}"


def _contradictions(spec: Spec) -> Iterator[tuple[str, str]]:
    """What is wrong between fields."""
    names = [a.name for a in spec.arms]
    for i, arm in enumerate(spec.arms):
        at = f"arms[{i}]"
        if names.index(arm.name) != i:
            yield f"{at}.name", f"{arm.name!r} stands twice; arms need names of their own"
        if arm.rollouts != spec.batch_size:
            rollouts = f"group_size {arm.group_size} x groups_per_batch {arm.groups_per_batch} = {arm.rollouts}"
            yield at, f"{rollouts} rollouts a step, but batch_size is {spec.batch_size}"
        if arm.steps != spec.steps:
            yield f"{at}.steps", f"expected the specification's steps, {spec.steps}; found {arm.steps}"
        if arm.lr != spec.optimizer.lr:
            yield f"{at}.lr", f"expected optimizer.lr, {spec.optimizer.lr:g}; found {arm.lr:g}"
        if arm.advantage == "group_mean" and arm.group_size < 2:
            yield f"{at}.group_size", "expected at least 2 with advantage group_mean: a group of one has advantage 0 always; found 1"
    for i, check in enumerate(spec.activation_gate.checks):
        at = f"activation_gate.checks[{i}]"
        if check.metric not in GATE_METRICS:
            yield f"{at}.metric", f"expected one of {', '.join(GATE_METRICS)}; found {check.metric!r}"
        if check.min is None and check.max is None:
            yield at, "expected min, max or both; found neither, so it can never fail"
        elif check.min is not None and check.max is not None and check.min > check.max:
            yield at, f"expected min <= max; found {check.min:g} > {check.max:g}, which nothing passes"
    rule = spec.decision_rule
    if sorted(set(rule.seeds)) != sorted({a.seed for a in spec.arms}) or len(set(rule.seeds)) > 1:
        yield "decision_rule.seeds", f"expected the one seed that all arms share; found {rule.seeds}, arms {[a.seed for a in spec.arms]}"
    known = {*names, "baseline", "treatment"}
    if len({c.id for c in rule.criteria}) < len(rule.criteria):
        yield "decision_rule.criteria", "two criteria have one id"
    for i, c in enumerate(rule.criteria):
        at = f"decision_rule.criteria[{i}]"
        if not c.bounds[0] < c.bounds[1]:
            yield f"{at}.bounds", f"expected [low, high] with low < high; found {c.bounds}"
        odd = sorted(set(c.weights) - known)
        if odd:
            yield f"{at}.weights", f"expected names of arms, or baseline and treatment; found {odd[0]!r}"
        if not any(c.weights.values()):
            yield f"{at}.weights", "expected at least one weight that is not 0"
        elif c.bounds[0] < c.bounds[1]:
            low, high = span(c)
            if not low < c.margin < high:
                yield f"{at}.margin", f"expected a number between the difference's bounds, {low:g} and {high:g}; found {c.margin:g}"
    for role, name in (spec.rollonce.roles or {}).items():
        if name not in names:
            yield f"rollonce.roles.{role}", f"expected the name of an arm; found {name!r}"
    for i, group in enumerate(spec.restoration_preflight.groups):
        for k, start in enumerate(group.arms):
            at = f"restoration_preflight.groups[{i}].arms[{k}]"
            if start.name not in names:
                yield f"{at}.name", f"expected the name of an arm; found {start.name!r}"
                continue
            arm, sent = spec.arm(start.name), start.optimizer_config
            pairs = (("learning_rate", arm.lr), ("seed", arm.seed), ("lora_rank", spec.lora_rank))
            for key, wanted in pairs:
                if getattr(sent, key) != wanted:
                    yield f"{at}.optimizer_config.{key}", f"expected {wanted}, as elsewhere in the file; found {getattr(sent, key)}"


def span(criterion: Criterion) -> tuple[float, float]:
    """Smallest and largest value that ``sum of weight x metric`` can take on one item.

    >>> span(Criterion(id="a", metric="accuracy", bounds=[0.0, 1.0], margin=-0.05, weights={"baseline": -1.0, "treatment": 1.0}))
    (-1.0, 1.0)
    """
    ends = [(w * criterion.bounds[0], w * criterion.bounds[1]) for w in criterion.weights.values()]
    return sum(map(min, ends)), sum(map(max, ends))


def _unknown(part: BaseModel, at: str = "") -> Iterator[str]:
    for name in part.model_extra or {}:
        yield f"{at}{name}"
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _unknown(value, f"{at}{name}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _unknown(item, f"{at}{name}[{i}].")


def _unresolved(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for k, v in value.items():
            yield from _unresolved(v, f"{at}.{k}" if at else k)
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from _unresolved(v, f"{at}[{i}]")
    elif isinstance(value, str) and value.startswith(UNRESOLVED):
        yield at, value
