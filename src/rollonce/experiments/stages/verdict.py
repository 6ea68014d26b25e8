"""Evaluation of the arms' checkpoints, and the decision."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollonce.experiments.decision import decide_verdict
from rollonce.experiments.derive import resolve_role_name
from rollonce.experiments.evaluate import UNANSWERED, evaluate_items, read_row_grades
from rollonce.experiments.feasibility import describe_budget_overrun
from rollonce.experiments.files import compute_json_digest, read_finished_lines
from rollonce.experiments.records import Record
from rollonce.experiments.run import ExperimentRun, StageResult
from rollonce.experiments.stages.executed import absolute_checkpoint, sum_recorded_tokens


def select_best_arms(run: ExperimentRun, arms: dict[str, Record]) -> dict[str, str] | None:
    """Arm -> its group, of the one arm of each group that answers most hold-out tasks; None where none are chosen.

    Equal ones: the lower learning rate.
    """
    spec, s = run.loaded.spec, run.settings
    selection = spec.rollonce.selection
    if selection is None:
        return None

    def compute_stage_result() -> StageResult:
        tasks, accuracy, files = run.engine.load_experiment_tasks().selection, {}, []
        for name, record in arms.items():
            rows = ask_items_of_arm(run, name, record, tasks, f"selection/{name}.jsonl")
            accuracy[name] = float(np.nan_to_num(read_row_grades(rows)).mean())
            files.append(f"selection/{name}.jsonl")
        best = lambda names: min(names, key=lambda n: (-accuracy[n], spec.find_arm_by_name(n).lr))  # noqa: E731
        chosen = {best(names): group for group, names in selection.groups.items()}
        return StageResult(True, {"accuracy": accuracy, "chosen": chosen, "items": len(tasks)}, files)

    inputs = {name: record.hash for name, record in arms.items()} | {"items": s.selection_tasks}
    return run.run_or_reuse_stage("selection", inputs, compute_stage_result).data["chosen"]


def ask_items_of_arm(run: ExperimentRun, name: str, arm: Record, tasks: Any, file: str) -> list[dict[str, Any]]:
    for kept in arm.files:
        run.chain.verify_record_file(arm, kept)
    return evaluate_items(
        run.engine,
        absolute_checkpoint(run, arm.data["checkpoint"]),
        tasks,
        ledger=run.ledger,
        name=file,
        item_seconds=run.settings.item_seconds,
        item_tries=run.settings.item_tries,
        progress=run.make_progress_reporter(f"{file.partition('/')[0]} {name}"),
    )


def evaluate_trained_arm(run: ExperimentRun, name: str, arm: Record) -> Record:
    tasks, s = run.engine.load_experiment_tasks().test, run.settings
    file = f"evaluation/{name}.jsonl"

    def compute_stage_result() -> StageResult:
        rows = ask_items_of_arm(run, name, arm, tasks, file)
        lost = [r["task_id"] for r in rows if r["failure"] == UNANSWERED]
        data = {
            "items": len(rows),
            "accuracy": float(np.nanmean(read_row_grades(rows))),
            "truncated": float(np.mean([r["truncated"] for r in rows])),
            "mean_tokens": float(np.mean([r["tokens"] for r in rows])),
            "response_tokens": sum(r["tokens"] for r in rows),
            "prompt_tokens": sum(r["prompt_tokens"] for r in rows),
            "unanswered": lost,
            "grader_failures": sum(bool(r["failure"]) and r["failure"] not in ("truncated", UNANSWERED) for r in rows),
        }
        if lost:
            data["deviations"] = [
                f"{len(lost)} evaluation items of {name} were not answered in {s.item_tries} tries of "
                f"{s.item_seconds:g} s each ({lost[0]} first); they count neither as right nor as wrong: the interval "
                "holds whatever they would have been"
            ]
        return StageResult(True, data, [file])

    inputs = {"arm": arm.hash, "items": len(tasks), "seconds": s.item_seconds, "tries": s.item_tries}
    return run.run_or_reuse_stage(f"evaluation:{name}", inputs, compute_stage_result)


def reach_final_decision(run: ExperimentRun, graded: dict[str, Record], chosen: dict[str, str] | None) -> Record:
    spec, s = run.loaded.spec, run.settings
    tasks = run.engine.load_experiment_tasks().test
    in_group = {group: arm for arm, group in (chosen or {}).items()}

    def compute_stage_result() -> StageResult:
        grades = {}
        for key in {key for c in spec.decision_rule.criteria for key in c.weights}:
            name = resolve_role_name(s, key)
            name = in_group.get(name, name)
            file = run.chain.verify_record_file(graded[name], f"evaluation/{name}.jsonl")
            rows = {r["task_id"]: r for r in read_finished_lines(file)}
            grades[key] = read_row_grades([rows[t.id] for t in tasks])
        found = decide_verdict(spec.decision_rule, grades).to_dict()
        run.ledger.count_elapsed_time(run.stage)
        seconds = run.ledger.seconds
        found["used"] = {"seconds": seconds, "gpu_hours": seconds / 3600 * s.declared_gpus, **sum_recorded_tokens(run)}
        problem = describe_budget_overrun(seconds, s.declared_gpus, spec.budget)
        found["deviations"] = [f"the run went over its budget: {problem}"] if problem else []
        return StageResult(True, found)

    inputs = {name: r.hash for name, r in graded.items()} | {
        "rule": compute_json_digest(spec.decision_rule.model_dump())
    }
    return run.run_or_reuse_stage("decision", inputs, compute_stage_result)
