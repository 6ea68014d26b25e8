"""``rollonce collect`` as it is typed: output, JSON, exit codes; and the figures under it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fake_server import FakeServer

from rollonce.cli import main
from rollonce.collecting.settings import CollectSettings
from rollonce.collecting.store import Counts
from rollonce.collecting.summary import compute_collection_cost, summarise_collection
from rollonce.rollouts import Rollouts
from rollonce.scoring import effective_batch_of_loo


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def rollonce(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """``rollonce("collect", ...)`` in a directory of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> Ran:
        capsys.readouterr()
        code = main([str(a) for a in argv])
        return Ran(code, *capsys.readouterr())

    return run


def at(server: FakeServer, sums: Path, *more: object) -> list[object]:
    words = [
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
    return [*words, "--columns", "size", "--tasks", 24, "--rollouts", 8, "--out", "x.jsonl", *more]


def test_what_is_printed_and_that_score_takes_it(sums, rollonce):
    with FakeServer(models=["fake-model"]) as server:
        ran = rollonce(*at(server, sums, "--price-in", 2, "--price-out", 10))
    assert ran.code == 0, ran.err
    rewards = np.array([json.loads(line)["reward"] for line in Path("x.jsonl").read_text().splitlines()]).reshape(24, 8)
    text = " ".join(ran.out.split())
    assert "x.jsonl: 24 tasks x 8 rollouts of fake-model (192 new)" in text
    s2 = rewards.var(axis=1, ddof=1).mean()
    tau2 = rewards.mean(axis=1).var(ddof=1) - s2 / 8
    assert f"mean reward {rewards.mean():.3g} [" in text
    assert f"s2 {s2:.3g} [" in text
    assert f"tau2 {tau2:.3g}".replace("-", "−") in text
    assert "of 24 in-batch leave-one-out mean, 95% over tasks" in text
    assert "About 72 more tasks (96 in all) would halve that interval: it shrinks as 1/sqrt(tasks)." in text
    assert "times as wide (1.41 by that rule)" in text
    # 4 words a prompt, 3 a response: 768 x 2 + 576 x 10 millionths.
    assert "768 prompt and 576 response tokens" in text
    assert "0.007296 at the prices given" in text
    following = ran.out.strip().splitlines()[-1]
    assert following == "Next: rollonce score x.jsonl --columns size --batch-size 24"
    scored = rollonce(*following.split()[2:], "--batches", 10, "--resamples", 0, "--window", 4, "--json")
    assert scored.code == 0, scored.err
    board = json.loads(scored.out)["boards"][0]
    assert board["moments"]["n_rollouts"] == 192


def test_json(sums, rollonce):
    with FakeServer() as server:
        ran = rollonce(*at(server, sums, "--json"))
        again = rollonce(*at(server, sums, "--json"))
    said = json.loads(ran.out)
    assert (ran.code, said["added"], said["counts"]["rollouts"], said["more_tasks"]) == (0, 192, 192, 72)
    assert said["cost"]["money"] is None
    assert said["b_eff"]["low"] < said["b_eff"]["value"] < said["b_eff"]["high"]
    assert said["next"].startswith("rollonce score x.jsonl")
    assert json.loads(again.out)["added"] == 0
    assert json.loads(again.out)["moments"] == said["moments"]


def test_one_rollout_a_task_says_what_cannot_be_told(sums, rollonce):
    with FakeServer() as server:
        ran = rollonce(*at(server, sums, "--rollouts", 1))
    assert ran.code == 0, ran.err
    assert "not to be told apart with one rollout per task" in ran.out
    assert "would halve" not in ran.out


def test_a_server_that_says_the_same_every_time_is_seen_through(sums, rollonce, monkeypatch):
    monkeypatch.setattr("fake_server.answer", lambda prompt, seed: f"always {len(prompt)}")
    with FakeServer() as server:
        ran = rollonce(*at(server, sums))
    assert ran.code == 0, ran.err
    assert "In every task all rollouts are the same text" in ran.out
    assert "never differ" in ran.out


def test_the_embedded_policy_and_its_own_tasks(rollonce):
    pytest.importorskip("torch")
    pytest.importorskip("reasoning_gym")
    ran = rollonce("collect", "embedded", "--tasks", 4, "--rollouts", 2, "--max-tokens", 30, "--out", "e.jsonl")
    assert ran.code == 0, ran.err
    assert "e.jsonl: 4 tasks x 2 rollouts of embedded (8 new)" in ran.out
    assert {json.loads(line)["truncated"] for line in Path("e.jsonl").read_text().splitlines()} <= {True, False}
    other = rollonce("collect", "embedded", "--tasks", 4, "--rollouts", 2, "--max-tokens", 31, "--out", "e.jsonl")
    assert other.code == 2
    assert "--max-tokens 30, not 31" in other.err


URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["m", "--url", URL], ["--tasks-from"]),
        (
            ["m", "--url", URL, "--tasks-from", "jsonl:sums.jsonl", "--split", "all"],
            ["24", "64 tasks asked for", "--tasks 24"],
        ),
        (
            ["m", "--url", URL, "--tasks-from", "jsonl:sums.jsonl", "--tasks", "20"],
            ["in the split 'holdout'", "--split all takes all 24"],
        ),
        (["m", "--url", URL, "--tasks-from", "jsonl:none.jsonl"], ["none.jsonl", "cannot be opened"]),
        (["m", "--url", URL, "--tasks-from", "jsonk:none.jsonl"], ["no source of tasks 'jsonk'", "reasoning-gym"]),
        (
            ["m", "--url", URL, "--tasks-from", "jsonl:sums.jsonl", "--split", "all", "--tasks", "9"],
            ["no server answers at", URL],
        ),
        (["m", "--url", "localhost:8000", "--tasks-from", "embedded"], ["localhost:8000", "http://localhost:8000/v1"]),
        (["m", "--url", "http://me:pw@h/v1", "--tasks-from", "embedded"], ["--key-env"]),
        (
            ["m", "--url", URL, "--tasks-from", "embedded", "--key-env", "NOT_SET_ANYWHERE"],
            ["NOT_SET_ANYWHERE", "not set"],
        ),
        (["m", "--url", URL, "--tasks-from", "embedded", "--extra", "{"], ["--extra", "JSON"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--extra", '{"seed": 1}'], ["--extra", "'seed'"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--api", "chats"], ["--api", "chat, completions"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--split", "tests"], ["--split", "holdout"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--split", "all"], ["finite sets"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--temperature", "0"], ["--temperature 0"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--temperature", "nan"], ["--temperature"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--tasks", "1"], ["--tasks must be at least 2"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--concurrency", "0"], ["--concurrency"]),
        (["m", "--url", URL, "--tasks-from", "embedded", "--template", "no place"], ["--template", "{prompt}"]),
        (["embedded", "--price-in", "1"], ["--price-in belongs to a server"]),
        (["embedded", "--api", "completions"], ["--api belongs to a server"]),
        (["embedded", "--concurrency", "2"], ["--concurrency belongs to a server"]),
        (["embedded", "--retries", "2"], ["--retries belongs to a server"]),
        (["embedded", "--timeout", "2"], ["--timeout belongs to a server"]),
        (
            ["m", "--url", URL, "--tasks-from", "embedded", "--device", "cuda"],
            ["--device belongs to a model on this machine"],
        ),
        (
            ["m", "--url", URL, "--tasks-from", "embedded", "--batch-rows", "8"],
            ["--batch-rows belongs to a model on this machine"],
        ),
        (
            ["embedded", "--grader", "contains"],
            ["--grader belongs to tasks of jsonl:FILE, and those of embedded have their own"],
        ),
        (
            ["embedded", "--tasks-from", "gsm8k:x", "--columns", "level"],
            ["--columns belongs to tasks of jsonl:FILE", "of gsm8k"],
        ),
        (
            ["m", "--url", URL, "--tasks-from", "verifiers:x", "--grader", "contains"],
            ["--grader belongs", "of verifiers"],
        ),
        (
            ["m", "--url", URL, "--tasks-from", "verifiers:x", "--time-limit", "9"],
            ["--time-limit", "scores its own rollouts"],
        ),
        (["embedded", "--tasks-from", "verifiers:x"], ["--url"]),
        ([URL, "--tasks-from", "embedded"], ["is an address"]),
        (
            ["./no/such/model", "--tasks-from", "jsonl:sums.jsonl", "--split", "all", "--tasks", "4"],
            ["no directory './no/such/model'"],
        ),
    ],
)
def test_bad_input_is_a_sentence(argv, words, sums, rollonce):
    ran = rollonce("collect", *argv, "--out", "x.jsonl")
    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("rollonce: ")
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err
    assert not list(Path().glob("x.jsonl*"))


@pytest.mark.parametrize(
    ("out", "words"), [("no/where.jsonl", ["no directory"]), (".", ["directory"]), ("x.jsonl.gz", ["plain JSON Lines"])]
)
def test_bad_places_for_the_file(out, words, sums, rollonce):
    with FakeServer() as server:
        ran = rollonce(*at(server, sums, "--out", out))
        assert server.requests == []
    assert ran.code == 2
    for word in words:
        assert word in ran.err


def drawn(n: int, seed: int, tmp_path: Path) -> tuple[Rollouts, Path]:
    """N tasks with success rates from a uniform distribution, eight 0/1 rollouts of each; s2 = 1/6 and tau2 = 1/12."""
    rng = np.random.default_rng(seed)
    rewards = (rng.random((n, 8)) < rng.random((n, 1))).astype(float)
    file = tmp_path / "drawn.jsonl"
    file.write_text(
        "".join(json.dumps({"task_id": str(t), "response": f"{t}{g}"}) + "\n" for t in range(n) for g in range(8))
    )
    return Rollouts.from_groups(rewards, [f"task number {i}" for i in range(n)]), file


def test_the_interval_halves_where_the_summary_says(tmp_path):
    """The promise itself: at N + more tasks the interval is half as wide, over six draws of each."""
    few = [summarise_collection(*drawn(48, s, tmp_path), seed=s) for s in range(6)]
    assert {s.more_tasks for s in few} == {144}
    many = [summarise_collection(*drawn(48 + 144, s, tmp_path), seed=s) for s in range(6)]
    assert math.isclose(np.mean([s.half_width for s in few]) / np.mean([s.half_width for s in many]), 2, rel_tol=0.2)
    assert math.isclose(np.mean([s.halves for s in many]), math.sqrt(2), rel_tol=0.15)
    # B_eff in closed form at SNR 1/2.
    assert math.isclose(np.mean([s.b_eff.value for s in many]), effective_batch_of_loo(0.5, 32), rel_tol=0.05)


def test_cost():
    settings = CollectSettings("m", "t", "o", price_in=0.5, price_out=1.5)
    counts = Counts(rollouts=4, prompt_tokens=4_000_000, response_tokens=2_000_000, seconds=10.0)
    assert compute_collection_cost(counts, settings).money == 5.0
    free: Any = CollectSettings("m", "t", "o")
    assert compute_collection_cost(counts, free).money is None
    assert compute_collection_cost(counts, CollectSettings("m", "t", "o", price_out=1.0)).money == 2.0
