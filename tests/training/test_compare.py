"""Arms x seeds over processes: the same numbers as one by one, and what happens when the parent or a worker is
killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from loop_helpers import everything, small_run

from rollonce import cli
from rollonce.training.loop import train_with_own_loop

TOML = """
[tasks]
train = 90
holdout = 8
test = 8
[train]
steps = {steps}
rollouts = 8
max_new_tokens = 20
checkpoint_every = 2
kl_every = 2
shadow = ["loo", "gs1_buckets"]
[evaluation]
every = 2
[arms.flashreinforce]
baseline = "flashreinforce"
[arms.loo]
baseline = "loo"
[compare]
seeds = [0, 1]
processes = 2
"""


def write(tmp_path: Path, steps: int = 4, more: str = "") -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TOML.format(steps=steps) + more)
    return path


def workers(mark: str) -> set[int]:
    """Processes that run trainings for the test with this mark in its environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parents = (entry / "stat").read_text()
                ours = f"ROLLONCE_TEST={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if ours and b"rollonce.training.worker" in words and ") Z" not in parents:
                found.add(int(entry.name))
    return found


def test_over_processes_as_one_by_one_and_killed_it_goes_on(tmp_path, capsys):
    config = write(tmp_path, steps=6)
    command = [sys.executable, "-m", "rollonce.cli", "compare", str(config), "--out", str(tmp_path / "out")]
    mark = str(tmp_path)
    parent = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "ROLLONCE_TEST": mark}
    )
    log = tmp_path / "out" / "runs" / "flashreinforce" / "seed0" / "metrics.jsonl"
    deadline = time.monotonic() + 1200
    while not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        assert parent.poll() is None, parent.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while workers(mark):  # the workers notice, save and leave
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert cli.main(command[3:]) == 0
    said = capsys.readouterr().out
    assert "flashreinforce" in said
    for arm in ("flashreinforce", "loo"):
        for seed in (0, 1):
            alone = tmp_path / "alone" / arm / str(seed)
            train_with_own_loop(small_run({"baseline": arm}, steps=6, seed=seed), alone)
            assert everything(tmp_path / "out" / "runs" / arm / f"seed{seed}") == everything(alone)
    plan = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert plan["seeds"] == [0, 1]
    assert plan["arms"]["loo"]["rollouts_per_step"] == 8
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")


def test_more_seeds_are_added_and_nothing_is_run_twice(tmp_path, capsys):
    config = write(tmp_path, steps=1)
    out = tmp_path / "out"
    assert cli.main(["compare", str(config), "--out", str(out), "--seeds", "0"]) == 0
    stamp = (out / "runs" / "loo" / "seed0" / "result.json").stat().st_mtime_ns
    assert cli.main(["compare", str(config), "--out", str(out), "--seeds", "0", "1", "--json"]) == 0
    capsys.readouterr()
    assert (out / "runs" / "loo" / "seed0" / "result.json").stat().st_mtime_ns == stamp
    assert (out / "runs" / "loo" / "seed1" / "result.json").exists()
    changed = write(tmp_path, steps=2)
    assert cli.main(["compare", str(changed), "--out", str(out)]) == 2
    assert "train.steps was 1 and is 2" in capsys.readouterr().err


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    config = write(tmp_path, steps=300)
    out = tmp_path / "out"
    parent = subprocess.Popen(
        [sys.executable, "-m", "rollonce.cli", "compare", str(config), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    log = out / "runs" / "loo" / "seed0" / "metrics.jsonl"
    deadline = time.monotonic() + 1200
    while not (log.exists() and log.read_bytes().count(b"\n") >= 2):
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    _, said = parent.communicate(timeout=1800)
    assert parent.returncode == 130, said.decode()
    assert b"stopping after the steps that are running; Ctrl-C again ends them at once" in said
    assert b"the same command goes on" in said
    assert (out / "runs" / "loo" / "seed0" / "checkpoint.pt").exists()


def test_a_worker_that_dies_is_reported_and_the_rest_is_done(tmp_path, capsys, monkeypatch):
    config = write(tmp_path, steps=3)
    out = tmp_path / "out"
    from rollonce.training import compare as module

    real = module._Pool._handle_worker_output
    killed: list[int] = []

    def heard(self, worker, data):
        real(self, worker, data)
        if not killed and worker.step >= 1 and worker.run is not None:
            killed.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(module._Pool, "_handle_worker_output", heard)
    code = cli.main(["compare", str(config), "--out", str(out)])
    said = capsys.readouterr().err
    assert killed
    assert code == 1
    assert "was killed by signal 9; the same command goes on from its checkpoint" in said
    monkeypatch.undo()
    assert cli.main(["compare", str(config), "--out", str(out)]) == 0


def test_with_one_process_that_dies_another_takes_over(tmp_path, capsys, monkeypatch):
    from rollonce.training import compare as module

    real = module._Worker.start_training_run

    def start(self, run, out):
        real(self, run, out)
        if run.name == "flashreinforce":
            self.process.kill()

    monkeypatch.setattr(module._Worker, "start_training_run", start)
    out = tmp_path / "out"
    assert cli.main(["compare", str(write(tmp_path, steps=2)), "--out", str(out), "--processes", "1"]) == 1
    said = capsys.readouterr().err
    assert "flashreinforce seed 0: its process was killed by signal 9" in said
    assert "flashreinforce: 1 more seed not tried, since this one failed at its start" in said
    assert [(out / "runs" / "loo" / f"seed{s}" / "result.json").exists() for s in (0, 1)] == [True, True]


def test_a_fault_in_one_arm_leaves_the_others_be(tmp_path, capsys, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'rollonce.training.worker' in ' '.join(sys.orig_argv):\n"
        "    from rollonce.training.learners import local\n"
        "    real = local.LocalLearner.__init__\n"
        "    def init(self, config, policy=None):\n"
        "        if config.arm.baseline == 'loo':\n"
        "            raise RuntimeError('CUDA out of memory, says a stand-in')\n"
        "        real(self, config, policy)\n"
        "    local.LocalLearner.__init__ = init\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "out"
    assert cli.main(["compare", str(write(tmp_path, steps=2)), "--out", str(out), "--processes", "1"]) == 1
    assert "loo seed 0: RuntimeError: CUDA out of memory, says a stand-in" in capsys.readouterr().err
    assert [(out / "runs" / "flashreinforce" / f"seed{s}" / "result.json").exists() for s in (0, 1)] == [True, True]


def test_a_page_in_a_folder_that_the_runs_make(tmp_path):
    new = tmp_path / "new"
    assert (
        cli.main(
            [
                "compare",
                str(write(tmp_path, steps=1)),
                "--out",
                str(new / "runs"),
                "--report",
                str(new / "page.html"),
                "--seeds",
                "0",
            ]
        )
        == 0
    )
    assert (new / "page.html").exists()


def test_processes_and_devices_that_cannot_be(tmp_path, capsys):
    assert cli.main(["compare", str(write(tmp_path)), "--processes", "0"]) == 2
    assert "processes" in capsys.readouterr().err
    for device, words in (("gpu", "none that torch knows"), ("cuda:99", "policy.device is 'cuda:99', but torch sees")):
        config = write(tmp_path, more=f'[policy]\ndevice = "{device}"\n')
        assert cli.main(["compare", str(config), "--out", str(tmp_path / "out")]) == 2
        assert words in capsys.readouterr().err
    missing = tmp_path / "nowhere" / "page.html"
    assert cli.main(["compare", str(write(tmp_path)), "--out", str(tmp_path / "out"), "--report", str(missing)]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    assert cli.main(["compare", str(write(tmp_path)), "--out", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[arms.x]\nbaseline = "gs1_magic"\n', "there is no baseline 'gs1_magic'; there are none, "),
        ('[arms.x]\nbaseline = "nothing.json"\n', "no such file"),
        ('[arms.x]\nbaseline = "grpo"\n', "needs several rollouts of each task"),
    ],
)
def test_arms_that_cannot_be_are_found_before_anything_runs(more, words, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["compare", str(write(tmp_path, more=more)), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "arm 'x'" in said
    assert not out.exists()


def test_train_command_one_arm_one_seed(tmp_path, capsys):
    config = write(tmp_path, steps=1)
    assert cli.main(["train", str(config), "--out", str(tmp_path / "r")]) == 2
    assert "several arms; say which with --arm: flashreinforce, loo" in capsys.readouterr().err
    assert cli.main(["train", str(config), "--arm", "loo", "--seed", "7", "--out", str(tmp_path / "r"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "done"
    assert json.loads((tmp_path / "r" / "config.json").read_text())["seed"] == 7
    assert cli.main(["train", str(config), "--arm", "magic"]) == 2
    assert "has no arm 'magic'; there are flashreinforce, loo" in capsys.readouterr().err
    assert cli.main(["train", str(tmp_path / "none.toml")]) == 2
