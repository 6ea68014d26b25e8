"""What a token-level critic costs at 1 to 8 billion parameters, beside one rollout per task and groups. A PREDICTION,
not a measurement.

`python studies/critic_cost/critic_cost.py` prints the table of README.md.

Every figure is a formula of a few assumptions, named in `Setup`. Two things are deliberately simple: attention's own
FLOPs are left out (4 layers d T a token: 3% of 2 N at 8B and 1,200 tokens), and nothing overlaps.

    N parameters of the policy, C of the critic, B rollouts a step, P prompt and T response tokens a rollout, M = B (P +
    T) tokens

    sampling   FLOPs 2 N M (the prompt is read once and the response written token by token). Time: the prompt is
               compute-bound, 2 N B P / (flops mfu_prefill); decoding is bound by memory traffic, T steps of (2 N + KV
               cache) bytes / bandwidth for ``rows`` sequences on each GPU, in B / (rows gpus) waves.
    update     6 N M FLOPs (2 forward, 4 backward; Kaplan et al. 2020, Korthikanti et al. 2022); 8 N M with activations
    recomputed.
    critic     separate network: values 2 C M, learning 6 C M an epoch (8 with recomputation).
               value head on the policy's hidden state, H = d^2 + d weights: 6 H M an epoch. Values are needed before
               the update, so the hidden states take a forward pass, 2 N M, unless the trainer makes one anyway for its
               log-probabilities: both are given.
               GAE itself: 10 FLOPs a token, nothing.
    memory     bf16 weights 2 bytes, bf16 gradients 2, fp32 master weights and Adam's two moments 12: 16 bytes a trained
               parameter (Rajbhandari et al. 2020); activations with recomputation: 2 d bytes a layer and token of the
               micro-batch. Logits and what a framework keeps for itself are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rollonce.errors import InputError


class Model(NamedTuple):
    """A decoder: parameters, width d, layers, and bytes of KV cache a token (bf16: 2 x 2 x layers x KV heads x head
    size)."""

    name: str
    parameters: float
    width: int
    layers: int
    kv_bytes: int


MODELS = (
    Model("1B (Llama 3.2 1B)", 1.24e9, 2048, 16, 2 * 2 * 16 * 8 * 64),
    Model("3B (Llama 3.2 3B)", 3.21e9, 3072, 28, 2 * 2 * 28 * 8 * 128),
    Model("8B (Llama 3.1 8B)", 8.03e9, 4096, 32, 2 * 2 * 32 * 8 * 128),
)
"""Shapes from the models' published configurations."""


class Setup(NamedTuple):
    """The assumptions.

    Attributes:
        rollouts, prompt, response: B, P and T.
        gpus: All do everything, in turn.
        flops: Peak of one, bf16 dense.
        bandwidth: Memory traffic of one, bytes a second.
        mfu: Share of the peak that training reaches.
        mfu_prefill: The same for reading prompts and for forward passes alone.
        bandwidth_use: Share of the bandwidth that decoding reaches.
        rows: Sequences decoded at once on one GPU.
        micro_tokens: Tokens whose activations are held at once.
        recompute: Activations are recomputed in the backward pass.
        critic_epochs: Of the critic on each batch.
        grade: Seconds a step for grading.
    """

    rollouts: int = 256
    prompt: int = 200
    response: int = 1000
    gpus: int = 8
    flops: float = 989e12
    bandwidth: float = 3.35e12
    mfu: float = 0.35
    mfu_prefill: float = 0.5
    bandwidth_use: float = 0.6
    rows: int = 32
    micro_tokens: int = 16_384
    recompute: bool = True
    critic_epochs: int = 1
    grade: float = 0.0


KINDS = ("none", "head", "head_own_pass", "network")
"""``none``: a baseline computed from rewards (one rollout per task, or groups); ``head``: values from a pass that is
made anyway."""


class Line(NamedTuple):
    """A figure with its formula."""

    what: str
    value: float
    unit: str
    formula: str


class Cost(NamedTuple):
    """A step's predicted cost.

    Attributes:
        model, kind: Which policy, and which critic (`KINDS`).
        memory: Bytes: weights, gradients, optimizer, activations of policy and critic, KV cache, by name. Over all
            GPUs.
        flops: By part.
        seconds: By part.
        lines: All of it with formulas.
    """

    model: str
    kind: str
    memory: dict[str, float]
    flops: dict[str, float]
    seconds: dict[str, float]
    lines: list[Line]

    @property
    def total_memory(self) -> float:
        """Bytes."""
        return sum(self.memory.values())

    @property
    def total_seconds(self) -> float:
        """A step."""
        return sum(self.seconds.values())

    @property
    def critic_share(self) -> float:
        """Of the step's time."""
        return self.seconds["critic"] / self.total_seconds


def predict(model: Model, kind: str, setup: Setup | None = None, critic: Model | None = None) -> Cost:
    """A step's memory, FLOPs and time.

    Args:
        model: The policy.
        kind: Of `KINDS`.
        setup: The assumptions.
        critic: Of a separate network; by default as large as the policy.

    Raises:
        InputError: for an unknown kind, or assumptions that are not above 0.
    """
    s = setup or Setup()
    _check(s, kind)
    n, tokens = model.parameters, float(s.rollouts * (s.prompt + s.response))
    factor = 8 if s.recompute else 6
    again = "8" if s.recompute else "6"
    speed, forward_speed = s.gpus * s.flops * s.mfu, s.gpus * s.flops * s.mfu_prefill
    net = critic or model
    c = net.parameters if kind == "network" else 0.0
    h = float(model.width**2 + model.width) if kind.startswith("head") else 0.0
    train_per_token = factor * c + 6 * h
    value_per_token = 2 * (n if kind == "head_own_pass" else c)

    lines: list[Line] = []

    def say(what: str, value: float, unit: str, formula: str) -> float:
        lines.append(Line(what, value, unit, formula))
        return value

    flops = {
        "sample": say("sampling", 2 * n * tokens, "FLOPs", "2 N B (P + T)"),
        "update": say("update", factor * n * tokens, "FLOPs", f"{again} N B (P + T)"),
        "critic": say(
            "critic",
            (value_per_token + s.critic_epochs * train_per_token) * tokens if kind != "none" else 0.0,
            "FLOPs",
            {
                "none": "0",
                "head": "epochs 6 (d^2 + d) B (P + T)",
                "head_own_pass": "(2 N + epochs 6 (d^2 + d)) B (P + T)",
                "network": f"(2 + epochs {again}) C B (P + T)",
            }[kind],
        ),
    }
    waves = math.ceil(s.rollouts / (s.rows * s.gpus))
    rows = min(s.rows, math.ceil(s.rollouts / s.gpus))
    cache = rows * (s.prompt + s.response / 2) * model.kv_bytes
    decode = waves * s.response * (2 * n + cache) / (s.bandwidth * s.bandwidth_use)
    prefill = 2 * n * s.rollouts * s.prompt / forward_speed
    seconds = {
        "sample": say(
            "sampling",
            prefill + decode,
            "s",
            "2 N B P / (gpus flops mfu_prefill) + waves T (2 N + rows (P + T/2) kv) / (bandwidth bandwidth_use)",
        ),
        "grade": say("grading", s.grade, "s", "given"),
        "update": say("update", flops["update"] / speed, "s", f"{again} N B (P + T) / (gpus flops mfu)"),
        "critic": say(
            "critic",
            value_per_token * tokens / forward_speed + s.critic_epochs * train_per_token * tokens / speed,
            "s",
            "values / (gpus flops mfu_prefill) + learning / (gpus flops mfu)",
        ),
    }
    trained = c + h
    layer_bytes = 2.0 * s.micro_tokens * (1 if s.recompute else 17)
    critic_activations = s.gpus * 4.0 * s.micro_tokens * model.width if kind.startswith("head") else 0.0
    if kind == "network":
        critic_activations = s.gpus * layer_bytes * net.width * net.layers
    memory = {
        "policy: weights": say("policy: weights", 2 * n, "bytes", "2 N"),
        "policy: gradients": say("policy: gradients", 2 * n, "bytes", "2 N"),
        "policy: optimizer": say("policy: optimizer", 12 * n, "bytes", "12 N (fp32 master weights, two moments)"),
        "policy: activations": say(
            "policy: activations",
            s.gpus * layer_bytes * model.width * model.layers,
            "bytes",
            "gpus 2 d layers micro_tokens"
            + ("" if s.recompute else " 17 (Korthikanti et al. 2022: 34 d bytes a layer and token)"),
        ),
        "critic: weights": say("critic: weights", 2 * trained, "bytes", "2 C"),
        "critic: gradients": say("critic: gradients", 2 * trained, "bytes", "2 C"),
        "critic: optimizer": say("critic: optimizer", 12 * trained, "bytes", "12 C"),
        "critic: activations": say(
            "critic: activations",
            critic_activations,
            "bytes",
            {"none": "0", "network": "as the policy's, with the critic's d and layers"}.get(
                kind, "gpus 4 d micro_tokens"
            ),
        ),
        "KV cache": say(
            "KV cache", s.gpus * rows * (s.prompt + s.response) * float(model.kv_bytes), "bytes", "gpus rows (P + T) kv"
        ),
    }
    return Cost(model.name, kind, memory, flops, seconds, lines)


def _check(s: Setup, kind: str) -> None:
    if kind not in KINDS:
        raise InputError(f"the critic is one of {', '.join(KINDS)}, not {kind!r}")
    for name, value in s._asdict().items():
        if name not in ("recompute", "grade") and not value > 0:
            raise InputError(f"{name} must be above 0, not {value}")


class Prediction(NamedTuple):
    """A critic's cost beside a baseline's, at the same rollouts: what the tables show.

    Attributes:
        model, kind: Which.
        memory: Bytes a step needs in all, and ``memory_ratio`` over that without a critic.
        seconds: A step, and ``time_ratio``.
        critic_share: Of the step's time.
        flops_ratio: FLOPs of the step over those without a critic.
    """

    model: str
    kind: str
    memory: float
    memory_ratio: float
    seconds: float
    time_ratio: float
    critic_share: float
    flops_ratio: float


def predictions(models: Sequence[Model] = MODELS, setup: Setup | None = None) -> list[Prediction]:
    """Every model with every kind of critic. One rollout per task and groups cost the same at the same rollouts
    (``none``)."""
    out = []
    for model in models:
        plain = predict(model, "none", setup)
        for kind in KINDS:
            cost = predict(model, kind, setup)
            out.append(
                Prediction(
                    model.name,
                    kind,
                    cost.total_memory,
                    cost.total_memory / plain.total_memory,
                    cost.total_seconds,
                    cost.total_seconds / plain.total_seconds,
                    cost.critic_share,
                    sum(cost.flops.values()) / sum(plain.flops.values()),
                )
            )
    return out


if __name__ == "__main__":
    print("| policy | critic | memory, GB | × | a step, s | × | critic's share | FLOPs × |")
    print("|---|---|---|---|---|---|---|---|")
    for p in predictions():
        print(
            f"| {p.model} | {p.kind} | {p.memory / 1e9:.0f} | {p.memory_ratio:.2f} | {p.seconds:.3g} | "
            f"{p.time_ratio:.2f} | {p.critic_share:.1%} | {p.flops_ratio:.2f} |"
        )
