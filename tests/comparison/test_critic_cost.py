"""The critic's cost model against values worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollonce.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[2] / "studies" / "critic_cost"))
from critic_cost import KINDS, MODELS, Model, Setup, predict, predictions

# A billion parameters, d 1000, 10 layers, 1000 bytes of cache a token; 8 rollouts of 100 + 400 tokens: M = 4000 tokens.
TINY = Model("tiny", 1e9, 1000, 10, 1000)
HAND = Setup(
    rollouts=8, prompt=100, response=400, gpus=2, flops=1e14, bandwidth=1e12, mfu=0.5, mfu_prefill=0.5,
    bandwidth_use=0.5, rows=2,
    micro_tokens=1000, recompute=False, critic_epochs=2, grade=0.25,
)  # fmt: skip


def test_flops_by_hand() -> None:
    cost = predict(TINY, "network", HAND)
    assert cost.flops["sample"] == pytest.approx(2 * 1e9 * 4000)
    assert cost.flops["update"] == pytest.approx(6 * 1e9 * 4000)
    assert cost.flops["critic"] == pytest.approx((2 + 2 * 6) * 1e9 * 4000)  # values once, two epochs of learning
    head = predict(TINY, "head", HAND)
    assert head.flops["critic"] == pytest.approx(2 * 6 * 1_001_000 * 4000)
    assert predict(TINY, "head_own_pass", HAND).flops["critic"] == pytest.approx((2e9 + 12 * 1_001_000) * 4000)
    assert predict(TINY, "none", HAND).flops["critic"] == 0


def test_seconds_by_hand() -> None:
    cost = predict(TINY, "network", HAND)
    # Prompts: 2e9 * 8 * 100 / (2 * 1e14 * 0.5) = 0.016 s. Decoding: 2 waves of 400 tokens, each (2e9 + 2 rows * 300 *
    # 1000) bytes at 5e11.
    assert cost.seconds["sample"] == pytest.approx(0.016 + 2 * 400 * (2e9 + 6e5) / 5e11)
    assert cost.seconds["update"] == pytest.approx(24e12 / 1e14)
    assert cost.seconds["critic"] == pytest.approx(8e12 / 1e14 + 48e12 / 1e14)
    assert cost.seconds["grade"] == 0.25
    assert cost.critic_share == pytest.approx(0.56 / (0.016 + 3.20096 + 0.24 + 0.56 + 0.25))


def test_memory_by_hand() -> None:
    cost = predict(TINY, "network", HAND)
    assert cost.memory["policy: weights"] == 2e9
    assert cost.memory["policy: optimizer"] == 12e9
    # 34 bytes a layer, token and unit of width, on each of 2 GPUs.
    assert cost.memory["policy: activations"] == pytest.approx(2 * 34 * 1000 * 1000 * 10)
    assert cost.memory["critic: activations"] == cost.memory["policy: activations"]
    assert cost.memory["KV cache"] == pytest.approx(2 * 2 * 500 * 1000)
    trained = sum(v for k, v in cost.memory.items() if k.startswith("critic") and "activations" not in k)
    assert trained == 16e9
    head = predict(TINY, "head", HAND)
    assert sum(v for k, v in head.memory.items() if k.startswith("critic") and "activations" not in k) == 16 * 1_001_000
    recomputed = predict(TINY, "none", HAND._replace(recompute=True))
    assert recomputed.memory["policy: activations"] == pytest.approx(2 * 2 * 1000 * 1000 * 10)
    assert recomputed.flops["update"] == pytest.approx(8e9 * 4000)


def test_a_smaller_critic_costs_less() -> None:
    cost = predict(MODELS[2], "network", critic=MODELS[0])
    assert cost.flops["critic"] == pytest.approx(10 * MODELS[0].parameters * 256 * 1200)  # 2 + 8 with recomputation


def test_the_table_is_relative_to_none() -> None:
    table = predictions()
    assert [(p.model, p.kind) for p in table] == [(m.name, k) for m in MODELS for k in KINDS]
    for p in table:
        if p.kind == "none":
            assert (p.memory_ratio, p.time_ratio, p.flops_ratio, p.critic_share) == (1, 1, 1, 0)
        if p.kind == "network":
            # A critic as large as the policy: (2 + 8) N against 2 N + 8 N, whatever the model.
            assert p.flops_ratio == pytest.approx(2.0)
            assert 1.3 < p.time_ratio < 2.0
        assert p.time_ratio == pytest.approx(1 / (1 - p.critic_share))


def test_every_line_has_its_formula() -> None:
    for kind in KINDS:
        cost = predict(MODELS[0], kind)
        assert len(cost.lines) == len(cost.memory) + len(cost.flops) + len(cost.seconds)
        assert all(line.formula and line.unit for line in cost.lines)
        assert sum(line.value for line in cost.lines if line.unit == "bytes") == pytest.approx(cost.total_memory)


def test_bad_assumptions_are_sentences() -> None:
    with pytest.raises(InputError, match="mfu must be above 0"):
        predict(TINY, "none", HAND._replace(mfu=0))
    with pytest.raises(InputError, match="none, head"):
        predict(TINY, "big", HAND)
