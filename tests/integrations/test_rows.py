"""Padding, turns, ids, ranks and settings: what every adapter leaves to the shared piece."""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollonce.baselines import KernelBaseline, LeaveOneOut, Tracker, family_mean_baseline
from rollonce.errors import InputError
from rollonce.integrations import (
    Rule,
    gather_rows,
    make_rollout_rows,
    read_dotted_setting,
    refuse,
    render_prompt_text,
    stable_task_id,
)
from rollonce.integrations.rows import depends_on_prompts, find_needed_columns

HEAVY = [
    "torch",
    "trl",
    "verl",
    "skyrl",
    "openrlhf",
    "ray",
    "tinker",
    "tinker_cookbook",
    "transformers",
    "sklearn",
    "numba",
    "scipy",
    "slime",
]


def modules():
    import rollonce.integrations

    return sorted(
        f"rollonce.integrations.{p.stem}"
        for p in Path(rollonce.integrations.__file__).parent.glob("*.py")
        if p.stem != "__init__"
    )


def test_importing_every_integration_loads_no_trainer():
    code = (
        f"import sys, importlib; [importlib.import_module(m) for m in {modules()!r}]; print([m for m in {HEAVY!r} if m "
        "in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_padding_goes_and_turns_of_a_rollout_count_once():
    rows = make_rollout_rows(
        ["p", "q", "q and what was said", "r", "pad"],
        [1.0, 0.5, 0.5, 0.0, 9.0],
        keep=[True, True, True, True, False],
        rollout_ids=["a", "b", "b", "c", "a"],
    )
    assert rows.batch.tasks.prompts == ["p", "q", "r"], (
        "a rollout's prompt is its first row's, before the policy wrote anything"
    )
    assert rows.batch.rewards_B.tolist() == [1.0, 0.5, 0.0]
    assert rows.rollout_N.tolist() == [0, 1, 1, 2, -1]
    assert rows.kept_N.tolist() == [True, True, True, True, False]
    assert rows.spread_over_rows(np.array([1.0, 2.0, 3.0])).tolist() == [1.0, 2.0, 2.0, 3.0, 0.0]


def as_torch(values):
    return pytest.importorskip("torch").tensor(values)


def as_torch_list(values):
    return list(as_torch(values))  # as `list(tensor)` in gather_rows leaves them


@pytest.mark.parametrize("of", [np.array, as_torch, as_torch_list])
def test_ids_and_masks_as_tensors_are_their_values(of):
    # A 0-d tensor is hashed by identity: turns of a rollout would each be a rollout, and b of one would hold the
    # other's reward, its own.
    rows = make_rollout_rows(
        ["p", "p and more", "p", "pad"],
        of([1.0, 1.0, 0.0, 9.0]),
        keep=of([True, True, True, False]),
        rollout_ids=of([7, 7, 8, 9]),
        task_ids=of([3, 3, 3, 4]),
        columns={"level": of([1, 1, 2, 2])},
    )
    assert rows.rollout_N.tolist() == [0, 0, 1, -1]
    assert rows.batch.rewards_B.tolist() == [1.0, 0.0]
    assert rows.batch.tasks.task_ids.tolist() == ["3", "3"]
    assert rows.batch.tasks.column("level").tolist() == [1, 2]
    assert LeaveOneOut().predict(rows.batch, None).baseline_B.tolist() == [0.0, 1.0]


def test_masks_and_ids_of_two_dimensions():
    rows = make_rollout_rows(
        ["p", "q", "q"],
        [1.0, 0.0, 0.0],
        keep=np.array([[False], [True], [True]]),
        rollout_ids=np.array([[0, 1], [0, 2], [0, 2]]),
    )
    assert rows.rollout_N.tolist() == [-1, 0, 0]
    with pytest.raises(InputError, match="keep must hold one value for each row, not 2"):
        make_rollout_rows(["p", "q"], [1.0, 0.0], keep=np.ones((2, 2)))


@pytest.mark.parametrize(("rule", "want"), [("first", 0.25), ("last", 1.0), ("sum", 1.25)])
def test_rewards_that_differ_between_the_turns_of_a_rollout(rule, want):
    given = {"prompts": ["p", "p p", "q"], "rewards": [0.25, 1.0, 0.0], "rollout_ids": [7, 7, 8]}
    assert make_rollout_rows(**given, rollout_reward=rule).batch.rewards_B.tolist() == [want, 0.0]
    with pytest.raises(InputError, match=r"rows \[0, 1\] belong to one rollout \(7\).*rollout_reward='last'"):
        make_rollout_rows(**given)


def test_a_rollout_without_a_reward_is_named_or_dropped():
    for missing in (None, float("nan")):
        with pytest.raises(InputError, match=r"row 1 has reward nan .*no reward function graded it"):
            make_rollout_rows(["a", "b"], [1.0, missing])
        rows = make_rollout_rows(["a", "b", "c"], [1.0, missing, 0.0], ungraded="drop")
        assert rows.batch.tasks.prompts == ["a", "c"]
        assert rows.rollout_N.tolist() == [0, -1, 1]
    with pytest.raises(InputError, match=r"row 0 has reward inf .*not finite"):
        make_rollout_rows(["a"], [float("inf")], ungraded="drop")


def test_lengths_that_differ_are_named():
    with pytest.raises(InputError, match="2 rewards but 3 prompts"):
        make_rollout_rows(["a", "b", "c"], [1.0, 0.0])
    with pytest.raises(InputError, match="2 rewards but 1 family"):
        make_rollout_rows(["a", "b"], [1.0, 0.0], columns={"family": ["x"]})


def test_ids_follow_the_normalised_prompt_alone():
    a, b, c = stable_task_id("What  is 2+2?\n"), stable_task_id("what is 2+2?"), stable_task_id("what is 2+3?")
    assert a == b != c
    # blake2b-64 of "what is 2+2?": the id must never change, or a resumed run would not know its own tasks
    import hashlib

    assert a == hashlib.blake2b(b"what is 2+2?", digest_size=8).hexdigest()
    assert make_rollout_rows(
        [[{"role": "user", "content": "what is 2+2?"}], "What is 2+2?"], [0, 1]
    ).batch.tasks.task_ids.tolist() == [a, a]
    assert make_rollout_rows(["x", "x"], [0, 1], task_ids=[3, 4]).batch.tasks.task_ids.tolist() == ["3", "4"]
    assert make_rollout_rows(None, [0, 1]).batch.tasks.task_ids.tolist() == ["row 0", "row 1"]


def test_prompts_as_messages_and_what_is_no_prompt():
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert render_prompt_text(chat) == "system: be brief\n\nuser: hello"
    assert render_prompt_text(np.array(chat, dtype=object)) == render_prompt_text(chat)
    with pytest.raises(InputError, match="not int"):
        render_prompt_text(5)
    with pytest.raises(InputError, match="messages with 'role'"):
        render_prompt_text([1, 2, 3])


def test_what_a_baseline_reads():
    assert find_needed_columns(family_mean_baseline("source")) == ["source"]
    assert find_needed_columns(KernelBaseline()) == []
    assert depends_on_prompts(KernelBaseline())
    assert depends_on_prompts(Tracker()), "a tracker knows a task by its prompt"
    assert not depends_on_prompts(LeaveOneOut())


def test_ranks_of_unequal_size_come_in_one_order():
    mine = [{"rewards": [1.0, 2.0], "keep": None}, {"rewards": [], "keep": None}, {"rewards": [3.0], "keep": None}]
    slices = []
    for rank in range(3):
        world = gather_rows(mine[rank], lambda _: mine, rank)
        assert world.fields == {"rewards": [1.0, 2.0, 3.0], "keep": None}
        slices.append(world.fields["rewards"][world.mine])
    assert slices == [[1.0, 2.0], [], [3.0]]
    with pytest.raises(InputError, match="some ranks have keep"):
        gather_rows(mine[0], lambda _: [mine[0], {"rewards": [1.0], "keep": [True]}], 0)
    with pytest.raises(InputError, match="rank 2 of a world of 1"):
        gather_rows(mine[0], lambda own: [own], 2)


def test_settings_that_break_are_all_named_with_their_fix():
    rules = [
        Rule("algorithm.norm", True, "divides by the deviation", "set it to false"),
        Rule("n", lambda n: n > 1, "samples groups", "set n=1"),
        Rule("not.there", True, "x", "y"),
    ]
    settings = {"algorithm": argparse.Namespace(norm=True), "n": 4}
    with pytest.raises(
        InputError, match=r"toy cannot run.*algorithm\.norm=True divides.*set it to false; n=4 samples groups: set n=1"
    ):
        refuse(settings, rules, "toy")
    refuse({"algorithm": argparse.Namespace(norm=False), "n": 1}, rules, "toy")
    refuse({"algorithm": None}, rules, "toy")
    assert read_dotted_setting(settings, "algorithm.norm") is True
    assert read_dotted_setting(settings, "algorithm.other", "default") == "default"


def test_log_probabilities_of_a_rollout_s_rows_add_up_and_one_unknown_makes_the_sum_unknown():
    rows = make_rollout_rows(
        list("aabbcd"),
        [1.0, 1.0, 0.0, 0.0, 0.0, 9.0],
        rollout_ids=[0, 0, 1, 1, 2, 3],
        log_probs=[-1.0, -2.0, -4.0, None, -5.0, -6.0],
        keep=[True] * 5 + [False],
    )
    np.testing.assert_array_equal(rows.batch.log_probs_B, [-3.0, np.nan, -5.0])
    assert make_rollout_rows(["a"], [1.0]).batch.log_probs_B is None
    with pytest.raises(InputError, match=r"rollout 1 is 2; .*at most 0 \(not -log p\)"):
        make_rollout_rows(["a", "b"], [1.0, 0.0], log_probs=[-1.0, 2.0])
    with pytest.raises(InputError, match="2 rewards but 1 log_probs"):
        make_rollout_rows(["a", "b"], [1.0, 0.0], log_probs=[-1.0])
