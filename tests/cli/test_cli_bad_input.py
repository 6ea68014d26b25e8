"""Issue 2's list of bad input, as the command line says it: a sentence with file and line, exit code 2, no
traceback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import QUICK, Ran, rows, write

GOOD = rows()


def bad_at(k: int, record: object) -> list[object]:
    """Good rows with one of them replaced."""
    return [*GOOD[:k], record, *GOOD[k + 1 :]]


ROWS = {
    "not JSON": (bad_at(4, '{"prompt": "x", '), 5, "JSON"),
    "missing prompt": (bad_at(4, {"task_id": "t1", "reward": 1}), 5, "prompt"),
    "missing reward": (bad_at(4, {"task_id": "t1", "prompt": GOOD[4]["prompt"]}), 5, "reward"),
    "reward null": (bad_at(4, GOOD[4] | {"reward": None}), 5, "reward"),
    "reward NaN": (bad_at(4, json.dumps(GOOD[4] | {"reward": float("nan")})), 5, "NaN"),
    "reward infinite": (bad_at(4, json.dumps(GOOD[4] | {"reward": float("inf")})), 5, "nfinit"),
    "reward text": (bad_at(4, GOOD[4] | {"reward": "high"}), 5, "reward"),
    "two prompts": (bad_at(4, GOOD[4] | {"prompt": "another"}), 5, "prompt"),
    "same rollout twice": (
        [*(r | {"rollout_id": i} for i, r in enumerate(GOOD)), GOOD[4] | {"rollout_id": 4}],
        25,
        "rollout",
    ),
    "long prompt": (bad_at(4, GOOD[4] | {"task_id": "new", "prompt": "x" * 1_000_001}), 5, "1,000,0"),
    "a list": (bad_at(4, "[1, 2]"), 5, "object"),
}


def is_a_sentence(ran: Ran, *words: str) -> None:
    """Exit code 2, nothing on stdout, one message with these words and no traceback."""
    assert ran.code == 2, ran
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.startswith("rollonce: ")
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize("kind", ROWS)
def test_bad_row(kind: str, tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    records, line, word = ROWS[kind]
    file = write(tmp_path / "rollouts.jsonl", records)
    is_a_sentence(rollonce("score", file, *QUICK), str(file), f"line {line}", word)
    is_a_sentence(rollonce("watch", file, "-B", "4"), str(file), f"line {line}", word)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("empty.jsonl", b"", "empty"),
        ("cut.jsonl.gz", gzip.compress("".join(json.dumps(r) + "\n" for r in GOOD).encode())[:-20], ""),
        ("latin.jsonl", '{"task_id": "a", "prompt": "caf\u00e9", "reward": 1}\n'.encode("latin-1"), ""),
        ("utf16.jsonl", '{"task_id": "a", "prompt": "caf", "reward": 1}\n'.encode("utf-16"), ""),
        ("noise.jsonl", bytes(range(256)), ""),
    ],
)
def test_bad_file(name: str, content: bytes, word: str, tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    is_a_sentence(rollonce("score", file, *QUICK), str(file), word)


def test_too_little(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    one = write(tmp_path / "one.jsonl", rows(1, 8))
    is_a_sentence(rollonce("score", one, *QUICK), str(one), "only one task")
    is_a_sentence(rollonce("watch", one, "-B", "4"), str(one), "of one task")
    few = write(tmp_path / "few.jsonl", rows(8))
    is_a_sentence(rollonce("score", few), str(few), "8 tasks", "batch size of 32", "--batch-size 8")
    is_a_sentence(rollonce("watch", few, "-B", "64"), str(few), "smaller --batch-size")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["score"], ["no FILES", "game24"]),
        (["score", "nowhere.jsonl"], ["nowhere.jsonl", "no such file"]),
        (["score", "gsm9k"], ["gsm9k", "gsm8k_qwen25coder_1.5b"]),
        (["score", "rg_"], ["rg_easy_gemma3_27b_G3", "rg_smollm2_135m"]),
        (["score", "*.nothing"], ["no file matches"]),
        (["score", "gsm8k", "--format", "verlx"], ["verlx", "formats are"]),
        (["score", "gsm8k", "--batch-size", "1"], ["--batch-size", "at least 2"]),
        (["score", "gsm8k", "--held-out", "1"], ["--held-out"]),
        (["score", "gsm8k", "--jobs", "0"], ["--jobs"]),
        (["score", "gsm8k", "--together", "--separate"], ["--together"]),
        (["score", "gsm8k", "--columns", "reward"], ["reward", "only after the rollout"]),
        (["score", "gsm8k", "--columns", "level"], ["level"]),
        (["score", "gsm8k", "--baseline", "none.json"], ["none.json", "no such file"]),
        (["score", "gsm8k", "--report", "nowhere/out.html"], ["nowhere", "no directory"]),
        (["score", "gsm8k", "--csv", "."], ["directory"]),
        (["watch"], ["no LOG"]),
        (["watch", "nowhere.jsonl"], ["nowhere.jsonl", "no such file"]),
        (["watch", "a", "b", "--follow"], ["--follow takes one"]),
        (["check", "none.json"], ["none.json", "no such file"]),
        (["check", "no_such"], ["no baseline 'no_such'", "module:name"]),
        (["check", "no_such_module:f"], ["cannot be imported", "no_such_module"]),
        (["check", "rollonce.baselines:Loo"], ["no 'Loo'", "LeaveOneOut"]),
        (["scor", "x"], ["did you mean 'score'"]),
        (["pyproject.toml"], ["rollonce score pyproject.toml"]),
        (["--json"], ["before the command"]),
    ],
)
def test_bad_command(argv: list[str], words: list[str], rollonce: Callable[..., Ran]) -> None:
    is_a_sentence(rollonce(*argv), *words)


def test_unknown_option_names_the_near_one(rollonce: Callable[..., Ran]) -> None:
    ran = rollonce("score", "gsm8k", "--held-ou", "0.3")
    assert ran.code == 2
    assert "--held-out" in ran.out + ran.err
    assert "Traceback" not in ran.err


def test_skip_bad_rows_goes_on_and_says_so(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file = write(tmp_path / "rollouts.jsonl", bad_at(4, "not json"))
    ran = rollonce("score", file, *QUICK, "--skip-bad-rows")
    assert ran.code == 0, ran.err
    assert "1 bad rows were skipped" in " ".join(ran.out.split())


def test_two_values_behind_an_option_that_takes_one_are_named(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    ran = rollonce("score", path, "--columns", "family", "level")
    assert ran.code == 2
    assert "--columns takes one value each time: --columns family --columns level" in ran.err


def test_a_command_without_options_is_told_what_it_lacks(rollonce: Callable[..., Ran]) -> None:
    ran = rollonce("report")
    assert ran.code == 2
    assert "no DIR given" in ran.err
