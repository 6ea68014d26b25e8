"""Runs whose results lie in an object store: moto's S3 server on the loopback, through s3fs, as a cluster's nodes use
it. Runs on a Ray cluster that write there: `test_ray_cluster`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import everything, small_run

pytest.importorskip("torch")
pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

from rollonce import cli
from rollonce.errors import InputError
from rollonce.training import files
from rollonce.training.object_store import ObjectStore
from rollonce.training.run_owner import RunOwner, record_name
from rollonce.training.stored_runs import train_in_object_store, write_store_token
from rollonce.training.worker import get_process_runner

RUN = "runs/arm/seed0"


def train_there(
    url: str,
    *,
    steps: int = 6,
    engine: str = "local",
    token: str | None = None,
    on_step: Any = None,
    stop_at: int | None = None,
    patience: float = 0,
) -> Any:
    """What a node does with a run."""
    stop = threading.Event()

    def told(record: Any) -> None:
        if record["step"] == stop_at:
            stop.set()
        if on_step is not None:
            on_step(record)

    def job(scratch: Path, put: Any) -> dict[str, Any]:
        settings = small_run(steps=steps, policy={"engine": engine}).model_dump(mode="json")
        return get_process_runner().run_training_job(settings, scratch, told, stop, on_checkpoint=put)

    with write_store_token(url) as mine:
        return train_in_object_store(url, RUN, token or mine, job, stop, patience=patience)


def left_there(url: str, directory: Path) -> dict[str, Any]:
    store = ObjectStore(f"{url}/{RUN}")
    store.fetch_files(store.list_files(), directory)
    return everything(directory)


def count_steps(url: str) -> int:
    return (ObjectStore(f"{url}/{RUN}").read_file("metrics.jsonl") or b"").count(b"\n")


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All that the run leaves behind in a directory, never stopped."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    event = get_process_runner().run_training_job(
        small_run(steps=6).model_dump(mode="json"), directory, lambda record: None, threading.Event()
    )
    assert event["event"] == "end"
    return everything(directory)


KILLED_AT_STEP_5 = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from test_object_store import train_there
def kill_at_5(record):
    if record["step"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
train_there(sys.argv[1], engine=os.environ["ENGINE"], on_step=kill_at_5)
"""


def kill_run_at_step_5(url: str, scratch: Path, engine: str) -> None:
    environment = {**os.environ, "TMPDIR": str(scratch), "ENGINE": engine}
    command = [sys.executable, "-c", KILLED_AT_STEP_5, url, *sys.path]
    killed = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_a_killed_run_goes_on_from_the_store_in_another_directory(bucket, tmp_path: Path, in_one_process) -> None:
    url = f"{bucket}/some/where"
    kill_run_at_step_5(url, tmp_path, "local")
    store = ObjectStore(f"{url}/{RUN}")
    assert {"checkpoint.pt", "config.json", "metrics.jsonl", "rollouts.jsonl"} <= {*store.list_files()}
    assert count_steps(url) == 4  # the checkpoint's: step 5 was nowhere but in scratch
    steps: list[int] = []
    # Its process was of this computer and is dead: nobody waits for its record to grow old.
    event = train_there(url, on_step=lambda record: steps.append(record["step"]))
    assert (event["event"], event["result"]["steps"], steps) == ("end", 6, [5, 6])
    assert left_there(url, tmp_path / "fetched") == in_one_process
    assert store.read_file(record_name(2)) == b"{}"  # free for any computer at once
    assert train_there(url)["result"]["steps"] == 6  # it has ended, and is as it was
    assert left_there(url, tmp_path / "again") == in_one_process


def test_a_run_that_is_stopped_saves_there(bucket, tmp_path: Path, in_one_process) -> None:
    event = train_there(bucket, stop_at=3)
    assert event["result"]["status"] == "interrupted"
    assert count_steps(bucket) == 3
    assert train_there(bucket)["event"] == "end"
    assert left_there(bucket, tmp_path / "fetched") == in_one_process


@pytest.mark.slow
def test_a_killed_run_of_trl_goes_on_too(bucket, tmp_path: Path) -> None:
    """Its checkpoints are folders of many files, of which the older ones go."""
    pytest.importorskip("trl")
    kill_run_at_step_5(f"{bucket}/killed", tmp_path, "trl")
    steps: list[int] = []
    assert train_there(f"{bucket}/killed", engine="trl", on_step=lambda r: steps.append(r["step"]))["event"] == "end"
    assert steps == [5, 6]
    assert train_there(f"{bucket}/whole", engine="trl")["event"] == "end"
    killed, whole = (ObjectStore(f"{bucket}/{name}/{RUN}") for name in ("killed", "whole"))
    assert [n for n in killed.list_files() if n[0] != "."] == [n for n in whole.list_files() if n[0] != "."]
    for name in ("rollouts.jsonl", "evaluations/step_000006.jsonl", "final/model.safetensors", "result.json"):
        assert killed.read_file(name) == whole.read_file(name)
    assert not [name for name in killed.list_files() if name.startswith("trl/")]


def test_wherever_the_store_breaks_off_the_run_goes_on(bucket, tmp_path: Path, in_one_process, monkeypatch) -> None:
    """Every beginning of the files that are put is a state to go on from: cut off before each of them in turn."""
    real, cut_off = ObjectStore.put_file, []

    def put_or_break(self: ObjectStore, path: Path, name: str) -> None:
        if name not in cut_off:
            cut_off.append(name)
            raise InputError("cannot be written to from here: the line is dead", file=self.url)
        real(self, path, name)

    monkeypatch.setattr(ObjectStore, "put_file", put_or_break)
    broken = 0
    while (event := train_there(bucket))["event"] == "error":
        broken += 1
        assert "the line is dead" in event["message"]
        assert not ObjectStore(f"{bucket}/{RUN}").read_file("result.json")
    # config, logs, three evaluations, policy, checkpoint, result
    assert broken == len(cut_off) >= 10
    assert cut_off.index("checkpoint.pt") > cut_off.index("rollouts.jsonl")
    assert cut_off[-1] == "result.json"
    assert left_there(bucket, tmp_path / "fetched") == in_one_process


def test_one_of_many_that_try_becomes_the_owner(bucket) -> None:
    store = ObjectStore(bucket)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda k: store.write_new_file("x", b"%d" % k), range(8)))
    assert sum(made) == 1
    assert store.read_file("x") == b"%d" % made.index(True)


def other_computer(number: int, renewals: int = 0) -> tuple[str, bytes]:
    record = {"computer": "node7 another-boot", "process": ["", 1], "key": "k", "renewals": renewals}
    return f"{RUN}/{record_name(number)}", json.dumps(record).encode()


def test_two_computers_and_one_run(bucket, monkeypatch) -> None:
    """One that shows signs of life keeps the run; one that shows none for the time of a lease loses it."""
    monkeypatch.setattr(files, "LEASE_SECONDS", 1.5)
    store, over = ObjectStore(bucket), threading.Event()
    store.write_file(*other_computer(3))

    def renew() -> None:
        renewals = 0
        while not over.wait(0.25):
            renewals += 1
            store.write_file(*other_computer(3, renewals))

    renewing = threading.Thread(target=renew)
    renewing.start()
    event = train_there(bucket, patience=4)
    assert event["event"] == "error"
    assert f"{bucket}/{RUN}: the computer 'node7' is writing to this run, or died" in event["message"]
    assert not store.read_file(f"{RUN}/config.json")
    over.set()
    renewing.join()
    assert train_there(bucket, steps=2, patience=60)["event"] == "end"
    assert store.list_files(f"{RUN}/.owner") == [f"{RUN}/.owner/00000004"]


def test_a_run_that_was_taken_over_puts_nothing_more(bucket) -> None:
    store = ObjectStore(bucket)

    def take_over_at_3(record: Any) -> None:
        if record["step"] == 3:
            store.write_file(*other_computer(2))

    event = train_there(bucket, on_step=take_over_at_3)
    assert event["message"] == f"{bucket}/{RUN}: another computer has taken this run over; this one has ended it"
    assert count_steps(bucket) == 2
    assert store.read_file(f"{RUN}/{record_name(2)}") == other_computer(2)[1]


def test_a_record_is_renewed_and_a_loss_stops_the_run(bucket, monkeypatch) -> None:
    monkeypatch.setattr(files, "LEASE_SECONDS", 0.6)
    store, stop, over = ObjectStore(f"{bucket}/{RUN}"), threading.Event(), threading.Event()
    owner = RunOwner(store)
    owner.become_owner(0)
    renewing = threading.Thread(target=owner.keep_record_renewed, args=(over, stop))
    renewing.start()
    while json.loads(store.read_file(record_name(1)) or b"{}")["renewals"] < 2:
        time.sleep(0.05)
    assert not stop.is_set()
    store.write_file(record_name(2), b"{}")
    renewing.join()
    assert stop.is_set()


def test_a_node_that_sees_another_store(bucket) -> None:
    event = train_there(bucket, token=".seen-by-every-node/another")
    assert event["event"] == "error"
    assert f"does not see {bucket} as this machine does" in event["message"]


CONFIG = """
[tasks]
train = 60
holdout = 4
test = 4
[train]
steps = 2
rollouts = 4
max_new_tokens = 8
shadow = []
[arms.loo]
baseline = "loo"
[compare]
seeds = [0]
"""


def test_a_report_of_what_lies_there(bucket, tmp_path: Path, capsys, monkeypatch) -> None:
    toml, here, url = tmp_path / "c.toml", tmp_path / "here", f"{bucket}/mine/"
    toml.write_text(CONFIG)
    assert cli.main(["compare", str(toml), "--out", str(here)]) == 0
    store = ObjectStore(url)
    for path in here.rglob("*"):
        if path.is_file() and path.name != ".lock":
            store.put_file(path, path.relative_to(here).as_posix())
    capsys.readouterr()
    assert cli.main(["report", str(here), "--json"]) == 0
    local = json.loads(capsys.readouterr().out)
    fetched: list[str] = []
    real = ObjectStore.fetch_files
    monkeypatch.setattr(
        ObjectStore, "fetch_files", lambda self, names, to: (fetched.extend(names), real(self, names, to))[1]
    )
    assert cli.main(["report", url, "--report", f"{url}report.html", "--markdown", f"{url}r.md", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert there.pop("directory") == url
    assert local.pop("directory") == str(here)
    for report in (local, there):
        report.pop("command")
    assert there == local
    assert b"</html>" in (store.read_file("report.html") or b"")
    assert b"loo" in (store.read_file("r.md") or b"")
    assert "runs/loo/seed0/metrics.jsonl" in fetched
    assert not [name for name in fetched if "checkpoint" in name or "/final/" in name or "rollouts" in name]


@pytest.mark.parametrize(
    ("out", "ray", "said"),
    [
        ("s3://bucket/x", [], "--out s3://bucket/x is an object store"),
        ("s3://bucket/x", [], "give --ray as well"),
        ("nothing-known://x", ["--ray"], "nothing-known://x: cannot be used from computer"),
        ("file:///somewhere/x", ["--ray"], "file:///somewhere/x: is a directory; give its path"),
        ("gs://bucket/x", ["--ray"], "nstall gcsfs"),
        ("s3://no-such-bucket/x", ["--ray"], "s3://no-such-bucket/x: cannot be read from computer"),
    ],
)
def test_places_that_cannot_be_used(s3_server, tmp_path: Path, capsys, monkeypatch, out, ray, said: str) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as where it is not installed
    toml = tmp_path / "c.toml"
    toml.write_text(CONFIG)
    assert cli.main(["compare", str(toml), "--out", out, *ray]) == 2
    error = capsys.readouterr().err
    assert said in " ".join(error.split())
    assert "Traceback" not in error


def test_a_report_of_nothing(bucket, capsys) -> None:
    assert cli.main(["report", f"{bucket}/none"]) == 2
    assert "nothing is there; name the URL" in " ".join(capsys.readouterr().err.split())
