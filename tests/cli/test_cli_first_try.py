"""What the commands make of a directory, a log or a set as people have them: what is left out is said, nothing stops
the rest."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import QUICK, Ran, rows, write

from rollonce.scoring.groups import chance_of_a_pass, chance_of_equal_rewards


def test_one_set_too_small_does_not_stop_the_others(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    write(tmp_path / "big.jsonl", rows(8))
    write(tmp_path / "small.jsonl", rows(3))
    ran = rollonce("score", tmp_path, *QUICK, "--json")
    assert ran.code == 0
    result = json.loads(ran.out)
    assert [board["name"] for board in result["boards"]] == ["big"]
    (sentence,) = result["left_out"]
    assert "small.jsonl: 3 tasks, fewer than the batch size of 4" in sentence
    assert f"left out: {sentence}" in ran.err
    alone = rollonce("score", tmp_path / "small.jsonl", *QUICK)
    assert alone.code == 2
    assert "3 tasks, fewer than the batch size of 4" in alone.err


def test_one_prompt_for_all_tasks_is_scored_by_ids(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file = write(tmp_path / "game.jsonl", [r | {"prompt": "Guess the hidden word."} for r in rows(12)])
    ran = rollonce("score", file, *QUICK, "--window", "0", "--json")
    assert ran.code == 0, ran.err
    (board,) = json.loads(ran.out)["boards"]
    ratio = {s["label"]: s["ratio"]["value"] for s in board["scores"]}
    readers_of_text = [label for label in ratio if any(w in label for w in ("TF-IDF", "kNN", "RBF", "buckets", "Kri"))]
    assert len(readers_of_text) > 5
    for label in readers_of_text:
        assert ratio[label] == pytest.approx(1.0, abs=1e-9), label
    watched = rollonce("watch", file, "-B", "6", "--json")
    assert watched.code == 0, watched.err
    without = write(tmp_path / "same.jsonl", [{"prompt": "x", "reward": r["reward"]} for r in rows(12)])
    assert "only one task" in rollonce("score", without, *QUICK).err  # without ids one prompt is one task


def test_two_games_with_hidden_words(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    records = [r | {"prompt": f"Game {i // 3 % 2}"} for i, r in enumerate(rows(12))]
    ran = rollonce("score", write(tmp_path / "games.jsonl", records), *QUICK, "--json")
    assert ran.code == 0, ran.err
    (board,) = json.loads(ran.out)["boards"]
    assert board["moments"]["same_prompt"] == 0


def test_columns_that_look_useful_are_named(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    more = lambda i: {"level": i // 3 % 2, "metadata": {"family": f"f{i // 6}"}, "source": "one", "score_type": i}  # noqa: E731
    file = write(tmp_path / "mine.jsonl", [r | more(i) for i, r in enumerate(rows())])
    ran = rollonce("plan", file)
    assert "mine: not used: level, family (--columns level --columns family=metadata.family)" in ran.err
    ran = rollonce("plan", file, "--columns", "level", "--columns", "family=metadata.family")
    assert ran.code == 0
    assert "not used" not in ran.err


def test_a_table_per_task(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    records = [
        {"task_id": f"t{t}", "prompt": f"what is {t}", "reward": reward, "level": t}
        for t, group in enumerate([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]])
        for reward in group
    ]
    out = tmp_path / "tasks.csv"
    file = write(tmp_path / "mine.jsonl", records)
    ran = rollonce("score", file, *QUICK, "--tasks", out, "--columns", "level")
    assert ran.code == 0, ran.err
    assert f"wrote {out}" in ran.err
    with open(out, newline="") as f:
        table = list(csv.DictReader(f))
    assert list(table[0]) == [
        *("set", "task_id", "level", "n", "mean", "sd", "pass@1", "pass@2", "pass@4", "dead@2", "dead@4", "prompt")
    ]
    assert [row["task_id"] for row in table] == ["t0", "t1", "t2", "t3"]
    first, all_right, all_wrong, half = table
    # one right of four: of two drawn C(3, 2) / C(4, 2) = 1/2 hold none, and as many are alike
    numbers = [float(first[key]) for key in ("n", "mean", "sd", "pass@1", "pass@2", "pass@4", "dead@2", "dead@4")]
    assert numbers == pytest.approx([4, 0.25, 0.5, 0.25, 0.5, 1, 0.5, 0])
    assert [float(all_right[k]) for k in ("pass@1", "dead@4")] == [1, 1]
    assert [float(all_wrong[k]) for k in ("pass@4", "dead@4")] == [0, 1]
    # two of four: 1 - 1/6 hold one; 2/6 are alike
    assert [float(half[k]) for k in ("pass@2", "dead@2")] == pytest.approx([5 / 6, 1 / 3])


def test_chances_by_counting() -> None:
    import itertools

    import numpy as np

    rewards = np.array([1, 0, 0.5, 1, 0, 0, 1])
    for k in (1, 2, 3, 5):
        draws = [rewards[list(c)] for c in itertools.combinations(range(7), k)]
        assert chance_of_equal_rewards(rewards, k) == pytest.approx(np.mean([np.ptp(d) == 0 for d in draws]))
        assert chance_of_a_pass(rewards >= 1, k) == pytest.approx(np.mean([d.max() >= 1 for d in draws]))
    assert np.isnan(chance_of_equal_rewards(rewards, 8))
    assert np.isnan(chance_of_a_pass(rewards >= 1, 8))


def test_watch_says_what_it_left_out(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    ran = rollonce("watch", write(tmp_path / "log.jsonl", rows(8)), "-B", "10", "--json")
    assert ran.code == 0, ran.err
    notes = " ".join(json.loads(ran.out)["notes"])
    assert "the last 4 of 24 rollouts, which make no whole step of 10" in notes
    assert "the boosted trees, which fit a model in each step (--trees)" in notes
    steps = [{"prompt": p, "reward": i % 2, "step": s} for s, p in enumerate(["x", "x", "y"]) for i in range(2)]
    steps += [{"prompt": f"{p} {s}", "reward": (i + s) % 2, "step": s} for s in (3, 4, 5) for i, p in enumerate("xyz")]
    ran = rollonce("watch", write(tmp_path / "steps.jsonl", steps), "--json")
    assert ran.code == 0, ran.err
    assert "Left out: softmax TF-IDF, T=0.1: tfidf found no term" in " ".join(json.loads(ran.out)["notes"])
    assert "3 of 6 steps, in which all rollouts were of one task" in " ".join(json.loads(ran.out)["notes"])


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_have_no_winner(reward: float, tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    ran = rollonce("score", write(tmp_path / "mine.jsonl", [r | {"reward": reward} for r in rows()]), *QUICK, "--json")
    (board,) = json.loads(ran.out)["boards"]
    assert board["verdict"]["headline"].startswith("All rewards are equal")
