"""Runs on a real Ray cluster of two nodes on this machine (two raylets), one of which is killed in the middle. Some
minutes, most of them Ray's own: `pytest -m slow`."""

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

pytest.importorskip("torch")
ray = pytest.importorskip("ray", reason="the extra 'ray'")

from rollonce import cli, ray_nodes  # noqa: E402
from rollonce.errors import InputError  # noqa: E402
from rollonce.rollouts import Rollouts  # noqa: E402
from rollonce.training import ray_cluster  # noqa: E402
from rollonce.training.compare import compare_in_processes  # noqa: E402
from rollonce.training.config import ExperimentConfig  # noqa: E402
from rollonce.training.ray_cluster import compare_on_ray_cluster  # noqa: E402
from rollonce.training.sections import validate_section  # noqa: E402
from rollonce.tuning.ray_helpers import search_helpers_on_ray  # noqa: E402
from rollonce.tuning.tune import tune  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")


def config(**tables: Any) -> ExperimentConfig:
    data: dict[str, Any] = {
        "tasks": {"train": 60, "holdout": 4, "test": 4},
        "train": {"steps": 8, "rollouts": 4, "checkpoint_every": 2, "kl_every": 4, "shadow": []},
        "evaluation": {"every": 6},
        "arms": {"loo": {"baseline": "loo"}},
        "compare": {"seeds": [0, 1], "processes": 2},
    }
    return validate_section(ExperimentConfig, {**data, **tables})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """A head for the command alone, without a CPU for tasks, and two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - or a busy machine starves the runs
    # Ray starts its daemons with the environment of this process, and its workers import the package from there.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(ray_cluster.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]  # type: ignore[attr-defined]
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def what_runs_left(out: Path) -> dict[str, Any]:
    """All that a run is judged by: its steps without their times, rollouts, evaluations and result."""
    left: dict[str, Any] = {}
    for path in sorted(out.glob("runs/*/*/**/*.json*")):
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else []
        for row in rows:
            row.pop("cpu_seconds", None), row.pop("wall_seconds", None)
        left[str(path.relative_to(out))] = rows or path.read_bytes()
    return left


@pytest.mark.slow
def test_a_node_that_dies_costs_nothing_but_time(cluster, tmp_path: Path) -> None:
    """One of two nodes is killed when both runs are under way: both end on the other, bit-equal to one process."""
    killed: list[str] = []

    def tell(progress: Any) -> None:
        if not killed and len(progress.running) == 2 and all(" step " in line for line in progress.running):
            killed.extend(progress.running)
            cluster.remove_node(cluster.nodes[0], allow_graceful=False)

    outcome = compare_on_ray_cluster(config(), tmp_path / "ray", address=cluster.address, tell=tell)
    assert killed
    assert (outcome.done, outcome.errors, outcome.interrupted) == (2, [], False)
    assert compare_in_processes(config(), tmp_path / "here").done == 2
    on_ray, here = what_runs_left(tmp_path / "ray"), what_runs_left(tmp_path / "here")
    assert on_ray == here
    assert len([path for path in here if path.endswith("metrics.jsonl")]) == 2


@pytest.mark.slow
def test_a_directory_that_is_not_shared_and_another_version(cluster, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ray_nodes, "_VERSION", "0.0.1")
    outcome = compare_on_ray_cluster(config(), tmp_path / "version", address=cluster.address)
    assert outcome.done == 0
    assert "and this machine 0.0.1; install the same on both" in outcome.errors[0]
    monkeypatch.undo()
    # The node reads another token than this machine has written: as it would from a directory of its own.
    monkeypatch.setattr(ray_nodes.secrets, "token_hex", lambda n: _Unlike("mine"))
    outcome = compare_on_ray_cluster(config(), tmp_path / "shared", address=cluster.address)
    assert outcome.done == 0
    assert "choose a directory that all nodes share" in outcome.errors[0]


class _Unlike(str):
    """A token that is another one when it travels."""

    def __reduce__(self):
        return (str, ("another",))


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(cluster, tmp_path: Path) -> None:
    toml = tmp_path / "c.toml"
    toml.write_text(
        "[tasks]\ntrain = 60\nholdout = 4\ntest = 4\n[train]\nsteps = 12\nrollouts = 8\nkl_every = 4\nshadow = []\n"
        '[evaluation]\nevery = 6\n[arms.loo]\nbaseline = "loo"\n[compare]\nseeds = [0]\n'
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "rollonce.cli", "compare", str(toml), "--out", str(out), "--ray", cluster.address]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE)
    log = out / "runs" / "loo" / "seed0" / "metrics.jsonl"
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert parent.poll() is None, parent.communicate()[1].decode()
        time.sleep(0.1)
    parent.send_signal(signal.SIGINT)
    said = parent.communicate()[1].decode()
    assert parent.returncode == 130, said
    assert "the same command goes on" in said
    assert not (out / "runs" / "loo" / "seed0" / "result.json").exists()
    assert cli.main([*command[3:]]) == 0
    assert len(log.read_text().splitlines()) == 12


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "no Ray cluster can be reached at '127.0.0.1:1'"), ("nonsense", "give HOST:PORT")],
)
def test_a_cluster_that_is_not_there(tmp_path: Path, address: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare_on_ray_cluster(config(), tmp_path, address=address)


def test_what_a_cluster_could_never_run() -> None:
    with pytest.raises(InputError, match="no node of the Ray cluster has one"):
        ray_cluster._assign_cluster_gpus(config(policy={"device": "cuda"}), {"CPU": 4.0})
    with pytest.raises(InputError, match="devices of one machine"):
        ray_cluster._assign_cluster_gpus(config(compare={"devices": ["cpu", "cpu"]}), {"CPU": 4.0})
    spread, gpus = ray_cluster._assign_cluster_gpus(config(compare={"devices": "auto"}), {"CPU": 4.0, "GPU": 2.0})
    assert (spread.policy.device, gpus) == ("cuda", 1)


@pytest.mark.slow
def test_a_cluster_joins_a_search(cluster, tmp_path: Path) -> None:
    """One study in the shared storage, with trials of more than one process, and the budget met by all together."""
    optuna = pytest.importorskip("optuna")
    rng = np.random.default_rng(0)
    prompts = [f"{topic} exercise {n}" for n, topic in enumerate(rng.permutation(["chess", "logic"] * 40))]
    solved = np.array([0.1 + 0.8 * prompt.startswith("chess") for prompt in prompts])
    table = Rollouts.from_groups((rng.random((80, 4)) < solved[:, None]).astype(float), prompts, name="planted")
    storage = tmp_path / "search.db"
    settings = {"budget": "30", "storage": str(storage), "n_batches": 20, "resamples": 0, "report_batches": 10}
    helped: list[int] = []

    def progress(search: str, trials: int, seconds: float, best: float) -> None:
        # Hold this process's search back until the cluster has made a trial of it.
        while not helped:
            names = optuna.get_all_study_names(f"sqlite:///{storage}")
            studies = [optuna.load_study(study_name=name, storage=f"sqlite:///{storage}") for name in names]
            made = sum(trial.state.is_finished() for study in studies for trial in study.trials)
            helped.extend([made] if made > 1 else [])
            time.sleep(0.2)

    with search_helpers_on_ray(cluster.address, table, settings) as complaints:
        result = tune(table, **settings, progress=progress)
    assert complaints == []
    assert result.n_trials >= 30
    with pytest.raises(InputError, match="give --storage"), search_helpers_on_ray(cluster.address, table, {}):
        pass
