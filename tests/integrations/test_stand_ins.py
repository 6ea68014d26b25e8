"""slime, miles and rLLM on stand-ins built to their sources' shapes: untested against the real trainers."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from stand_ins import SlimeSample, rllm_group, slime_args

from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut, Rloo, family_mean
from rollonce.errors import InputError
from rollonce.integrations import rllm, slime

PROMPTS = ["add two and two", "add two and five", "prove the lemma", "prove the claim"]


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "baseline.json"
    KernelBaseline(window=16).fit(PROMPTS).save(path)
    monkeypatch.setenv("ROLLONCE_BASELINE", str(path))
    monkeypatch.setattr(slime, "_hooks", {})
    return path


def samples(rewards, **common):
    return [SlimeSample(i, i, p, r, **common) for i, (p, r) in enumerate(zip(PROMPTS, rewards, strict=True))]


def test_slime_gives_the_pure_function_and_keeps_history_over_a_restart(file, tmp_path, monkeypatch):
    plain = KernelBaseline(window=16).fit(PROMPTS)
    args = slime_args(save=str(tmp_path / "save"))
    for k, rewards in enumerate([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]):
        if k == 2:
            monkeypatch.setattr(slime, "_hooks", {})  # a new process
        raw, shaped = slime.reward_post_process(args, samples(rewards))
        batch = Batch.of(PROMPTS, rewards)
        assert raw == rewards
        np.testing.assert_array_equal(shaped, plain.advantages(batch))
        plain.observe(batch)


def test_slime_removed_aborted_and_forked_samples(file):
    rows = samples([1.0, 0.0, 0.0, 1.0])
    alone = slime.reward_post_process(slime_args(), rows)[1]
    slime._hooks.clear()
    removed = SlimeSample(9, 9, PROMPTS[0], 100.0, remove_sample=True)
    aborted = SlimeSample(9, 9, PROMPTS[0], None, status=SlimeSample.Status.ABORTED)
    forked = [
        SlimeSample(2, 2, PROMPTS[2], 0.0, rollout_id=7),
        SlimeSample(2, 2, PROMPTS[2] + " and so on", 0.0, rollout_id=7),
    ]
    raw, shaped = slime.reward_post_process(slime_args(), [rows[0], removed, rows[1], *forked, rows[3], aborted])
    np.testing.assert_array_equal(shaped, [alone[0], 0.0, alone[1], alone[2], alone[2], alone[3], 0.0])
    assert raw == [1.0, 100.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_slime_reward_keys_metadata_and_nested_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(slime, "_hooks", {})
    family_mean("family").save(tmp_path / "family.json")
    args = slime_args(rollonce_baseline=str(tmp_path / "family.json"), reward_key="acc")
    rows = [
        SlimeSample(i, i, str(i), {"acc": r}, metadata={"family": f})
        for i, (r, f) in enumerate([(1, "a"), (0, "a"), (1, "b"), (1, "b")])
    ]
    assert slime.reward_post_process(args, [[r] for r in rows])[1] == [1, -1, 0, 0]
    rows[0].metadata = {}
    with pytest.raises(InputError, match=r"column 'family'.*metadata"):
        slime.reward_post_process(args, rows)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("normalize_advantages", True),
        ("advantage_estimator", "ppo"),
        ("custom_advantage_function_path", "x.y"),
        ("dynamic_sampling_filter_path", "slime.check_reward_nonzero_std"),
    ],
)
def test_slime_settings_that_break_are_refused(file, setting, value):
    with pytest.raises(InputError, match=setting):
        slime.reward_post_process(slime_args(**{setting: value}), samples([1.0, 0, 0, 1]))


def test_slime_without_a_file_says_where_to_name_it(monkeypatch):
    monkeypatch.delenv("ROLLONCE_BASELINE", raising=False)
    with pytest.raises(InputError, match="ROLLONCE_BASELINE"):
        slime.reward_post_process(slime_args(), samples([1.0, 0, 0, 1]))


def test_rllm_estimator_gives_the_pure_function_per_role(tmp_path):
    baseline = KernelBaseline(window=16).fit(PROMPTS)
    estimator = rllm.make_estimator(baseline, state=tmp_path / "s.json")
    plain = {role: KernelBaseline(window=16).fit(PROMPTS) for role in ("solver", "judge")}
    for k, rewards in enumerate([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]]):
        for role in plain:
            if k and role == "judge":
                estimator = rllm.make_estimator(baseline, state=tmp_path / "s.json")  # a new process
            groups = [
                rllm_group({"question": p}, [r], role, f"t{i}")
                for i, (p, r) in enumerate(zip(PROMPTS, rewards, strict=True))
            ]
            got, returns = estimator(
                [np.array([r]) for r in rewards], SimpleNamespace(norm_adv_by_std_in_grpo=True), traj_groups=groups
            )
            assert [len(g) for g in got] == [1, 1, 1, 1]
            np.testing.assert_array_equal(np.concatenate(got), plain[role].advantages(Batch.of(PROMPTS, rewards)))
            assert got is returns
            plain[role].observe(Batch.of(PROMPTS, rewards))


def test_rllm_uneven_groups_and_prompts_from_messages():
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "what the policy said"}]
    assert rllm.prompt_of(rllm_group(None, [1.0], messages=chat)) == "hello"
    with pytest.raises(InputError, match="neither a task nor messages"):
        rllm.prompt_of(rllm_group(None, [1.0]))
    groups = [rllm_group("a", [1.0, 0.0], task_id="a"), rllm_group("b", [0.0, 0.0, 3.0], task_id="b")]
    got, _ = rllm.make_estimator(Rloo(), group_size=None)(
        [np.array([1.0, 0.0]), np.array([0.0, 0.0, 3.0])], None, traj_groups=groups
    )
    assert [g.tolist() for g in got] == [[1.0, -1.0], [-1.5, -1.5, 3.0]]
    with pytest.raises(InputError, match="use_precomputed_advantage"):
        rllm.make_estimator(LeaveOneOut())(
            [np.ones(1)], SimpleNamespace(use_precomputed_advantage=True), traj_groups=groups[:1]
        )


def test_rllm_registers_under_its_name(monkeypatch):
    registry = {}
    module = ModuleType("rllm.trainer.algorithms.advantage")
    module.register_rllm_adv_estimator = lambda name: lambda f: registry.setdefault(name, f)
    for name in ("rllm", "rllm.trainer", "rllm.trainer.algorithms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rllm.register("rollonce", LeaveOneOut())
    got, _ = registry["rollonce"](
        [np.array([1.0]), np.array([0.0])],
        None,
        traj_groups=[rllm_group("a", [1.0], task_id="a"), rllm_group("b", [0.0])],
    )
    assert np.concatenate(got).tolist() == [1.0, -1.0]


def test_rllm_that_is_not_here_is_said_in_a_sentence():
    with pytest.raises(InputError, match="not installed here: it comes from its repository"):
        rllm.register("x", LeaveOneOut())
