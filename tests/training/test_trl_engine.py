"""Runs in TRL's own trainer under `rollonce compare`: two arms, two seeds, one run killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("trl", reason="the extra 'trl'")

from rollonce import cli
from rollonce.baselines import Batch
from rollonce.errors import InputError
from rollonce.training import compare as compare_module
from rollonce.training.arms.baseline import make_arm_baseline
from rollonce.training.engines import check_engine_can_run, train_on_engine
from rollonce.training.loading import list_comparison_runs, load_experiment_config
from rollonce.training.rolling import build_feature_tasks, choose_step_tasks, load_configured_tasks

FILE = """
[policy]
engine = "trl"
[tasks]
train = 60
holdout = 6
test = 6
[train]
steps = 4
rollouts = 8
checkpoint_every = 2
max_new_tokens = 24
shadow = ["loo"]
[evaluation]
every = 2
[arms.gs1]
baseline = "gs1_tfidf"
[arms.grpo]
baseline = "grpo"
group_size = 4
[compare]
seeds = [0, 1]
processes = 1
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in lines(path)]


def test_two_arms_and_two_seeds_one_of_which_is_killed(tmp_path: Path, monkeypatch, capsys) -> None:
    toml, out = tmp_path / "c.toml", tmp_path / "out"
    toml.write_text(FILE)
    real, killed = compare_module._Pool._handle_worker_output, []

    def heard(self, worker, data):
        real(self, worker, data)
        if not killed and worker.step == 3 and worker.run is not None:
            killed.append((worker.run.name, worker.run.seed))
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(compare_module._Pool, "_handle_worker_output", heard)
    assert cli.main(["compare", str(toml), "--out", str(out)]) == 1
    assert "was killed by signal 9" in capsys.readouterr().err
    assert killed == [("gs1", 0)]
    assert cli.main(["compare", str(toml), "--out", str(out), "--json"]) == 0
    report = capsys.readouterr().out
    assert "gs1" in report
    assert "grpo" in report

    runs, config = (
        {(run.name, run.seed): run for run in list_comparison_runs(load_experiment_config(toml))},
        load_experiment_config(toml),
    )
    # The run that was killed is bit-equal to one that was not.
    run = runs["gs1", 0]
    train_on_engine(run, tmp_path / "whole")
    resumed = out / "runs" / "gs1" / "seed0"
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        assert without_times(resumed / name) == without_times(tmp_path / "whole" / name)
    assert (resumed / "evaluations" / "step_000004.jsonl").read_text() == (
        tmp_path / "whole" / "evaluations" / "step_000004.jsonl"
    ).read_text()

    # Tasks, order and advantages are those that our own loop would have had with these rollouts.
    train = load_configured_tasks(config.tasks).train
    for (name, seed), run in runs.items():
        directory = out / "runs" / name / f"seed{seed}"
        baseline = make_arm_baseline(run.arm, train.as_feature_tasks())
        rollouts, steps = lines(directory / "rollouts.jsonl"), lines(directory / "metrics.jsonl")
        for step, record in enumerate(steps, 1):
            distinct = choose_step_tasks(train, run.tasks_per_step, step, seed)
            tasks = [task for task in distinct for _ in range(run.arm.group_size)]
            rows = [row for row in rollouts if row["step"] == step]
            assert [row["task_id"] for row in rows] == [task.id for task in tasks]
            batch = Batch(build_feature_tasks(tasks), np.array([row["reward"] for row in rows]))
            advantages_B = baseline.predict(batch).advantages_B
            baseline.observe(batch)
            assert record["advantage_mean"] == pytest.approx(advantages_B.mean(), abs=1e-9)
            assert record["advantage_var"] == pytest.approx(advantages_B.var(), abs=1e-9)
    assert {row["reward"] for row in lines(out / "runs" / "gs1" / "seed0" / "rollouts.jsonl")} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("[arms.v]\ncritic = {}\n", "arm 'v': engine = \"trl\" cannot run a token-level critic"),
        ('[arms.best]\nbaseline = "oracle"\n', "arm 'best': engine = \"trl\" cannot run the oracle"),
        ('[arms.old]\nbaseline = "loo"\nloss = {lag = 2}\n', "arm 'old': engine = \"trl\" cannot run loss.lag"),
    ],
)
def test_what_trl_cannot_run_is_refused_by_name(tmp_path: Path, capsys, changes: str, said: str) -> None:
    toml = tmp_path / "c.toml"
    toml.write_text(FILE + changes)
    assert cli.main(["compare", str(toml), "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_settings_of_trl_that_the_file_has_words_for(tmp_path: Path) -> None:
    toml = tmp_path / "c.toml"
    toml.write_text(FILE.replace('engine = "trl"', 'engine = "trl"\ntrl = {learning_rate = 1e-3}'))
    with pytest.raises(InputError, match="learning_rate: set from the rest of the file"):
        check_engine_can_run(list_comparison_runs(load_experiment_config(toml))[0])
    toml.write_text(FILE.replace('engine = "trl"', "trl = {use_vllm = true}"))
    with pytest.raises(InputError, match="without effect with engine = 'local'"):
        load_experiment_config(toml)


OVERFLOWS = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Prediction


@dataclass
class Overflows(Baseline):
    type: ClassVar[str] = "overflows"
    steps: int = 0

    def predict(self, batch, history=None):
        return Prediction.of(batch, np.full(len(batch), 1e39 if self.steps == 2 else 0.5))

    def observe(self, batch):
        self.steps += 1
"""


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, monkeypatch, capsys) -> None:
    """A baseline of 1e39 at step 3 is infinite in TRL's float32, and so is the loss. TRL itself would log a mean of
    earlier losses there, and go on."""
    (tmp_path / "overflows.py").write_text(OVERFLOWS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    toml, out = tmp_path / "c.toml", tmp_path / "out"
    arms = FILE.index("[arms.gs1]")
    toml.write_text(
        FILE[:arms] + '[arms.over]\nbaseline = "overflows:Overflows"\n[compare]\nseeds = [0]\nprocesses = 1\n'
    )
    assert cli.main(["compare", str(toml), "--out", str(out), "--json"]) == 0
    run = out / "runs" / "over" / "seed0"
    said = "loss nan, gradient norm nan at step 3; TRL has moved the policy by it"
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["message"], result["steps"]) == ("nan", said, 3)
    assert [step["loss"] is None for step in lines(run / "metrics.jsonl")] == [False, False, True]
    assert f"over seed 0 (nan: {said})" in capsys.readouterr().out
