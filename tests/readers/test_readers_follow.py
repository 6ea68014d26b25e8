"""A log that grows: whole lines only, new files, and the same rows in the end as reading it at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rollonce.errors import InputError
from rollonce.readers import follow, read_rollouts

F = Path(__file__).parent / "fixtures"


def row(step: int, reward: float, prompt: str = "x") -> str:
    return json.dumps({"prompt": prompt, "reward": reward, "step": step})


class Script:
    """Called for ``stop``: does the next thing to the log each time, and stops after the last."""

    def __init__(self, *things) -> None:
        self.things = list(things)

    def __call__(self) -> bool:
        if not self.things:
            return True
        self.things.pop(0)()
        return False


def test_a_growing_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    def append(text: str):
        def thing() -> None:
            with open(path, "a") as f:
                f.write(text)

        return thing

    whole = row(2, 0.5)
    script = Script(append(""), append(row(1, 1.0) + "\n" + whole[:9]), append(whole[9:]), append("\n" + row(2, 0.0)))
    blocks = list(follow(path, poll=0.0, stop=script))
    assert [b.rewards_B.tolist() for b in blocks] == [[1.0], [0.5], [0.0]]
    assert [b.order_B.tolist() for b in blocks] == [[0], [1], [2]]
    assert [b.steps_B.tolist() for b in blocks if b.steps_B is not None] == [[1], [2], [2]]
    assert blocks[0].prompts == ["x"]
    assert len({t for b in blocks for t in b.task_ids}) == 1


def test_a_line_cut_off_for_good_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(row(1, 1.0) + "\n" + row(1, 0.0)[:12])
    assert [b.rewards_B.tolist() for b in follow(path, poll=0.0, stop=lambda: True)] == [[1.0]]


def test_a_directory_in_which_files_appear(tmp_path: Path) -> None:
    def write(step: int):
        return lambda: (tmp_path / f"{step}.jsonl").write_text((F / "verl" / f"{step}.jsonl").read_text())

    blocks = list(follow(tmp_path, poll=0.0, stop=Script(write(1), write(2), write(10))))
    table = read_rollouts(F / "verl")
    assert table.order_R is not None
    assert table.steps_R is not None
    order = np.argsort(table.order_R)
    np.testing.assert_array_equal(np.concatenate([b.rewards_B for b in blocks]), table.rewards_R[order])
    np.testing.assert_array_equal(
        np.concatenate([b.steps_B for b in blocks if b.steps_B is not None]), table.steps_R[order]
    )
    assert [p for b in blocks for p in b.prompts] == [table.tasks.prompts[i] for i in table.task_of_R[order]]


@pytest.mark.parametrize(
    "folder",
    [
        "verl_v1",
        "verifiers",
        "prime_rl",
        "prime_rl_legacy",
        "tinker_evals",
        "nemo_rl",
        "skyrl/dumped_evals/global_step_5_evals/openai_gsm8k.jsonl",
    ],
)
def test_following_a_finished_log_is_reading_it(folder: str) -> None:
    table = read_rollouts(F / folder)
    blocks = list(follow(F / folder if "." in folder else F / folder / "**" / "*.jsonl", poll=0.0, stop=lambda: True))
    assert table.order_R is not None
    order = np.argsort(table.order_R)
    np.testing.assert_array_equal(np.concatenate([b.rewards_B for b in blocks]), table.rewards_R[order])
    assert [t for b in blocks for t in b.task_ids] == table.tasks.task_ids[table.task_of_R[order]].tolist()


def test_what_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only JSON Lines can be followed"):
        list(follow(F / "trl", poll=0.0, stop=lambda: True))
    with pytest.raises(InputError, match="no such file"):
        list(follow(tmp_path / "nothing.jsonl", poll=0.0, stop=lambda: True))
    path = tmp_path / "log.jsonl"
    path.write_text(row(1, 1.0) + "\n" + row(1, 0.0) + "\n")
    with pytest.raises(InputError, match="the file shrank"):
        list(follow(path, poll=0.0, stop=Script(lambda: None, lambda: path.write_text(row(1, 1.0) + "\n"))))
    path.write_text(row(1, 1.0) + "\nnonsense\n")
    with pytest.raises(InputError, match=r"log.jsonl, line 2: not JSON"):
        list(follow(path, poll=0.0, stop=lambda: True))
    assert len(list(follow(path, poll=0.0, stop=lambda: True, skip_bad_rows=True))) == 1


def test_columns_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps({"task_id": i, "prompt": f"p{i}", "reward": 0, "level": i}) + "\n" for i in (3, 4, 3))
    )
    (block,) = follow(path, poll=0.0, stop=lambda: True, columns=["level"])
    assert block.task_ids == ["3", "4", "3"]
    assert block.columns == {"level": [3, 4, 3]}
    assert block.steps_B is None
