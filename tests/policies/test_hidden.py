"""Hidden states at the end of the prompt: those of the model, whatever comes beside them, and what a baseline makes of
them."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rollonce.baselines import Batch, KernelBaseline, Kriging, SelfTuning
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.features import HiddenState
from rollonce.kernels import Cosine, Softmax
from rollonce.policies import load_embedded
from rollonce.policies.hidden import make_hidden_state_reader, prompt_hidden_states
from rollonce.rollouts import Tasks
from rollonce.training.arms.baseline import BaselineArm
from rollonce.training.config import ArmConfig

PROMPTS = ["How many letters are in apple?", "Add 3 and 4.", "Add 12 and 5.", "Reverse the word river.", "Add 1 and 1."]


def states_by_transformers(policy, prompt: str) -> np.ndarray:
    ids, _ = policy.encode_prompts([prompt])
    with torch.no_grad():
        return policy.model(ids, output_hidden_states=True).hidden_states[-1][0, -1].double().numpy()


def test_it_is_the_models_last_hidden_state_at_the_last_prompt_token(llama):
    for policy in (llama, load_embedded()):
        got = prompt_hidden_states(policy, PROMPTS)
        want = np.stack([states_by_transformers(policy, p) for p in PROMPTS])
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())
        np.testing.assert_array_equal(prompt_hidden_states(policy, PROMPTS[2:3])[0], got[2])


def test_rows_are_standardised_and_of_unit_length(llama):
    feature = HiddenState()
    feature.attach_policy_reader(lambda: make_hidden_state_reader(llama))
    rows = np.asarray(feature.fit(PROMPTS).transform_tasks([*PROMPTS, PROMPTS[1]]))
    states = prompt_hidden_states(llama, PROMPTS)
    z = (states - states.mean(axis=0)) / states.std(axis=0)
    np.testing.assert_allclose(rows[:5], z / np.linalg.norm(z, axis=1, keepdims=True), atol=1e-9)
    np.testing.assert_array_equal(rows[5], rows[1])


def test_kernels_and_kriging_use_it_and_a_file_keeps_the_standardisation(llama):
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
    for make in (
        lambda f: KernelBaseline(Softmax(f)),
        lambda f: Kriging(kernels=[Cosine(f)], variances=[1.0]),
        lambda f: SelfTuning(kernels=[Cosine(f)], window=20),
    ):
        feature = HiddenState()
        feature.attach_policy_reader(lambda: make_hidden_state_reader(llama))
        baseline = make(feature).fit(PROMPTS)
        baseline.observe(Batch.of(PROMPTS[:3], rewards[:3]))
        tasks = Tasks(PROMPTS)
        b = baseline.predict(Batch(tasks, rewards)).baseline_B
        assert np.isfinite(b).all()
        for i in range(5):  # the own reward moves nothing of its own
            flipped = rewards.copy()
            flipped[i] = 7.0
            assert baseline.predict(Batch(tasks, flipped)).baseline_B[i] == pytest.approx(b[i], abs=1e-12)
        other = from_config(baseline.config())
        other.load_state_dict(baseline.state_dict())
        with pytest.raises(InputError, match="none is attached"):
            other.predict(Batch.of(PROMPTS, rewards))
        inside = other.kernel if hasattr(other, "kernel") else other.kernels[0]
        inside.feature.attach_policy_reader(lambda: make_hidden_state_reader(llama))
        np.testing.assert_array_equal(other.predict(Batch.of(PROMPTS, rewards)).baseline_B, b)


def test_it_stays_with_the_policy_that_it_read_until_it_is_read_anew(llama):
    feature = HiddenState(every=3)
    feature.attach_policy_reader(lambda: make_hidden_state_reader(llama))
    feature.fit(PROMPTS)
    baseline = SelfTuning(kernels=[Cosine(feature)], window=20, min_rows=2, refit_every=1).fit(PROMPTS)
    baseline.observe(Batch.of(PROMPTS, [1, 0, 0, 1, 0]))
    batch = Batch.of(PROMPTS, [1, 0, 1, 1, 0])
    before, key = np.asarray(feature.transform_tasks(PROMPTS)), feature.matrix_cache_key
    w = baseline.weights(batch)
    with torch.no_grad():
        for p in llama.model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    np.testing.assert_array_equal(np.asarray(feature.transform_tasks(PROMPTS)), before)
    feature.refresh_policy_reader()
    after = np.asarray(feature.transform_tasks(PROMPTS))
    assert feature.matrix_cache_key != key
    assert np.abs(after - before).max() > 1e-3
    fresh = HiddenState()
    fresh.attach_policy_reader(lambda: make_hidden_state_reader(llama))
    np.testing.assert_allclose(np.asarray(fresh.fit(PROMPTS).transform_tasks(PROMPTS)), after, atol=1e-12)
    assert np.abs(baseline.weights(batch) - w).max() > 1e-6  # rows of the window are read anew too


def test_what_is_refused(llama):
    with pytest.raises(InputError, match="none is attached"):
        HiddenState().fit(PROMPTS).transform_tasks(PROMPTS)
    with pytest.raises(InputError, match="at least 0"):
        HiddenState(every=-1)
    feature = HiddenState()
    feature.attach_policy_reader(lambda: lambda prompts: np.ones((len(prompts), 3)))
    feature.fit(PROMPTS)
    feature.attach_policy_reader(lambda: make_hidden_state_reader(llama))
    with pytest.raises(InputError, match="attach the same policy"):
        feature.transform_tasks(PROMPTS)


def test_an_arm_reads_its_learners_policy_and_reads_it_anew_when_due(llama):
    """The arm alone, with what it asks of a run, a learner and a set of tasks."""
    kernel = {"type": "softmax", "feature": {"type": "hidden_state", "every": 2}}
    arm_config = ArmConfig(baseline={"type": "kernel", "kernel": kernel})
    run = SimpleNamespace(arm=arm_config, name="hidden", policy=SimpleNamespace(engine="tinker"))
    train = SimpleNamespace(as_feature_tasks=lambda: Tasks(PROMPTS))
    arm = BaselineArm(run, SimpleNamespace(policy=llama), train)
    (feature,) = arm.hidden
    keys = []
    for step in (1, 2, 3, 4, 5):
        with torch.no_grad():
            for p in llama.model.parameters():
                p.mul_(1.01)
        arm.prepare_for_step(step)
        keys.append(feature.matrix_cache_key)
    assert [a == b for a, b in itertools.pairwise(keys)] == [True, False, True, False]
    assert np.isfinite(arm.baseline.predict(Batch.of(PROMPTS, [1, 0, 0, 1, 0])).baseline_B).all()
    with pytest.raises(InputError, match="engine 'tinker' does not give"):
        BaselineArm(run, SimpleNamespace(), train)
