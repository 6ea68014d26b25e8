"""Stages before anything is sampled or paid for: what is installed, the data, the advantages that would be sent."""

from __future__ import annotations

from rollonce.errors import InputError
from rollonce.experiments.advantages import TOKEN_CRITIC, config_of
from rollonce.experiments.audit import audit_tasks, tasks_digest
from rollonce.experiments.derive import arm_in_role
from rollonce.experiments.files import digest
from rollonce.experiments.pins import resolve_pins
from rollonce.experiments.preflight import run_preflight
from rollonce.experiments.records import Record
from rollonce.experiments.run import ExperimentRun, StageResult


def record_pins(run: ExperimentRun) -> Record:
    found = resolve_pins(run.loaded, run.settings)
    if found.open:
        lines = "\n  ".join(f"{path}: {why}" for path, why in found.open.items())
        raise InputError(f"no full run starts while a field is unresolved:\n  {lines}", file=run.loaded.path)

    def stage_result() -> StageResult:
        named = [f"{path} pinned at run time" for path in run.loaded.unresolved]
        return StageResult(True, {"resolved": found.resolved, "identity": run.engine.identity(), "deviations": named})

    # A commit is known in a checkout alone; the hash over the files says the same wherever they lie.
    pinned = {path: {k: v for k, v in pin.items() if k != "commit"} for path, pin in found.resolved.items()}
    return run.enter_stage("pins", {"pins": digest(pinned), "engine": digest(run.engine.identity())}, stage_result)


def audit_data(run: ExperimentRun) -> Record:
    spec, s = run.loaded.spec, run.settings
    tasks = run.engine.tasks()

    def stage_result() -> StageResult:
        found = audit_tasks(tasks, spec, max_tokens=s.max_tokens, prompt_lengths=run.engine.prompt_lengths)
        if s.dense_reward:
            found["deviations"].append(
                "dense_reward: the reward is one that a random model earns; the verdict means nothing"
            )
        bad = "; ".join(found["problems"])
        return StageResult(found["passed"], found, [], f"data audit: {bad}" if bad else "")

    sets = {k: tasks_digest(getattr(tasks, k)) for k in ("train", "used", "calibration", "selection", "test")}
    inputs = {"tasks": digest(sets), "limits": digest(spec.generation_audit.model_dump()), "max_tokens": s.max_tokens}
    return run.enter_stage("data_audit", inputs | {"engine": digest(run.engine.identity())}, stage_result)


def check_correctness(run: ExperimentRun, pins: Record, audit: Record) -> Record:
    spec, arm = run.loaded.spec, arm_in_role(run.loaded.spec, run.settings, "treatment")

    def stage_result() -> StageResult:
        if not spec.correctness_preflight.required:
            return StageResult(True, {"skipped": "not required by the specification"})
        if arm.advantage == TOKEN_CRITIC:
            return StageResult(
                False,
                {},
                [],
                "correctness preflight: a token-level critic has no float64 reference; make it the baseline arm",
            )
        found = run_preflight(spec, arm, run.engine.path, run.engine.tasks().train.prompts)
        bad = [c["what"] for p in found["paths"] for c in p["comparisons"] if not c["passed"]]
        bad += [f["what"] for f in found["forced"] if not f["passed"]]
        bad += [
            f"{p['id']}: no independent reference for {arm.advantage}" for p in found["paths"] if p["missing_reference"]
        ]
        return StageResult(found["passed"], found, [], "correctness preflight: " + "; ".join(bad) if bad else "")

    tolerances = digest([p.model_dump() for p in spec.correctness_preflight.paths])
    inputs = {
        "pins": pins.hash,
        "treatment": digest(config_of(spec, arm.advantage)),
        "tolerances": tolerances,
        "tasks": audit.inputs["tasks"],
    }
    return run.enter_stage("correctness", inputs, stage_result)
