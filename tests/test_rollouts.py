"""The table: moments, selections, the guard on columns, the one rendering of chats."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rollonce.errors import InputError
from rollonce.prompts import check_column_name, normalise_prompt, render_messages
from rollonce.rollouts import Rollouts, Tasks


def table() -> Rollouts:
    return Rollouts.from_groups([[1, 0, 0, 1], [0.5], [2, 4]], ["a", "b", "c"], columns={"level": [1, 2, 3]})


def test_moments_of_ragged_groups() -> None:
    t = table()
    assert (t.n_tasks, t.n_rollouts) == (3, 7)
    assert t.group_sizes_N.tolist() == [4, 1, 2]
    assert t.task_of_R.tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert t.means_N.tolist() == [0.5, 0.5, 3]
    assert t.biased_variances_N.tolist() == [0.25, 0, 1]
    np.testing.assert_allclose(t.variances_N, [1 / 3, np.nan, 2])
    assert t.rewards_R.dtype == np.float64


def test_select_keeps_groups_columns_and_what_was_skipped() -> None:
    t = table().select([2, 0])
    assert t.tasks.prompts == ["c", "a"]
    assert t.group(0).tolist() == [2, 4]
    assert t.group(1).tolist() == [1, 0, 0, 1]
    assert t.tasks.column("level").tolist() == [3, 1]
    assert t.select([1]).tasks.prompts == ["a"]
    assert t.tasks.root is table().tasks.root or t.tasks.root.prompts == ["a", "b", "c"]


def test_features_are_computed_once_for_all_views() -> None:
    tasks = Tasks(["x", "y", "z"])
    calls: list[int] = []

    def lengths(root: Tasks) -> np.ndarray:
        calls.append(1)
        return np.arange(len(root))

    assert tasks.take([2, 0]).cached("k", lengths).tolist() == [2, 0]
    assert tasks.take([1]).take([0]).cached("k", lengths).tolist() == [1]
    assert len(calls) == 1


def test_groups_must_be_finite_and_match_their_prompts() -> None:
    with pytest.raises(InputError, match="2 groups of rewards but 1 prompts"):
        Rollouts.from_groups([[1], [0]], ["a"])
    for bad in ([], [float("nan")], [[1.0]]):
        with pytest.raises(InputError, match="group 0 of rewards"):
            Rollouts.from_groups([bad], ["a"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="column 'level' has 1 values for 2 tasks"):
        Tasks(["a", "b"], columns={"level": [1]})


@pytest.mark.parametrize(
    "name",
    [
        "reward",
        "mean_reward",
        "response_length",
        "num_tokens",
        "Score",
        "is_correct",
        "finish_reason",
        "logprobs_sum",
        "log_prob",
        "log_probs",
        "surprisal",
        "mean_logp",
    ],
)
def test_columns_known_only_after_the_rollout_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="known only after the rollout"):
        check_column_name(name)


@pytest.mark.parametrize("name", ["family", "level", "prompt_length", "question_chars", "source", "context_tokens"])
def test_columns_known_before_it_are_fine(name: str) -> None:
    assert check_column_name(name) == name


def test_an_undeclared_column_says_which_are_declared() -> None:
    with pytest.raises(InputError, match=r"no column 'family' among the declared ones \(level\)"):
        table().tasks.column("family")


def test_normalised_prompts() -> None:
    assert normalise_prompt("  Straße\n x²") == normalise_prompt("STRASSE X2")
    assert Tasks(["A b", "a  B", "c"]).prompt_keys.tolist() == [0, 0, 1]


def test_rendering_of_chats() -> None:
    assert render_messages([{"role": "user", "content": "hi"}]) == "hi"
    assert (
        render_messages([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
        == "system: s\n\nuser: u"
    )
    parts = [{"type": "text", "text": "look: "}, {"type": "image_url", "image_url": {"url": "x"}}, "ok"]
    assert render_messages([{"role": "user", "content": parts}]) == "look: [image_url]ok"
    assert render_messages([{"role": "assistant", "content": None, "tool_calls": [{}]}]) == "assistant: "
    for bad in ({"content": "x"}, {"role": "user", "content": 3}, "x"):
        with pytest.raises(InputError):
            render_messages([bad])  # type: ignore[list-item]


def test_importing_the_readers_is_quick() -> None:
    code = (
        "import sys, rollonce.readers; print([m for m in ('pyarrow', 'scipy', 'torch', 'pydantic', 'inspect_ai') if m "
        "in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.slow
def test_a_million_rollouts_of_100k_tasks_stay_under_a_gibibyte() -> None:
    import os
    from pathlib import Path

    bench = Path(__file__).parents[1] / "benchmarks" / "reading.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(
        [sys.executable, str(bench), "--once"], capture_output=True, text=True, check=True, env=env
    ).stdout
    grown = float(out.rsplit("memory grew by ", 1)[1].split(" MiB at its peak")[0].split(", ")[1])
    assert grown < 1024
