"""The stages in their order, from pins to verdict. Each is a function of the run so far; `run_experiment` walks
them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollonce.errors import InputError
from rollonce.experiments import gates
from rollonce.experiments.advantages import TOKEN_CRITIC, baseline_of, config_of
from rollonce.experiments.audit import audit_tasks, tasks_digest
from rollonce.experiments.calibrate import CALIBRATION, calibrate
from rollonce.experiments.decision import decide
from rollonce.experiments.derive import arm_in_role, role_name
from rollonce.experiments.engine import StartPolicy, StepLog, TrainedArm, largest_difference
from rollonce.experiments.evaluate import UNANSWERED, evaluate_items, grades_of
from rollonce.experiments.feasibility import against_budget, over_budget, project_phases
from rollonce.experiments.files import canonical, digest, read_lines
from rollonce.experiments.pins import resolve
from rollonce.experiments.preflight import run_preflight
from rollonce.experiments.records import Record
from rollonce.experiments.run import ExperimentRun, StageResult, Stopped
from rollonce.experiments.spec import ArmSpec
from rollonce.files import write_whole_file

IDENTITY_PROMPTS = 4


class RunOutcome(NamedTuple):
    """How it ended: exit code 0 with a verdict, 1 with a stage that failed; the sentence; the stage that said it."""

    code: int
    sentence: str
    stage: str


def run_experiment(run: ExperimentRun) -> RunOutcome:
    """Walk the stages, from wherever the directory's records say.

    Raises:
        InputError: something that the user has to mend; the run goes on from there afterwards.
    """
    try:
        pins = _pins(run)
        audit = _audit(run)
        _correctness(run, pins, audit)
        restoration = _restoration(run, audit)
        probe = _probe(run, restoration)
        gate = _gate_offline(run, _calibration(run, audit, probe))
        pilots = _pilots(run, gate, restoration)
        online = _gate_online(run, pilots)
        feasible = _feasibility(run, pilots, online)
        arms = {arm.name: _arm(run, arm, feasible, restoration) for arm in run.loaded.spec.arms}
        chosen = _selection(run, arms)
        graded = {name: _evaluation(run, name, arms[name]) for name in (chosen or arms)}
        decision = _decision(run, graded, chosen)
    except Stopped as stop:
        return RunOutcome(1, str(stop), stop.record.stage)
    return RunOutcome(0, decision.data["sentence"], "decision")


def _pins(run: ExperimentRun) -> Record:
    found = resolve(run.loaded, run.settings)
    if found.open:
        lines = "\n  ".join(f"{path}: {why}" for path, why in found.open.items())
        raise InputError(f"no full run starts while a field is unresolved:\n  {lines}", file=run.loaded.path)

    def body() -> StageResult:
        named = [f"{path} pinned at run time" for path in run.loaded.unresolved]
        return StageResult(True, {"resolved": found.resolved, "identity": run.engine.identity(), "deviations": named})

    # A commit is known in a checkout alone; the hash over the files says the same wherever they lie.
    pinned = {path: {k: v for k, v in pin.items() if k != "commit"} for path, pin in found.resolved.items()}
    return run.enter("pins", {"pins": digest(pinned), "engine": digest(run.engine.identity())}, body)


def _audit(run: ExperimentRun) -> Record:
    spec, s = run.loaded.spec, run.settings
    tasks = run.engine.tasks()

    def body() -> StageResult:
        found = audit_tasks(tasks, spec, max_tokens=s.max_tokens, prompt_lengths=run.engine.prompt_lengths)
        if s.dense_reward:
            found["deviations"].append(
                "dense_reward: the reward is one that a random model earns; the verdict means nothing"
            )
        bad = "; ".join(found["problems"])
        return StageResult(found["passed"], found, [], f"data audit: {bad}" if bad else "")

    sets = {k: tasks_digest(getattr(tasks, k)) for k in ("train", "used", "calibration", "selection", "test")}
    inputs = {"tasks": digest(sets), "limits": digest(spec.generation_audit.model_dump()), "max_tokens": s.max_tokens}
    return run.enter("data_audit", inputs | {"engine": digest(run.engine.identity())}, body)


def _correctness(run: ExperimentRun, pins: Record, audit: Record) -> Record:
    spec, arm = run.loaded.spec, arm_in_role(run.loaded.spec, run.settings, "treatment")

    def body() -> StageResult:
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
    return run.enter("correctness", inputs, body)


def _restoration(run: ExperimentRun, audit: Record) -> Record:
    """Fresh clients of all arms give the same log-probabilities; those are what each arm's own client is held to."""
    spec, s = run.loaded.spec, run.settings

    def body() -> StageResult:
        if not spec.restoration_preflight.applicable:
            return StageResult(True, {"skipped": "not applicable by the specification"})
        prompts = run.engine.tasks().train.prompts[:IDENTITY_PROMPTS]
        fresh = {arm.name: run.engine.fresh(arm, prompts) for arm in spec.arms}
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
            "log_probs": first.log_probs,
            "largest_difference": distances,
            "atol": s.restoration_atol,
            "asked_for": {name: f.asked_for for name, f in fresh.items()},
            "passed": not problems,
        }
        return StageResult(not problems, data, [], "restoration preflight: " + "; ".join(problems) if problems else "")

    arms = digest([(a.name, a.lr, a.seed) for a in spec.arms])
    inputs = {
        "arms": arms,
        "registered": digest(spec.restoration_preflight.model_dump()),
        "tasks": audit.inputs["tasks"],
    }
    return run.enter("restoration", inputs | {"engine": digest(run.engine.identity())}, body)


def registered_optimizers(run: ExperimentRun) -> dict[str, dict[str, Any]]:
    """What the specification says of each arm's optimizer, by the arm's name."""
    groups = run.loaded.spec.restoration_preflight.groups
    return {a.name: a.optimizer_config.model_dump() for g in groups for a in g.arms}


def wrong_optimizer(run: ExperimentRun, name: str, seen: dict[str, list[Any]]) -> list[str]:
    """Every parameter that an arm's optimizer was given and that is not the registered one."""
    wanted = registered_optimizers(run).get(name, {})
    return [f"{k} {seen[k]} instead of {wanted[k]}" for k in seen if k in wanted and seen[k] != [wanted[k]]]


def _start_policy(run: ExperimentRun, restoration: Record) -> StartPolicy | None:
    data = restoration.data
    if "log_probs" not in data:
        return None
    return StartPolicy(data["prompts"], data["log_probs"], data["atol"])


def _probe(run: ExperimentRun, restoration: Record) -> Record:
    """``preflight.probe``: one sampled batch, one forward_backward, one optim_step of each arm, before the
    calibration."""
    spec = run.loaded.spec

    def body() -> StageResult:
        tasks, probes, problems = run.engine.tasks().used, {}, []
        for arm in spec.arms:
            # One task in a group; two prompts where groups are of one, so that a baseline over the batch has another.
            probe = run.engine.probe(arm, [tasks[0]] * arm.group_size if arm.group_size > 1 else list(tasks[:2]))
            probes[arm.name] = probe._asdict()
            if not np.isfinite([probe.loss, probe.moved, probe.largest_ratio_error]).all():
                problems.append(f"{arm.name}: a number of its first step is not finite")
            problems += [f"{arm.name}: {p}" for p in wrong_optimizer(run, arm.name, _each(probe.optimizer))]
            run.progress(f"probe {arm.name}", "batches", 1, 1)
        said = "probe: " + "; ".join(problems) if problems else ""
        return StageResult(not problems, {"probes": probes}, [], said)

    return run.enter("probe", {"restoration": restoration.hash, "arms": _arms_digest(run)}, body)


def _each(values: dict[str, Any]) -> dict[str, list[Any]]:
    return {k: [v] for k, v in values.items()}


def _calibration(run: ExperimentRun, audit: Record, probe: Record) -> Record | None:
    spec, s = run.loaded.spec, run.settings
    offline = any(gates.GATE_METRICS[c.metric] == "offline" for c in spec.activation_gate.checks)
    if not offline or not spec.activation_gate.applicable:
        return None
    tasks = run.engine.tasks().calibration[: s.calibration_tasks]

    def body() -> StageResult:
        if len(tasks) < s.calibration_tasks:
            said = f"calibration: {s.calibration_tasks} tasks registered, {len(tasks)} there are"
            return StageResult(False, {}, [], said)
        found = calibrate(
            run.engine,
            tasks,
            group_size=s.calibration_group_size,
            seed=spec.arms[0].seed,
            ledger=run.ledger,
            minutes=s.calibration_minutes,
            progress=run.progress_of("calibration"),
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
    inputs = {"shape": digest(shape), "tasks": audit.inputs["tasks"], "engine": digest(run.engine.identity())}
    return run.enter("calibration", inputs, body)


def _gate_offline(run: ExperimentRun, calibration: Record | None) -> Record | None:
    spec, s = run.loaded.spec, run.settings
    if calibration is None:
        return None
    arm = arm_in_role(spec, s, "treatment")

    def body() -> StageResult:
        rows = list(read_lines(run.chain.verified(calibration, CALIBRATION)))
        train = run.engine.tasks().train.prompts
        baseline = baseline_of(spec, arm.advantage).fit(train)
        prompts, rewards = [r["prompt"] for r in rows], [r["rewards"] for r in rows]
        score = gates.offline_score(baseline, arm.advantage, prompts, rewards, train, batch_size=spec.batch_size)
        checks = gates.check_gate(spec.activation_gate.checks, "offline", gates.offline_measured(score))
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

    treatment = digest(config_of(spec, arm.advantage))
    checks = digest([c.model_dump() for c in spec.activation_gate.checks])
    return run.enter("gate_offline", {"calibration": calibration.hash, "treatment": treatment, "checks": checks}, body)


def _pilots(run: ExperimentRun, gate: Record | None, restoration: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def body() -> StageResult:
        timings, checkpoint, files, problems, tokens = {}, "", [], [], {}
        for arm in spec.arms:
            trained = run.engine.train(
                arm,
                s.pilot_steps,
                run.directory / "pilot" / arm.name,
                progress=run.progress,
                ledger=run.ledger,
                start=_start_policy(run, restoration),
            )
            timings[arm.name] = [step.seconds for step in trained.steps]
            tokens[arm.name] = _tokens(trained.steps)
            checkpoint = trained.checkpoint
            files.append(_keep_steps(run, f"pilot/{arm.name}.steps.jsonl", trained))
            problems += [f"{arm.name}: {p}" for p in wrong_optimizer(run, arm.name, trained.optimizer)]
        items = run.engine.tasks().test[: s.pilot_eval_items]
        began = time.monotonic()
        for start in range(0, len(items), 64):
            run.engine.answer(checkpoint, items[start : start + 64])
            run.progress("pilot", "items timed", min(start + 64, len(items)), len(items))
        seconds = time.monotonic() - began
        data = {"step_seconds": timings, "eval_items": len(items), "eval_seconds": seconds, "steps": s.pilot_steps}
        data["tokens"] = tokens
        data["note"] = "weights discarded; the pilot's answers were timed and not looked at"
        return StageResult(not problems, data, files, "pilot: " + "; ".join(problems) if problems else "")

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


def _gate_online(run: ExperimentRun, pilot: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def body() -> StageResult:
        if not spec.activation_gate.applicable:
            return StageResult(True, {"skipped": "not applicable by the specification", "checks": []})
        logs = {a.name: load_steps(run.chain.verified(pilot, f"pilot/{a.name}.steps.jsonl")) for a in spec.arms}
        # The gate speaks of two arms, "each arm" of all of them.
        baseline, treated = (arm_in_role(spec, s, role).name for role in ("baseline", "treatment"))
        measured = gates.pilot_measured(logs[treated], logs, baseline, treated)
        checks = gates.check_gate(spec.activation_gate.checks, "pilot", measured)
        bad = "; ".join(c.sentence for c in checks if not c.passed)
        data = {"measured": measured, "checks": [c._asdict() for c in checks]}
        said = f"activation gate, pilot: {bad}; there is no fallback for this part" if bad else ""
        return StageResult(not bad, data, [], said)

    checks = digest([c.model_dump() for c in spec.activation_gate.checks])
    return run.enter("gate_online", {"pilot": pilot.hash, "checks": checks}, body)


def _feasibility(run: ExperimentRun, pilot: Record, online: Record) -> Record:
    spec, s = run.loaded.spec, run.settings

    def body() -> StageResult:
        n = len(run.engine.tasks().test)
        d = pilot.data
        phases = project_phases(spec.arms, d["step_seconds"], d["eval_seconds"], d["eval_items"], n + s.selection_tasks)
        found = against_budget(phases, run.ledger.seconds, s.declared_gpus, spec.budget)
        passed = found["passed"] or not spec.feasibility_required
        problems = "; ".join(found["problems"])
        more = [] if found["passed"] or not passed else [f"feasibility is not required, and it fails: {problems}"]
        said = "" if passed else f"feasibility: {problems}"
        return StageResult(passed, found | {"deviations": found["warnings"] + more}, [], said)

    inputs = {"pilot": pilot.hash, "gate": online.hash, "budget": digest(spec.budget.model_dump())}
    return run.enter("feasibility", inputs, body)


def _arm(run: ExperimentRun, arm: ArmSpec, feasible: Record, restoration: Record) -> Record:
    def body() -> StageResult:
        trained = run.engine.train(
            arm,
            arm.steps,
            run.directory / "arms" / arm.name,
            progress=run.progress,
            ledger=run.ledger,
            start=_start_policy(run, restoration),
        )
        executed = executed_config(trained, arm, run)
        log = _keep_steps(run, f"arms/{arm.name}.steps.jsonl", trained)
        rewards = [float(np.mean(s.rewards)) for s in trained.steps]
        data: dict[str, Any] = {
            "checkpoint": _relative(run, trained.checkpoint),
            "command": trained.command,
            "executed": executed,
            "tokens": _tokens(trained.steps),
        }
        data |= {
            "training_seconds": sum(s.seconds for s in trained.steps),
            "reward_first": rewards[0],
            "reward_last": rewards[-1],
        }
        data["deviations"] = trained.remarks
        problems = "; ".join(executed["problems"])
        files = [log, *(_relative(run, f) for f in trained.files)]
        said = f"arm {arm.name}: executed otherwise than specified: {problems}" if problems else ""
        return StageResult(not problems, data, files, said)

    return run.enter(f"arm:{arm.name}", {"arm": digest(_arm_of(run, arm)), "feasibility": feasible.hash}, body)


def executed_config(trained: TrainedArm, arm: ArmSpec, run: ExperimentRun) -> dict[str, Any]:
    """What was done, from the logs, against what was specified."""
    steps = trained.steps
    groups = sorted({int(n) for s in steps for n in np.unique(s.task_ids, return_counts=True)[1]})
    rollouts = sorted({len(s.rewards) for s in steps})
    rates = sorted({s.learning_rate for s in steps})
    numbers = [s.step for s in steps]
    weights = [s.self_weight_max for s in steps if s.self_weight_max is not None]
    foreign = {i for s in steps for i in s.task_ids} - {t.id for t in run.engine.tasks().used}
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
    treated = arm_in_role(run.loaded.spec, run.settings, "treatment").advantage
    if arm.advantage == treated and weights and max(weights) > 0:
        problems.append(f"a rollout's own reward had weight {max(weights):g} in its baseline")
    problems += [f"optimizer: {p}" for p in wrong_optimizer(run, arm.name, trained.optimizer)]
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


def _selection(run: ExperimentRun, arms: dict[str, Record]) -> dict[str, str] | None:
    """Arm -> its group, of the one arm of each group that answers most hold-out tasks; None where none are chosen.

    Equal ones: the lower learning rate.
    """
    spec, s = run.loaded.spec, run.settings
    selection = spec.rollonce.selection
    if selection is None:
        return None

    def body() -> StageResult:
        tasks, accuracy, files = run.engine.tasks().selection, {}, []
        for name, record in arms.items():
            rows = _ask_items(run, name, record, tasks, f"selection/{name}.jsonl")
            accuracy[name] = float(np.nan_to_num(grades_of(rows)).mean())
            files.append(f"selection/{name}.jsonl")
        best = lambda names: min(names, key=lambda n: (-accuracy[n], spec.arm(n).lr))  # noqa: E731
        chosen = {best(names): group for group, names in selection.groups.items()}
        return StageResult(True, {"accuracy": accuracy, "chosen": chosen, "items": len(tasks)}, files)

    inputs = {name: record.hash for name, record in arms.items()} | {"items": s.selection_tasks}
    return run.enter("selection", inputs, body).data["chosen"]


def _ask_items(run: ExperimentRun, name: str, arm: Record, tasks: Any, file: str) -> list[dict[str, Any]]:
    for kept in arm.files:
        run.chain.verified(arm, kept)
    return evaluate_items(
        run.engine,
        _absolute(run, arm.data["checkpoint"]),
        tasks,
        ledger=run.ledger,
        name=file,
        item_seconds=run.settings.item_seconds,
        item_tries=run.settings.item_tries,
        progress=run.progress_of(f"{file.partition('/')[0]} {name}"),
    )


def _evaluation(run: ExperimentRun, name: str, arm: Record) -> Record:
    tasks, s = run.engine.tasks().test, run.settings
    file = f"evaluation/{name}.jsonl"

    def body() -> StageResult:
        rows = _ask_items(run, name, arm, tasks, file)
        lost = [r["task_id"] for r in rows if r["failure"] == UNANSWERED]
        data = {
            "items": len(rows),
            "accuracy": float(np.nanmean(grades_of(rows))),
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
    return run.enter(f"evaluation:{name}", inputs, body)


def _decision(run: ExperimentRun, graded: dict[str, Record], chosen: dict[str, str] | None) -> Record:
    spec, s = run.loaded.spec, run.settings
    tasks = run.engine.tasks().test
    in_group = {group: arm for arm, group in (chosen or {}).items()}

    def body() -> StageResult:
        grades = {}
        for key in {key for c in spec.decision_rule.criteria for key in c.weights}:
            name = role_name(s, key)
            name = in_group.get(name, name)
            file = run.chain.verified(graded[name], f"evaluation/{name}.jsonl")
            rows = {r["task_id"]: r for r in read_lines(file)}
            grades[key] = grades_of([rows[t.id] for t in tasks])
        found = decide(spec.decision_rule, grades).to_dict()
        run.ledger.tick(run.stage)
        seconds = run.ledger.seconds
        found["used"] = {"seconds": seconds, "gpu_hours": seconds / 3600 * s.declared_gpus, **used_tokens(run)}
        problem = over_budget(seconds, s.declared_gpus, spec.budget)
        found["deviations"] = [f"the run went over its budget: {problem}"] if problem else []
        return StageResult(True, found)

    inputs = {name: r.hash for name, r in graded.items()} | {"rule": digest(spec.decision_rule.model_dump())}
    return run.enter("decision", inputs, body)


def used_tokens(run: ExperimentRun) -> dict[str, int]:
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


def _tokens(steps: list[StepLog]) -> dict[str, int]:
    return {"prompt": sum(s.prompt_tokens for s in steps), "response": sum(s.response_tokens for s in steps)}


def _keep_steps(run: ExperimentRun, name: str, trained: TrainedArm) -> str:
    """The executed steps as one file of the record."""
    write_whole_file(run.directory / name, b"".join(canonical(step._asdict()) + b"\n" for step in trained.steps))
    return name


def load_steps(path: Path) -> list[StepLog]:
    """What `_keep_steps` wrote."""
    return [StepLog(**row) for row in read_lines(path)]


def _arm_of(run: ExperimentRun, arm: ArmSpec) -> dict[str, Any]:
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
        | {"config": config_of(spec, arm.advantage), "own": spec.rollonce.arm_training.get(arm.name, {})}
    )


def _arms_digest(run: ExperimentRun) -> str:
    return digest([_arm_of(run, a) for a in run.loaded.spec.arms])


def _relative(run: ExperimentRun, checkpoint: str) -> str:
    """A path within the run's directory from there, so that the directory can be moved; a service's address as it
    is."""
    path = Path(checkpoint)
    return path.relative_to(run.directory).as_posix() if path.is_relative_to(run.directory) else checkpoint


def _absolute(run: ExperimentRun, checkpoint: str) -> str:
    path = run.directory / checkpoint
    return str(path) if path.exists() else checkpoint
