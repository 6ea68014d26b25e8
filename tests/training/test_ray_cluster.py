"""Runs on a real Ray cluster of two nodes on this machine (two raylets), one of which is killed in the middle. Some
minutes, most of them Ray's own: `pytest -m slow`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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
from rollonce.training.object_store import ObjectStore  # noqa: E402
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
def cluster(s3_server: str):
    """A head for the command alone, without a CPU for tasks, and two nodes of one CPU each, that see an S3 server."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - or a busy machine starves the runs
    # Ray starts its daemons with the environment of this process, and its workers import the package from there.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(ray_cluster.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    with pytest.raises(InputError) as refused:
        ray_nodes.connect_to_ray_cluster(cluster.address)
    cluster.refused = str(refused.value)  # type: ignore[attr-defined]
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
@pytest.mark.parametrize("kept", ["shared directory", "object store"])
def test_a_node_that_dies_costs_nothing_but_time(cluster, bucket: str, tmp_path: Path, kept: str, capsys) -> None:
    """One of two nodes is killed when both runs are under way: both end on the other, bit-equal to one process."""
    killed: list[str] = []

    def tell(progress: Any) -> None:
        if not killed and len(progress.running) == 2 and all(" step " in line for line in progress.running):
            killed.extend(progress.running)
            cluster.remove_node(cluster.nodes.pop(0), allow_graceful=False)

    out = f"{bucket}/mine" if kept == "object store" else tmp_path / "ray"
    outcome = compare_on_ray_cluster(config(), out, address=cluster.address, tell=tell)
    cluster.nodes.append(cluster.add_node(num_cpus=1))
    assert killed
    assert (outcome.done, outcome.errors, outcome.interrupted) == (2, [], False)
    assert compare_in_processes(config(), tmp_path / "here").done == 2
    if kept == "object store":
        store = ObjectStore(f"{bucket}/mine")
        store.fetch_files(store.list_files(), tmp_path / "ray")
        assert cli.main(["report", f"{bucket}/mine"]) == 0
        assert "Final accuracy" in capsys.readouterr().out
    on_ray, here = what_runs_left(tmp_path / "ray"), what_runs_left(tmp_path / "here")
    assert on_ray == here
    assert len([path for path in here if path.endswith("metrics.jsonl")]) == 2


@contextlib.contextmanager
def every_cpu_taken(cluster) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's work on the two nodes, until its standard input is closed."""
    script = (
        "import ray, sys\n"
        "ray.init(sys.argv[1], log_to_driver=False)\n"
        "class Work:\n    def begin(self): return True\n"
        "work = [ray.remote(Work).options(num_cpus=1).remote() for _ in range(2)]\n"
        "ray.get([one.begin.remote() for one in work])\n"
        "print('taken', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, cluster.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as work:
        assert work.stdout is not None
        assert work.stdout.readline() == b"taken\n"
        yield work
        assert work.stdin is not None
        work.stdin.close()


@contextlib.contextmanager
def node_of_another_environment(cluster, place: Path, version: str | None) -> Iterator[None]:
    """A node of one CPU whose Python has all that this one has but rollonce, or lists another version of it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    for path in Path(ray.__file__).parents[1].iterdir():
        if "rollonce" not in path.name:
            (packages / path.name).symlink_to(path)
    if version is not None:
        listed = packages / f"rollonce-{version}.dist-info"
        listed.mkdir()
        (listed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rollonce\nVersion: {version}\n")
    start = "from ray.scripts.scripts import main; main()"
    options = ["start", "--address", cluster.address, "--num-cpus=1", "--block", "--dashboard-agent-listen-port=0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        [place / "bin" / "python", "-c", start, *options], env=environment, stdout=subprocess.DEVNULL, cwd=place
    ) as node:
        while cpus_of(cluster) < 3:
            assert node.poll() is None
            time.sleep(0.5)
        yield
        node.terminate()
    while cpus_of(cluster) > 2:
        time.sleep(0.5)


def files_there(out: str) -> list[str]:
    if "://" in out:
        return ObjectStore(out).list_files()
    return [path.relative_to(out).as_posix() for path in Path(out).rglob("*") if path.is_file()]


def cpus_of(cluster) -> float:
    """Of all nodes that live."""
    command = [sys.executable, "-c", "import ray, sys; ray.init(sys.argv[1]); print(ray.cluster_resources()['CPU'])"]
    return float(subprocess.run([*command, cluster.address], capture_output=True, check=True).stdout)


TOML = """
[tasks]
train = 60
holdout = 4
test = 4
[train]
steps = 12
rollouts = 8
kl_every = 4
shadow = []
[evaluation]
every = 6
[arms.loo]
baseline = "loo"
[compare]
seeds = [0]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "said"),
    [(None, "has no rollonce; install version"), ("0.0.1", "has rollonce 0.0.1 and this machine")],
)
def test_a_node_without_the_package_or_with_another_version(
    cluster, bucket: str, tmp_path: Path, capsys, version: str | None, said: str
) -> None:
    toml, out = tmp_path / "c.toml", str(tmp_path / "out") if version is None else f"{bucket}/mine"
    toml.write_text(TOML)
    command = ["compare", str(toml), "--out", out, "--ray", cluster.address]
    with every_cpu_taken(cluster), node_of_another_environment(cluster, tmp_path / "node", version):
        assert cli.main(command) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "no run could be made: loo seed 0: node " in error
    assert said in error
    assert "Traceback" not in error
    assert files_there(out) == ["compare.json"]
    assert cli.main(command) == 0  # on the nodes that can
    assert {"compare.json", "report.html", "runs/loo/seed0/result.json"} <= {*files_there(out)}
    if version is not None:
        assert f"wrote {out}/report.html" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_directory_that_is_not_shared(cluster, tmp_path: Path, monkeypatch, capsys) -> None:
    """A stand-in for a second machine's disk: the node reads another token than this machine has written."""
    toml = tmp_path / "c.toml"
    toml.write_text(TOML)
    monkeypatch.setattr(ray_nodes.secrets, "token_hex", lambda n: _Unlike("mine"))
    assert cli.main(["compare", str(toml), "--out", str(tmp_path / "out"), "--ray", cluster.address]) == 2
    assert "choose a directory that all nodes share" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out" / "runs").exists()


class _Unlike(str):
    """A token that is another one when it travels."""

    def __reduce__(self):
        return (str, ("another",))


@pytest.mark.slow
def test_a_full_cluster(cluster, tmp_path: Path) -> None:
    """Runs wait for a CPU, and say so; Ctrl-C takes them back; when there is one they go on."""
    waited: list[str] = []

    def interrupt(progress: Any) -> None:
        if not waited:
            waited.extend(progress.running)
            raise KeyboardInterrupt

    with every_cpu_taken(cluster) as others_work:
        outcome = compare_on_ray_cluster(config(), tmp_path, address=cluster.address, tell=interrupt)
        assert (outcome.done, outcome.errors, outcome.interrupted) == (0, [], True)
        assert waited == ["no run has made a step yet; free: 0 CPUs, 0 GPUs"]
        assert not (tmp_path / "runs").exists()

        def let_go(progress: Any) -> None:
            if not others_work.stdin.closed:
                others_work.stdin.close()

        outcome = compare_on_ray_cluster(config(), tmp_path, address=cluster.address, tell=let_go)
    assert (outcome.done, outcome.errors, outcome.interrupted) == (2, [], False)


@pytest.mark.slow
def test_a_cluster_without_a_cpu(cluster) -> None:
    """As it was when the head was all of it."""
    assert cluster.refused == "each task asks for a CPU, but no node of the Ray cluster has one"


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(cluster, tmp_path: Path) -> None:
    toml = tmp_path / "c.toml"
    toml.write_text(TOML.replace("steps = 12", "steps = 100"))  # so many that they last until Ctrl-C arrives
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
    assert len(log.read_text().splitlines()) == 100


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "no Ray cluster can be reached at '127.0.0.1:1'"), ("nonsense", "give HOST:PORT")],
)
def test_a_cluster_that_is_not_there(tmp_path: Path, capsys, address: str, said: str) -> None:
    toml, out = tmp_path / "c.toml", tmp_path / "out"
    toml.write_text(TOML)
    assert cli.main(["compare", str(toml), "--out", str(out), "--ray", address]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


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
