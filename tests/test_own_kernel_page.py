"""docs/own_kernel.md does what it says: its files are written, its commands are run, in the order of the page."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollonce.baselines import Baseline, Batch
from rollonce.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "own_kernel.md").read_text(encoding="utf-8")
FILES = {
    name: text for _, name, text in re.findall(r"```(python|toml)\n# (\S+\.(?:py|toml))\n(.*?)```", PAGE, re.DOTALL)
}
COMMANDS = [line for block in re.findall(r"```\n(rollonce .*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
TASKS = [{"prompt": f"What is {a} + {b}?", "reference": str(a + b), "level": b} for a in (2, 5) for b in range(3)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's files in an empty folder, where we are; Python's path lacks it, as for an installed command."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    rewards = np.random.default_rng(0).integers(0, 2, (40, 4))
    prompts = ["count " + " ".join(map(str, range(n % 5))) + f" from {n}" for n in range(40)]
    rows = [{"prompt": p, "reward": float(r)} for p, group in zip(prompts, rewards, strict=True) for r in group]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.partition(".")[0], None)


def test_it_is_short_and_has_its_parts():
    assert list(FILES) == ["mykernel.py", "mine.toml", "mybaseline.py", "mygrader.py"]
    assert len(FILES["mykernel.py"].splitlines()) + len(FILES["mine.toml"].splitlines()) < 45
    assert [shlex.split(c)[1] for c in COMMANDS] == ["check", "score", "check", "train", "check", "score", "collect"]


def test_every_command_of_the_page_in_its_order(folder, capsys):
    said = {}
    for command in COMMANDS:
        quick = ["--batches", "20", "--resamples", "4"] if " score " in command else []
        assert main(shlex.split(command)[1:] + quick) == 0, command
        said[command] = capsys.readouterr().out
    boards = [text for command, text in said.items() if " score " in command]
    assert "NumberCount scale=1" in boards[0]
    assert "median_of_others" in boards[1]
    assert json.loads((folder / "mine.json").read_text())["config"]["kernel"]["type"] == "mykernel:NumberCount"
    steps = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(steps) == 4
    graded = [json.loads(line) for line in (folder / "graded.jsonl").read_text().splitlines()]
    assert len(graded) == 8
    assert {row["reward"] for row in graded} <= {0.0, 0.5, 1.0}


def test_its_file_loads_in_a_process_that_has_not_seen_the_module(folder):
    assert (
        main(["score", "rollouts.jsonl", "--baseline", "mykernel:NumberCount", "--save", "mykernel:NumberCount"]) == 0
    )
    batch = ["a 1", "b 2", "c 3 4"]
    script = (
        "import json\nfrom rollonce import Baseline, Batch\n"
        f"b = Baseline.load('baseline.json').predict(Batch.of({batch!r}, [1.0, 0.5, 0.0]))\n"
        "print(json.dumps(b.baseline_B.tolist()))"
    )
    # -P keeps the current directory off Python's path, as it is for an installed command.
    ran = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    near = np.exp(-1)  # one number against two
    np.testing.assert_allclose(json.loads(ran.stdout), [0.5 / (1 + near), 1 / (1 + near), 0.75], atol=1e-12)
    ran = subprocess.run([sys.executable, "-P", "-m", "rollonce.cli", "check", "mykernel:NumberCount"], check=False)
    assert ran.returncode == 0


def test_the_table_of_the_page_trains_with_its_settings(folder):
    from rollonce.training.arms.baseline import make_arm_baseline
    from rollonce.training.loading import load_experiment_config

    arm = load_experiment_config("mine.toml").arms["mine_window"]
    baseline = make_arm_baseline(arm, Batch.of(["1", "2 3"], [0.0, 1.0]).tasks)
    assert baseline.label == "NumberCount scale=0.5, window 64"
    baseline.save("again.json")
    assert Baseline.load("again.json").config() == baseline.config()


def test_the_line_of_a_task_is_one(folder):
    (line,) = re.findall(r'```\n(\{"prompt".*?\})\n```', PAGE)
    assert json.loads(line).keys() == TASKS[0].keys()
