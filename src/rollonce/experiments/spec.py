"""The specification of a pre-registered experiment: its fields. `rollonce.experiments.loading` reads and checks a file.

Our own additions live under the key ``rollonce`` (`Extension`); a file without it gets them derived, see
`rollonce.experiments.derive`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")
    advantage: str
    group_size: int = Field(ge=1)
    groups_per_batch: int = Field(ge=1)
    lr: float = Field(gt=0)
    seed: int = Field(ge=0)
    steps: int = Field(ge=1)

    @property
    def rollouts(self) -> int:
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
    """One comparison: ``sum of weight x mean metric`` over arms must lie above ``margin``. ``bounds`` are the
    metric's."""

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

    answer_comparison: Literal["numeric_exact", "exact", "task_grader"] | None = None
    max_eval_overlaps: int = Field(default=0, ge=0)
    max_label_errors: int = Field(default=0, ge=0)
    min_sample_size: int = Field(default=100, ge=1)
    required: bool = False


class Optimizer(_Part):
    lr: float = Field(gt=0)
    name: Literal["adam"]


class PreflightNotes(_Part):
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


class Selection(_Part):
    """Arms of which one is chosen by greedy accuracy on hold-out tasks, before the evaluation: a grid of learning
    rates.

    Attributes:
        tasks: Hold-out tasks, of which no arm trains on any.
        groups: Name of a group -> names of its arms. ``rollonce.roles`` and criteria then speak of groups.
    """

    tasks: int = Field(ge=2)
    groups: dict[str, list[str]] = Field(min_length=2)


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
    item_tries: int | None = Field(default=None, ge=1)
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
    selection: Selection | None = None
    revision: Revision | None = None


class Spec(_Part):
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

    def find_arm_by_name(self, name: str) -> ArmSpec:
        return next(a for a in self.arms if a.name == name)

    def find_optimizer_settings(self, name: str) -> dict[str, Any]:
        """Registered parameters of an arm's optimizer; tinker-cookbook's of Adam where none are registered."""
        registered = {a.name: a.optimizer_config for g in self.restoration_preflight.groups for a in g.arms}
        if name in registered:
            return registered[name].model_dump()
        return {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}


def compute_metric_span(criterion: Criterion) -> tuple[float, float]:
    """Smallest and largest value that ``sum of weight x metric`` can take on one item.

    >>> weights = {"baseline": -1.0, "treatment": 1.0}
    >>> compute_metric_span(Criterion(id="a", metric="accuracy", bounds=[0.0, 1.0], margin=-0.05, weights=weights))
    (-1.0, 1.0)
    """
    ends = [(w * criterion.bounds[0], w * criterion.bounds[1]) for w in criterion.weights.values()]
    return sum(map(min, ends)), sum(map(max, ends))


def format_gate_limits(low: float | None, high: float | None) -> str:
    """What is allowed, in symbols.

    >>> format_gate_limits(1.03, None), format_gate_limits(0.0, 0.0)
    ('>= 1.03', '= 0')
    """
    if low is not None and low == high:
        return f"= {low:g}"
    return " and ".join(([f">= {low:g}"] if low is not None else []) + ([f"<= {high:g}"] if high is not None else []))
