"""Last of all, because it kills the server that the others share: what a real death looks like, and the run that goes
on afterwards."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from server import TinkerServer

from rollonce.policies.tinker_policy import TinkerPolicy
from rollonce.policies.tinker_service import ServiceError

PROMPTS = [f"What is {i}?" for i in range(32)]


def test_a_real_death_is_said_and_the_checkpoint_survives_it(server: TinkerServer, model: Path) -> None:
    settings = {
        "renderer": "chat",
        "loss": "importance_sampling",
        "base_url": server.url,
        "lora_rank": 8,
        "patience_s": 4.0,
    }
    policy = TinkerPolicy.connect(str(model), **settings)
    samples = policy.sample(PROMPTS, max_new_tokens=16, seed=1)
    policy.update(samples, torch.linspace(-1, 1, len(PROMPTS)), learning_rate=1e-2)
    state, expected = policy.save_service_state(), policy.compute_log_probs(samples)
    threading.Timer(0.3, server.stop).start()
    began = time.monotonic()

    def until_it_dies() -> None:
        for seed in range(10_000):
            policy.sample(PROMPTS, max_new_tokens=16, seed=seed)

    with pytest.raises(ServiceError, match=r"went away during sampling.*last checkpoint"):
        until_it_dies()
    assert time.monotonic() - began < 300
    server.start()
    resumed = TinkerPolicy.connect(str(model), **settings)
    resumed.load_service_state(state)
    assert resumed.steps == 1
    assert float((resumed.compute_log_probs(samples) - expected).abs().max()) < 1e-4
    resumed.close()
