"""The activation gate: calibration rollouts and the kernel's score on them, and the checks on the pilot's logs."""

from __future__ import annotations

import numpy as np

from rollonce.experiments import gates
from rollonce.experiments.advantages import make_advantage_baseline, make_advantage_config
from rollonce.experiments.calibrate import CALIBRATION, sample_calibration_groups
from rollonce.experiments.derive import find_arm_in_role
from rollonce.experiments.files import compute_json_digest, read_finished_lines
from rollonce.experiments.records import Record
from rollonce.experiments.run import ExperimentRun, StageResult
from rollonce.experiments.stages.executed import read_executed_steps


def sample_calibration(run: ExperimentRun, audit: Record, probe: Record) -> Record | None:
    spec, s = run.loaded.spec, run.settings
    offline = any(gates.GATE_METRICS[c.metric] == "offline" for c in spec.activation_gate.checks)
    if not offline or not spec.activation_gate.applicable:
        return None
    tasks = run.engine.load_experiment_tasks().calibration[: s.calibration_tasks]

    def compute_stage_result() -> StageResult:
        if len(tasks) < s.calibration_tasks:
            said = f"calibration: {s.calibration_tasks} tasks registered, {len(tasks)} there are"
            return StageResult(False, {}, [], said)
        found = sample_calibration_groups(
            run.engine,
            tasks,
            group_size=s.calibration_group_size,
            seed=spec.arms[0].seed,
            ledger=run.ledger,
            minutes=s.calibration_minutes,
            progress=run.make_progress_reporter("calibration"),
        )
        data = {
            "tasks": len(tasks),
            "group_size": s.calibration_group_size,
            "mean_reward": float(np.mean([r for g in found.rewards for r in g])),
            "truncated": found.truncated,
            "sampling_seconds": found.seconds,
            "response_tokens": found.response_tokens,
            "prompt_tokens": found.prompt_tokens,
        }
        return StageResult(True, data, [CALIBRATION])

    shape = {
        "tasks": s.calibration_tasks,
        "group_size": s.calibration_group_size,
        "max_tokens": s.max_tokens,
        "minutes": s.calibration_minutes,
    }
    inputs = {
        "shape": compute_json_digest(shape),
        "tasks": audit.inputs["tasks"],
        "engine": compute_json_digest(run.engine.describe_identity()),
    }
    return run.run_or_reuse_stage("calibration", inputs, compute_stage_result)


def score_gate_offline(run: ExperimentRun, calibration: Record | None) -> Record | None:
    spec, s = run.loaded.spec, run.settings
    if calibration is None:
        return None
    arm = find_arm_in_role(spec, s, "treatment")

    def compute_stage_result() -> StageResult:
        rows = list(read_finished_lines(run.chain.verify_record_file(calibration, CALIBRATION)))
        train = run.engine.load_experiment_tasks().train.prompts
        baseline = make_advantage_baseline(spec, arm.advantage).fit(train)
        prompts, rewards = [r["prompt"] for r in rows], [r["rewards"] for r in rows]
        score = gates.compute_offline_score(
            baseline, arm.advantage, prompts, rewards, train, batch_size=spec.batch_size
        )
        checks = gates.check_activation_gate(
            spec.activation_gate.checks, "offline", gates.collect_offline_measures(score)
        )
        data = {"advantage": arm.advantage, "score": score.to_dict(), "checks": [c._asdict() for c in checks]}
        bad = [c for c in checks if not c.passed]
        if not bad:
            return StageResult(True, data)
        said = f"activation gate, offline: {'; '.join(c.sentence for c in bad)}" + (
            f" ({score.note})" if score.note else ""
        )
        left = ", ".join(f for f in s.fallbacks if f != arm.advantage)
        ways = f"; the only way on is the pre-approved fallback ({left}) as a revised specification" if left else ""
        return StageResult(False, data, [], said + ways)

    treatment = compute_json_digest(make_advantage_config(spec, arm.advantage))
    checks = compute_json_digest([c.model_dump() for c in spec.activation_gate.checks])
    return run.run_or_reuse_stage(
        "gate_offline",
        {"calibration": calibration.hash, "treatment": treatment, "checks": checks},
        compute_stage_result,
    )


def check_gate_online(run: ExperimentRun, pilot: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def compute_stage_result() -> StageResult:
        if not spec.activation_gate.applicable:
            return StageResult(True, {"skipped": "not applicable by the specification", "checks": []})
        logs = {
            a.name: read_executed_steps(run.chain.verify_record_file(pilot, f"pilot/{a.name}.steps.jsonl"))
            for a in spec.arms
        }
        # The gate speaks of two arms, "each arm" of all of them.
        baseline, treated = (find_arm_in_role(spec, s, role).name for role in ("baseline", "treatment"))
        measured = gates.collect_pilot_measures(logs[treated], logs, baseline, treated)
        checks = gates.check_activation_gate(spec.activation_gate.checks, "pilot", measured)
        bad = "; ".join(c.sentence for c in checks if not c.passed)
        data = {"measured": measured, "checks": [c._asdict() for c in checks]}
        said = f"activation gate, pilot: {bad}; there is no fallback for this part" if bad else ""
        return StageResult(not bad, data, [], said)

    checks = compute_json_digest([c.model_dump() for c in spec.activation_gate.checks])
    return run.run_or_reuse_stage("gate_online", {"pilot": pilot.hash, "checks": checks}, compute_stage_result)
