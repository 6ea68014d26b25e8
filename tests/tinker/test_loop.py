"""Our training loop on a real server: arms, a killed client, the same run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server import TinkerServer

from rollonce.errors import InputError
from rollonce.experiments.dense import share_of_even_characters
from rollonce.tasks import Task, TaskSet, TaskSplits
from rollonce.training.config import RunConfig
from rollonce.training.learners import make_configured_learner
from rollonce.training.loop import train_with_own_loop
from rollonce.training.sections import validate_section

STEPS = 3


def splits() -> TaskSplits:
    tasks = [
        Task(f"t{i}", f"What is {i} + {7 * i % 50}?" + " Please." * (i % 4), str(i), share_of_even_characters)
        for i in range(120)
    ]
    return TaskSplits(TaskSet(tasks[:96], "train"), TaskSet([], "none"), TaskSet(tasks[96:104], "test"))


def config(server: TinkerServer, model: Path, arm: dict[str, Any], steps: int = STEPS, **changes: Any) -> RunConfig:
    data: dict[str, Any] = {
        "name": "tested",
        "arm": arm,
        "policy": {
            "source": str(model),
            "engine": "tinker",
            "lora_rank": 8,
            "base_url": server.url,
            "renderer": "chat",
            "reduction": "sequence_mean",
        },
        "train": {
            "steps": steps,
            "rollouts": 32,
            "learning_rate": 1e-3,
            "max_new_tokens": 16,
            "audit_weights": True,
            "kl_every": 2,
            "checkpoint_every": 1,
            "shadow": (),
        },
        "evaluation": {"every": 0, "greedy": False},
    }
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value}
    return validate_section(RunConfig, data)


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("baseline", ["gs1_buckets", "none", "critic_prompt"])
def test_an_arm_trains(server: TinkerServer, model: Path, tmp_path: Path, baseline: str) -> None:
    result = train_with_own_loop(config(server, model, {"baseline": baseline}), tmp_path / "run", splits=splits())
    assert result.status == "done"
    log = metrics(tmp_path / "run")
    assert [m["step"] for m in log] == [1, 2, 3]
    for m in log:
        assert m["grad_norm"] > 0
        assert m["kl_old"] < 1e-6  # on-policy: what sampled is what is trained
        assert 0 < m["reward"] < 1
    assert log[0]["kl"] < 1e-6  # before the first step the policy is the start policy
    assert log[1]["kl"] > 0
    assert log[2]["kl"] is None
    if baseline == "none":
        assert all(m["baseline_mean"] == 0 and m["self_weight_max"] in (0.0, None) for m in log)
        # The mean advantage is then the mean reward, and the loss its negative weighted by tokens.
        assert all(m["advantage_mean"] == pytest.approx(m["reward"]) for m in log)
    else:
        assert all(m["self_weight_max"] in (0.0, None) for m in log)
    if baseline == "gs1_buckets":
        assert log[1]["loo_gap"] > 0
    saved = json.loads((tmp_path / "run" / "final").read_text())
    assert saved["path"].startswith("tinker://")
    # Nothing that was written anywhere holds the key.
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"tml-dummy" not in file.read_bytes()


def test_the_same_seed_gives_the_same_run_and_a_killed_client_goes_on_with_it(
    server: TinkerServer, model: Path, tmp_path: Path
) -> None:
    whole = train_with_own_loop(
        config(server, model, {"baseline": "gs1_buckets"}, 4), tmp_path / "whole", splits=splits()
    )
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\nimport test_loop as t; from "
        "rollonce.training.loop import train_with_own_loop\nclass S: url = sys.argv[2]\n"
        "train_with_own_loop(t.config(S, Path(sys.argv[3]), {'baseline': 'gs1_buckets'}, 4), "
        "Path(sys.argv[4]), splits=t.splits())"
    )
    arguments = [
        sys.executable,
        "-c",
        script,
        str(Path(__file__).parent),
        server.url,
        str(model),
        str(tmp_path / "killed"),
    ]
    client = subprocess.Popen(arguments, env=os.environ)
    log, deadline = tmp_path / "killed" / "metrics.jsonl", time.monotonic() + 200
    while (
        time.monotonic() < deadline
        and client.poll() is None
        and not (log.is_file() and len(log.read_text().splitlines()) >= 2)
    ):
        time.sleep(0.05)
    client.send_signal(signal.SIGKILL)
    client.wait()
    assert 2 <= len(log.read_text().splitlines()) < 4
    resumed = train_with_own_loop(
        config(server, model, {"baseline": "gs1_buckets"}, 4), tmp_path / "killed", splits=splits()
    )
    assert (resumed.status, resumed.test) == ("done", whole.test)
    first, second = metrics(tmp_path / "whole"), metrics(tmp_path / "killed")
    assert [m["step"] for m in second] == [1, 2, 3, 4]
    for a, b in zip(first, second, strict=True):
        for key in ("reward", "advantage_var", "baseline_mean", "loo_gap", "tokens", "truncated"):
            assert a[key] == b[key], (a["step"], key)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)


@pytest.mark.parametrize(
    ("arm", "changes", "named"),
    [
        ({"critic": {}}, {}, "arm.critic"),
        ({"baseline": "loo"}, {"loss": {"kl": 0.1}}, "loss.kl"),
        ({"baseline": "loo"}, {"loss": {"lag": 2}}, "loss.lag"),
        ({"baseline": "loo"}, {"loss": {"gate": 0.1}}, "loss.gate"),
        ({"baseline": "loo"}, {"policy": {"lora_rank": 0}}, "policy.lora_rank"),
        ({"baseline": "loo"}, {"policy": {"source": "embedded"}}, "policy.source"),
    ],
)
def test_what_a_service_cannot_do_is_refused_by_name(
    server: TinkerServer, model: Path, arm: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named.replace(".", r"\.")):
        make_configured_learner(config(server, model, arm, **changes))


def test_the_loss_is_the_local_one_number_for_number(server: TinkerServer, model: Path) -> None:
    """Loss of the first step against the closed form from the rollouts themselves: ratios are 1, so it is -mean over
    tokens of A."""
    learner = make_configured_learner(config(server, model, {"baseline": "none"}))
    samples = learner.sample_rollouts(
        [f"What is {i}?" for i in range(32)], max_new_tokens=16, temperature=1.0, seed=[1, 2]
    )
    advantages = np.linspace(-1, 1, 32)
    update = learner.update_policy(samples, advantages)
    lengths = samples.lengths_B.numpy()
    assert update.loss == pytest.approx(-(advantages * lengths).sum() / lengths.sum(), abs=1e-5)
    learner.policy.close()
