"""Public threads about advantages that went wrong: the symptom from the stock formula (or the real code), and that ours
differs.

Threads about TRL (how to put another advantage in, and that the log must follow) are in test_trl.py, with the real
trainer.
"""

import asyncio

import numpy as np
import pytest
from prime_rl_parts import PrimeRl, advantages_of
from rllm_parts import Rllm
from slime_parts import Slime

from rollonce.baselines import KernelBaseline, LeaveOneOut, Rloo, SelfTuning
from rollonce.errors import InputError
from rollonce.integrations import AdvantageHook, AdvantageWarning, prime_rl, rllm, slime

GROUP_OF_ONE = [1.0, 0.0, 1.0, 0.0]  # rewards of four tasks, one rollout each


def group_centred(groups):
    """What group-relative estimators compute: the reward less its group's mean."""
    return np.concatenate([np.asarray(g, float) - np.mean(g) for g in groups])


@pytest.mark.parametrize("thread", ["tinker-cookbook PR 99", "tinker-cookbook#155", "tinker-cookbook#771"])
def test_one_rollout_per_task_is_no_silent_zero(thread):
    """Symptom: at n=1 every advantage is exactly 0 and training does nothing, without a word."""
    assert not group_centred([[r] for r in GROUP_OF_ONE]).any()
    got = AdvantageHook(LeaveOneOut()).advantages([f"task {i}" for i in range(4)], GROUP_OF_ONE).advantages_N
    np.testing.assert_allclose(got, [2 / 3, -2 / 3, 2 / 3, -2 / 3], rtol=0, atol=1e-15)


def test_rllm_916_one_rollout_per_task_is_no_silent_zero(monkeypatch):
    """The same symptom; since then a group of one keeps its reward, with no baseline at all."""
    trainer = Rllm(monkeypatch)
    config = trainer.config()

    def run(roles):
        groups = [trainer.group(f"task {i}", r, task_id=str(i)) for i, r in enumerate(GROUP_OF_ONE)]
        return np.concatenate(trainer.train_step(config, roles, groups))

    np.testing.assert_allclose(run({}), GROUP_OF_ONE, rtol=1e-5)
    ours = {"solver": rllm.register(config, LeaveOneOut())}
    np.testing.assert_allclose(run(ours), [2 / 3, -2 / 3, 2 / 3, -2 / 3], rtol=0, atol=1e-15)


def test_prime_rl_2985_one_rollout_per_task_is_no_silent_zero(monkeypatch, tmp_path):
    """The same symptom where each task is scored by itself: the past is what a rollout is compared with."""
    trainer = PrimeRl(monkeypatch, tmp_path)
    config = trainer.config(batch_size=2)

    def run():
        algorithm = trainer.algo.build_algorithm(config.train.source[0].algo, None)
        episodes = [trainer.episode(f"task {i}", r) for i, r in enumerate(GROUP_OF_ONE)]
        for episode in episodes:
            asyncio.run(algorithm.finalize_group([episode]))
        return [advantages_of(e)[1][0] for e in episodes]

    assert run() == [0.0, 0.0, 0.0, 0.0]
    prime_rl.install(config, LeaveOneOut())
    assert run() == [1.0, -1.0, 0.5, -0.5]  # past means: none, 1, (1, 0), (1, 0)


def test_verl_7793_a_singleton_of_rloo_has_one_meaning():
    """Symptom: of a group of one, one implementation of RLOO keeps the reward (0.7) and the other gives 0."""
    scores, n = np.array([0.7]), 1
    looped = scores if n == 1 else scores * n / (n - 1) - scores.mean() * n / (n - 1)
    vectorised = (scores - scores.mean()) * n / max(n - 1, 1)
    assert (looped[0], vectorised[0]) == (0.7, 0.0)
    with pytest.raises(InputError, match="at least two rollouts of every task, but task 'b' has one"):
        AdvantageHook(Rloo(), group_size=2).advantages(["a", "a", "b"], [1.0, 0.0, 0.7], task_ids=["a", "a", "b"])
    alone = AdvantageHook(LeaveOneOut()).advantages(["b"], [0.7])
    assert (alone.advantages_N.tolist(), alone.used_prior_N.tolist()) == ([0.7], [True]), (
        "the declared prior 0, and it says so"
    )


def test_prime_rl_600_two_groups_of_one_prompt_stay_two():
    """Symptom: groups are found by their prompt, so that a data set's duplicates are normalised together."""
    prompts, ids, rewards = ["same"] * 4, ["g1", "g1", "g2", "g2"], [1.0, 0.0, 3.0, 3.0]
    by_prompt = AdvantageHook(Rloo(), group_size=None).advantages(prompts, rewards).advantages_N
    by_id = AdvantageHook(Rloo(), group_size=2).advantages(prompts, rewards, task_ids=ids).advantages_N
    np.testing.assert_allclose(by_prompt, [-1.0, -7 / 3, 5 / 3, 5 / 3])
    assert by_id.tolist() == [1.0, -1.0, 0.0, 0.0]


def slime_run(trainer, samples, baseline, tmp_path, monkeypatch, **settings):
    monkeypatch.setattr(slime, "_hooks", {})
    baseline.save(tmp_path / "b.json")
    args = trainer.args(rollonce_baseline=str(tmp_path / "b.json"), **settings)
    return trainer.train_data(args, samples)["rewards"]


def test_slime_1918_uneven_groups_do_not_fall_back_to_one_mean(tmp_path, monkeypatch):
    """Symptom: when one sample of a group is missing, all groups are centred by one mean and an easy task's rollouts
    all look good."""
    trainer, sizes = Slime(monkeypatch), {"n_samples_per_prompt": 3, "rollout_batch_size": 2}
    rewards, groups = [1.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 0, 1, 1]
    samples = [trainer.sample(i, f"task {g}", r, group=g) for i, (r, g) in enumerate(zip(rewards, groups, strict=True))]
    stock = trainer.train_data(trainer.args(custom_reward_post_process_path=None, **sizes), samples)["rewards"]
    assert min(stock[:3]) > 0.5, "three equal rewards of one task, and each has an advantage"
    assert slime_run(trainer, samples, Rloo(), tmp_path, monkeypatch, **sizes) == [0.0] * 5


def test_slime_2062_segments_of_a_rollout_count_once(tmp_path, monkeypatch):
    """Symptom: a rollout that was forked into segments weighs as many times in the mean as it has segments."""
    trainer = Slime(monkeypatch)
    rewards = [1.0, 1.0, 1.0, 0.0, 0.0]  # the first rollout in three segments, then two more
    counted_thrice = np.mean(rewards)
    assert counted_thrice == 0.6
    samples = [trainer.sample(i, "a" * (i + 1), r, rollout_id=max(i - 2, 0)) for i, r in enumerate(rewards)]
    assert slime_run(trainer, samples, LeaveOneOut(), tmp_path, monkeypatch) == [1.0, 1.0, 1.0, -0.5, -0.5]


def test_nemo_rl_1518_leave_one_out_over_a_deviation_does_not_explode():
    """Symptom: the deviation of the *peers* of the one success among failures is 0, so its advantage is 1 / 1e-6."""
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    peers = np.delete(rewards, 0)
    assert (rewards[0] - peers.mean()) / (peers.std(ddof=1) + 1e-6) == pytest.approx(1e6)
    got = AdvantageHook(LeaveOneOut(), scale_by_std=True).advantages(list("abcd"), rewards).advantages_N
    np.testing.assert_allclose(got, np.array([1, -1 / 3, -1 / 3, -1 / 3]) / np.sqrt(3 / 16), rtol=1e-14)
    for nearly in ([1.0, 1.0 - 1e-12], [0.1 + 0.2, 0.3]):  # equal but for rounding
        assert (
            np.abs(
                AdvantageHook(LeaveOneOut(), scale_by_std=True, warn=False).advantages(["a", "b"], nearly).advantages_N
            ).max()
            == 0
        )


@pytest.mark.parametrize("thread", ["verl#6452: a rejected row", "OpenRLHF#1239: a row without actions"])
def test_a_row_that_does_not_train_shifts_nobody(thread):
    """Symptom: a masked row's reward of 100 stays in its sibling's mean: 1 - 50.5 = -49.5 for the one that trains."""
    assert group_centred([[100.0, 1.0]])[1] == -49.5
    prompts, rewards, keep = (
        ["one word", "one word", "two words", "two words"],
        [100.0, 1.0, 0.0, 1.0],
        [False, True, True, True],
    )
    got = AdvantageHook(KernelBaseline().fit(prompts), group_size=None).advantages(prompts, rewards, keep=keep)
    without = AdvantageHook(KernelBaseline().fit(prompts), group_size=None).advantages(prompts[1:], rewards[1:])
    np.testing.assert_array_equal(got.advantages_N, [0.0, *without.advantages_N])
    assert np.abs(got.advantages_N).max() <= 1


def test_openrlhf_1270_equal_graded_rewards_of_a_task_are_no_dead_weight():
    """Symptom: a group of equal partial rewards passes a filter on its mean (0 < 0.4 < 1) and teaches nothing.

    One rollout a task has no dead groups: the same rewards, a task each, are told apart; only a whole step of equal
    rewards is dead, and that is said.
    """
    groups = [[0.4] * 4, [0.7] * 4]
    assert all(0 < np.mean(g) < 1 for g in groups)
    assert not group_centred(groups).any()
    got = AdvantageHook(LeaveOneOut()).advantages([f"task {i}" for i in range(8)], np.concatenate(groups)).advantages_N
    np.testing.assert_allclose(np.abs(got), 0.3 * 4 / 7, rtol=1e-12)
    with pytest.warns(AdvantageWarning, match=r"all 4 rewards of this step are 0\.4"):
        AdvantageHook(LeaveOneOut()).advantages(list("abcd"), [0.4] * 4)


def test_verl_recipe_125_shaping_of_failures_is_not_blown_up():
    """Symptom: an all-fail group whose rewards differ by a length term is divided by its tiny deviation: phantom
    advantages above 1."""
    shaped = np.array([0.0, -0.01, -0.02, -0.03])
    phantom = (shaped - shaped.mean()) / (shaped.std(ddof=1) + 1e-4)
    assert np.abs(phantom).max() > 1
    got = AdvantageHook(LeaveOneOut()).advantages(list("abcd"), shaped).advantages_N
    assert np.abs(got).max() == pytest.approx(0.02)  # no more than the shaping itself
    with_success = AdvantageHook(LeaveOneOut()).advantages(list("abcde"), [*shaped, 1.0]).advantages_N
    assert with_success[4] > 50 * np.ptp(with_success[:4]) / 2, "a success outweighs it"


def test_verl_3126_and_open_instruct_648_reruns_agree_to_the_last_bit():
    """Symptom: two runs of one seed differ. The advantages follow from what came in and nothing else."""
    prompts = [f"{w} {i % 7}" for i in range(40) for w in ("add", "sort")]

    def stream():
        rng = np.random.default_rng(0)
        hook = AdvantageHook(SelfTuning(window=32, min_rows=16, refit_every=2), warn=False, group_size=None)
        hook.fit(prompts)
        steps = [(rng.permutation(80)[:16], rng.random(16)) for _ in range(5)]
        return [hook.advantages([prompts[i] for i in at], r).advantages_N for at, r in steps]

    for a, b in zip(stream(), stream(), strict=True):
        np.testing.assert_array_equal(a, b)
