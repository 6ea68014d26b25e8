"""Generic files: keys named and guessed, chat prompts, columns, several files, four kinds of file that say the same."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollonce.errors import InputError
from rollonce.readers import read_rollouts

ROWS: list[dict[str, Any]] = [
    {"task_id": "a", "prompt": "1+1=?", "rollout_id": 0, "reward": 1.0, "response_length": 3, "level": "easy"},
    {"task_id": "b", "prompt": "2+2=?", "rollout_id": 0, "reward": 0.0, "response_length": 5, "level": "hard"},
    {"task_id": "a", "prompt": "1+1=?", "rollout_id": 1, "reward": -0.5, "response_length": 4, "level": "easy"},
]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def check(table: Any) -> None:
    assert table.tasks.task_ids.tolist() == ["a", "b"]
    assert table.tasks.prompts == ["1+1=?", "2+2=?"]
    assert table.group(0).tolist() == [1.0, -0.5]
    assert table.group(1).tolist() == [0.0]
    assert table.lengths_R.tolist() == [3, 4, 5]
    assert table.order_R.tolist() == [0, 2, 1]
    assert table.tasks.column("level").tolist() == ["easy", "hard"]
    assert (table.n_skipped, table.skipped, table.steps_R) == (0, (), None)


def test_the_same_rows_in_every_kind_of_file(tmp_path: Path) -> None:
    columns = ["level"]
    check(read_rollouts(jsonl(tmp_path / "a.jsonl", ROWS), columns=columns))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    check(read_rollouts(tmp_path / "a.jsonl.gz", columns=columns))
    (tmp_path / "a.json").write_text(json.dumps(ROWS, indent=1))
    check(read_rollouts(tmp_path / "a.json", columns=columns))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    check(read_rollouts(tmp_path / "a.parquet", columns=columns))
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t"), ("b.csv", ";")):
        with open(tmp_path / name, "w", newline="") as f:
            writer = csv.DictWriter(f, list(ROWS[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(ROWS)
        check(read_rollouts(tmp_path / name, columns=columns))
    # The format is in the file, not in its name; a byte-order mark, CRLF and blank lines are nothing.
    odd = b"\xef\xbb\xbf" + (tmp_path / "a.jsonl").read_bytes().replace(b"\n", b"\r\n\r\n")
    (tmp_path / "odd.log").write_bytes(odd)
    check(read_rollouts(tmp_path / "odd.log", columns=columns))


def test_named_keys_and_inner_keys(tmp_path: Path) -> None:
    rows = [{"q": "x", "info": {"id": 7, "level": 2}, "out": {"r": r}, "it": s} for r, s in ((1, 5), (0, 6))]
    table = read_rollouts(
        jsonl(tmp_path / "a.jsonl", rows),
        prompt_key="q",
        reward_key="out.r",
        task_key="info.id",
        step_key="it",
        columns=["level=info.level"],
    )
    assert table.tasks.task_ids.tolist() == ["7"]
    assert table.rewards_R.tolist() == [1, 0]
    assert table.steps_R is not None
    assert table.steps_R.tolist() == [5, 6]
    assert table.tasks.column("level").tolist() == [2.0]


def test_usual_names_are_guessed_and_missing_ones_said(tmp_path: Path) -> None:
    assert read_rollouts(jsonl(tmp_path / "a.jsonl", [{"question": "x", "score": True}])).rewards_R.tolist() == [1]
    with pytest.raises(InputError, match=r"a.jsonl, line 1: no known format: it has wording, points\. .*--prompt-key"):
        read_rollouts(jsonl(tmp_path / "a.jsonl", [{"wording": "x", "points": 1}]))
    with pytest.raises(
        InputError, match=r"no key for the reward: none of the usual names \(reward, .*it has wording, points"
    ):
        read_rollouts(tmp_path / "a.jsonl", prompt_key="wording")


def test_chat_prompts_agree_with_plain_ones(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "1+1=?"}]}]
    system = [{"role": "system", "content": "Be brief."}, *chat]
    table = read_rollouts(
        jsonl(tmp_path / "a.jsonl", [{"prompt": p, "reward": i} for i, p in enumerate(["1+1=?", chat, system])])
    )
    assert table.tasks.prompts == ["1+1=?", "system: Be brief.\n\nuser: 1+1=?"]
    assert table.group_sizes_N.tolist() == [2, 1]


def test_without_a_task_key_the_same_text_is_the_same_task(tmp_path: Path) -> None:
    rows = [{"prompt": p, "reward": 0} for p in ("f(A)", "f(a)", "f(A)")]
    table = read_rollouts(jsonl(tmp_path / "a.jsonl", rows))
    assert table.group_sizes_N.tolist() == [2, 1]  # upper and lower case are different tasks to a reader ...
    assert table.tasks.prompt_keys.tolist() == [0, 0]  # ... and masked as one by the scorer
    assert read_rollouts(jsonl(tmp_path / "b.jsonl", rows)).tasks.task_ids.tolist() == table.tasks.task_ids.tolist()


def test_two_ids_with_one_prompt_stay_two_tasks_and_ids_are_text(tmp_path: Path) -> None:
    rows = [{"task_id": i, "prompt": "x", "reward": 0} for i in (1, "1", 1.0, 2, "01")]
    assert read_rollouts(jsonl(tmp_path / "a.jsonl", rows)).tasks.task_ids.tolist() == ["1", "2", "01"]


def test_white_space_in_a_prompt_does_not_make_another(tmp_path: Path) -> None:
    rows = [{"task_id": "a", "prompt": p, "reward": 0} for p in ("one two", "one  two\n")]
    assert read_rollouts(jsonl(tmp_path / "a.jsonl", rows)).tasks.prompts == ["one two"]


def test_columns(tmp_path: Path) -> None:
    rows = [
        {"task_id": f"{f}/{i}", "prompt": f"{f} {i}", "reward": 0, "level": i} for f in ("add", "mul") for i in (1, 2)
    ]
    path = jsonl(tmp_path / "a.jsonl", rows)
    table = read_rollouts(path, columns=["level", "family=task_id:^([^/]+)/"])
    assert table.tasks.column("family").tolist() == ["add", "add", "mul", "mul"]
    assert table.tasks.column("level").tolist() == [1, 2, 1, 2]
    with pytest.raises(InputError, match="named like something known only after the rollout"):
        read_rollouts(path, columns=["reward"])
    with pytest.raises(InputError, match="line 1: no value for the column 'nothing'"):
        read_rollouts(path, columns=["nothing"])
    with pytest.raises(InputError, match="matches nothing in 'add/1'"):
        read_rollouts(path, columns=["family=task_id:^x"])
    with pytest.raises(InputError, match="not a regular expression"):
        read_rollouts(path, columns=["family=task_id:("])
    rows[0] = {**rows[0], "task_id": "add/2", "prompt": "add 2"}
    with pytest.raises(
        InputError, match=r"line 2: the column 'level' is 2 here and 1 in another rollout of task 'add/2'"
    ):
        read_rollouts(jsonl(path, rows), columns=["level"])


def test_several_files_directories_and_globs(tmp_path: Path) -> None:
    for step in (10, 2, 1):
        jsonl(
            tmp_path / "logs" / f"{step}.jsonl" if (tmp_path / "logs").mkdir(exist_ok=True) is None else tmp_path,
            [{"prompt": "x", "reward": step}],
        )
    (tmp_path / "logs" / "config.json").write_text('{"lr": 1}')
    assert read_rollouts(tmp_path / "logs").rewards_R.tolist() == [1, 2, 10]
    assert read_rollouts(tmp_path / "logs" / "*.jsonl").rewards_R.tolist() == [1, 2, 10]
    assert read_rollouts([tmp_path / "logs" / "2.jsonl", tmp_path / "logs" / "1.jsonl"]).rewards_R.tolist() == [2, 1]
    assert read_rollouts(tmp_path / "logs").name == "logs"
    assert read_rollouts(tmp_path / "logs" / "1.jsonl").name == "1"


def test_one_task_groups_of_one_and_equal_rewards_are_tables_too(tmp_path: Path) -> None:
    one = read_rollouts(jsonl(tmp_path / "a.jsonl", [{"prompt": "x", "reward": 0.5}]))
    assert (one.n_tasks, one.group_sizes_N.tolist()) == (1, [1])
    assert np.isnan(one.variances_N).all()
    same = read_rollouts(jsonl(tmp_path / "b.jsonl", [{"prompt": p, "reward": 1} for p in "xyxy"]))
    assert same.variances_N.tolist() == [0, 0]


def test_the_same_rollout_at_another_step_is_no_copy(tmp_path: Path) -> None:
    rows = [{"task_id": "a", "prompt": "x", "rollout_id": 0, "step": s, "reward": s} for s in (1, 2)]
    assert read_rollouts(jsonl(tmp_path / "a.jsonl", rows)).n_rollouts == 2


def test_progress_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    read_rollouts(
        [path, jsonl(tmp_path / "b.jsonl", [{**r, "rollout_id": 9 + i} for i, r in enumerate(ROWS)])],
        progress=lambda d, t: seen.append((d, t)),
    )
    assert seen[-1][0] == seen[-1][1] > 0
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    big = tmp_path / "big.jsonl.gz"
    big.write_bytes(
        gzip.compress("".join(json.dumps({"prompt": f"{i} " * 40, "reward": 0}) + "\n" for i in range(5000)).encode())
    )
    seen.clear()
    read_rollouts(big, progress=lambda d, t: seen.append((d, t)))
    assert len(seen) > 3  # after each block, not only each file
    assert all(0 < d <= t == big.stat().st_size for d, t in seen)


def test_a_line_longer_than_a_block(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * 900_000, "reward": 1}, {"prompt": "short", "reward": 0}]
    assert read_rollouts(jsonl(tmp_path / "a.jsonl", rows)).rewards_R.tolist() == [1, 0]
