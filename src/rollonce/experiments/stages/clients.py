"""Stages on fresh training clients: do all arms start from one policy, and does one small step of each work?"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollonce.experiments.engine import StartPolicy, largest_difference
from rollonce.experiments.files import compute_json_digest
from rollonce.experiments.records import Record
from rollonce.experiments.run import ExperimentRun, StageResult
from rollonce.experiments.stages.executed import compute_arms_digest, find_optimizer_errors, registered_optimizers

IDENTITY_PROMPTS = 4


def compare_fresh_clients(run: ExperimentRun, audit: Record) -> Record:
    """Fresh clients of all arms give the same log-probabilities; those are what each arm's own client is held to."""
    spec, s = run.loaded.spec, run.settings

    def compute_stage_result() -> StageResult:
        if not spec.restoration_preflight.applicable:
            return StageResult(True, {"skipped": "not applicable by the specification"})
        prompts = run.engine.load_experiment_tasks().train.prompts[:IDENTITY_PROMPTS]
        fresh = {arm.name: run.engine.measure_fresh_client(arm, prompts) for arm in spec.arms}
        first = fresh[spec.arms[0].name]
        problems, distances = [], {}
        for name, client in fresh.items():
            distances[name] = largest_difference(client.log_probs, first.log_probs)
            if distances[name] is None or distances[name] > s.restoration_atol:
                problems.append(
                    f"log-probabilities of {name} and {spec.arms[0].name} differ by {distances[name]} (limit "
                    f"{s.restoration_atol:g})"
                )
        for name, wanted in registered_optimizers(run).items():
            asked = fresh[name].asked_for
            odd = [f"{k} {asked[k]} instead of {wanted[k]}" for k in asked if asked[k] != wanted[k]]
            problems += [f"adapters of {name}: {', '.join(odd)}"] if odd else []
        data = {
            "prompts": list(prompts),
            "tokens": sum(map(len, first.log_probs)),
            # records hold JSON, which has no NaN
            "log_probs": [[x if np.isfinite(x) else None for x in row] for row in first.log_probs],
            "largest_difference": distances,
            "atol": s.restoration_atol,
            "asked_for": {name: f.asked_for for name, f in fresh.items()},
            "passed": not problems,
        }
        return StageResult(not problems, data, [], "restoration preflight: " + "; ".join(problems) if problems else "")

    arms = compute_json_digest([(a.name, a.lr, a.seed) for a in spec.arms])
    inputs = {
        "arms": arms,
        "registered": compute_json_digest(spec.restoration_preflight.model_dump()),
        "tasks": audit.inputs["tasks"],
    }
    return run.run_or_reuse_stage(
        "restoration", inputs | {"engine": compute_json_digest(run.engine.describe_identity())}, compute_stage_result
    )


def read_start_policy(run: ExperimentRun, restoration: Record) -> StartPolicy | None:
    data = restoration.data
    if "log_probs" not in data:
        return None
    return StartPolicy(data["prompts"], data["log_probs"], data["atol"])


def probe_every_arm(run: ExperimentRun, restoration: Record) -> Record:
    """``preflight.probe``: one sampled batch, one forward_backward, one optim_step of each arm, before the
    calibration."""
    spec = run.loaded.spec

    def compute_stage_result() -> StageResult:
        tasks, probes, problems = run.engine.load_experiment_tasks().used, {}, []
        for arm in spec.arms:
            # One task in a group; two prompts where groups are of one, so that a baseline over the batch has another.
            probe = run.engine.probe_arm_training(
                arm, [tasks[0]] * arm.group_size if arm.group_size > 1 else list(tasks[:2])
            )
            odd = [k for k in ("loss", "moved", "largest_ratio_error") if not np.isfinite(getattr(probe, k))]
            probes[arm.name] = probe._replace(**dict.fromkeys(odd))._asdict()
            problems += [f"{arm.name}: {k} of its first step is not finite" for k in odd]
            problems += [
                f"{arm.name}: {p}" for p in find_optimizer_errors(run, arm.name, _wrap_values_in_lists(probe.optimizer))
            ]
            run.report_progress(f"probe {arm.name}", "batches", 1, 1)
        said = "probe: " + "; ".join(problems) if problems else ""
        return StageResult(not problems, {"probes": probes}, [], said)

    return run.run_or_reuse_stage(
        "probe", {"restoration": restoration.hash, "arms": compute_arms_digest(run)}, compute_stage_result
    )


def _wrap_values_in_lists(values: dict[str, Any]) -> dict[str, list[Any]]:
    return {k: [v] for k, v in values.items()}
