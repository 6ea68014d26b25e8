"""Bad input, each with its own message naming file and line; and what skip_bad_rows makes of it."""

from __future__ import annotations

import gzip
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rollonce.errors import InputError
from rollonce.readers import read_rollouts

GOOD = {"task_id": "a", "prompt": "x", "rollout_id": 0, "reward": 1}


def line(**change: Any) -> str:
    row = {**GOOD, **change}
    return json.dumps({k: v for k, v in row.items() if v is not ...})


# What the second of three lines is, and what is said about it.
BAD_LINES = {
    "not JSON": ('{"task_id": "b", ', "not JSON"),
    "no object": ("[1, 2]", "a list of 2|not an object"),
    "missing prompt": (
        line(prompt=..., task_id="b"),
        r"no key 'prompt' in this row; it has task_id, rollout_id, reward",
    ),
    "missing reward": (
        line(reward=..., task_id="b"),
        r"no key 'reward' in this row; it has task_id, prompt, rollout_id",
    ),
    "missing task": (line(task_id=...), "no key 'task_id' in this row"),
    "null task": (line(task_id=None), "the task id .*is null"),
    "list task": (line(task_id=[1]), "the task id is a list of 1"),
    "null reward": (line(reward=None, rollout_id=1), "the reward is null; it must be a finite number"),
    "NaN reward": (line(reward=float("nan"), rollout_id=1), "the reward is nan; it must be a finite number"),
    "infinite reward": (line(reward=float("-inf"), rollout_id=1), "the reward is -inf"),
    "text reward": (
        line(reward="1.0", rollout_id=1),
        "the reward is the text '1.0'; .*only CSV may write numbers as text",
    ),
    "list reward": (line(reward=[1, 0], rollout_id=1), "the reward is a list of 2"),
    "huge reward": (
        '{"task_id": "a", "prompt": "x", "rollout_id": 1, "reward": 1' + "0" * 400 + "}",
        "the reward is (inf|.*number)",
    ),
    "number prompt": (
        line(prompt=3, task_id="b"),
        "the prompt is the number 3; it must be text or a list of chat messages",
    ),
    "null prompt": (line(prompt=None, task_id="b"), "the prompt is null"),
    "broken chat": (line(prompt=[{"content": "x"}], task_id="b"), "must hold messages with 'role' and 'content'"),
    "two prompts": (
        line(prompt="y", rollout_id=1),
        r"task 'a' has another prompt here than at .*a.jsonl, line 1: 'y' and 'x'",
    ),
    "a copy": (line(), r"task 'a' already has a rollout '0', at .*a.jsonl, line 1"),
    "text length": (line(rollout_id=1, response_length="long"), "the length is the text 'long'"),
    "object rollout": (line(rollout_id={"a": 1}), "the rollout id is an object"),
    "long prompt": (
        line(task_id="b", prompt="z" * 1001),
        r"a prompt of 1,001 characters, more than max_prompt_chars=1,000; raise that limit",
    ),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_bad_line(what: str, tmp_path: Path) -> None:
    text, message = BAD_LINES[what]
    path = tmp_path / "a.jsonl"
    extra = {"response_length": 1} if "length" in what and "text" in what else {}
    path.write_text(line(**extra) + "\n" + text + "\n" + line(task_id="c", prompt="z", **extra) + "\n")
    with pytest.raises(InputError, match=message) as caught:
        read_rollouts(path, max_prompt_chars=1000)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    table = read_rollouts(path, max_prompt_chars=1000, skip_bad_rows=True)
    assert table.tasks.task_ids.tolist() == ["a", "c"]
    assert table.rewards_R.tolist() == [1, 1]
    assert table.n_skipped == 1
    (said,) = table.skipped
    assert said == str(caught.value)


def test_true_and_false_are_1_and_0(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(reward=True) + "\n" + line(reward=False, rollout_id=1))
    assert read_rollouts(path).rewards_R.tolist() == [1, 0]


def test_nan_in_a_field_that_is_not_read_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        line(kl=float("nan")) + "\n" + line(rollout_id=1, text="\ud83d") + "\n"
    )  # half an emoji, as json.dumps writes it
    assert read_rollouts(path).n_rollouts == 2


def test_half_an_emoji_in_a_prompt_becomes_a_replacement_character(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(prompt="\ud83d!"))
    assert read_rollouts(path).tasks.prompts == ["\ufffd!"]


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes((line() + "\n").encode() + '{"task_id": "b", "prompt": "café", "reward": 1}\n'.encode("latin-1"))
    with pytest.raises(
        InputError, match=r"a.jsonl, line 2: not UTF-8: byte 32 of the line is 0xe9; save the file as UTF-8"
    ):
        read_rollouts(path)
    assert read_rollouts(path, skip_bad_rows=True).n_skipped == 1
    path.write_bytes("task_id,prompt,reward\na,x,1\nb,café,0\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a.jsonl, line 3: not UTF-8: byte 34 of the file is 0xe9"):
        read_rollouts(path)
    path.write_bytes((line() + "\n").encode("utf-16"))
    with pytest.raises(InputError, match=r"a.jsonl: UTF-16 text, not UTF-8"):
        read_rollouts(path)


def test_many_bad_rows_are_counted_and_the_list_is_capped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line() + "\n" + "nonsense\n" * 250)
    table = read_rollouts(path, skip_bad_rows=True)
    assert table.n_skipped == 250
    assert len(table.skipped) == 101
    assert table.skipped[-1] == "... and 150 more bad rows"
    assert table.select([0]).n_skipped == 250
    path.write_text("nonsense\n" * 3)
    with pytest.raises(
        InputError, match=r"no rollouts in it; all 3 rows were bad, the first: .*line 1: not JSON|line 1: not JSON"
    ):
        read_rollouts(path, skip_bad_rows=True)


def test_truncated_and_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    packed = gzip.compress("".join(line(rollout_id=i, note=str(hash(str(i)))) + "\n" for i in range(5000)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"a.jsonl.gz: the gzip file is cut off after [\d,]+ unpacked bytes"):
        read_rollouts(path)
    path.write_bytes(packed[:500] + b"\x00" * 50 + packed[550:])
    with pytest.raises(InputError, match=r"a.jsonl.gz.*: the gzip file is damaged|line"):
        read_rollouts(path)


@pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b"", mtime=0)])
def test_empty(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"a.jsonl: the file is empty"):
        read_rollouts(tmp_path / "a.jsonl")


def test_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(InputError, match=r"a.json"):
        read_rollouts(tmp_path / "a.json")
    (tmp_path / "a.csv").write_text("prompt,reward\n")
    with pytest.raises(InputError, match=r"a.csv: no rollouts in it"):
        read_rollouts(tmp_path / "a.csv")


def test_pickles_and_other_binaries_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([GOOD]))
    with pytest.raises(InputError, match=r"a.pkl: a pickle .*loading one runs whatever code is in it"):
        read_rollouts(tmp_path / "a.pkl")
    (tmp_path / "b.jsonl").write_bytes(pickle.dumps([GOOD]))
    with pytest.raises(InputError, match=r"b.jsonl: a pickle"):
        read_rollouts(tmp_path / "b.jsonl")
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as z:
        z.writestr("archive/data.pkl", b"")
    with pytest.raises(InputError, match=r"c.pt: a PyTorch file .*runs whatever code"):
        read_rollouts(tmp_path / "c.pt")
    (tmp_path / "d.bin").write_bytes(b"\x7fELF\x00\x00")
    with pytest.raises(InputError, match=r"d.bin: a binary file"):
        read_rollouts(tmp_path / "d.bin")
    (tmp_path / "e.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match=r"e.parquet: a damaged parquet file"):
        read_rollouts(tmp_path / "e.parquet")


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.jsonl: no such file or directory"):
        read_rollouts(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match=r"no file matches this pattern"):
        read_rollouts(tmp_path / "*.jsonl")
    with pytest.raises(InputError, match=r"nothing readable in this directory; looked for files named"):
        read_rollouts(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(
        InputError,
        match=r"nothing readable in this directory \(1 files looked at\). metrics.jsonl: no known format: it has loss",
    ):
        read_rollouts(tmp_path)
    with pytest.raises(InputError, match=r"no files given"):
        read_rollouts([])
    with pytest.raises(InputError, match=r"no format 'nothing'; the formats are verl, trl"):
        read_rollouts(tmp_path, format="nothing")


def test_mixed_formats(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line())
    (tmp_path / "b.jsonl").write_text('{"input": "x", "output": "y", "gts": null, "score": 1, "step": 1}')
    with pytest.raises(
        InputError, match=r"files of different formats make no one table: .*a.jsonl is generic, .*b.jsonl is verl"
    ):
        read_rollouts([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert read_rollouts(tmp_path).format == "verl"  # in a directory a trainer's format goes before the generic one


def test_the_same_file_twice(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line())
    with pytest.raises(InputError, match=r"already has a rollout '0'"):
        read_rollouts([tmp_path / "a.jsonl", tmp_path / "a.jsonl"])
    assert read_rollouts([tmp_path / "a.jsonl", tmp_path / "a.jsonl"], rollout_key="").n_rollouts == 2


def test_steps_for_some_rows_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(step=1) + "\n" + line(rollout_id=1))
    with pytest.raises(InputError, match=r"line 2: this row has no step though others have one"):
        read_rollouts(tmp_path / "a.jsonl")
    assert read_rollouts(tmp_path / "a.jsonl", step_key="").steps_R is None


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('task_id,prompt,reward\na,"two\nlines",1\na,"two\nlines",true\nb,x,-0.5\n')
    assert read_rollouts(path).rewards_R.tolist() == [1, 1, -0.5]
    path.write_text("task_id,prompt,reward\na,x,1\nb,y\n")
    with pytest.raises(InputError, match=r"a.csv, line 3: 2 fields where the header has 3"):
        read_rollouts(path)
    path.write_text("task_id,prompt,reward\na,x,\n")
    with pytest.raises(InputError, match=r"a.csv, line 2: the reward is nan"):
        read_rollouts(path)
    path.write_text("task_id,prompt,reward\na,x,good\n")
    with pytest.raises(InputError, match=r"a.csv, line 2: the reward is the text 'good'"):
        read_rollouts(path)


def test_a_row_that_is_no_row_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"input": "x", "output": "y", "gts": null, "score": 1, "step": 1}\n{"input": "x", "step": 1}\n')
    with pytest.raises(InputError, match=r"line 2: no reward 'score' \(--reward\) in this row; it has input, step"):
        read_rollouts(path)
