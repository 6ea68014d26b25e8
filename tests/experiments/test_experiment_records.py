"""The chain of records, the lock, and files that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollonce.errors import InputError
from rollonce.experiments import files, records
from rollonce.experiments.records import Chain, locked_directory


def chain_of(folder: Path, n: int = 3) -> Chain:
    chain = Chain(folder)
    for i in range(n):
        chain.append_stage_record(f"stage{i}", "passed", spec="s" * 64, data={"value": i}, seconds=0.5)
    return chain


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    before = chain_of(tmp_path).records
    assert Chain(tmp_path).records == before
    assert before[1].previous == before[0].hash
    assert before[0].previous == ""


@pytest.mark.parametrize("field", ["data", "status", "seconds", "spec", "inputs", "utc"])
def test_a_changed_record_breaks_the_chain(tmp_path: Path, field: str) -> None:
    chain_of(tmp_path)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    record[field] = {
        "data": {"value": 9},
        "status": "failed",
        "seconds": 0.1,
        "spec": "t" * 64,
        "inputs": {"a": 1},
        "utc": "now",
    }[field]
    lines[1] = json.dumps(record)
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 2: the record of stage 'stage1' was changed"):
        Chain(tmp_path)


def test_a_changed_record_with_a_fitting_hash_breaks_the_next(tmp_path: Path) -> None:
    chain_of(tmp_path)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    del record["hash"]
    record["data"] = {"value": 9}
    lines[1] = json.dumps(record | {"hash": files.compute_json_digest(record)})
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 3: this record does not follow"):
        Chain(tmp_path)


@pytest.mark.parametrize("drop", [0, 1])
def test_a_dropped_record_breaks_the_chain(tmp_path: Path, drop: int) -> None:
    chain_of(tmp_path)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    del lines[drop]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="does not follow"):
        Chain(tmp_path)


def test_a_line_that_a_kill_cut_short_is_cut_off(tmp_path: Path) -> None:
    chain = chain_of(tmp_path)
    whole = chain.path.read_bytes()
    chain.path.write_bytes(whole + whole.splitlines()[1][:40])
    again = Chain(tmp_path)
    assert len(again.records) == 3
    assert chain.path.read_bytes() == whole
    again.append_stage_record("more", "passed", spec="s" * 64)
    assert [r.stage for r in Chain(tmp_path).records] == ["stage0", "stage1", "stage2", "more"]


def test_rubbish_in_a_finished_line_is_named(tmp_path: Path) -> None:
    chain = chain_of(tmp_path)
    with open(chain.path, "ab") as f:
        f.write(b"hello\n")
    with pytest.raises(InputError, match="line 4: is no JSON"):
        Chain(tmp_path)


def full_disk(after: int):
    """os.write that takes so many bytes, and then finds the disk full."""
    real, left = os.write, [after]

    def write(handle: int, data: bytes) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(handle, bytes(data)[: left[0]])
        left[0] -= taken
        return taken

    return write


def test_a_full_disk_is_a_sentence_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(tmp_path)
    before = chain.path.read_bytes()
    monkeypatch.setattr(files.os, "write", full_disk(20))
    with pytest.raises(InputError, match=r"records.jsonl: cannot be written: the disk is full"):
        chain.append_stage_record("big", "passed", spec="s" * 64)
    monkeypatch.undo()
    assert chain.path.read_bytes() == before
    assert len(chain.records) == 3
    chain.append_stage_record("big", "passed", spec="s" * 64)
    assert len(Chain(tmp_path).records) == 4


def test_a_clock_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(tmp_path, 1)
    monkeypatch.setattr(records.time, "gmtime", lambda: time.struct_time((1999, 1, 1, 0, 0, 0, 4, 1, 0)))
    chain.append_stage_record("later", "passed", spec="s" * 64, seconds=2.0)
    again = Chain(tmp_path)
    assert again.records[1].utc.startswith("1999")
    assert again.records[1].seconds == 2.0


def test_damaged_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n")
    chain = Chain(tmp_path)
    record = chain.append_stage_record("x", "passed", spec="s" * 64, files=["a.jsonl"])
    assert chain.find_damaged_file(record) == ""
    (tmp_path / "a.jsonl").write_text("2\n")
    assert chain.find_damaged_file(record) == "a.jsonl"


def test_the_lock_refuses_a_second_run_and_names_the_first(tmp_path: Path) -> None:
    with (
        locked_directory(tmp_path),
        pytest.raises(InputError, match=f"a run is at work in this directory .process {os.getpid()}"),
        locked_directory(tmp_path),
    ):
        pass
    with locked_directory(tmp_path):
        pass


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    code = "import sys, time, pathlib\nfrom rollonce.experiments.records import locked_directory\n"
    code += "with locked_directory(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"process {child.pid}"), locked_directory(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()
    with locked_directory(tmp_path):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
