"""The watch around a recipe's calls of the SDK, with a stand-in for the SDK (the real one runs in tests/tinker): the
registered seed is sent, another start ends the process before the first update, Adam's parameters are written down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SDK = """
import types
from dataclasses import dataclass

@dataclass
class AdamParams:
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12

class ModelInput:
    from_ints = staticmethod(list)

class TensorData:
    from_torch = staticmethod(lambda t: t)

@dataclass
class Datum:
    model_input: list
    loss_fn_inputs: dict

class Future:
    def __init__(self, value): self.value = value
    def result(self): return self.value

class TrainingClient:
    def __init__(self, seed): self.seed = seed
    def forward(self, data, loss):
        rows = [{"logprobs": types.SimpleNamespace(data=[-1.0] * len(d.model_input))} for d in data]
        return Future(types.SimpleNamespace(loss_fn_outputs=rows))
    def optim_step(self, optim_params=None, *, adam_params=None):
        assert optim_params is not None
        print("stepped", flush=True)
    async def optim_step_async(self, optim_params=None, *, adam_params=None):
        return self.optim_step(optim_params, adam_params=adam_params)

class ServiceClient:
    def create_lora_training_client(self, base_model, rank=32, seed=None): return TrainingClient(seed)
    async def create_lora_training_client_async(self, base_model, rank=32, seed=None):
        return self.create_lora_training_client(base_model, rank=rank, seed=seed)
"""

RECIPE = """
import asyncio, sys, tinker

async def main():
    client = await tinker.ServiceClient().create_lora_training_client_async("model", rank=8)
    print("seed", client.seed, sys.argv[1:], flush=True)
    for _ in range(3):
        await client.optim_step_async(tinker.AdamParams(learning_rate=3e-5, eps=1e-8))

asyncio.run(main())
"""


@pytest.mark.parametrize(("log_prob", "code"), [(-1.0, 0), (-1.0 - 2e-4, 3)])
def test_a_recipe_under_watch(tmp_path: Path, log_prob: float, code: int) -> None:
    (tmp_path / "tinker.py").write_text(SDK)
    (tmp_path / "my_recipe.py").write_text(RECIPE)
    start = {"rows": [[1, 2, 3]], "log_probs": [[log_prob, log_prob]], "atol": 1e-4}
    watch, out = tmp_path / "watch.json", tmp_path / "watch.jsonl"
    watch.write_text(json.dumps({"seed": 7, "start": start, "out": str(out)}))
    command = [sys.executable, "-m", "rollonce.experiments.engines.recipe_watch", str(watch), "--", "my_recipe", "a=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    rows: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[0] == {"adapters": {"seed": 7, "rank": 8}}
    assert rows[1]["start_difference"] == pytest.approx(abs(log_prob + 1.0))
    if code:
        assert "stepped" not in done.stdout  # before the first update
        return
    assert "seed 7 ['a=1']" in done.stdout
    assert done.stdout.count("stepped") == 3
    assert rows[2:] == [{"adam": {"learning_rate": 3e-05, "beta1": 0.9, "beta2": 0.95, "eps": 1e-08}}]
