"""The audit finds every planted leak, says which number gave it away, and takes baselines in every form that a user has
them."""

import numpy as np
import pytest
from planted import PLANTED, RELAXED, Planted, WeightedByTheOthersSurprisals, loo

from rollonce.baselines import Batch, FlashReinforce, KernelBaseline, LeaveOneOut, Tracker, published_tfidf
from rollonce.errors import InputError
from rollonce.kernels import Same
from rollonce.testing import CheckResult, check_baseline


def failures(baseline, **kw) -> dict[str, str]:
    return {r.name: r.message for r in check_baseline(baseline, **kw) if not r.passed}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("planted", PLANTED, ids=lambda c: c.__name__)
def test_every_planted_fault_is_found(planted, seed):
    found = failures(planted, seed=seed)
    assert PLANTED[planted] <= set(found), found


@pytest.mark.parametrize("faultless", [Planted, WeightedByTheOthersSurprisals], ids=lambda c: c.__name__)
def test_a_baseline_without_a_fault_needs_no_registration_to_pass(faultless):
    assert failures(faultless) == {}


def own_reward(prompts, rewards):
    return 0.9 * loo(rewards) + 0.1 * rewards


def batch_mean(prompts, rewards):
    return np.full(len(rewards), rewards.mean())


def by_length(batch):
    return loo(batch.rewards_B) + 1e-5 * batch.response_lengths_B


def by_response(prompts, rewards, responses):
    return loo(rewards) + [1e-3 * len(r.split()) for r in responses]


def by_order(prompts, rewards):
    return np.concatenate([[0.0], rewards[:-1]])


def sorted_in_place(prompts, rewards):
    out = loo(rewards)
    rewards.sort()
    return out


def clean(prompts, rewards):
    return loo(rewards)


def clean_batch(batch):
    return loo(batch.rewards_B).tolist()


def clean_by_name(*, rewards, task_ids):
    return loo(rewards)


def clean_with_default(prompts, rewards, T=0.1):
    return loo(rewards)


def clean_with_optional_lengths(prompts, rewards, response_lengths=None):
    return loo(rewards)


@pytest.mark.parametrize(
    "fn", [clean, clean_batch, clean_by_name, clean_with_default, clean_with_optional_lengths], ids=lambda f: f.__name__
)
def test_a_clean_function_passes_in_every_form(fn):
    results = check_baseline(fn, raise_on_failure=True)
    assert {"leave_one_out", "response_length", "order", "batch_of_one", "odd_prompts"} <= {r.name for r in results}


@pytest.mark.parametrize(
    ("fn", "name", "word"),
    [
        (own_reward, "leave_one_out", "the own reward leaks: changing rollout"),
        (batch_mean, "leave_one_out", "the own reward leaks"),
        (batch_mean, "batch_of_one", "nothing but the own reward"),
        (by_length, "response_length", "the response length leaks"),
        (by_response, "response_length", "the response length leaks"),
        (by_order, "order", "depends on the order of the batch"),
        (sorted_in_place, "no_side_effects", "wrote into the rewards"),
        (lambda prompts, rewards: 0.0, "output", r"an array of shape \(\) for a batch of 10"),
        (lambda prompts, rewards: "nonsense", "output", "str that is not 10 numbers"),
        (lambda prompts, rewards: 1 / 0, "output", "stopped with ZeroDivisionError"),
        (lambda prompts, rewards: loo(rewards) * np.nan, "output", "b_0 is nan for an ordinary batch"),
    ],
)
def test_a_faulty_function_is_told_what_is_wrong(fn, name, word):
    import re

    found = failures(fn)
    assert re.search(word, found[name]), found


def test_the_message_holds_the_numbers_that_moved():
    message = failures(own_reward)["leave_one_out"]
    assert "from 0 to 1" in message or "from 1 to 0" in message
    assert "without history" in message


def test_raising_lists_every_failure():
    with pytest.raises(
        AssertionError, match=r"batch_mean: 2 of \d+ checks failed\n  batch_of_one: .*\n  leave_one_out: "
    ):
        check_baseline(batch_mean, raise_on_failure=True)


def test_what_cannot_be_audited_says_so():
    with pytest.raises(InputError, match="3 is an int"):
        check_baseline(3)
    with pytest.raises(InputError, match="takes a, b, c; a baseline function takes"):
        check_baseline(lambda a, b, c: a)
    with pytest.raises(InputError, match="it gave float"):
        check_baseline(lambda: 0.5)


def test_an_instance_is_left_as_it_was():
    baseline = published_tfidf(window=20).fit(["red apple", "blue sea", "green tree"])
    baseline.observe(Batch.of(["red apple", "blue sea"], [1.0, 0.0]))
    before = baseline.state_dict()
    results = check_baseline(baseline, raise_on_failure=True)
    assert baseline.state_dict() == before
    assert all(isinstance(r, CheckResult) and r.message for r in results)


def test_it_audits_a_baseline_as_fitted_in_its_own_words():
    from rollonce.testing.samples import Samples

    baseline = published_tfidf().fit(["red apple", "blue sea", "green tree"])
    samples = Samples.draw_for_baseline(baseline, None, None, 0)
    assert set(" ".join(samples.prompts).split()) <= {"red", "apple", "blue", "sea", "green", "tree"}


def test_the_users_own_prompts_and_columns_are_used():
    prompts = [f"task number {i}" for i in range(30)]
    columns = {"family": [f"f{i % 3}" for i in range(30)]}
    seen = []

    def spy(prompts, rewards):
        seen.extend(prompts)
        return loo(rewards)

    check_baseline(spy, prompts=prompts)
    assert set(prompts) <= set(seen)
    check_baseline(KernelBaseline(Same()), prompts=prompts, columns=columns, raise_on_failure=True)
    check_baseline(
        KernelBaseline(Same()), prompts=["one", "two"], columns={"family": ["x", "y"]}, raise_on_failure=True
    )


def test_the_twin_of_a_self_inclusive_one_is_named():
    messages = {r.name: r.message for r in check_baseline(FlashReinforce)}
    assert messages["self_inclusive"] == "its advantage is 0.9 times that of its leave-one-out twin (LOO mean)"


def test_a_tracker_that_forgets_is_found():
    class Forgetful(Tracker):
        def observe(self, batch):
            """Nothing is kept."""

    assert "seen three times" in failures(Forgetful)["needs_repeats"]


def test_a_window_that_no_tag_mentions_is_found():
    class Quiet(LeaveOneOut):
        @property
        def tags(self):
            return RELAXED

    assert "no tag says so" in failures(Quiet(window=20))["history"]


def test_a_file_that_loses_something_is_found():
    from dataclasses import dataclass

    from rollonce.component import _REGISTRY, register

    @register
    @dataclass
    class Lossy(Tracker):
        type = "lossy"

        def own_state(self):
            state = super().own_state()
            if state:
                state["history"]["sums"] = {k: [round(x, 3) for x in v] for k, v in state["history"]["sums"].items()}
            return state

    try:
        assert "loaded from its file after 7 steps" in failures(Lossy)["saves"]
    finally:
        del _REGISTRY["lossy"]
