"""The timing pilot, the projection from it, and the arms."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rollonce.experiments.derive import find_arm_in_role
from rollonce.experiments.engine import TrainedArm
from rollonce.experiments.feasibility import compare_with_budget, project_phase_seconds
from rollonce.experiments.files import compute_json_digest
from rollonce.experiments.records import Record
from rollonce.experiments.run import ExperimentRun, StageResult
from rollonce.experiments.spec import ArmSpec
from rollonce.experiments.stages.clients import read_start_policy
from rollonce.experiments.stages.executed import (
    collect_arm_inputs,
    compute_arms_digest,
    count_step_tokens,
    find_optimizer_errors,
    find_unchecked_start,
    relative_checkpoint,
    write_executed_steps,
)


def time_pilot_training(run: ExperimentRun, gate: Record | None, restoration: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def compute_stage_result() -> StageResult:
        timings, checkpoint, files, problems, tokens = {}, "", [], [], {}
        for arm in spec.arms:
            trained = run.engine.train_or_resume_arm(
                arm,
                s.pilot_steps,
                run.directory / "pilot" / arm.name,
                progress=run.report_progress,
                ledger=run.ledger,
                start=read_start_policy(run, restoration),
            )
            timings[arm.name] = [step.seconds for step in trained.steps]
            tokens[arm.name] = count_step_tokens(trained.steps)
            checkpoint = trained.checkpoint
            files.append(write_executed_steps(run, f"pilot/{arm.name}.steps.jsonl", trained))
            wrong = find_optimizer_errors(run, arm.name, trained.optimizer) + find_unchecked_start(run, trained)
            problems += [f"{arm.name}: {p}" for p in wrong]
        items = run.engine.load_experiment_tasks().test[: s.pilot_eval_items]
        began = time.monotonic()
        for start in range(0, len(items), 64):
            run.engine.answer_greedily(checkpoint, items[start : start + 64])
            run.report_progress("pilot", "items timed", min(start + 64, len(items)), len(items))
        seconds = time.monotonic() - began
        data = {"step_seconds": timings, "eval_items": len(items), "eval_seconds": seconds, "steps": s.pilot_steps}
        data["tokens"] = tokens
        data["note"] = "weights discarded; the pilot's answers were timed and not looked at"
        return StageResult(not problems, data, files, "pilot: " + "; ".join(problems) if problems else "")

    inputs = {
        "arms": compute_arms_digest(run),
        "gate": gate.hash if gate else "",
        "steps": s.pilot_steps,
        "items": s.pilot_eval_items,
    }
    record = run.run_or_reuse_stage("pilot", inputs, compute_stage_result)
    for arm in spec.arms:  # once it is on record: a kill in between must still find them
        run.engine.discard_weights(run.directory / "pilot" / arm.name)
    return record


def project_feasibility(run: ExperimentRun, pilot: Record, online: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def compute_stage_result() -> StageResult:
        n = len(run.engine.load_experiment_tasks().test)
        d = pilot.data
        phases = project_phase_seconds(
            spec.arms, d["step_seconds"], d["eval_seconds"], d["eval_items"], n + s.selection_tasks
        )
        found = compare_with_budget(phases, run.ledger.seconds, s.declared_gpus, spec.budget)
        passed = found["passed"] or not spec.feasibility_required
        problems = "; ".join(found["problems"])
        more = [] if found["passed"] or not passed else [f"feasibility is not required, and it fails: {problems}"]
        said = "" if passed else f"feasibility: {problems}"
        return StageResult(passed, found | {"deviations": found["warnings"] + more}, [], said)

    inputs = {"pilot": pilot.hash, "gate": online.hash, "budget": compute_json_digest(spec.budget.model_dump())}
    return run.run_or_reuse_stage("feasibility", inputs, compute_stage_result)


def train_registered_arm(run: ExperimentRun, arm: ArmSpec, feasible: Record, restoration: Record) -> Record:
    def compute_stage_result() -> StageResult:
        trained = run.engine.train_or_resume_arm(
            arm,
            arm.steps,
            run.directory / "arms" / arm.name,
            progress=run.report_progress,
            ledger=run.ledger,
            start=read_start_policy(run, restoration),
        )
        executed = executed_config(trained, arm, run)
        log = write_executed_steps(run, f"arms/{arm.name}.steps.jsonl", trained)
        rewards = [float(np.mean(s.rewards)) for s in trained.steps]
        data: dict[str, Any] = {
            "checkpoint": relative_checkpoint(run, trained.checkpoint),
            "command": trained.command,
            "executed": executed,
            "tokens": count_step_tokens(trained.steps),
        }
        data |= {
            "training_seconds": sum(s.seconds for s in trained.steps),
            "reward_first": rewards[0],
            "reward_last": rewards[-1],
        }
        data["deviations"] = trained.remarks
        problems = "; ".join(executed["problems"])
        files = [log, *(relative_checkpoint(run, f) for f in trained.files)]
        said = f"arm {arm.name}: executed otherwise than specified: {problems}" if problems else ""
        return StageResult(not problems, data, files, said)

    return run.run_or_reuse_stage(
        f"arm:{arm.name}",
        {"arm": compute_json_digest(collect_arm_inputs(run, arm)), "feasibility": feasible.hash},
        compute_stage_result,
    )


def executed_config(trained: TrainedArm, arm: ArmSpec, run: ExperimentRun) -> dict[str, Any]:
    """What was done, from the logs, against what was specified."""
    steps = trained.steps
    groups = sorted({int(n) for s in steps for n in np.unique(s.task_ids, return_counts=True)[1]})
    rollouts = sorted({len(s.rewards) for s in steps})
    rates = sorted({s.learning_rate for s in steps})
    numbers = [s.step for s in steps]
    weights = [s.self_weight_max for s in steps if s.self_weight_max is not None]
    foreign = {i for s in steps for i in s.task_ids} - {t.id for t in run.engine.load_experiment_tasks().used}
    problems = []
    pairs = (
        (groups, [arm.group_size], "group sizes"),
        (rollouts, [arm.rollouts], "rollouts per step"),
        (rates, [arm.lr], "learning rates"),
    )
    problems += [f"{what} {found} instead of {wanted}" for found, wanted, what in pairs if found != wanted]
    if numbers != list(range(1, arm.steps + 1)):
        problems.append(f"steps {numbers[:1]}..{numbers[-1:]} ({len(numbers)}) instead of 1..{arm.steps}")
    if foreign:
        problems.append(f"{len(foreign)} tasks outside the registered shuffle ({min(foreign)} among them)")
    treated = find_arm_in_role(run.loaded.spec, run.settings, "treatment").advantage
    if arm.advantage == treated and weights and max(weights) > 0:
        problems.append(f"a rollout's own reward had weight {max(weights):g} in its baseline")
    problems += [f"optimizer: {p}" for p in find_optimizer_errors(run, arm.name, trained.optimizer)]
    problems += find_unchecked_start(run, trained)
    return {
        "group_sizes": groups,
        "rollouts_per_step": rollouts,
        "learning_rates": rates,
        "steps": len(steps),
        "self_weight_max": max(weights) if weights else None,
        "optimizer": trained.optimizer,
        "start_difference": trained.start_difference,
        "problems": problems,
    }
