"""kill -9 at any moment, then the same command again: no rollout twice, none missing, and the same file as without the
kills."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_server import FakeServer

from rollonce.collecting import CollectSettings, collect_rollouts

RUN = [sys.executable, "-m", "rollonce.cli", "collect"]
KILLED_AT_8 = """
import os, signal, sys
from rollonce.cli import main
from rollonce.collecting.store import Store
write = Store.append_rollout_rows
def write_and_die(store, rows):
    write(store, rows)
    if len(store.rows) >= 8:
        os.kill(os.getpid(), signal.SIGKILL)
Store.append_rollout_rows = write_and_die
main(sys.argv[1:])
"""


def start(*argv: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*RUN, *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines_of(part: Path) -> int:
    return part.read_bytes().count(b"\n") if part.exists() else 0


def kill_after(process: subprocess.Popen[str], part: Path, more: int) -> bool:
    """Kill it once it has written that many rows more; False if it ended before."""
    # Loading torch takes seconds, and minutes on a machine that is busy enough: the limit is against hanging for ever,
    # not for speed.
    goal, deadline = lines_of(part) + more, time.monotonic() + 900
    try:
        while process.poll() is None:
            if lines_of(part) >= goal:
                process.send_signal(signal.SIGKILL)
                return True
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return False
    finally:
        process.kill()
        process.wait()


def test_killed_again_and_again_at_a_server(sums, tmp_path):
    out = tmp_path / "out.jsonl"
    part = tmp_path / "out.jsonl.part"
    rng = random.Random(4)
    answered = 0  # requests that are answered; later ones hang, so that a busy machine finishes no run before its kill
    with FakeServer(trouble=lambda k, body: None if k < answered else "hang") as server:
        argv = [
            "fake-model",
            "--url",
            server.url,
            "--tasks-from",
            f"jsonl:{sums}",
            "--split",
            "all",
            "--grader",
            "numeric_exact",
        ]
        argv += ["--tasks", 12, "--rollouts", 8, "--concurrency", 4, "--out", out]
        kills = 0
        for _ in range(3):
            more = rng.randint(3, 25)
            answered = len(server.requests) + more + 4
            process = start(*argv)
            kills += kill_after(process, part, more)
            # What a kill in the midst of a write leaves.
            with open(part, "ab") as f:
                f.write(b'{"task_id": "s1", "rollout_id": 0, "prom')
        assert kills == 3
        assert not out.exists()
        kept = lines_of(part)
        answered = 1000
        process = start(*argv)
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        assert f"{kept} of 96 rollouts are there already" in err
        times = Counter(server.asked())
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    pairs = [(r["task_id"], r["rollout_id"]) for r in rows]
    assert len(pairs) == len(set(pairs)) == 96
    assert len(times) == 96
    # A request that was under way at a kill was answered to nobody, and had to be made again: at most 4 a kill.
    assert sum(times.values()) - 96 <= 4 * kills
    assert not part.exists()
    assert len(json.loads((tmp_path / "out.jsonl.collect.json").read_text())["sessions"]) == 4


@pytest.mark.xdist_group("embedded")
def test_the_embedded_policy_writes_the_same_file_killed_or_not(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("reasoning_gym")
    common = ["embedded", "--tasks", 8, "--rollouts", 6, "--batch-rows", 4, "--max-tokens", 40]
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    part = tmp_path / "killed.jsonl.part"
    settings = CollectSettings("embedded", "embedded", str(whole), n_tasks=8, n_rollouts=6, batch_rows=4, max_tokens=40)
    assert collect_rollouts(settings).added == 48
    command = [sys.executable, "-c", KILLED_AT_8, "collect", *map(str, common), "--out", killed]
    done = subprocess.run(command, check=False)
    assert done.returncode == -signal.SIGKILL
    assert lines_of(part) == 8
    # A write of four rows that was cut in the middle of its third.
    data = part.read_bytes()
    lines = data.splitlines(keepends=True)
    block = len(lines) - len(lines) % 4 - 4
    part.write_bytes(b"".join(lines[: block + 2]) + lines[block + 2][:30])
    assert collect_rollouts(dataclasses.replace(settings, out=str(killed))).added == 48 - block - 2
    assert killed.read_bytes() == whole.read_bytes()
    rows = [json.loads(line) for line in killed.read_text().splitlines()]
    assert len({(r["task_id"], r["rollout_id"]) for r in rows}) == len(rows) == 48


def test_ctrl_c_says_what_is_kept(sums, tmp_path):
    out = tmp_path / "out.jsonl"
    with FakeServer(trouble=lambda k, body: "hang" if k > 20 else None) as server:
        part = Path(str(out) + ".part")
        argv = [
            "fake-model",
            "--url",
            server.url,
            "--tasks-from",
            f"jsonl:{sums}",
            "--split",
            "all",
            "--tasks",
            20,
            "--out",
            out,
        ]
        process = start(*argv)
        while lines_of(part) < 4:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "of 160 rollouts are kept in" in err
    assert "Traceback" not in err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs limits of Unix")
def test_a_full_disk_is_a_sentence_and_costs_no_row(sums, tmp_path):
    """A limit on the size of files stands in for the end of a disk: the kernel cuts a write short and refuses the next
    in the same way."""
    out = tmp_path / "out.jsonl"
    with FakeServer() as server:
        argv = [
            "collect",
            "fake-model",
            "--url",
            server.url,
            "--tasks-from",
            f"jsonl:{sums}",
            "--split",
            "all",
            "--grader",
            "numeric_exact",
        ]
        argv += ["--tasks", "12", "--rollouts", "8", "--concurrency", "1", "--out", str(out)]
        code = (
            "import resource, sys; from rollonce.cli import main; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, "
            f"5000)); sys.exit(main({argv!r}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert "cannot be written: File too large" in done.stderr
        assert "are kept in out.jsonl.part, and the same command goes on there" in done.stderr
        kept = Path(str(out) + ".part").read_bytes()
        assert 0 < len(kept) <= 5000
        assert kept.endswith(b"}\n")
        n = kept.count(b"\n")
        assert all(json.loads(line) for line in kept.splitlines())
        asked = len(server.requests)
        assert asked == n + 1
        process = start(*argv[1:])
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        assert len(server.requests) - asked == 96 - n
    assert len(out.read_text().splitlines()) == 96
