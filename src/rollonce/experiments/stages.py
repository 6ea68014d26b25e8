"""The stages in their order, from pins to verdict. Each is a function of the run so far; `run_experiment` walks
them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollonce.errors import InputError
from rollonce.experiments import gates
from rollonce.experiments.advantages import TOKEN_CRITIC, baseline_of, config_of
from rollonce.experiments.audit import audit_tasks
from rollonce.experiments.calibrate import calibrate
from rollonce.experiments.decision import decide
from rollonce.experiments.derive import role
from rollonce.experiments.engine import StepLog, Trained
from rollonce.experiments.evaluate import TOO_SLOW, evaluate_items, grades_of
from rollonce.experiments.feasibility import judge, project
from rollonce.experiments.files import canonical, digest, read_lines, write_whole
from rollonce.experiments.pins import resolve
from rollonce.experiments.preflight import run_preflight
from rollonce.experiments.records import Record
from rollonce.experiments.run import Finding, Run, Stopped
from rollonce.experiments.spec import ArmSpec

CALIBRATION = "calibration.jsonl"


class Outcome(NamedTuple):
    """How it ended: exit code 0 with a verdict, 1 with a stage that failed; the sentence; the stage that said it."""

    code: int
    sentence: str
    stage: str


def run_experiment(run: Run) -> Outcome:
    """Walk the stages, from wherever the directory's records say.

    Raises:
        InputError: something that the user has to mend; the run goes on from there afterwards.
    """
    try:
        pins = _pins(run)
        audit = _audit(run, pins)
        _correctness(run, pins, audit)
        _restoration(run, audit)
        gate = _gate_offline(run, _calibration(run, audit))
        pilots = _pilots(run, gate)
        online = _gate_online(run, pilots)
        feasible = _feasibility(run, pilots, online)
        arms = {arm.name: _arm(run, arm, feasible) for arm in run.loaded.spec.arms}
        graded = {name: _evaluation(run, name, record) for name, record in arms.items()}
        decision = _decision(run, graded)
    except Stopped as stop:
        return Outcome(1, str(stop), stop.record.stage)
    return Outcome(0, decision.data["sentence"], "decision")


def _pins(run: Run) -> Record:
    found = resolve(run.loaded, run.settings)
    if found.open:
        lines = "\n  ".join(f"{path}: {why}" for path, why in found.open.items())
        raise InputError(f"no full run starts while a field is unresolved:\n  {lines}", file=run.loaded.path)

    def body() -> Finding:
        named = [f"{path} pinned at run time" for path in run.loaded.unresolved]
        return Finding(True, {"resolved": found.resolved, "identity": run.engine.identity(), "deviations": named})

    return run.enter("pins", {"pins": digest(found.resolved), "engine": digest(run.engine.identity())}, body)


def _audit(run: Run, pins: Record) -> Record:
    spec, s = run.loaded.spec, run.settings
    tasks = run.engine.tasks()

    def body() -> Finding:
        found = audit_tasks(tasks, spec.generation_audit, spec.eval)
        if s.dense_reward:
            found["deviations"].append(
                "dense_reward: the reward is one that a random model earns; the verdict means nothing"
            )
        return Finding(
            found["passed"], found, [], "data audit: " + "; ".join(found["problems"]) if found["problems"] else ""
        )

    from rollonce.experiments.audit import tasks_digest

    sets = {k: tasks_digest(getattr(tasks, k)) for k in ("train", "used", "calibration", "test")}
    return run.enter("data_audit", {"tasks": digest(sets), "limits": digest(spec.generation_audit.model_dump())}, body)


def _correctness(run: Run, pins: Record, audit: Record) -> Record:
    spec, arm = run.loaded.spec, run.loaded.spec.arm(run.settings.treatment)

    def body() -> Finding:
        if not spec.correctness_preflight.required:
            return Finding(
                True,
                {
                    "skipped": "not required by the specification",
                    "deviations": ["correctness preflight not required: skipped"],
                },
            )
        if arm.advantage == TOKEN_CRITIC:
            return Finding(
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
        return Finding(found["passed"], found, [], "correctness preflight: " + "; ".join(bad) if bad else "")

    tolerances = digest([p.model_dump() for p in spec.correctness_preflight.paths])
    inputs = {
        "pins": pins.hash,
        "treatment": digest(config_of(spec, arm.advantage)),
        "tolerances": tolerances,
        "tasks": audit.inputs["tasks"],
    }
    return run.enter("correctness", inputs, body)


def _restoration(run: Run, audit: Record) -> Record:
    spec, s = run.loaded.spec, run.settings
    registered = {a.name: a for g in spec.restoration_preflight.groups for a in g.arms}

    def body() -> Finding:
        if not spec.restoration_preflight.applicable:
            return Finding(True, {"skipped": "not applicable by the specification"})
        prompts = run.engine.tasks().train.prompts[:4]
        fresh = {arm.name: run.engine.fresh(arm, prompts) for arm in spec.arms}
        first = next(iter(fresh.values()))
        flat = {name: np.array([x for row in f.log_probs for x in row]) for name, f in fresh.items()}
        problems, distances = [], {}
        for name, values in flat.items():
            base = flat[spec.arms[0].name]
            same = values.shape == base.shape and bool(np.isfinite(values).all())
            distances[name] = float(np.abs(values - base).max(initial=0.0)) if same else None
            if not same or (distances[name] or 0.0) > s.restoration_atol:
                problems.append(
                    f"log-probabilities of {name} and {spec.arms[0].name} differ by {distances[name]} (limit "
                    f"{s.restoration_atol:g})"
                )
        for name, arm in registered.items():
            sent, wanted = fresh[name].optimizer, arm.optimizer_config.model_dump()
            odd = [f"{k} {sent.get(k)} instead of {wanted[k]}" for k in wanted if sent.get(k) != wanted[k]]
            problems += [f"optimizer of {name}: {', '.join(odd)}"] if odd else []
        data = {
            "prompts": len(prompts),
            "tokens": sum(map(len, first.log_probs)),
            "largest_difference": distances,
            "atol": s.restoration_atol,
            "optimizers": {name: f.optimizer for name, f in fresh.items()},
            "passed": not problems,
        }
        return Finding(not problems, data, [], "restoration preflight: " + "; ".join(problems) if problems else "")

    arms = digest([(a.name, a.lr, a.seed) for a in spec.arms])
    inputs = {
        "arms": arms,
        "registered": digest(spec.restoration_preflight.model_dump()),
        "tasks": audit.inputs["tasks"],
    }
    return run.enter("restoration", inputs | {"engine": digest(run.engine.identity())}, body)


def _calibration(run: Run, audit: Record) -> Record | None:
    spec, s = run.loaded.spec, run.settings
    if (
        not any(gates.GATE_METRICS[c.metric] == "offline" for c in spec.activation_gate.checks)
        or not spec.activation_gate.applicable
    ):
        return None
    tasks = run.engine.tasks().calibration[: s.calibration_tasks]

    def body() -> Finding:
        if len(tasks) < s.calibration_tasks:
            return Finding(
                False, {}, [], f"calibration: {s.calibration_tasks} tasks registered, {len(tasks)} there are"
            )
        tell = lambda done, total: run.tell("calibration", "tasks", done, total)  # noqa: E731
        file = run.directory / CALIBRATION
        found = calibrate(
            run.engine, tasks, s.calibration_group_size, spec.arms[0].seed, file, s.calibration_minutes, tell
        )
        data = {
            "tasks": len(tasks),
            "group_size": s.calibration_group_size,
            "mean_reward": float(np.mean([r for g in found.rewards for r in g])),
            "truncated": found.truncated,
            "sampling_seconds": found.seconds,
        }
        return Finding(True, data, [CALIBRATION])

    shape = {
        "tasks": s.calibration_tasks,
        "group_size": s.calibration_group_size,
        "max_tokens": s.max_tokens,
        "minutes": s.calibration_minutes,
    }
    inputs = {"shape": digest(shape), "tasks": audit.inputs["tasks"], "engine": digest(run.engine.identity())}
    return run.enter("calibration", inputs, body)


def _gate_offline(run: Run, calibration: Record | None) -> Record | None:
    spec, s = run.loaded.spec, run.settings
    if calibration is None:
        return None
    arm = spec.arm(s.treatment)

    def body() -> Finding:
        rows = list(read_lines(run.directory / CALIBRATION))
        train = run.engine.tasks().train.prompts
        baseline = baseline_of(spec, arm.advantage).fit(train)
        prompts, rewards = [r["prompt"] for r in rows], [r["rewards"] for r in rows]
        score = gates.offline_score(baseline, arm.advantage, prompts, rewards, train, batch_size=spec.batch_size)
        checks = gates.check(spec.activation_gate.checks, "offline", gates.offline_measured(score))
        data = {"advantage": arm.advantage, "score": score.to_dict(), "checks": [c._asdict() for c in checks]}
        bad = [c for c in checks if not c.passed]
        if not bad:
            return Finding(True, data)
        said = f"activation gate, offline: {'; '.join(c.sentence for c in bad)}" + (
            f" ({score.note})" if score.note else ""
        )
        left = [f for f in s.fallbacks if f != arm.advantage]
        ways = (
            f"; the only way on is the pre-approved fallback ({', '.join(left)}) as a revised specification"
            if left
            else ""
        )
        return Finding(False, data, [], said + ways)

    treatment = digest(config_of(spec, arm.advantage))
    checks = digest([c.model_dump() for c in spec.activation_gate.checks])
    return run.enter("gate_offline", {"calibration": calibration.hash, "treatment": treatment, "checks": checks}, body)


def _pilots(run: Run, gate: Record | None) -> Record:
    spec, s = run.loaded.spec, run.settings

    def body() -> Finding:
        timings, checkpoint, files = {}, "", []
        for arm in spec.arms:
            directory = run.directory / "pilot" / arm.name
            trained = run.engine.train(arm, s.pilot_steps, directory, _teller(run, f"pilot {arm.name}"))
            timings[arm.name] = [step.seconds for step in trained.steps]
            checkpoint = trained.checkpoint
            files.append(_keep_steps(run, f"pilot/{arm.name}.steps.jsonl", trained))
        items = run.engine.tasks().test[: s.pilot_eval_items]
        began = time.monotonic()
        for start in range(0, len(items), 64):
            run.engine.answer(checkpoint, items[start : start + 64])
        seconds = time.monotonic() - began
        data = {"step_seconds": timings, "eval_items": len(items), "eval_seconds": seconds, "steps": s.pilot_steps}
        data["note"] = "weights discarded; the pilot's answers were timed and not looked at"
        return Finding(True, data, files)

    inputs = {
        "arms": _arms_digest(run),
        "gate": gate.hash if gate else "",
        "steps": s.pilot_steps,
        "items": s.pilot_eval_items,
    }
    record = run.enter("pilot", inputs, body)
    for arm in spec.arms:  # once it is on record: a kill in between must still find them
        run.engine.discard(run.directory / "pilot" / arm.name)
    return record


def _gate_online(run: Run, pilot: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def body() -> Finding:
        if not spec.activation_gate.applicable:
            return Finding(True, {"skipped": "not applicable by the specification", "checks": []})
        logs = {arm.name: load_steps(run.directory / f"pilot/{arm.name}.steps.jsonl") for arm in spec.arms}
        # The gate speaks of two arms, "each arm" of all of them.
        measured = gates.pilot_measured(logs[s.treatment], logs, s.baseline, s.treatment)
        checks = gates.check(spec.activation_gate.checks, "pilot", measured)
        bad = "; ".join(c.sentence for c in checks if not c.passed)
        data = {"measured": measured, "checks": [c._asdict() for c in checks]}
        return Finding(
            not bad, data, [], f"activation gate, pilot: {bad}; there is no fallback for this part" if bad else ""
        )

    checks = digest([c.model_dump() for c in spec.activation_gate.checks])
    return run.enter("gate_online", {"pilot": pilot.hash, "checks": checks}, body)


def _feasibility(run: Run, pilot: Record, online: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def body() -> Finding:
        n = len(run.engine.tasks().test)
        phases = project(spec.arms, pilot.data["step_seconds"], pilot.data["eval_seconds"], pilot.data["eval_items"], n)
        spent = sum(r.seconds for r in run.chain.records)
        found = judge(phases, spent, s.declared_gpus, spec.budget)
        sentence = "feasibility: " + "; ".join(found["problems"]) if found["problems"] else ""
        return Finding(found["passed"], found | {"deviations": found["warnings"]}, [], sentence)

    return run.enter(
        "feasibility", {"pilot": pilot.hash, "gate": online.hash, "budget": digest(spec.budget.model_dump())}, body
    )


def _arm(run: Run, arm: ArmSpec, feasible: Record) -> Record:
    def body() -> Finding:
        trained = run.engine.train(arm, arm.steps, run.directory / "arms" / arm.name, _teller(run, arm.name))
        executed = executed_config(trained.steps, arm, run)
        log = _keep_steps(run, f"arms/{arm.name}.steps.jsonl", trained)
        rewards = [float(np.mean(s.rewards)) for s in trained.steps]
        data: dict[str, Any] = {
            "checkpoint": _relative(run, trained.checkpoint),
            "command": trained.command,
            "executed": executed,
        }
        data |= {
            "training_seconds": sum(s.seconds for s in trained.steps),
            "reward_first": rewards[0],
            "reward_last": rewards[-1],
        }
        data["deviations"] = trained.remarks
        problems = executed["problems"]
        return Finding(
            not problems,
            data,
            [log],
            f"arm {arm.name}: executed otherwise than specified: {'; '.join(problems)}" if problems else "",
        )

    return run.enter(f"arm:{arm.name}", {"arm": digest(_arm_of(run, arm)), "feasibility": feasible.hash}, body)


def executed_config(steps: list[StepLog], arm: ArmSpec, run: Run) -> dict[str, Any]:
    """What was done, from the logs, against what was specified."""
    groups = sorted({int(n) for s in steps for n in np.unique(s.task_ids, return_counts=True)[1]})
    rollouts = sorted({len(s.rewards) for s in steps})
    rates = sorted({s.learning_rate for s in steps})
    numbers = [s.step for s in steps]
    weights = [s.self_weight_max for s in steps if s.self_weight_max is not None]
    foreign = {i for s in steps for i in s.task_ids} - {t.id for t in run.engine.tasks().used}
    problems = []
    pairs = (
        (groups, [arm.group_size], "group sizes"),
        (rollouts, [arm.rollouts], "rollouts a step"),
        (rates, [arm.lr], "learning rates"),
    )
    problems += [f"{what} {found} instead of {wanted}" for found, wanted, what in pairs if found != wanted]
    if numbers != list(range(1, arm.steps + 1)):
        problems.append(f"steps {numbers[:1]}..{numbers[-1:]} ({len(numbers)}) instead of 1..{arm.steps}")
    if foreign:
        problems.append(f"{len(foreign)} tasks outside the registered shuffle ({min(foreign)} among them)")
    if arm.name == run.settings.treatment and weights and max(weights) > 0:
        problems.append(f"a rollout's own reward had weight {max(weights):g} in its baseline")
    return {
        "group_sizes": groups,
        "rollouts_per_step": rollouts,
        "learning_rates": rates,
        "steps": len(steps),
        "self_weight_max": max(weights) if weights else None,
        "problems": problems,
    }


def _evaluation(run: Run, name: str, arm: Record) -> Record:
    tasks = run.engine.tasks().test
    file = f"evaluation/{name}.jsonl"

    def body() -> Finding:
        tell = lambda done, total: run.tell(f"evaluation {name}", "items", done, total)  # noqa: E731
        checkpoint = _absolute(run, arm.data["checkpoint"])
        rows = evaluate_items(run.engine, checkpoint, tasks, run.directory / file, run.settings.item_seconds, tell)
        slow = [r["task_id"] for r in rows if r["failure"] == TOO_SLOW]
        data = {
            "items": len(rows),
            "accuracy": float(grades_of(rows).mean()),
            "truncated": float(np.mean([r["truncated"] for r in rows])),
            "mean_tokens": float(np.mean([r["tokens"] for r in rows])),
            "over_time_limit": slow,
            "grader_failures": sum(bool(r["failure"]) and r["failure"] not in ("truncated", TOO_SLOW) for r in rows),
        }
        if slow:
            limit = f"{run.settings.item_seconds:g} s"
            data["deviations"] = [
                f"{len(slow)} evaluation items of {name} took over {limit} and count as wrong ({slow[0]} first)"
            ]
        return Finding(True, data, [file])

    return run.enter(
        f"evaluation:{name}", {"arm": arm.hash, "items": len(tasks), "seconds": run.settings.item_seconds}, body
    )


def _decision(run: Run, graded: dict[str, Record]) -> Record:
    spec = run.loaded.spec
    tasks = run.engine.tasks().test

    def body() -> Finding:
        keys = {key for c in spec.decision_rule.criteria for key in c.weights}
        grades = {}
        for key in keys:
            rows = {r["task_id"]: r for r in read_lines(run.directory / f"evaluation/{role(run.settings, key)}.jsonl")}
            grades[key] = grades_of([rows[t.id] for t in tasks])
        found = decide(spec.decision_rule, grades).to_dict()
        spent = sum(r.seconds for r in run.chain.records)
        over = judge([], spent, run.settings.declared_gpus, spec.budget)["problems"]
        found["deviations"] = [
            f"the run went over its budget: {problem.replace(' expected', ' spent')}" for problem in over
        ]
        return Finding(True, found)

    return run.enter(
        "decision",
        {name: r.hash for name, r in graded.items()} | {"rule": digest(spec.decision_rule.model_dump())},
        body,
    )


def _keep_steps(run: Run, name: str, trained: Trained) -> str:
    """The executed steps as one file of the record."""
    write_whole(run.directory / name, b"".join(canonical(step._asdict()) + b"\n" for step in trained.steps))
    return name


def load_steps(path: Path) -> list[StepLog]:
    """What `_keep_steps` wrote."""
    return [StepLog(**row) for row in read_lines(path)]


def _arm_of(run: Run, arm: ArmSpec) -> dict[str, Any]:
    spec, s = run.loaded.spec, run.settings
    shared = {
        "policy": s.policy,
        "lora_rank": spec.lora_rank,
        "max_tokens": s.max_tokens,
        "training": spec.rollonce.training,
    }
    return (
        arm.model_dump()
        | shared
        | {"config": config_of(spec, arm.advantage), "own": spec.rollonce.arm_training.get(arm.name, {})}
    )


def _arms_digest(run: Run) -> str:
    return digest([_arm_of(run, a) for a in run.loaded.spec.arms])


def _teller(run: Run, name: str) -> Callable[[str, int, int], None]:
    return lambda what, done, total: run.tell(name, "steps", done, total)


def _relative(run: Run, checkpoint: str) -> str:
    """A path within the run's directory from there, so that the directory can be moved; a service's address as it
    is."""
    path = Path(checkpoint)
    return path.relative_to(run.directory).as_posix() if path.is_relative_to(run.directory) else checkpoint


def _absolute(run: Run, checkpoint: str) -> str:
    path = run.directory / checkpoint
    return str(path) if path.exists() else checkpoint
