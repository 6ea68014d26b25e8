"""Logs as people have them, read at first try. Most are one set of 20 invented tasks x 4 rollouts in the layout of some
writer; what must come out of each was worked out by hand: mean 0.525, s2 0.2083, tau2 0.0459, 20% of the groups
dead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollonce.commands.inputs import ReaderOptions, find_rollout_sources, read_source_table
from rollonce.errors import InputError
from rollonce.prompts import render_messages
from rollonce.readers import read_rollouts
from rollonce.rollouts import Rollouts
from rollonce.scoring import dead_group_fraction, moments

N_TASKS, N_ROLLOUTS = 20, 4


def reward(task: int, rollout: int) -> float:
    return float((task * 7 + rollout * 3) % 10 < 1 + 2 * (task % 5))


def ask(task: int) -> str:
    return f"Invented task {task}: which of the {task + 3} coloured boxes holds the key?"


ALL = [(task, rollout) for task in range(N_TASKS) for rollout in range(N_ROLLOUTS)]
REWARDS = [[reward(task, rollout) for rollout in range(N_ROLLOUTS)] for task in range(N_TASKS)]


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def document(path: Path, value: Any, indent: int | None = None) -> Path:
    path.write_text(json.dumps(value, indent=indent))
    return path


def assert_boxes(table: Rollouts, prompts: bool = True) -> None:
    assert table.n_tasks == N_TASKS
    assert set(table.group_sizes_N.tolist()) == {N_ROLLOUTS}
    if prompts:
        assert table.tasks.prompts == [ask(task) for task in range(N_TASKS)]
    m = moments(table)
    assert round(m.mean.value, 4) == 0.525
    assert round(m.s2.value, 4) == 0.2083
    assert round(m.tau2.value, 4) == 0.0459
    assert dead_group_fraction(table, 2) == pytest.approx(0.583, abs=5e-4)
    assert dead_group_fraction(table, 4) == pytest.approx(0.2)


# Options that a format does not use
# ----------------------------------------------------------------------------------------------------------------------


def verl(path: Path) -> Path:
    rows = [
        {"input": ask(t), "output": "x", "gts": "1", "score": 2 * reward(t, g) - 1, "step": 1, "acc": reward(t, g)}
        for t, g in ALL
    ]
    return lines(path / "1.jsonl", rows)


def skyrl(path: Path) -> Path:
    rows = [
        {"input_prompt": ask(t), "output_response": "x", "score": 2 * reward(t, g) - 1, "acc": reward(t, g)}
        for t, g in ALL
    ]
    return lines(path / "global_step_1_evals" / "boxes.jsonl", rows)


def nemo_rl(path: Path) -> Path:
    chat = lambda t: [{"role": "user", "content": ask(t)}, {"role": "assistant", "content": "x"}]  # noqa: E731
    rows = [
        {"content": [chat(t)], "rewards": [2 * reward(t, g) - 1], "acc": [reward(t, g)], "input_lengths": [5]}
        for t, g in ALL
    ]
    return lines(path / "train_data_step1.jsonl", rows)


@pytest.mark.parametrize("write", [verl, skyrl, nemo_rl])
def test_another_reward_of_the_row_is_read_and_one_that_is_not_there_refused(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    assert_boxes(read_rollouts(path, reward="acc"))
    assert moments(read_rollouts(path)).s2.value == pytest.approx(4 * 0.2083, abs=1e-3)  # of 2 acc - 1
    with pytest.raises(InputError, match=r"line 1: no reward 'no_such_reward' \(--reward\) in this row; it has .*acc"):
        read_rollouts(path, reward="no_such_reward")


FIXTURES = Path(__file__).parent / "fixtures"
UNUSED = {
    "verl": ("join", "split", "filter"),
    "trl": ("join", "split", "filter"),
    "verifiers": ("join",),
    "prime_rl": ("join",),
    "verifiers_legacy": ("join", "split", "filter"),
    "tinker_evals": ("join", "split", "filter"),
    "tinker_training": ("filter",),
    "evalplus/samples_eval_results.json": ("split", "filter"),
    "automationbench": ("split", "filter"),
    "skyrl": ("join", "split", "filter"),
    "nemo_rl": ("join", "split", "filter"),
    "lm_eval": ("join", "split"),
    "inspect": ("join", "split", "filter"),
}


@pytest.mark.parametrize(("folder", "option"), [(f, o) for f, options in UNUSED.items() for o in options])
def test_an_option_that_does_nothing_is_refused(folder: str, option: str) -> None:
    with pytest.raises(InputError, match=rf"{option}='x' \(--{option}\) does nothing for files of the format"):
        read_rollouts(FIXTURES / folder, **{option: "x"})  # type: ignore[arg-type]


def test_options_in_rows_of_ones_own(tmp_path: Path) -> None:
    rows = [
        {"task_id": t, "prompt": ask(t), "reward": reward(t, g), "split": "train" if t < 10 else "eval"} for t, g in ALL
    ]
    path = lines(tmp_path / "a.jsonl", rows)
    train = read_rollouts(path, split="train")
    assert train.n_tasks == 10
    assert round(moments(train).tau2.value, 4) == 0.0514
    with pytest.raises(InputError, match="all 80 rows were left out by split or filter; the file has eval, train"):
        read_rollouts(path, split="test")
    with pytest.raises(InputError, match=r"filter='x' \(--filter\) does nothing"):
        read_rollouts(path, filter="x")
    with pytest.raises(InputError, match="no such join file"):
        read_rollouts(path, join=tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match=r"join= .* does nothing for rows that hold their prompt"):
        read_rollouts(path, join=path)
    without = lines(tmp_path / "b.jsonl", [{k: v for k, v in r.items() if k != "split"} for r in rows])
    with pytest.raises(InputError, match=r"b.jsonl, line 1: split= \(--split\) needs a key 'split' in each row"):
        read_rollouts(without, split="train")


# A group on one line
# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        lambda t: {"question": ask(t), "response": ["x"] * 4, "score": [bool(r) for r in REWARDS[t]]},
        lambda t: {"problem": ask(t), "rewards": REWARDS[t]},
        lambda t: {"prompt": ask(t), "reward": REWARDS[t], "response_tokens": [3, 4, 5, 6]},
        lambda t: {"prompt": ask(t), "n_correct": int(sum(REWARDS[t])), "n": 4},
        lambda t: {"prompt": ask(t), "correct": int(sum(REWARDS[t])), "total": 4},
        lambda t: {"prompt": ask(t), "rollouts": [{"reward": r, "text": "x"} for r in REWARDS[t]]},
        lambda t: {"samples": [{"question": ask(t), "score": r} for r in REWARDS[t]]},
    ],
)
def test_a_group_on_one_line(row: Any, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [row(t) for t in range(N_TASKS)])
    options: Any = {"reward_key": "rewards"} if "rewards" in row(0) else {}
    table = read_rollouts(path, **options)
    assert_boxes(table)
    if "response_tokens" in row(0):
        assert table.lengths_R is not None
        assert table.lengths_R.tolist() == [3, 4, 5, 6] * N_TASKS


def test_counts_under_other_names_and_what_is_no_group(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": ask(t), "hits": int(sum(REWARDS[t])), "tries": 4} for t in range(N_TASKS)]
    assert_boxes(read_rollouts(lines(tmp_path / "a.jsonl", rows), reward_key="hits/tries"))
    rows[1]["hits"] = 5
    with pytest.raises(InputError, match="line 2: 'hits' and 'tries' are the number 5 and the number 4"):
        read_rollouts(lines(tmp_path / "a.jsonl", rows), reward_key="hits/tries")
    per_token = {"prompt": "x", "response": "a b", "reward": [0.0, 1.0]}
    with pytest.raises(InputError, match="line 1: a list of 2 rewards beside one response: if these are rewards per"):
        read_rollouts(lines(tmp_path / "a.jsonl", [per_token]))
    mixed = [{"prompt": "x", "reward": [0, 1]}, {"prompt": "y", "reward": 1}]
    with pytest.raises(InputError, match="line 2: the reward is the number 1, though the first row has a list of rew"):
        read_rollouts(lines(tmp_path / "a.jsonl", mixed))
    # one sample correct out of ... no count of samples: a plain 0/1 reward
    plain = [{"prompt": "x", "correct": 1, "total": 1}, {"prompt": "x", "correct": 0, "total": 1}]
    assert read_rollouts(lines(tmp_path / "a.jsonl", plain)).rewards_R.tolist() == [1, 0]


# Rows inside a document
# ----------------------------------------------------------------------------------------------------------------------

ROW = [{"task_id": t, "prompt": ask(t), "reward": reward(t, g)} for t, g in ALL]
BY_TASK = {ask(t): [{"reward": r} for r in REWARDS[t]] for t in range(N_TASKS)}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "options"),
    [
        ({"model": "m", "results": ROW}, {}),
        ({"model": "m", "results": ROW}, {"rows_key": "results"}),
        ({"data": {"rollouts": ROW, "others": ROW[:3]}}, {"rows_key": "data.rollouts"}),
        ({"results": ROW, "rejected": ROW[:3]}, {"rows_key": "results"}),
        ({"by_task": BY_TASK}, {"rows_key": "by_task", "prompt_key": "task_id"}),
        ({"scores": dict(zip(BY_TASK, REWARDS, strict=True))}, {"rows_key": "scores", "prompt_key": "task_id"}),
        (dict(zip(BY_TASK, REWARDS, strict=True)), {"rows_key": ".", "prompt_key": "task_id"}),
    ],
)
def test_rows_inside_a_document(value: Any, options: Any, indent: int | None, tmp_path: Path) -> None:
    assert_boxes(read_rollouts(document(tmp_path / "a.json", value, indent), **options))


def test_rows_inside_a_document_are_numbered_and_a_wrong_key_is_said(tmp_path: Path) -> None:
    path = document(tmp_path / "a.json", {"results": [*ROW[:2], {"task_id": 0, "prompt": ask(0), "reward": None}]})
    with pytest.raises(InputError, match=r"a.json, line 3: the reward is null"):
        read_rollouts(path)
    with pytest.raises(InputError, match=r"no key 'rows' for the rows \(--rows-key\); it has results"):
        read_rollouts(path, rows_key="rows")
    with pytest.raises(InputError, match="no known format: it has first, second"):
        read_rollouts(document(tmp_path / "b.json", {"first": ROW, "second": ROW}))


def test_tau2_bench(tmp_path: Path) -> None:
    value = {
        "timestamp": "t",
        "info": {},
        "tasks": [{"id": str(t), "ticket": ask(t)} for t in range(N_TASKS)],
        "simulations": [
            {"id": f"s{t}-{g}", "task_id": str(t), "trial": g, "reward_info": {"reward": reward(t, g)}} for t, g in ALL
        ],
    }
    path = document(tmp_path / "results.json", value)
    table = read_rollouts(path)
    assert table.format == "tau2-bench"
    assert_boxes(table)
    keys: Any = {"rows_key": "simulations", "prompt_key": "task_id", "reward_key": "reward_info.reward"}
    assert_boxes(read_rollouts(path, **keys), prompts=False)
    tasks = lines(tmp_path / "tasks.jsonl", [{"id": str(t), "prompt": ask(t)} for t in range(N_TASKS)])
    assert_boxes(read_rollouts(path, **(keys | {"prompt_key": "", "join": tasks})))
    value["simulations"][1]["reward_info"] = None
    with pytest.raises(InputError, match="line 2: this simulation was not scored"):
        read_rollouts(document(path, value))


# Layouts of evaluation harnesses
# ----------------------------------------------------------------------------------------------------------------------


def lm_eval(folder: Path, argument: Any, drop: tuple[str, ...] = ()) -> Path:
    for run in (1, 2):
        rows = [
            {
                "doc_id": t,
                "doc": {"question": ask(t)},
                "target": "1",
                "arguments": argument(t),
                "resps": [["x"]],
                "filtered_resps": ["1"],
                "filter": "none",
                "metrics": ["exact_match"],
                "doc_hash": f"{t:064x}",
                "exact_match": reward(t, run),
            }
            for t in range(N_TASKS)
        ]
        name = f"samples_boxes_2026-01-0{run}T00-00-00.000000.jsonl"
        lines(folder / name, [{k: v for k, v in r.items() if k not in drop} for r in rows])
    return folder


def chat(t: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": ask(t)}]


@pytest.mark.parametrize(
    ("argument", "drop"),
    [
        (lambda t: {"gen_args_0": {"arg_0": ask(t), "arg_1": {"until": []}}}, ()),
        (lambda t: {"gen_args_0": {"arg_0": [json.dumps(chat(t))], "arg_1": {"until": []}}}, ()),
        (lambda t: {"gen_args_0": {"arg_0": chat(t), "arg_1": {"until": []}}}, ()),
        (lambda t: [[ask(t), {"until": []}]], ("filter", "metrics", "doc_hash")),
        (lambda t: [[[json.dumps(chat(t))], {"until": []}]], ("metrics", "doc_hash")),
    ],
)
def test_lm_eval_layouts(argument: Any, drop: tuple[str, ...], tmp_path: Path) -> None:
    table = read_rollouts(lm_eval(tmp_path, argument, drop))
    assert (table.format, table.n_tasks, set(table.group_sizes_N.tolist())) == ("lm-eval", N_TASKS, {2})
    assert table.tasks.prompts == [ask(t) for t in range(N_TASKS)]
    m = moments(table)
    assert (round(m.mean.value, 4), round(m.s2.value, 4)) == (0.4, 0.3)
    assert dead_group_fraction(table, 2) == pytest.approx(0.4)


def join_file(path: Path) -> Path:
    return lines(path / "prompts.jsonl", [{"task_id": f"Boxes/{t}", "prompt": ask(t)} for t in range(N_TASKS)])


def test_humaneval_results(tmp_path: Path) -> None:
    rows = [
        {"task_id": f"Boxes/{t}", "completion": "x", "result": "passed", "passed": bool(reward(t, g))} for t, g in ALL
    ]
    path = lines(tmp_path / "samples.jsonl_results.jsonl", rows)
    with pytest.raises(InputError, match="humaneval results hold no prompts; join the benchmark's own file"):
        read_rollouts(path)
    table = read_rollouts(path, join=join_file(tmp_path))
    assert table.format == "humaneval"
    assert_boxes(table)
    assert_boxes(read_rollouts(path, join="none"), prompts=False)
    short = lines(tmp_path / "short.jsonl", [{"task_id": "Boxes/0", "prompt": ask(0)}])
    with pytest.raises(InputError, match=r"line 5: the join file .*short.jsonl has no prompt for task_id=Boxes/1"):
        read_rollouts(path, join=short)


@pytest.mark.parametrize("plus", [True, False])
def test_evalplus_before_0_2(plus: bool, tmp_path: Path) -> None:
    statuses = lambda t: [["success" if r else "failed", []] for r in REWARDS[t]]  # noqa: E731
    results = {
        f"Boxes/{t}": {"nfiles": 4, "base": statuses(t), "plus": statuses(t) if plus else []} for t in range(N_TASKS)
    }
    path = document(tmp_path / "eval_results.json", {"date": "2023-11-01 00:00", "hash": "h", "eval": results})
    table = read_rollouts(path, join=join_file(tmp_path))
    assert table.format == "evalplus"
    assert_boxes(table)


def nemo_gym_row(t: int, g: int) -> dict[str, Any]:
    history = [
        {"role": "user", "content": ask(t)},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "a box"},
    ]
    return {
        "responses_create_params": {"input": history},
        "response": {"output": [{"type": "message", "generation_log_probs": [-0.5, -1.0]}]},
        "reward": reward(t, g),
        "_ng_task_index": t,
        "_ng_rollout_index": g,
    }


def test_nemo_gym(tmp_path: Path) -> None:
    path = lines(tmp_path / "rollouts.jsonl", [nemo_gym_row(t, g) for t, g in ALL])
    table = read_rollouts(path)
    assert table.format == "nemo-gym"
    assert_boxes(table, prompts=False)
    assert table.tasks.task_ids.tolist() == [str(t) for t in range(N_TASKS)]
    assert table.tasks.prompts[0] == f"user: {ask(0)}\n\nassistant: look({{}})\n\ntool: a box"
    assert set(np.asarray(table.log_probs_R).tolist()) == {-1.5}
    assert set(np.asarray(table.lengths_R).tolist()) == {2.0}
    keys: Any = {"prompt_key": "responses_create_params.input", "reward_key": "reward"}
    assert_boxes(read_rollouts(path, **keys), prompts=False)
    with pytest.raises(InputError, match="already has a rollout '0'"):
        read_rollouts(lines(tmp_path / "twice.jsonl", [nemo_gym_row(0, 0)] * 2))


def test_items_of_the_responses_api() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "find it"}]},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "computer_call_output", "output": {"type": "input_image"}},
        {"type": "item_reference", "id": "i"},
    ]
    assert render_messages(items) == (
        "user: find it\n\nassistant: web_search_call()\n\ntool: [computer_call_output]\n\nassistant: [item_reference]"
    )


def test_messages_hold_the_prompt_before_the_answer(tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    shot = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "o"}]
    rows = [{"messages": m, "reward": 1} for m in ([user, answer], [user, answer, user, answer], [user])]
    table = read_rollouts(lines(tmp_path / "a.jsonl", rows))
    assert (table.tasks.prompts, table.n_rollouts) == (["q"], 3)
    # A conversation that ends with the user is a prompt with examples in it, answers and all.
    few_shot = read_rollouts(lines(tmp_path / "b.jsonl", [{"messages": [*shot, user], "reward": 1}]))
    assert few_shot.tasks.prompts == ["user: p\n\nassistant: o\n\nuser: q"]


# Several policies
# ----------------------------------------------------------------------------------------------------------------------


def two_models(folder: Path) -> Path:
    for model, run in (("org__model-8B", 1), ("org__model-70B", 2)):
        rows = [
            {
                "doc_id": t,
                "arguments": {"gen_args_0": {"arg_0": ask(t), "arg_1": {}}},
                "resps": [["x"]],
                "filtered_resps": ["1"],
                "metrics": ["exact_match"],
                "exact_match": float(run == 2 or t % 3 == 0),
            }
            for t in range(40)
        ]
        lines(folder / model / f"samples_boxes_2026-01-0{run}T00-00-00.000000.jsonl", rows)
    return folder


def test_two_models_of_lm_eval_are_no_repeats(tmp_path: Path) -> None:
    folder = two_models(tmp_path)
    with pytest.raises(
        InputError, match=r"rollouts of 2 policies make no one table: .*model-70B.* is of org__model-70B"
    ):
        read_rollouts(folder)
    sources = find_rollout_sources([str(folder)], ReaderOptions())
    assert len(sources) == 2
    means = sorted(read_source_table(source, ReaderOptions()).rewards_R.mean() for source in sources)
    assert means == [14 / 40, 1.0]
    # The model's name in the results beside the samples counts more than the folder's.
    for model in ("org__model-8B", "org__model-70B"):
        (folder / model / "results_2026-01-03.json").write_text(json.dumps({"model_name": "org/model-8B"}))
    assert read_rollouts(folder).group_sizes_N.tolist() == [2] * 40
    assert len(find_rollout_sources([str(folder)], ReaderOptions())) == 1


def test_two_models_of_verifiers_and_evalplus(tmp_path: Path) -> None:
    for model in ("a", "b"):
        lines(
            tmp_path / "v" / model / "results.jsonl",
            [{"example_id": 0, "prompt": "x", "completion": "y", "reward": 1.0}],
        )
        (tmp_path / "v" / model / "metadata.json").write_text(json.dumps({"env_id": "sums", "model": model}))
    with pytest.raises(InputError, match=r"results.jsonl is of a, .*results.jsonl is of b"):
        read_rollouts(tmp_path / "v")
    source = FIXTURES / "evalplus"
    (tmp_path / "e").mkdir()
    for name in ("org--small_vllm_temp_0.8", "org--large_vllm_temp_0.8"):
        (tmp_path / "e" / f"{name}_eval_results.json").write_bytes((source / "samples_eval_results.json").read_bytes())
    with pytest.raises(InputError, match=r"is of org--large_vllm_temp_0.8, .* is of org--small_vllm_temp_0.8"):
        read_rollouts(tmp_path / "e", join=source / "dataset.jsonl")


def test_two_models_of_inspect(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai.log import read_eval_log, write_eval_log

    log = read_eval_log(str(FIXTURES / "inspect_log_probs" / "sums.eval"))
    for model in ("mockllm/a", "mockllm/b"):
        log.eval.model = model
        write_eval_log(log, str(tmp_path / f"{model[-1]}.eval"))
    with pytest.raises(InputError, match=r"a.eval is of mockllm/a, .*b.eval is of mockllm/b"):
        read_rollouts(tmp_path)
    assert len(find_rollout_sources([str(tmp_path)], ReaderOptions())) == 2


def test_seeds_of_one_model_stay_one_table() -> None:
    (source,) = find_rollout_sources([str(FIXTURES / "lm_eval")], ReaderOptions(reward="acc"))
    assert len(source.file_paths) == 3
    np.testing.assert_array_equal(read_source_table(source, ReaderOptions(reward="acc")).group_sizes_N, [3, 3])


def test_rows_of_two_models_are_no_table_and_the_filter_reads_one(tmp_path):
    rows = [
        {"prompt": f"q{n}", "reward": float(model == "big"), "model": model}
        for n in range(4)
        for model in ("small", "big")
        for _ in range(2)
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"2 policies make no one table: 'model' is 'small', 'big'.*--filter small"):
        read_rollouts(path, skip_bad_rows=True)
    table = read_rollouts(path, filter="big")
    assert (table.n_tasks, table.n_rollouts, table.rewards_R.min()) == (4, 8, 1.0)
    with pytest.raises(InputError, match=r"all 16 rows were left out.*big, small"):
        read_rollouts(path, filter="huge")
    # Along a training run a policy may change its name; without such a key a filter would do nothing.
    path.write_text("".join(json.dumps(row | {"step": i // 8}) + "\n" for i, row in enumerate(rows)))
    assert read_rollouts(path).n_rollouts == 16
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "model"}) + "\n" for row in rows))
    with pytest.raises(InputError, match="does nothing for rows without a key model"):
        read_rollouts(path, filter="x")
