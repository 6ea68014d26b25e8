"""The example scripts: those that can run here do, the others are imported and their functions called."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollonce.baselines import KernelBaseline

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WITH_TRL = importlib.util.find_spec("trl") is not None and importlib.util.find_spec("datasets") is not None


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def script(name, *arguments, **options):
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        **options,
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "baseline.json"
    KernelBaseline(window=16).fit([f"{i} + {i}?" for i in range(16)]).save(path)
    return path


@pytest.mark.skipif(not WITH_TRL, reason="needs the extra trl")
@pytest.mark.parametrize(("name", "arm", "tasks_a_step"), [("trl_gs1.py", "gs1", 32), ("trl_grpo.py", "grpo", 4)])
def test_both_trl_scripts_train_and_write_their_log(tmp_path, name, arm, tasks_a_step):
    done = script(name, "--steps", 2, "--held-out", 15, "--out", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    run = json.loads((tmp_path / f"{arm}-0.json").read_text())
    steps = [r for r in run["log"] if "reward" in r]
    assert len(steps) == 2
    assert all(0 <= r["reward"] <= 1 and r["grad_norm"] > 0 for r in steps)
    assert ("rollonce/baseline" in steps[0]) == (arm == "gs1")
    # 1920 training prompts: an epoch's share of a step tells how many tasks it took
    assert steps[0]["epoch"] == pytest.approx(tasks_a_step / 1920, rel=0.1) or arm == "grpo"
    assert [r for r in run["log"] if "eval_reward" in r]


@pytest.mark.skipif(not WITH_TRL, reason="needs the extra trl")
def test_the_multi_gpu_script_runs_its_tiny_version(tmp_path, file):
    from rollonce.policies import embedded_directory

    done = script(
        "trl_multi_gpu.py",
        "--tiny",
        "--steps",
        1,
        "--baseline",
        file,
        "--model",
        embedded_directory(),
        "--out",
        tmp_path / "o",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rollonce/baseline" in done.stdout
    module = load("trl_multi_gpu")
    assert module.reward(["so it is 1,234."], ["we get 1,234\n#### 1,234"]) == [1.0]
    assert module.reward([[{"role": "assistant", "content": "it is 12"}]], ["#### 13"]) == [0.0]
