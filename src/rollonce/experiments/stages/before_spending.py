"""Stages before anything is sampled or paid for: what is installed, the data, the advantages that would be sent."""

from __future__ import annotations

from rollonce.errors import InputError
from rollonce.experiments.advantages import TOKEN_CRITIC, make_advantage_config
from rollonce.experiments.audit import audit_task_sets, compute_tasks_digest
from rollonce.experiments.derive import find_arm_in_role
from rollonce.experiments.files import compute_json_digest
from rollonce.experiments.pins import resolve_field_pins
from rollonce.experiments.preflight import run_correctness_preflight
from rollonce.experiments.records import Record
from rollonce.experiments.run import ExperimentRun, StageResult


def record_resolved_pins(run: ExperimentRun) -> Record:
    found = resolve_field_pins(run.loaded, run.settings)
    if found.open:
        lines = "\n  ".join(f"{path}: {why}" for path, why in found.open.items())
        raise InputError(f"no full run starts while a field is unresolved:\n  {lines}", file=run.loaded.path)

    def compute_stage_result() -> StageResult:
        named = [f"{path} pinned at run time" for path in run.loaded.unresolved]
        return StageResult(
            True, {"resolved": found.resolved, "identity": run.engine.describe_identity(), "deviations": named}
        )

    # A commit is known in a checkout alone; the hash over the files says the same wherever they lie.
    pinned = {path: {k: v for k, v in pin.items() if k != "commit"} for path, pin in found.resolved.items()}
    return run.run_or_reuse_stage(
        "pins",
        {"pins": compute_json_digest(pinned), "engine": compute_json_digest(run.engine.describe_identity())},
        compute_stage_result,
    )


def audit_experiment_data(run: ExperimentRun) -> Record:
    spec, s = run.loaded.spec, run.settings
    tasks = run.engine.load_experiment_tasks()

    def compute_stage_result() -> StageResult:
        found = audit_task_sets(tasks, spec, max_tokens=s.max_tokens, prompt_lengths=run.engine.count_prompt_tokens)
        if s.dense_reward:
            found["deviations"].append(
                "dense_reward: the reward is one that a random model earns; the verdict means nothing"
            )
        bad = "; ".join(found["problems"])
        return StageResult(found["passed"], found, [], f"data audit: {bad}" if bad else "")

    sets = {k: compute_tasks_digest(getattr(tasks, k)) for k in ("train", "used", "calibration", "selection", "test")}
    inputs = {
        "tasks": compute_json_digest(sets),
        "limits": compute_json_digest(spec.generation_audit.model_dump()),
        "max_tokens": s.max_tokens,
    }
    return run.run_or_reuse_stage(
        "data_audit", inputs | {"engine": compute_json_digest(run.engine.describe_identity())}, compute_stage_result
    )


def check_correctness(run: ExperimentRun, pins: Record, audit: Record) -> Record:
    spec, arm = run.loaded.spec, find_arm_in_role(run.loaded.spec, run.settings, "treatment")

    def compute_stage_result() -> StageResult:
        if not spec.correctness_preflight.required:
            return StageResult(True, {"skipped": "not required by the specification"})
        if arm.advantage == TOKEN_CRITIC:
            return StageResult(
                False,
                {},
                [],
                "correctness preflight: a token-level critic has no float64 reference; make it the baseline arm",
            )
        found = run_correctness_preflight(spec, arm, run.engine.path, run.engine.load_experiment_tasks().train.prompts)
        bad = [c["what"] for p in found["paths"] for c in p["comparisons"] if not c["passed"]]
        bad += [f["what"] for f in found["forced"] if not f["passed"]]
        bad += [
            f"{p['id']}: no independent reference for {arm.advantage}" for p in found["paths"] if p["missing_reference"]
        ]
        return StageResult(found["passed"], found, [], "correctness preflight: " + "; ".join(bad) if bad else "")

    tolerances = compute_json_digest([p.model_dump() for p in spec.correctness_preflight.paths])
    inputs = {
        "pins": pins.hash,
        "treatment": compute_json_digest(make_advantage_config(spec, arm.advantage)),
        "tolerances": tolerances,
        "tasks": audit.inputs["tasks"],
    }
    return run.run_or_reuse_stage("correctness", inputs, compute_stage_result)
