"""Log-probabilities of responses: in rows of one's own under every spelling, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollonce.errors import InputError
from rollonce.prompts import check_column_name
from rollonce.readers import follow, read_rollouts
from rollonce.rollouts import Rollouts


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps({"prompt": "x", "reward": 0.0} | r) + "\n" for r in rows))
    return path


@pytest.mark.parametrize(
    ("spelling", "total", "tokens"),
    [
        ({"log_prob": -2.5}, -2.5, np.nan),
        ({"log_prob": -2.5, "response_tokens": 4}, -2.5, 4),
        ({"log_probs": [-0.5, -1.0, -2.0]}, -3.5, 3),
        ({"logprobs": [-0.5, -1.0, -2.0], "completion_tokens": 3}, -3.5, 3),
        ({"log_probs": [-0.5, -1.0, -2.0], "response_tokens": 2}, -3.5, 2),  # one of both leaves out the end of text
        ({"log_probs": []}, 0.0, 0),
        ({"cumulative_logprob": -7}, -7, np.nan),
        ({"logprobs": {"content": [{"token": "a", "logprob": -0.25}, {"token": "b", "logprob": -1}]}}, -1.25, 2),
        ({"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.25, -1.5]}}, -1.75, 2),
        ({"log_prob": 1e-4}, 0.0, np.nan),  # a half-precision rounding of log 1
        ({"log_prob": None}, np.nan, np.nan),
    ],
)
def test_the_spellings(spelling: dict[str, Any], total: float, tokens: float, tmp_path: Path) -> None:
    table = read_rollouts(write(tmp_path / "a.jsonl", [spelling, {"log_prob": -1.0, **dict.fromkeys(spelling)}]))
    unknown = np.full(2, np.nan)
    log_probs = unknown if table.log_probs_R is None else table.log_probs_R
    lengths = unknown if table.lengths_R is None else table.lengths_R
    np.testing.assert_array_equal(log_probs[0], total)
    np.testing.assert_array_equal(lengths[0], tokens)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"log_prob": 0.7}, "the log-probability is 0.7, and a log-probability is never positive"),
        ({"log_prob": float("nan")}, "the log-probability is nan; it must be finite"),
        ({"log_prob": float("-inf")}, "the log-probability is -inf; it must be finite"),
        ({"log_prob": "low"}, "the log-probability is the text 'low'"),
        ({"log_prob": True}, "the log-probability is true"),
        ({"log_prob": [-1.0, None, -1.0]}, "the log-probability of token 2 of 3 is null"),
        ({"log_prob": [-1.0, 0.5]}, "the log-probability of token 2 of 2 is 0.5"),
        ({"log_prob": [-1.0, -1.0], "response_tokens": 9}, "2 log-probabilities for a response of 9 tokens"),
    ],
)
def test_what_is_refused_names_the_line_and_can_be_skipped(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    good = {"log_prob": -1.0, "response_tokens": 1}
    path = write(tmp_path / "a.jsonl", [good, good | wrong, good])
    with pytest.raises(InputError, match=f"a.jsonl, line 2: {said}"):
        read_rollouts(path)
    table = read_rollouts(path, skip_bad_rows=True)
    assert table.log_probs_R is not None
    assert (table.log_probs_R.tolist(), table.n_skipped) == ([-1.0, -1.0], 1)
    none = read_rollouts(path, log_prob_key="")
    assert none.log_probs_R is None
    assert none.n_rollouts == 3


def test_another_key_inside_the_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"reply": {"choices": [{"logprobs": {"content": [{"logprob": -0.5}]}}]}}])
    table = read_rollouts(path, log_prob_key="reply.choices.0.logprobs")
    assert table.log_probs_R is not None
    assert table.lengths_R is not None
    assert (table.log_probs_R.tolist(), table.lengths_R.tolist()) == ([-0.5], [1.0])


def test_csv_holds_sums(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,reward,log_prob\nx,1,-2.5\nx,0,\n")
    table = read_rollouts(path)
    assert table.log_probs_R is not None
    np.testing.assert_array_equal(table.log_probs_R, [-2.5, np.nan])


def test_a_followed_log_has_them_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"log_prob": -1.0}, {"log_prob": -2.0}])
    (rows,) = follow(path, poll=0.0, stop=lambda: True)
    assert rows.log_probs_B.tolist() == [-1.0, -2.0]


def test_the_table_keeps_them_with_their_rollouts_and_out_of_reach_of_features() -> None:
    table = Rollouts.from_groups(
        [[1, 0], [0, 1, 1]], ["a", "b"], log_probs=[[-1, -2], [-3, -4, np.nan]], lengths=[[1, 2], [3, 4, 5]]
    )
    turned = table.select([1, 0])
    assert turned.log_probs_R is not None
    assert turned.lengths_R is not None
    np.testing.assert_array_equal(turned.log_probs_R, [-3, -4, np.nan, -1, -2])
    assert turned.lengths_R.tolist() == [3, 4, 5, 1, 2]
    assert not hasattr(table.tasks, "log_probs_R")
    for name in ("log_prob", "logprob", "sum_log_probs", "surprisal"):
        with pytest.raises(InputError, match="known only after the rollout"):
            check_column_name(name)
    for bad in ([[0.5, -1], [-1, -1, -1]], [[-np.inf, -1], [-1, -1, -1]]):
        with pytest.raises(InputError, match="a summed log-probability of"):
            Rollouts.from_groups([[1, 0], [0, 1, 1]], ["a", "b"], log_probs=bad)
    with pytest.raises(InputError, match="log_probs must be grouped like the rewards"):
        Rollouts.from_groups([[1, 0], [0, 1, 1]], ["a", "b"], log_probs=[[-1.0], [-1.0, -1.0, -1.0]])


F = Path(__file__).parent / "fixtures"


def test_nemo_rl_has_one_number_for_each_token_and_counts_those_that_were_sampled() -> None:
    table = read_rollouts(F / "nemo_rl")
    assert table.log_probs_R is not None
    # The generator put -(position + 1) / 4 at each sampled token.
    assert table.log_probs_R.tolist() == [-7 / 4, -3 / 4, -9 / 4, -4 / 4]


def test_inspect_has_those_of_the_last_model_call() -> None:
    pytest.importorskip("inspect_ai")
    table = read_rollouts(F / "inspect_log_probs")
    assert table.log_probs_R is not None
    # One call of three tokens; then two calls, of which the log has the second alone: unknown.
    np.testing.assert_array_equal(table.log_probs_R, [-6 / 4, np.nan])
    assert table.lengths_R is not None
    assert table.lengths_R.tolist() == [3, 6]


def trace(*turns: dict[str, Any]) -> dict[str, Any]:
    """A verifiers 0.4 trace (v1/graph.py: the log-probabilities of the sampled tokens of a node)."""
    user = {"message": {"role": "user", "content": "x"}, "sampled": False, "token_ids": [1], "mask": [False]}
    sampled = [{"message": {"role": "assistant", "content": "y"}, "sampled": True} | t for t in turns]
    return {"task": {"data": {"prompt": "x"}, "key": "k"}, "rewards": {"r": {"score": 1.0}}, "nodes": [user, *sampled]}


@pytest.mark.parametrize(
    ("turns", "total", "tokens"),
    [
        ([{"mask": [False, True, True], "logprobs": [-0.5, -1.0]}], -1.5, 2),
        ([{"mask": [True], "logprobs": [-0.5]}, {"mask": [False, True], "logprobs": [-2.0]}], -2.5, 2),
        ([{"mask": [False, True], "logprobs": [0.0, -3.0]}], -3.0, 1),  # one for each token, the template's too
        ([{"mask": [True], "logprobs": [-0.5]}, {"mask": [], "logprobs": []}], None, None),  # a turn without any
        ([{"logprobs": []}], None, None),
    ],
)
def test_verifiers_sums_over_sampled_nodes(turns: list[Any], total: float, tokens: int, tmp_path: Path) -> None:
    for name in ("traces.jsonl", "step_1/train_rollouts.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(trace(*turns)) + "\n")
        table = read_rollouts(path)
        assert table.format == ("verifiers" if name == "traces.jsonl" else "prime-rl")
        assert (table.log_probs_R, table.lengths_R) == ((None, None) if total is None else ([total], [tokens]))


def test_verifiers_before_0_4_has_them_in_the_trajectory_if_it_was_saved(tmp_path: Path) -> None:
    row = {"example_id": 0, "completion": "y"}
    turns = [{"tokens": {"completion_logprobs": [-0.5, -1.0]}}, {"tokens": {"completion_logprobs": [-2.0]}}]
    table = read_rollouts(write(tmp_path / "results.jsonl", [row | {"trajectory": turns}, row]))
    assert table.format == "verifiers-legacy"
    assert table.log_probs_R is not None
    np.testing.assert_array_equal(table.log_probs_R, [-3.5, np.nan])


def test_verl_dumps_have_them_where_the_reward_function_returns_them(tmp_path: Path) -> None:
    def row(uid: str, log_probs: Any) -> dict[str, Any]:
        return {"input": "x", "output": "y", "gts": None, "score": 1, "step": 1, "uid": uid} | (
            {} if log_probs is None else {"rollout_log_probs": log_probs}
        )

    rows = [row("a_0_0", [-1.0]), row("a_0_1", [-2.0, -3.0]), row("a_1_0", [-4.0]), row("a_1_1", None)]
    table = read_rollouts(write(tmp_path / "1.jsonl", rows))
    assert table.log_probs_R is not None
    np.testing.assert_array_equal(table.log_probs_R, [-6.0, np.nan])


def test_a_reply_of_a_server_is_found_in_a_row(tmp_path: Path) -> None:
    reply = {
        "choices": [{"message": {"content": "y"}, "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.0}]}}],
        "usage": {"completion_tokens": 2},
    }
    for row in (reply, {"response": reply}, {"response": {"status_code": 200, "body": reply}}):
        table = read_rollouts(write(tmp_path / "a.jsonl", [row]))
        assert (table.log_probs_R, table.lengths_R) == ([-1.5], [2])
