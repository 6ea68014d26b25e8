"""What the stages share: an arm's inputs, its executed steps on disk, its optimizer's parameters against the registered
ones, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollonce.experiments.advantages import make_advantage_config
from rollonce.experiments.engine import StepLog, TrainedArm
from rollonce.experiments.files import canonical_json_bytes, compute_json_digest, read_finished_lines
from rollonce.experiments.run import ExperimentRun
from rollonce.experiments.spec import ArmSpec
from rollonce.files import write_whole_file

READ_BACK = ("beta1", "beta2", "eps", "learning_rate")
"""What every engine reads back of its optimizer."""


def registered_optimizers(run: ExperimentRun) -> dict[str, dict[str, Any]]:
    """What the specification says of each arm's optimizer, by the arm's name."""
    groups = run.loaded.spec.restoration_preflight.groups
    return {a.name: a.optimizer_config.model_dump() for g in groups for a in g.arms}


def find_optimizer_errors(run: ExperimentRun, name: str, seen: dict[str, list[Any]]) -> list[str]:
    """Every parameter of an arm's optimizer that is not the registered one, or that nobody read back."""
    wanted = registered_optimizers(run).get(name, {})
    unread = [f"{k} was not read back" for k in wanted if (k in READ_BACK or k in seen) and not seen.get(k)]
    other = [f"{k} {seen[k]} instead of {wanted[k]}" for k in seen if k in wanted and seen[k] not in ([], [wanted[k]])]
    return unread + other


def find_unchecked_start(run: ExperimentRun, trained: TrainedArm) -> list[str]:
    """Whether an arm's own client was compared with the common start at all (one that differs never trains)."""
    if not run.loaded.spec.restoration_preflight.applicable or trained.start_difference is not None:
        return []
    return ["its own training client was never compared with the policy of the restoration preflight"]


def sum_recorded_tokens(run: ExperimentRun) -> dict[str, int]:
    """Tokens really read, sampled and trained on, by the records."""
    read = sampled = trained = 0
    for record in run.chain.records:
        data = record.data
        parts = data["tokens"].values() if record.stage == "pilot" and data.get("tokens") else [data.get("tokens")]
        for part in (p for p in parts if isinstance(p, dict)):
            read, sampled = read + part["prompt"], sampled + part["response"]
            trained += part["prompt"] + part["response"]
        read, sampled = read + data.get("prompt_tokens", 0), sampled + data.get("response_tokens", 0)
    return {"prompt_tokens": read, "response_tokens": sampled, "trained_tokens": trained}


def count_step_tokens(steps: list[StepLog]) -> dict[str, int]:
    return {"prompt": sum(s.prompt_tokens for s in steps), "response": sum(s.response_tokens for s in steps)}


def write_executed_steps(run: ExperimentRun, name: str, trained: TrainedArm) -> str:
    """The executed steps as one file of the record."""
    write_whole_file(
        run.directory / name, b"".join(canonical_json_bytes(step._asdict()) + b"\n" for step in trained.steps)
    )
    return name


def read_executed_steps(path: Path) -> list[StepLog]:
    """What `write_executed_steps` wrote."""
    return [StepLog(**row) for row in read_finished_lines(path)]


def collect_arm_inputs(run: ExperimentRun, arm: ArmSpec) -> dict[str, Any]:
    """Everything that an arm's training depends on."""
    spec, s = run.loaded.spec, run.settings
    shared = {
        "policy": s.policy,
        "lora_rank": spec.lora_rank,
        "max_tokens": s.max_tokens,
        "renderer": s.renderer,
        "training": spec.rollonce.training,
    }
    return (
        arm.model_dump()
        | shared
        | {"config": make_advantage_config(spec, arm.advantage), "own": spec.rollonce.arm_training.get(arm.name, {})}
    )


def compute_arms_digest(run: ExperimentRun) -> str:
    return compute_json_digest([collect_arm_inputs(run, a) for a in run.loaded.spec.arms])


def relative_checkpoint(run: ExperimentRun, checkpoint: str) -> str:
    """A path within the run's directory from there, so that the directory can be moved; a service's address as it
    is."""
    path = Path(checkpoint)
    return path.relative_to(run.directory).as_posix() if path.is_relative_to(run.directory) else checkpoint


def absolute_checkpoint(run: ExperimentRun, checkpoint: str) -> str:
    path = run.directory / checkpoint
    return str(path) if path.exists() else checkpoint
