"""What a run reports to: the real packages, offline, read back from what they wrote."""

from __future__ import annotations

import json
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from loop_helpers import metrics, small_run  # noqa: E402

from rollonce.errors import MissingExtraError  # noqa: E402
from rollonce.training import run_log as run_log_module  # noqa: E402

CHILD = """
import sys
from pathlib import Path
from rollonce.training.config import RunConfig
from rollonce.training.loop import train_with_own_loop
config = RunConfig.model_validate_json(Path(sys.argv[1]).read_text())
def on_step(record):
    if record["step"] == int(sys.argv[3]):
        import os, time
        time.sleep(1.0)  # what trackers write, they write from a thread
        os.kill(os.getpid(), 9)
train_with_own_loop(config, Path(sys.argv[2]), on_step=on_step)
"""


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kill_at: int = 0) -> Path:
    """A run of four steps that reports to ``name``, in a process of its own; killed after a step and resumed if
    asked."""
    for variable, value in (
        ("WANDB_MODE", "offline"),
        ("WANDB_SILENT", "true"),
        ("TRACKIO_DIR", str(tmp_path / "trackio")),
    ):
        monkeypatch.setenv(variable, value)
    config = small_run(track={"to": [name], "project": "rollonce-test"}, train={"checkpoint_every": 2})
    (tmp_path / "config.json").write_text(config.model_dump_json())
    for at in [kill_at] * (kill_at > 0) + [0]:
        command = [sys.executable, "-c", CHILD, str(tmp_path / "config.json"), str(tmp_path / "run"), str(at)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == (-9 if at else 0), done.stderr
    return tmp_path / "run"


@pytest.mark.parametrize("kill_at", [0, 3])
def test_tensorboard_holds_each_step_once(tmp_path, monkeypatch, kill_at):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained(tmp_path, monkeypatch, "tensorboard", kill_at)
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    scalars = events.Scalars("reward")
    assert [s.step for s in scalars] == [1, 2, 3, 4]
    assert [s.value for s in scalars] == pytest.approx([row["reward"] for row in metrics(run)])
    assert {"advantage_var", "entropy", "cpu_seconds/update"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("kill_at", [0, 3])
def test_trackio_holds_the_steps_of_one_run(tmp_path, monkeypatch, kill_at):
    run = trained(tmp_path, monkeypatch, "trackio", kill_at)
    (database,) = (tmp_path / "trackio").glob("rollonce-test*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select run_name, step, metrics from metrics order by step, id").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    # A step that a killed run had reported and then makes again is there twice, the same (on a busy machine the kill
    # may come before trackio's thread has written it).
    steps = [step for _, step, _ in rows]
    assert steps == [1, 2, 3, 4] or (kill_at and steps == [1, 2, 3, 3, 4])
    rewards = {row["step"]: row["reward"] for row in metrics(run)}
    assert [json.loads(text)["reward"] for _, _, text in rows] == pytest.approx([rewards[step] for _, step, _ in rows])


def leveldb_records(log: bytes, first: int) -> Iterator[bytes]:
    """Records of a W&B file behind its own header of ``first`` bytes: LevelDB's log format (checksum, length, kind;
    blocks of 32 KiB)."""
    at, whole = 0, b""
    while at + 7 <= len(log):
        left = 32768 - (at + first) % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", log, at + 4)
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


@pytest.mark.parametrize("kill_at", [0, 3])
def test_wandb_offline_holds_the_steps_of_one_run(tmp_path, monkeypatch, kill_at):
    from wandb.proto import wandb_internal_pb2

    run = trained(tmp_path, monkeypatch, "wandb", kill_at)
    seen: dict[int, float] = {}
    identities = set()
    for path in sorted((run / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in leveldb_records(path.read_bytes()[7:], first=7):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                identities.add(record.run.run_id)
            if record.HasField("history"):
                values = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                seen[int(values["_step"])] = values["reward"]
    assert len(identities) == 1
    # What W&B's own process had not written when all was killed is lost offline; the steps made since the checkpoint
    # are there.
    assert set(seen) >= ({3, 4} if kill_at else {1, 2, 3, 4})
    rewards = {row["step"]: row["reward"] for row in metrics(run)}
    assert list(seen.values()) == pytest.approx([rewards[step] for step in seen])


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(run_log_module.importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"rollonce\[trackio\]"):
        run_log_module.open_configured_trackers(small_run(track={"to": ["trackio"]}), tmp_path)
