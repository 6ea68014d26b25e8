"""The hook against the pure function, its history, its checkpoint, and what it warns of."""

import copy
import json
import warnings

import numpy as np
import pytest
from surprise import MeanSurprise

from rollonce.baselines import (
    Batch,
    Constant,
    ExpertMixture,
    FlashReinforce,
    Grpo,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    NoBaseline,
    ReinforcePlusPlus,
    Ridge,
    Rloo,
    SelfTuning,
    Tracker,
    family_mean_baseline,
)
from rollonce.errors import InputError
from rollonce.integrations import AdvantageHook, AdvantageWarning

WORDS = ["add", "sort", "prove", "count", "spell", "reverse", "compare", "factor"]
PROMPTS = [f"{WORDS[i % 8]} the {WORDS[(i * 3 + 1) % 8]} of {i * 7 % 50}" for i in range(64)]


def step(rng, n=16):
    at = rng.choice(len(PROMPTS), n, replace=False)
    return [PROMPTS[i] for i in at], (rng.random(n) < (at % 8) / 8).astype(float)


BASELINES = {
    "loo": LeaveOneOut(),
    "loo window": LeaveOneOut(window=48),
    "tfidf": KernelBaseline(),
    "tfidf window": KernelBaseline(window=48, decay=0.9),
    "kriging": Kriging(window=32),
    "self-tuning": SelfTuning(window=32, min_rows=16, refit_every=2),
    "experts": ExpertMixture([LeaveOneOut(), KernelBaseline(), Ridge()]),
    "tracker": Tracker(),
    "flash": FlashReinforce(),
    "whitened": ReinforcePlusPlus(),
    "none": NoBaseline(),
}


@pytest.mark.parametrize("name", BASELINES)
def test_six_steps_are_those_of_the_pure_function_and_resume_bit_by_bit(name):
    baseline = BASELINES[name]
    hook, plain = AdvantageHook(baseline, warn=False), copy.deepcopy(baseline)
    hook.fit(PROMPTS)
    plain.fit(PROMPTS)
    rng = np.random.default_rng(3)
    steps = [step(rng) for _ in range(6)]
    resumed = AdvantageHook(baseline, warn=False)
    for k, (prompts, rewards) in enumerate(steps):
        got = hook.advantages(prompts, rewards)
        batch = Batch.of(prompts, rewards)
        np.testing.assert_allclose(got.advantages_N, plain.advantages(batch), rtol=0, atol=1e-12)
        np.testing.assert_array_equal(got.baseline_N, plain.predict(batch).baseline_B)
        np.testing.assert_allclose(got.loo_mean_N, (rewards.sum() - rewards) / 15, rtol=0, atol=1e-14)
        plain.observe(batch)
        if k >= 3:
            np.testing.assert_array_equal(resumed.advantages(prompts, rewards).advantages_N, got.advantages_N)
        if k == 2:
            resumed.load_state_dict(json.loads(json.dumps(hook.state_dict())))
    assert resumed.state_dict() == hook.state_dict()
    assert hook.steps == 6


def test_padding_turns_and_ranks_change_nobodys_advantage():
    rng = np.random.default_rng(0)
    prompts, rewards = step(rng, 6)
    want = AdvantageHook(KernelBaseline().fit(PROMPTS)).advantages(prompts, rewards).advantages_N
    order = [0, 1, 1, 2, 3, 3, 3, 4, 5]
    hook = AdvantageHook(KernelBaseline().fit(PROMPTS))
    got = hook.advantages(
        [*(prompts[i] for i in order), prompts[0]],
        [*(rewards[i] for i in order), 1e6],
        rollout_ids=[*order, 99],
        keep=[True] * 9 + [False],
    )
    np.testing.assert_array_equal(got.advantages_N, [*want[order], 0.0])
    assert got.metrics["rows"] == 6
    assert got.metrics["rows_dropped"] == 1


def test_a_reward_never_moves_its_own_baseline_and_a_trial_call_teaches_nothing():
    rng = np.random.default_rng(1)
    prompts, rewards = step(rng)
    hook = AdvantageHook(KernelBaseline(window=64).fit(PROMPTS))
    hook.advantages(*step(rng))
    before = hook.state_dict()
    other = rewards.copy()
    other[4] += 10
    a, b = (hook.advantages(prompts, r, training=False).baseline_N for r in (rewards, other))
    assert a[4] == b[4]
    assert (a != b).sum() == 15
    assert hook.state_dict() == before


def test_whitening_and_scaling_are_off_unless_asked():
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    loo = np.array([1.0, -1 / 3, -1 / 3, -1 / 3])
    run = lambda **k: AdvantageHook(LeaveOneOut(), warn=False, **k).advantages(PROMPTS[:4], rewards).advantages_N  # noqa: E731
    np.testing.assert_allclose(run(), loo, rtol=0, atol=1e-15)
    np.testing.assert_allclose(run(scale_by_std=True), loo / np.sqrt(3 / 16), rtol=1e-14)
    whitened = run(whiten=True)
    np.testing.assert_allclose(
        whitened, loo / np.sqrt(1 / 3), rtol=1e-14
    )  # LOO advantages sum to zero; mean square (1 + 3/9) / 4
    assert abs(whitened.mean()) < 1e-15
    assert abs(whitened.std() - 1) < 1e-14
    for how in ("whiten", "scale_by_std"):
        same = AdvantageHook(LeaveOneOut(), warn=False, **{how: True}).advantages(PROMPTS[:3], [0.7] * 3).advantages_N
        assert same.tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="ask for one"):
        AdvantageHook(LeaveOneOut(), whiten=True, scale_by_std=True)


def test_equal_rewards_leave_no_rounding_behind():
    """``W r`` of equal rewards is 1 + 2e-16 here and there, which an optimiser with normalised steps would follow."""
    baseline = KernelBaseline().fit(PROMPTS)
    batch = Batch.of(PROMPTS, [0.1] * 64)
    assert np.abs(baseline.advantages(batch)).max() > 0
    assert (AdvantageHook(baseline, warn=False).advantages(PROMPTS, [0.1] * 64).advantages_N == 0).all()
    small = AdvantageHook(LeaveOneOut(), warn=False).advantages(PROMPTS[:2], [0.0, 1e-9]).advantages_N
    assert small.tolist() == [-1e-9, 1e-9], "small rewards are rewards"


def test_history_mode_sees_the_past_alone():
    """Uniform weights over the past: each b is the mean of all rewards before its step, and 0 for the very first."""
    hook = AdvantageHook(LeaveOneOut(), history_mode=True, step_rows=2, warn=False)
    groups = [[1.0], [0.0], [1.0, 1.0], [0.0, 1.0]]
    got = [hook.advantages(PROMPTS[i * 2 : i * 2 + len(g)], g) for i, g in enumerate(groups)]
    assert [g.baseline_N.tolist() for g in got] == [[0.0], [1.0], [0.5, 0.5], [0.75, 0.75]]
    assert [g.used_prior_N.tolist() for g in got] == [[True], [True], [False, False], [False, False]]
    assert got[3].advantages_N.tolist() == [-0.75, 0.25]


def test_history_mode_kernel_is_the_kernel_mean_of_past_rows_by_hand():
    hook = AdvantageHook(family_mean_baseline("family"), history_mode=True, step_rows=4, warn=False)
    fam = lambda *v: {"family": list(v)}  # noqa: E731
    hook.advantages(list("abcd"), [1.0, 0.0, 0.0, 0.0], columns=fam("x", "x", "y", "y"))
    got = hook.advantages(list("efg"), [1.0, 1.0, 1.0], columns=fam("x", "y", "z"))
    np.testing.assert_allclose(
        got.baseline_N, [0.5, 0.0, 0.25], rtol=0, atol=1e-15
    )  # own family, own family, mean of all


@pytest.mark.parametrize(
    "baseline",
    [KernelBaseline(), KernelBaseline(shrinkage=0.3), SelfTuning(min_rows=8), Kriging()],
    ids=lambda b: b.type,
)
def test_history_mode_gives_smoothers_a_window_and_no_batch_mate_is_seen(baseline):
    rng = np.random.default_rng(5)
    hook = AdvantageHook(baseline, history_mode=True, step_rows=16, warn=False)
    hook.fit(PROMPTS)
    for _ in range(4):
        hook.advantages(*step(rng))
    prompts, rewards = step(rng)
    together = hook.advantages(prompts, rewards, training=False)
    apart = [hook.advantages([p], [5.0], training=False).baseline_N[0] for p in prompts]
    np.testing.assert_array_equal(together.baseline_N, apart)
    assert not together.used_prior_N.any()
    assert np.ptp(together.baseline_N) > 0.02, "past rewards of similar tasks differ, so must b"


def test_history_mode_resumes_with_rows_that_wait():
    rng = np.random.default_rng(6)
    hook = AdvantageHook(KernelBaseline(), history_mode=True, step_rows=10, warn=False)
    hook.fit(PROMPTS)
    for n in (4, 4, 4, 3):
        hook.advantages(*step(rng, n))
    other = AdvantageHook(KernelBaseline(), history_mode=True, step_rows=10, warn=False)
    other.load_state_dict(json.loads(json.dumps(hook.state_dict())))
    for _ in range(3):
        prompts, rewards = step(rng, 4)
        np.testing.assert_array_equal(
            hook.advantages(prompts, rewards).advantages_N, other.advantages(prompts, rewards).advantages_N
        )
    assert len(hook.baseline.history) == 12 + 11  # 4 + 4 + 4 joined, then 3 + 4 + 4; the last 4 wait


def test_groups():
    with pytest.raises(InputError, match="needs several rollouts of a task"):
        AdvantageHook(Grpo())
    with pytest.raises(InputError, match="never shows the batch"):
        AdvantageHook(FlashReinforce(), history_mode=True)
    hook = AdvantageHook(Rloo(), group_size=2)
    assert hook.advantages(["a", "A ", "b", "b"], [1, 0, 1, 1]).advantages_N.tolist() == [1, -1, 0, 0]
    with pytest.raises(InputError, match="at least two rollouts"):
        hook.advantages(["a", "a", "b"], [1, 0, 1])


def test_a_batch_of_one_gets_the_prior_and_a_flag():
    got = AdvantageHook(KernelBaseline().fit(PROMPTS)).advantages(PROMPTS[:1], [1.0])
    assert got.baseline_N.tolist() == [0.0]
    assert got.advantages_N.tolist() == [1.0]
    assert got.used_prior_N.tolist() == [True]
    empty = AdvantageHook(LeaveOneOut()).advantages(["pad"], [3.0], keep=[False])
    assert empty.advantages_N.tolist() == [0.0]


def test_without_prompts_only_what_reads_none():
    got = AdvantageHook(LeaveOneOut()).advantages(None, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(got.advantages_N, [1.0, -0.5, -0.5])
    with pytest.raises(InputError, match="reads the prompts"):
        AdvantageHook(KernelBaseline().fit(PROMPTS)).advantages(None, [1.0, 0.0])


def test_an_unfitted_baseline_says_so_and_a_fitted_one_keeps_its_vocabulary():
    with pytest.raises(InputError, match="not fitted"):
        AdvantageHook(KernelBaseline()).advantages(PROMPTS[:2], [1.0, 0.0])
    hook = AdvantageHook(KernelBaseline().fit(PROMPTS))
    before = hook.state_dict()
    assert hook.fit(["other", "words"]) is False
    assert hook.state_dict() == before
    assert hook.fit(["other", "words"], again=True) is True


def test_the_callers_baseline_is_left_alone_and_a_file_does_as_well(tmp_path):
    baseline = KernelBaseline(window=32).fit(PROMPTS)
    baseline.save(tmp_path / "baseline.json")
    rng = np.random.default_rng(2)
    prompts, rewards = step(rng)
    a, b = AdvantageHook(baseline), AdvantageHook(tmp_path / "baseline.json")
    np.testing.assert_array_equal(
        a.advantages(prompts, rewards).advantages_N, b.advantages(prompts, rewards).advantages_N
    )
    assert len(baseline.history) == 0
    assert len(a.baseline.history) == 16


# ---------------------------------------------------------------------- warnings


def said(hook, *calls, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for prompts, rewards in calls:
            hook.advantages(prompts, rewards, **options)
    return [str(w.message) for w in caught if issubclass(w.category, AdvantageWarning)]


def test_constant_reward_is_warned_of_once():
    calls = [(PROMPTS[:4], [0.0] * 4)] * 3
    assert [m[:25] for m in said(AdvantageHook(LeaveOneOut()), *calls)] == ["all 4 rewards of this ste"]
    assert said(AdvantageHook(LeaveOneOut(), warn=False), *calls) == []
    assert said(AdvantageHook(LeaveOneOut()), (PROMPTS[:4], [0.0, 0, 0, 1])) == []


def test_a_task_that_repeats_at_group_size_one_is_warned_of():
    call = (["one", "two", " ONE", "three"], [1.0, 0.0, 0.0, 1.0])
    assert "comes 2 times" in said(AdvantageHook(LeaveOneOut()), call)[0]
    assert said(AdvantageHook(LeaveOneOut(), group_size=None), call) == []
    assert (
        said(AdvantageHook(LeaveOneOut()), call, rollout_ids=["x", "y", "x2", "z"], keep=[True, True, False, True])
        == []
    )


@pytest.mark.parametrize("window", [0, 32])
def test_a_kernel_that_does_nothing_is_warned_of_after_n_steps(window):
    alike = ["the same words"] * 8
    rng = np.random.default_rng(9)
    calls = [(alike, rng.permutation([1.0, 1, 0, 0, 0, 0, 0, 1])) for _ in range(6)]
    make = lambda **k: AdvantageHook(KernelBaseline(window=window).fit(PROMPTS), group_size=None, warn_after=5, **k)  # noqa: E731
    assert said(make(), *calls[:4]) == []
    assert "5 steps" in said(make(), *calls)[0]
    assert said(make(), *[step(rng) for _ in range(6)]) == []
    before, after = make(), make()
    assert said(before, *calls[:3]) == []
    after.load_state_dict(before.state_dict())
    assert "5 steps" in said(after, *calls[3:5])[0], "a restart does not start the count anew"
    assert said(AdvantageHook(LeaveOneOut(window=window), group_size=None, warn_after=2), *calls) == [], (
        "LOO is meant to be LOO"
    )


def test_a_checkpoint_of_another_baseline_and_a_damaged_one_are_refused(tmp_path):
    hook = AdvantageHook(KernelBaseline(window=8).fit(PROMPTS))
    hook.save(tmp_path / "deep" / "rollonce.json")
    with pytest.raises(InputError, match="another baseline"):
        AdvantageHook(KernelBaseline(window=16).fit(PROMPTS)).load(tmp_path / "deep" / "rollonce.json")
    with pytest.raises(InputError, match="no history to resume from"):
        hook.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"version": 1}')
    with pytest.raises(InputError, match="damaged"):
        hook.load(tmp_path / "bad.json")
    (tmp_path / "worse.json").write_text("[1")
    with pytest.raises(InputError, match="damaged"):
        hook.load(tmp_path / "worse.json")
    assert AdvantageHook(Constant(0.3)).advantages(["a"], [1.0]).advantages_N.tolist() == [0.7]


def test_a_trainer_without_log_probabilities_is_told_once_what_is_lost():
    calls = [(PROMPTS[:3], [1.0, 0.0, 0.0])] * 2
    assert AdvantageHook(MeanSurprise()).uses_log_probs
    (message,) = said(AdvantageHook(MeanSurprise()), *calls)
    assert "came without any" in message
    assert said(AdvantageHook(MeanSurprise()), *calls, log_probs=[-1.0, None, None]) == []
    assert said(AdvantageHook(LeaveOneOut()), *calls) == []


def test_log_probabilities_reach_the_baseline_and_wait_through_a_restart_in_history_mode():
    got = AdvantageHook(MeanSurprise()).advantages(PROMPTS[:3], [0.0] * 3, log_probs=[-1.0, -2.0, -6.0])
    assert got.baseline_N.tolist() == [4.0, 3.5, 1.5]
    hook = AdvantageHook(MeanSurprise(), history_mode=True, step_rows=3)
    hook.advantages(PROMPTS[:2], [0.0] * 2, log_probs=[-1.0, None])
    other = AdvantageHook(MeanSurprise(), history_mode=True, step_rows=3)
    other.load_state_dict(json.loads(json.dumps(hook.state_dict(), allow_nan=False)))
    assert other.advantages(PROMPTS[:1], [0.0], log_probs=[-6.0]).baseline_N.tolist() == [0.0]
    assert other.advantages(PROMPTS[:1], [0.0], log_probs=[-9.0]).baseline_N.tolist() == [3.5], "of 1 and 6"
    old = hook.state_dict()
    del old["pending"][0]["log_probs"]
    AdvantageHook(MeanSurprise(), history_mode=True, step_rows=3).load_state_dict(old)
