"""Each format's fixture (README.md beside them says who wrote it) against values worked out by hand from what its
generator put in."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rollonce.errors import InputError, MissingExtraError
from rollonce.readers import read_rollouts
from rollonce.rollouts import Rollouts

F = Path(__file__).parent / "fixtures"


def groups(table: Rollouts) -> dict[str, list[float]]:
    return {p: table.group(i).tolist() for i, p in enumerate(table.tasks.prompts)}


def stream(values: np.ndarray | None, table: Rollouts) -> list[float]:
    """Per-rollout values in the order of the log."""
    assert values is not None
    assert table.order_R is not None
    return values[np.argsort(table.order_R)].tolist()


def test_verl_steps_come_in_natural_order_and_the_input_is_the_task() -> None:
    table = read_rollouts(F / "verl")
    assert table.format == "verl"
    assert groups(table) == {"user\n1+1=?": [1, 0, 0.5, 1, 0], "user\n2+2=?": [0], "user\n3+3=?": [1]}
    assert stream(table.steps_R, table) == [1, 1, 1, 1, 2, 2, 10]
    assert table.tasks.task_ids[0].startswith("prompt-")


def test_verl_v1_outputs_of_one_session_are_one_rollout() -> None:
    table = read_rollouts(F / "verl_v1")
    # aa_0 has two outputs: its first input and its last score count.
    assert groups(table) == {"user\ngo": [1, 0], "user\nstop": [0.25]}
    assert read_rollouts(F / "verl", columns=["answer=gts"]).tasks.column("answer").tolist() == ["2", "4", "6"]


def test_trl_sums_the_reward_functions_and_passes_over_a_batch_logged_twice() -> None:
    table = read_rollouts(F / "trl")
    # 4 optimizer steps of 2 generation batches of 8: files 2 and 4 repeat 1 and 3. `short` gives 0.25 to all,
    # `starts_with_a` 0, 1 or None.
    assert table.n_rollouts == 16
    assert set(table.rewards_R.tolist()) == {0.25, 1.25}
    assert stream(table.steps_R, table) == [1] * 8 + [3] * 8
    assert sorted(table.tasks.prompts) == ["a b", "c d"]
    assert set(read_rollouts(F / "trl", reward="short").rewards_R.tolist()) == {0.25}
    both = read_rollouts(F / "trl", reward="short, starts_with_a")
    np.testing.assert_array_equal(both.rewards_R, table.rewards_R)


def test_trl_a_reward_function_that_scored_nothing_is_null_not_zero() -> None:
    with pytest.raises(InputError, match=r"completions_00001.parquet, line 2: no reward function scored this rollout"):
        read_rollouts(F / "trl", reward="starts_with_a")
    table = read_rollouts(F / "trl", reward="starts_with_a", skip_bad_rows=True)
    assert (table.n_rollouts, table.n_skipped) == (12, 4)  # every fourth, from the second on
    with pytest.raises(InputError, match=r"no reward column 'nothing'; the reward columns are starts_with_a, short"):
        read_rollouts(F / "trl", reward="nothing")


def test_verifiers_rewards_are_weighted() -> None:
    table = read_rollouts(F / "verifiers")
    assert groups(table) == {
        "system: Be brief.\n\nuser: 1+1=?": [1 + 0.5 * 0.2, 0],
        "2+2=?": [1],
        "Hello, who are you?": [0],
    }
    assert stream(table.lengths_R, table) == [7, 9, 7, 7]
    assert all(t.startswith("sums/") for t in table.tasks.task_ids)
    assert read_rollouts(F / "verifiers", reward="right").rewards_R.tolist() == [1, 0, 1, 0]


def test_verifiers_an_unscored_trace_is_a_bad_row() -> None:
    with pytest.raises(
        InputError, match=r"traces.jsonl, line 2: this trace was not scored \(SandboxError: the box died\)"
    ):
        read_rollouts(F / "verifiers_errors")
    table = read_rollouts(F / "verifiers_errors", skip_bad_rows=True)
    assert (table.rewards_R.tolist(), table.n_skipped) == ([1], 1)


def test_prime_rl_steps() -> None:
    table = read_rollouts(F / "prime_rl")
    assert table.format == "prime-rl"
    assert stream(table.steps_R, table) == [4, 5, 6]
    assert stream(table.rewards_R, table) == [1, 0, 0]
    legacy = read_rollouts(F / "prime_rl_legacy")
    assert (legacy.format, legacy.rewards_R.tolist(), stream(legacy.steps_R, legacy)) == ("prime-rl", [0, 1], [1, 2])
    wire = read_rollouts(F / "prime_rl_wire")
    assert (wire.format, wire.tasks.task_ids.tolist(), wire.steps_R) == ("prime-rl", ["sums/k0"], np.array([7]))


def test_verifiers_legacy_takes_the_environment_from_metadata() -> None:
    table = read_rollouts(F / "verifiers_legacy")
    assert table.format == "verifiers-legacy"
    assert table.tasks.task_ids.tolist() == ["sums/0", "sums/1"]
    assert groups(table) == {"system: Be brief.\n\nuser: 1+1=?": [1, 0], "system: Be brief.\n\nuser: 2+2=?": [0.5]}
    assert stream(table.lengths_R, table) == [4, 6, 8]


def test_tinker_evals() -> None:
    table = read_rollouts(F / "tinker_evals")
    assert groups(table) == {"User: aa?\n\nAssistant:": [1, 0], "User: bb?\n\nAssistant:": [0.5]}
    assert stream(table.lengths_R, table) == [5, 7, 3]  # assistant turns only: 4 + 1, 6 + 1, 2 + 1
    assert read_rollouts(F / "tinker_evals", reward="correct").rewards_R.tolist() == [1, 0, 0]


def test_tinker_training_needs_its_join_file() -> None:
    with pytest.raises(InputError, match="hold no prompts; give a join file"):
        read_rollouts(F / "tinker_training")
    table = read_rollouts(F / "tinker_training", join=F / "tinker_training_join.jsonl")
    # total reward: the step's reward + the group's final reward of 0.25
    assert groups(table) == {"1+1=?": [1.25, 0.25, 0.75, 1.25], "2+2=?": [0.25, 0.25]}
    assert stream(table.steps_R, table) == [0, 0, 0, 0, 1, 1]
    assert table.tasks.task_ids.tolist() == ["s1", "s2"]
    assert stream(table.lengths_R, table) == [3, 4, 3, 4, 3, 4]
    assert (
        read_rollouts(F / "tinker_training", join=F / "tinker_training_join.jsonl", split="eval/sums").n_rollouts == 6
    )
    with pytest.raises(InputError, match="all 12 rows were left out by split or filter; the file has eval/sums, train"):
        read_rollouts(F / "tinker_training", join=F / "tinker_training_join.jsonl", split="eval/other")


def test_tinker_training_join_by_tags(tmp_path: Path) -> None:
    join = tmp_path / "join.csv"
    join.write_text('tags,prompt\n"sums,easy",one\n"sums,hard",two\n')
    assert groups(read_rollouts(F / "tinker_training", join=join)) == {
        "one": [1.25, 0.25, 0.75, 1.25],
        "two": [0.25, 0.25],
    }
    join.write_text('tags,prompt\n"sums,easy",one\n')
    with pytest.raises(InputError, match=r"line 3: the join file .*join.csv has no prompt for tags=sums,hard"):
        read_rollouts(F / "tinker_training", join=join)
    join.write_text("prompt\none\n")
    with pytest.raises(InputError, match=r"join.csv.*: "):
        read_rollouts(F / "tinker_training", join=join)


def test_inspect_through_its_own_reader() -> None:
    pytest.importorskip("inspect_ai")
    with pytest.raises(InputError, match=r"several scorers \(exact, match\)"):
        read_rollouts(F / "inspect")
    table = read_rollouts(F / "inspect", reward="match", columns=["level=metadata.level"])
    assert groups(table) == {"1+1=?": [1, 0, 1], "system: Be brief.\n\nuser: 2+2=?": [1, 1, 0]}
    assert table.tasks.task_ids.tolist() == ["sums/one", "sums/two"]
    assert table.tasks.column("level").tolist() == ["easy", "hard"]
    assert stream(table.lengths_R, table) == [10, 11, 12, 13, 14, 15] or sorted(stream(table.lengths_R, table)) == [
        10,
        11,
        12,
        13,
        14,
        15,
    ]


def test_inspect_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "inspect_ai.log", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rollonce\[inspect\]'"):
        read_rollouts(F / "inspect")


def test_inspect_scores() -> None:
    from rollonce.readers.inspect_ai import _read_sample_score

    assert [_read_sample_score({"s": v}, None) for v in ("C", "P", "I", "N", 0.5, True)] == [1, 0.5, 0, 0, 0.5, True]
    assert _read_sample_score({"s": {"a": 0.25, "b": 1}}, "s.a") == 0.25
    with pytest.raises(InputError, match="gives several values"):
        _read_sample_score({"s": {"a": 1}}, "s")
    with pytest.raises(InputError, match="not scored"):
        _read_sample_score({}, None)


def test_evalplus() -> None:
    results, dataset = F / "evalplus" / "samples_eval_results.json", F / "evalplus" / "dataset.jsonl"
    table = read_rollouts(results, join=dataset)
    # add: right, wrong; mul: right, and a sum, which passes the base tests (2*2, 0*0) but not the extra one
    assert [table.group(i).tolist() for i in range(2)] == [[1, 0], [1, 0]]
    base = read_rollouts(results, join=dataset, reward="base")
    assert [base.group(i).tolist() for i in range(2)] == [[1, 0], [1, 1]]
    assert table.tasks.prompts[0].startswith("def add(a, b):")
    with pytest.raises(InputError, match="hold no prompts; join the benchmark's own file"):
        read_rollouts(results)
    assert read_rollouts(results, join="none").tasks.prompts == ["HumanEval/0", "HumanEval/1"]


def test_automationbench_runs_are_the_repeats() -> None:
    table = read_rollouts(F / "automationbench")
    assert groups(table) == {"system: You automate.\n\nuser: Update the phone.": [0.75, 1]}
    assert stream(table.lengths_R, table) == [34, 34]
    assert read_rollouts(F / "automationbench", reward="passed").rewards_R.tolist() == [0, 1]


def test_skyrl_sums_rewards_per_token() -> None:
    table = read_rollouts(F / "skyrl")
    assert groups(table) == {"w1 w2": [1, 0], "w3": [0.5]}
    assert stream(table.steps_R, table) == [5, 5, 5]


def test_nemo_rl_takes_slices_of_one_apart() -> None:
    table = read_rollouts(F / "nemo_rl")
    assert groups(table) == {"1+1=?": [1, 0], "2+2=?": [0.5], "3+3=?": [1]}
    assert stream(table.lengths_R, table) == [2, 1, 3, 1]
    assert stream(table.steps_R, table) == [1, 1, 1, 2]


def test_lm_eval_runs_are_grouped_by_document() -> None:
    with pytest.raises(InputError, match=r"several metrics \(acc, acc_norm\)"):
        read_rollouts(F / "lm_eval")
    table = read_rollouts(F / "lm_eval", reward="acc")
    assert groups(table) == {"Q: 1+1=": [1, 1, 1], "Q: 2+2=": [1, 1, 0]}
    assert all(t.startswith("sums/") for t in table.tasks.task_ids)


def test_lm_eval_repeats_inside_a_run_are_refused() -> None:
    with pytest.raises(InputError, match="2 repeats inside one run, which lm-eval scores together"):
        read_rollouts(F / "lm_eval_repeats")


@pytest.mark.parametrize("folder", sorted(p.name for p in F.iterdir() if p.is_dir()))
def test_a_format_is_found_by_what_is_in_the_file_not_by_its_name(folder: str, tmp_path: Path) -> None:
    """Copied under another name, each is still read as the same format (prime-rl's step is in the path, though)."""
    from rollonce.readers.probe import probe_file_content
    from rollonce.readers.registry import recognise_format

    for path in sorted((F / folder).rglob("*")):
        if path.is_file() and path.name not in ("metadata.json", "aggregated_results.jsonl", "dataset.jsonl"):
            here = recognise_format(probe_file_content(path))
            assert here is not None
            if here.name == "prime-rl":
                continue
            copy = tmp_path / f"renamed{path.suffix}"
            shutil.copy(path, copy)
            there = recognise_format(probe_file_content(copy))
            assert there is here
