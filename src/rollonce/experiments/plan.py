"""What a specification asks for, said before anything is run: the stages, the power, what is unresolved, and what it
costs at most."""

from __future__ import annotations

from typing import Any, NamedTuple

from rollonce.experiments.decision import power_statement
from rollonce.experiments.derive import Settings
from rollonce.experiments.gates import GATE_METRICS, limits
from rollonce.experiments.loading import LoadedSpec
from rollonce.experiments.pins import Pins


class Cost(NamedTuple):
    """Rollouts by phase, and the most response tokens they can have (every one cut off at the limit)."""

    calibration: int
    pilot: int
    training: int
    evaluation: int
    max_response_tokens: int


def cost(loaded: LoadedSpec, s: Settings) -> Cost:
    """From the specification alone."""
    spec = loaded.spec
    arms = len(spec.arms)
    offline = any(GATE_METRICS[c.metric] == "offline" for c in spec.activation_gate.checks)
    calibration = s.calibration_tasks * s.calibration_group_size if offline else 0
    pilot = arms * s.pilot_steps * spec.batch_size + min(s.pilot_eval_items, spec.eval.n_examples)
    training = sum(a.steps * a.rollouts for a in spec.arms)
    evaluation = arms * spec.eval.n_examples
    return Cost(calibration, pilot, training, evaluation, (calibration + pilot + training + evaluation) * s.max_tokens)


def plan_lines(loaded: LoadedSpec, s: Settings, pins: Pins) -> list[tuple[str, list[str]]]:
    """Sections of the plan: (heading, lines)."""
    spec = loaded.spec
    arms = [
        f"{a.name} "
        f"({'treatment' if a.name == s.treatment else 'baseline' if a.name == s.baseline else 'further arm'}): "
        f"{a.advantage}, {a.groups_per_batch} tasks x {a.group_size} = {a.rollouts} rollouts a step, {a.steps} steps, "
        f"lr {a.lr:g}, seed {a.seed}"
        for a in spec.arms
    ]
    gate = [f"{GATE_METRICS[c.metric]}: {c.metric} {limits(c.min, c.max)}" for c in spec.activation_gate.checks]
    correctness = "correctness preflight: treatment off = stock, treatment on = float64 reference"
    stages = [
        "data audit: prompts disjoint after normalisation, labels, hashes",
        correctness if spec.correctness_preflight.required else "correctness preflight: not required, skipped",
        f"restoration preflight: fresh clients agree within {s.restoration_atol:g}",
        f"calibration: {s.calibration_tasks} tasks x {s.calibration_group_size}, at most {s.calibration_minutes:g} "
        "minutes; gate, offline",
        f"timing pilot: {s.pilot_steps} steps an arm, {s.pilot_eval_items} items timed; gate, online; feasibility "
        "against the budget",
        f"arms: {', '.join(a.name for a in spec.arms)}",
        f"evaluation: {spec.eval.n_examples} items an arm, greedy, at most {s.max_tokens} tokens and "
        f"{s.item_seconds:g} s each",
        "decision (paired Hoeffding as registered) and report",
    ]
    c, budget = cost(loaded, s), spec.budget
    allowed = [] if budget.gpu_hours is None else [f"{budget.gpu_hours:g} GPU hours"]
    allowed += [] if budget.max_wall_minutes is None else [f"{budget.max_wall_minutes:g} minutes"]
    trained = (c.pilot + c.training) * s.max_tokens
    costs = [
        f"{c.calibration:,} calibration + {c.pilot:,} pilot + {c.training:,} training + {c.evaluation:,} evaluation "
        "rollouts",
        f"at most {c.max_response_tokens:,} response tokens, {trained:,} of them also trained on; prompts come on top",
        f"budget: {' and '.join(allowed) or 'none registered'}; GPUs declared: {s.declared_gpus:g}. "
        "Time is not guessed: the pilot measures it, and a run over budget stops",
    ]
    unresolved = [f"{path}: {why}" for path, why in pins.open.items()]
    unresolved += [
        f"{path}: will be pinned to {_pin(pin)}" for path, pin in pins.resolved.items() if path in loaded.unresolved
    ]
    derived = [f"{name}: {getattr(s, name)} (from {where})" for name, where in s.origin.items()]
    sections = [
        ("Arms", arms),
        ("Stages", stages),
        ("Activation gate", gate),
        ("Power", power_statement(spec.decision_rule, spec.eval.n_examples)),
        ("Cost", costs),
        ("Unresolved fields", unresolved or ["none"]),
        ("Taken from the text or by default", derived),
    ]
    if loaded.unknown:
        sections.append(("Unknown fields (kept, without effect)", loaded.unknown))
    return sections


def _pin(pin: dict[str, Any]) -> str:
    name = pin.get("package") or pin.get("file")
    commit = f", commit {pin['commit'][:12]}" if pin.get("commit") else ""
    return f"{name} {pin['version']}{commit}, sha256 {pin['sha256'][:16]}..."
