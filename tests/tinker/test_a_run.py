"""``rollonce run`` on a real server: a dense-reward specification through every stage, and the request's own file,
whose gate refuses.

The longest file, so its name makes it the first that a worker takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from server import TinkerServer

SPEC = Path(__file__).parents[2] / "specs" / "gs1_vs_grpo_gsm8k.spec.json"


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder of GSM8K's shape: every answer is right and every question another."""
    folder = tmp_path_factory.mktemp("gsm8k")
    things = ["apples", "books", "coins", "stamps", "pencils", "marbles", "shells"]
    for split, n, start in (("train", 400, 0), ("test", 24, 1000)):
        with (folder / f"{split}.jsonl").open("w") as f:
            for i in range(start, start + n):
                a, b, thing = i, 3 * i % 17 + 2, things[i % len(things)]
                extra = f" Her brother keeps {i % 5} {things[(i + 1) % len(things)]} for himself." * (i % 4)
                question = f"Ann has {a} {thing} and buys {b} more.{extra} How many {thing} has she?"
                f.write(
                    json.dumps(
                        {"question": question, "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
                    )
                    + "\n"
                )
    return folder


def rollonce(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "rollonce.cli", "run", *arguments],
        env=os.environ,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,
    )
    return done.returncode, done.stdout + done.stderr


def other_command(command: str, model: Path, steps: int) -> str:
    """The registered command line with what is changed here."""
    changes = {"Qwen/Qwen3.5-2B": str(model), "lora_rank=32": "lora_rank=8", "max_steps=60": f"max_steps={steps}"}
    for before, after in changes.items():
        command = command.replace(before, after)
    return command


def small(model: Path, directory: Path) -> Path:
    """The request's file with a model that fits here, two steps, and a reward that a model which knows nothing
    earns."""
    spec: dict[str, Any] = json.loads(SPEC.read_text())
    spec |= {"base_model": str(model), "lora_rank": 8, "steps": 2}
    spec["command"] = other_command(spec["command"], model, 2)
    for arm in spec["arms"]:
        arm["steps"] = 2
    spec["dataset"]["n_examples"], spec["eval"]["n_examples"] = 400, 24
    for check in spec["activation_gate"]["checks"]:
        low = {"offline_beff_ratio_tfidf_vs_loo_mean": 0.5, "pilot_mean_abs_gs1_minus_batchmean_baseline": 1e-6}
        check["min"] = low.get(check["metric"], check.get("min"))
        if check["min"] is None:
            del check["min"]
    for group in spec["restoration_preflight"]["groups"]:
        for arm in group["arms"]:
            arm["optimizer_config"]["lora_rank"] = 8
    spec["rollonce"] = {
        **spec.get("rollonce", {}),
        "renderer": "role_colon",
        "dense_reward": True,
        "max_tokens": 16,
        "calibration_tasks": 32,
        "calibration_group_size": 2,
        "pilot_steps": 1,
        "pilot_eval_items": 8,
    }
    path = directory / "small.spec.json"
    path.write_text(json.dumps(spec, indent=1))
    return path


def test_a_dense_specification_walks_every_stage_to_a_verdict(
    server: TinkerServer, model: Path, gsm8k: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, said = rollonce(
        str(small(model, tmp_path)), "--gsm8k", str(gsm8k), "--base-url", server.url, "--out", str(out)
    )
    assert code == 0, said[-4000:]
    text = said + "".join(
        p.read_text(errors="replace")
        for p in out.rglob("*")
        if p.is_file() and p.suffix in (".json", ".jsonl", ".log", ".md", ".html")
    )
    assert "tml-dummy" not in text
    logs = [json.loads(line) for p in out.rglob("rollonce/advantages.jsonl") for line in p.read_text().splitlines()]
    assert logs
    assert all(r["rollouts"] == 32 and r["group_size"] == 1 and r["self_weight_max"] == 0.0 for r in logs)
    # The same command again finds everything done and says the same.
    again, repeated = rollonce(
        str(tmp_path / "small.spec.json"), "--gsm8k", str(gsm8k), "--base-url", server.url, "--out", str(out)
    )
    assert again == 0, repeated[-4000:]


def test_the_requests_own_file_is_stopped_by_its_gate(
    server: TinkerServer, model: Path, gsm8k: Path, tmp_path: Path
) -> None:
    """A model that knows nothing earns the same everywhere: there is no effective batch size to compare, and nothing is
    trained."""
    spec: dict[str, Any] = json.loads(SPEC.read_text())
    spec["base_model"], spec["lora_rank"] = str(model), 8
    spec["command"] = other_command(spec["command"], model, 3)
    for group in spec["restoration_preflight"]["groups"]:
        for arm in group["arms"]:
            arm["optimizer_config"]["lora_rank"] = 8
    spec["dataset"]["n_examples"], spec["eval"]["n_examples"], spec["steps"] = 400, 24, 3
    for arm in spec["arms"]:
        arm["steps"] = 3
    spec["rollonce"] = {**spec.get("rollonce", {}), "renderer": "role_colon", "max_tokens": 16}
    path = tmp_path / "own.spec.json"
    path.write_text(json.dumps(spec))
    code, said = rollonce(str(path), "--gsm8k", str(gsm8k), "--base-url", server.url, "--out", str(tmp_path / "run"))
    assert code == 1, said[-4000:]
    assert "all rewards are equal" in said
    assert not list((tmp_path / "run").rglob("metrics.jsonl"))


@pytest.mark.slow
def test_our_own_loop_walks_every_stage_too(server: TinkerServer, model: Path, gsm8k: Path, tmp_path: Path) -> None:
    """``engine: tinker``: the loop of `rollonce train` on the service instead of tinker-cookbook's recipe, from
    preflight to verdict."""
    path = small(model, tmp_path)
    spec: dict[str, Any] = json.loads(path.read_text())
    spec["rollonce"]["engine"] = "tinker"
    path.write_text(json.dumps(spec))
    out = tmp_path / "run"
    code, said = rollonce(str(path), "--gsm8k", str(gsm8k), "--base-url", server.url, "--out", str(out))
    assert code == 0, said[-4000:]
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    stages = [r["stage"] for r in records]
    assert [s for s in stages if s.startswith(("arm:", "evaluation:"))] == [
        f"{kind}:{arm['name']}" for kind in ("arm", "evaluation") for arm in spec["arms"]
    ]
    assert stages[-1] == "decision"
    assert (out / "report.html").exists()
