"""What a specification asks for, said before anything is run: the stages, the power, what is unresolved, and what it
costs at most."""

from __future__ import annotations

from typing import Any, NamedTuple

from rollonce.experiments.decision import power_statement
from rollonce.experiments.derive import ExperimentSettings, Origin
from rollonce.experiments.loading import LoadedSpec
from rollonce.experiments.pins import Pins
from rollonce.experiments.prices import PRICES, Price
from rollonce.experiments.safeguards import find_safeguards_switched_off
from rollonce.experiments.spec import GATE_METRICS, Spec, format_gate_limits


class Cost(NamedTuple):
    """Rollouts by phase, and the most that they can come to (every response cut off at the limit).

    Attributes:
        probe, calibration, pilot, training, evaluation: Rollouts.
        max_response_tokens: Sampled.
        max_prompt_tokens: Read, where ``max_seq_len`` bounds the prompts; None where nothing does.
        max_trained_tokens: Prompts and responses of the rollouts that are trained on; None as above.
        price: Per million tokens; None where none is known, or nobody is paid.
        max_dollars: The most that the tokens can cost; None where a part of it is unknown.
    """

    probe: int
    calibration: int
    pilot: int
    training: int
    evaluation: int
    max_response_tokens: int
    max_prompt_tokens: int | None
    max_trained_tokens: int | None
    price: Price | None
    max_dollars: float | None


def estimate_largest_cost(loaded: LoadedSpec, s: ExperimentSettings, price: Price | None = None) -> Cost:
    """From the specification alone; the price of the table unless one is given."""
    spec = loaded.spec
    offline = any(GATE_METRICS[c.metric] == "offline" for c in spec.activation_gate.checks)
    calibration = s.calibration_tasks * s.calibration_group_size if offline and spec.activation_gate.applicable else 0
    probe = sum(a.group_size if a.group_size > 1 else 2 for a in spec.arms)
    piloted = len(spec.arms) * s.pilot_steps * spec.batch_size
    pilot = piloted + min(s.pilot_eval_items, spec.eval.n_examples)
    training = sum(a.steps * a.rollouts for a in spec.arms)
    groups = spec.rollonce.selection.groups if spec.rollonce.selection is not None else {}
    evaluation = (len(groups) or len(spec.arms)) * spec.eval.n_examples + len(spec.arms) * s.selection_tasks
    rollouts = probe + calibration + pilot + training + evaluation
    trained = probe + piloted + training
    room = None if spec.max_seq_len is None else spec.max_seq_len - s.max_tokens
    price = None if s.engine == "local" else price or PRICES.get(s.policy)
    read = None if room is None else rollouts * room
    learnt = None if room is None else trained * (room + s.max_tokens)
    dollars = None
    if price is not None and read is not None and learnt is not None:
        dollars = (read * price.prefill + rollouts * s.max_tokens * price.sample + learnt * price.train) / 1e6
    return Cost(probe, calibration, pilot, training, evaluation, rollouts * s.max_tokens, read, learnt, price, dollars)


def format_cost_lines(cost: Cost, s: ExperimentSettings) -> list[str]:
    lines = [
        f"{cost.probe:,} probe + {cost.calibration:,} calibration + {cost.pilot:,} pilot + "
        f"{cost.training:,} training + {cost.evaluation:,} evaluation rollouts",
        f"at most {cost.max_response_tokens:,} response tokens"
        + (
            "; prompts come on top, and no max_seq_len bounds them"
            if cost.max_prompt_tokens is None
            else f" and {cost.max_prompt_tokens:,} prompt tokens; {cost.max_trained_tokens:,} of both are trained on"
        ),
    ]
    if s.engine == "local":
        return [*lines, "no service is paid: what it costs is this machine's time"]
    if cost.price is None:
        return [*lines, f"no price of {s.policy} is on record: give --price PREFILL,SAMPLE,TRAIN (dollars per million)"]
    p = cost.price
    prices = f"${p.prefill:g} / ${p.sample:g} / ${p.train:g} per million tokens read / sampled / trained on"
    most = "not bounded without max_seq_len" if cost.max_dollars is None else f"at most ${cost.max_dollars:.2f}"
    return [*lines, f"{most} at {prices} ({p.source}; your service's bill is the one that counts)"]


def format_plan_sections(
    loaded: LoadedSpec, s: ExperimentSettings, pins: Pins, price: Price | None = None
) -> list[tuple[str, list[str]]]:
    """Sections of the plan: (heading, lines)."""
    spec = loaded.spec
    arms = [
        f"{a.name} ({_describe_arm_role(spec, s, a.name)}): "
        f"{a.advantage}, {a.groups_per_batch} tasks x {a.group_size} = {a.rollouts} rollouts per step, "
        f"{a.steps} steps, lr {a.lr:g}, seed {a.seed}"
        for a in spec.arms
    ]
    gate = [
        f"{GATE_METRICS[c.metric]}: {c.metric} {format_gate_limits(c.min, c.max)}" for c in spec.activation_gate.checks
    ]
    correctness = "correctness preflight: treatment off = stock, treatment on = float64 reference"
    stages = [
        "data audit: prompts disjoint after normalisation, labels, hashes",
        correctness if spec.correctness_preflight.required else "correctness preflight: not required, skipped",
        f"restoration preflight: fresh clients agree within {s.restoration_atol:g}, and so does each arm's own",
        "probe: one small batch, one forward_backward and one optim_step of each arm",
        f"calibration: {s.calibration_tasks} tasks x {s.calibration_group_size}, at most {s.calibration_minutes:g} "
        "minutes; gate, offline",
        f"timing pilot: {s.pilot_steps} steps per arm, {s.pilot_eval_items} items timed; gate, online; feasibility "
        "against the budget",
        f"arms: {', '.join(a.name for a in spec.arms)}",
        *_describe_selection(spec, s),
        f"evaluation: {spec.eval.n_examples} items per arm, greedy, at most {s.max_tokens} tokens and "
        f"{s.item_seconds:g} s each",
        "decision (paired Hoeffding as registered) and report",
    ]
    budget = spec.budget
    allowed = [] if budget.gpu_hours is None else [f"{budget.gpu_hours:g} GPU hours"]
    allowed += [] if budget.max_wall_minutes is None else [f"{budget.max_wall_minutes:g} minutes"]
    costs = [
        *format_cost_lines(estimate_largest_cost(loaded, s, price), s),
        f"budget: {' and '.join(allowed) or 'none registered'}; GPUs declared: {s.declared_gpus:g}. "
        "Time is not guessed: the pilot measures it, and a run that has used its budget up stops, also within an arm",
    ]
    unresolved = [f"{path}: {why}" for path, why in pins.open.items()]
    unresolved += [
        f"{path}: will be pinned to {_describe_field_pin(pin)}"
        for path, pin in pins.resolved.items()
        if path in loaded.unresolved
    ]
    derived = [f"{name}: {getattr(s, name)} (from {_describe_origin(origin)})" for name, origin in s.origins.items()]
    sections = [
        ("Arms", arms),
        ("Stages", stages),
        ("Activation gate", gate),
        ("Power", power_statement(spec.decision_rule, spec.eval.n_examples)),
        ("Cost", costs),
        ("Unresolved fields", unresolved or ["none"]),
        ("Taken from the text or by default", derived),
    ]
    if off := find_safeguards_switched_off(loaded, s):
        sections.append(("Safeguards that are off, and other deviations", off))
    return sections


def _describe_arm_role(spec: Spec, s: ExperimentSettings, name: str) -> str:
    groups = spec.rollonce.selection.groups if spec.rollonce.selection is not None else {}
    group = next((g for g, members in groups.items() if name in members), name)
    return {s.treatment: "treatment", s.baseline: "baseline"}.get(group, "further arm")


def _describe_selection(spec: Spec, s: ExperimentSettings) -> list[str]:
    if spec.rollonce.selection is None:
        return []
    groups = "; ".join(f"{g}: {', '.join(names)}" for g, names in spec.rollonce.selection.groups.items())
    return [f"selection: of each group the arm that answers most of {s.selection_tasks} hold-out tasks ({groups})"]


def _describe_origin(origin: Origin) -> str:
    return f"{origin.where}: {origin.sentence!r}" if origin.sentence else origin.where


def _describe_field_pin(pin: dict[str, Any]) -> str:
    name = pin.get("package") or pin.get("file")
    commit = f", commit {pin['commit'][:12]}" if pin.get("commit") else ""
    return f"{name} {pin['version']}{commit}, sha256 {pin['sha256'][:16]}..."
