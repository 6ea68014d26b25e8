"""rLLM: the estimator in its registry, called by its own collection step; its filter of groups; its settings.

Against a stand-in built to 9beb6e0; with rLLM installed (run_real.sh) against its own types, registry, configuration,
filter and collection. Its engines and backends are not run.
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_modules import without
from rllm_parts import Rllm
from surprise import MeanSurprise

from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut, Rloo, family_mean_baseline
from rollonce.errors import InputError
from rollonce.integrations import rllm

PROMPTS = ["add two and two", "add two and five", "prove the lemma", "prove the claim"]


@pytest.fixture
def trainer(monkeypatch):
    return Rllm(monkeypatch)


def test_each_role_gets_the_pure_function_and_keeps_its_history_over_a_restart(trainer, tmp_path):
    baseline, config = KernelBaseline(window=16).fit(PROMPTS), trainer.config()
    plain = {role: KernelBaseline(window=16).fit(PROMPTS) for role in ("solver", "judge")}
    for k, rewards in enumerate([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]]):
        name = rllm.register(config, baseline, name=f"rollonce {k}", state=tmp_path / "s.json")  # a new process
        groups = [
            trainer.group({"question": p}, r, role=role, task_id=f"t{i}")
            for role in plain
            for i, (p, r) in enumerate(zip(PROMPTS, rewards, strict=True))
        ]
        got = trainer.train_step(config, dict.fromkeys(plain, name), groups)
        for role, given in zip(plain, (got[:4], got[4:]), strict=True):
            batch = Batch.of(PROMPTS, rewards)
            np.testing.assert_array_equal(np.concatenate(given), plain[role].advantages(batch))
            plain[role].observe(batch)


def test_uneven_groups(trainer):
    config = trainer.config(rllm__rollout__n=3, rllm__rejection_sample__min_trajs_per_group=2)
    name = rllm.register(config, Rloo(), group_size=None)
    groups = [trainer.group("a", 1.0, 0.0, task_id="a"), trainer.group("b", 0.0, 0.0, 3.0, task_id="b")]
    assert trainer.train_step(config, {"solver": name}, groups) == [[1.0, -1.0], [-1.5, -1.5, 3.0]]


def test_rllm_s_own_default_drops_single_rollouts_without_a_word_and_is_refused(trainer):
    config = trainer.config(rllm__rejection_sample__min_trajs_per_group=2)
    assert trainer.train_step(config, {}, [trainer.group("a", 1.0), trainer.group("b", 0.0)]) == [[], []]
    with pytest.raises(InputError, match=r"min_trajs_per_group=2 .*nothing is trained: set it to 1"):
        rllm.register(config, LeaveOneOut())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rllm__algorithm__use_precomputed_advantage", True),
        ("rllm__stepwise_advantage__mode", "per_step"),
        ("rllm__rejection_sample__enable", True),
        ("rllm__rejection_sample__filter_uniform_groups", True),
    ],
)
def test_settings_that_spoil_the_advantages_are_refused(trainer, setting, value):
    with pytest.raises(InputError, match=setting.replace("__", r"\.")):
        rllm.register(trainer.config(**{setting: value}), LeaveOneOut())


def test_asynchronous_training_scores_one_task_at_a_time_from_the_past(trainer, tmp_path):
    config = trainer.config(rllm__async_training__enable=True, rllm__async_training__mini_batch_size=2)
    name = rllm.register(config, LeaveOneOut(), state=tmp_path / "s.json")
    steps = [[trainer.group(task, reward)] for task, reward in (("a", 1.0), ("b", 0.0), ("c", 1.0))]
    got = [trainer.train_step(config, {"solver": name}, step) for step in steps]
    assert got == [[[1.0]], [[-1.0]], [[0.5]]]  # past means: none, so 0; 1; then both join: (1, 0)


def test_prompts_of_tasks_rows_and_messages(trainer):
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "what the policy said"}]

    def prompt(task, messages=None):
        return rllm.read_group_prompt(trainer.group(task, 1.0, messages=messages))

    assert prompt(None, chat) == "hello"
    assert prompt(trainer.task(id="1", instruction="add")) == "add"
    blocks = [{"type": "text", "text": "what is "}, {"type": "image", "image": "..."}]
    assert prompt(trainer.task(id="1", instruction=blocks)) == "what is [image]"
    assert prompt(trainer.task(id="1", instruction="", metadata={"problem": "sort"})) == "sort"
    assert prompt({"question": "sort"}) == "sort"
    assert prompt("sort") == "sort"
    with pytest.raises(InputError, match="neither a task nor messages"):
        prompt(None)


def test_columns_come_from_the_task_s_row(trainer):
    config = trainer.config()
    name = rllm.register(config, family_mean_baseline("family"))
    rows = [trainer.task(id=str(i), instruction=str(i), metadata={"family": f}) for i, f in enumerate("aabb")]
    groups = [trainer.group(t, r, task_id=t.id) for t, r in zip(rows, (1.0, 0.0, 1.0, 1.0), strict=True)]
    assert trainer.train_step(config, {"solver": name}, groups) == [[1.0], [-1.0], [0.0], [0.0]]
    with pytest.raises(InputError, match="column 'family'"):
        trainer.train_step(config, {"solver": name}, [trainer.group("no row", 1.0)])


def test_rllm_that_is_not_here_is_said_in_a_sentence(monkeypatch):
    without(monkeypatch, "rllm")
    with pytest.raises(InputError, match="not installed here: it comes from its repository"):
        rllm.register(SimpleNamespace(), LeaveOneOut())


def test_the_example_registers_the_baseline_for_its_role(trainer, tmp_path):
    KernelBaseline(window=16).fit(PROMPTS).save(tmp_path / "baseline.json")
    spec = importlib.util.spec_from_file_location(
        "rllm_gs1", Path(__file__).resolve().parents[2] / "examples" / "rllm_gs1.py"
    )
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    config = trainer.config(baseline=str(tmp_path / "baseline.json"))
    assert example.advantages_by_role(config) == {"solver": "rollonce"}
    groups = [trainer.group("add one", 1.0, task_id="a"), trainer.group("sort two", 0.0, task_id="b")]
    assert trainer.train_step(config, {"solver": "rollonce"}, groups) != [[0.0], [0.0]]


def test_log_probabilities_add_up_over_steps(trainer):
    config = trainer.config()
    name = rllm.register(config, MeanSurprise())
    groups = [
        trainer.group("a", 0.0, task_id="a", log_probs=((-1.0, -2.0), (-3.0,))),  # 6
        trainer.group("b", 0.0, task_id="b", log_probs=((-4.0,),)),
        trainer.group("c", 0.0, task_id="c", log_probs=((-4.0,), ())),  # a step without any: unknown
    ]
    assert trainer.train_step(config, {"solver": name}, groups) == [[-4.0], [-6.0], [-5.0]]
