"""The gate against numbers from elsewhere, and the preflight against faults planted in the path that it guards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from experiment_fakes import SEED_SPEC

from rollonce import datasets, reference
from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut
from rollonce.baselines.base import Prediction
from rollonce.experiments import gates
from rollonce.experiments.advantages import make_advantage_baseline
from rollonce.experiments.datums import (
    Datum,
    FixedBatch,
    TinyModel,
    compare_signals,
    compute_reference_signal,
    compute_training_signal,
    make_fixed_batch,
    make_plain_datums,
)
from rollonce.experiments.engine import StepLog
from rollonce.experiments.gates import (
    check_activation_gate,
    collect_offline_measures,
    collect_pilot_measures,
    compute_offline_score,
)
from rollonce.experiments.loading import load_specification
from rollonce.experiments.preflight import OwnPath, run_correctness_preflight
from rollonce.experiments.spec import GateCheck, Tolerance
from rollonce.kernels import Softmax

SPEC = load_specification(SEED_SPEC).spec
TIGHT = Tolerance(atol=1e-12, rtol=1e-12, min_cosine=0.999999)
WORDS = ["apple", "basket", "count", "weigh", "engine", "hill", "river", "stone", "letter", "number", "cloud", "seven"]
PROMPTS = [" ".join(np.random.default_rng(i).choice(WORDS, size=5).tolist()) + f" item{i}" for i in range(40)]


# ---- the gate


def test_on_the_shared_gsm8k_set_the_registered_gate_fails() -> None:
    """An independent check: TF-IDF 0.97 of LOO (17.2 / 17.7) on this set, five buckets 1.03 (18.2 / 17.7), Monte-Carlo
    error 0.1 each."""
    table = datasets.load("gsm8k_qwen25coder_1.5b")
    groups = np.split(table.rewards_R, np.arange(8, table.n_rollouts, 8))
    rewards, prompts = [g.tolist() for g in groups], table.tasks.prompts
    found = {}
    for name in ("tfidf_kernel_loo_T0.1", "length_buckets_loo"):
        baseline = make_advantage_baseline(SPEC, name).fit(prompts)
        found[name] = compute_offline_score(
            baseline, name, prompts, rewards, prompts, batch_size=32, n_batches=2000, resamples=0
        )
        assert found[name].agree
    tfidf, buckets = found["tfidf_kernel_loo_T0.1"], found["length_buckets_loo"]
    assert tfidf.ratio == pytest.approx(0.97, abs=0.012)
    assert buckets.ratio == pytest.approx(1.028, abs=0.012)
    assert tfidf.loo == pytest.approx(17.7, abs=0.2)
    (result,) = check_activation_gate(SPEC.activation_gate.checks, "offline", collect_offline_measures(tfidf))
    assert not result.passed
    assert "= 0.9" in result.sentence
    assert ">= 1.03" in result.sentence


def test_equal_rewards_give_no_ratio_and_fail() -> None:
    rewards = [[0.0] * 4] * 40
    name = "tfidf_kernel_loo_T0.1"
    score = compute_offline_score(
        make_advantage_baseline(SPEC, name).fit(PROMPTS), name, PROMPTS, rewards, PROMPTS, batch_size=8
    )
    assert score.ratio is None
    assert "all rewards are equal" in score.note
    (result,) = check_activation_gate(SPEC.activation_gate.checks, "offline", collect_offline_measures(score))
    assert not result.passed
    assert "not measurable" in result.sentence


def test_recipe_and_package_must_agree() -> None:
    """A baseline that is not what its name says: the reference follows the name, the package the baseline."""
    rng = np.random.default_rng(0)
    rewards = (rng.random((40, 6)) < np.repeat([0.9, 0.1], 20)[:, None]).astype(float).tolist()
    prompts = ["red " * 3] * 20 + ["blue sky"] * 20
    name = "tfidf_kernel_loo_T0.1"
    score = compute_offline_score(
        LeaveOneOut(), name, prompts, rewards, prompts, batch_size=16, n_batches=400, resamples=0
    )
    assert not score.agree
    assert "the code is at fault" in score.note
    assert collect_offline_measures(score) == {"offline_beff_ratio_vs_loo_mean": [None]}


def test_two_known_clusters_give_the_ratio_by_hand() -> None:
    """Within a cluster all tasks share mu; T is small, so b is the own cluster's mean of others: MSE ~ s2 / (n_own -
    1).

    N = B = 16, eight a cluster, mu 0.9 and 0.1 exactly (10 rollouts, 9 or 1 of them right). LOO: the mean of 7 own and
    8 others, (7 m + 8 m') / 15 - m = 8 (m' - m) / 15 -> bias^2 = (8 * 0.8 / 15)^2, variance v / 15; own cluster:
    variance v / 7; v = 0.09 biased, s2 = 0.1. The subtraction of s2 / G removes noise of a target whose mean is exact
    here, so both errors carry -0.01.
    """
    rewards = [[1.0] * 9 + [0.0]] * 8 + [[0.0] * 9 + [1.0]] * 8
    prompts = ["red apple basket"] * 8 + ["seventeen engines hummed"] * 8
    loo = (8 * 0.8 / 15) ** 2 + 0.09 / 15 - 0.01
    own = 0.09 / 7 - 0.01
    wanted = (0.1 + loo) / (0.1 + own)
    name = "tfidf_kernel_loo_T0.01"
    baseline = make_advantage_baseline(SPEC, name).fit(prompts)
    score = compute_offline_score(baseline, name, prompts, rewards, prompts, batch_size=16, n_batches=4000, resamples=0)
    assert score.closed_form == pytest.approx(wanted, rel=1e-9)
    assert score.ratio == pytest.approx(wanted, abs=5 * (score.ratio_se or 0))


def test_the_noise_that_the_recipe_subtracts_is_s2_over_g_minus_1() -> None:
    """Rewards 1 and 0 in every task: the other rollout is 1/2 away from a baseline of 1/2, always, so the mean square
    is 1/4; s2 = 1/2 over G - 1 = 1 is taken off: -1/4. B_eff = 2 (1/2) / (1/2 - 1/4) = 4."""
    found = reference.simulate_effective_batch_size(
        [[1.0, 0.0]] * 4, lambda tasks, rewards: np.full(2, 0.5), batch_size=2, batches=5
    )
    assert found == (4.0, -0.25, 0.0, 0.5)


def steps(
    rewards: list[float], b: list[float], group: int, ids: list[str] | None = None, weight: float | None = 0.0
) -> list[StepLog]:
    ids = ids or [str(i // group) for i in range(len(rewards))]
    advantages = [r - x for r, x in zip(rewards, b, strict=True)]
    return [StepLog(1, ids, rewards, b, advantages, group, 1e-4, 0.1, weight)]


def test_online_checks_are_what_the_logs_say() -> None:
    treated = steps([1.0, 0.0, 0.0, 1.0], [0.25, 0.0, 0.5, 1.0], 1)
    stock = steps([1.0, 0.0, 1.0, 1.0], [0.5, 0.5, 1.0, 1.0], 2)
    m = collect_pilot_measures(treated, {"t": treated, "b": stock}, "b", "t")
    # LOO means: 1/3, 2/3, 2/3, 1/3 -> |b - LOO| = 1/12, 2/3, 1/6, 2/3
    assert m["pilot_mean_abs_treatment_minus_batchmean_baseline"] == [
        pytest.approx((1 / 12 + 2 / 3 + 1 / 6 + 2 / 3) / 4)
    ]
    assert m["nonzero_advantage_fraction_treatment"] == [0.5]
    assert m["executed_group_size_treatment"] == [1.0]
    assert m["executed_group_size_baseline"] == [2.0]
    assert m["executed_rollouts_per_step"] == [4.0, 4.0]
    assert m["self_weight_max"] == [0.0]


def test_a_group_size_is_counted_not_believed() -> None:
    lying = steps([1.0, 0.0, 0.0, 1.0], [0.0] * 4, 1, ids=["a", "a", "b", "c"])
    assert collect_pilot_measures(lying, {"t": lying}, "t", "t")["executed_group_size_treatment"] == [1.0, 2.0]


def test_what_was_not_logged_fails() -> None:
    silent = steps([1.0, 0.0], [0.0, 0.0], 1, weight=None)
    measured = collect_pilot_measures(silent, {"t": silent}, "t", "t")
    (result,) = check_activation_gate([GateCheck(metric="self_weight_max", min=0.0, max=0.0)], "pilot", measured)
    assert not result.passed
    told = steps([1.0, 0.0], [0.0, 0.0], 1)
    assert collect_pilot_measures([*told, *silent], {"t": silent}, "t", "t")["self_weight_max"] == [None]


def test_both_ends_of_a_predicate_hold_in_every_arm() -> None:
    c = [GateCheck(metric="executed_rollouts_per_step", min=32.0, max=32.0)]
    assert check_activation_gate(c, "pilot", {"executed_rollouts_per_step": [32.0, 32.0]})[0].passed
    assert not check_activation_gate(c, "pilot", {"executed_rollouts_per_step": [32.0, 31.0]})[0].passed
    assert not check_activation_gate(c, "pilot", {"executed_rollouts_per_step": [33.0]})[0].passed
    assert not check_activation_gate(c, "pilot", {})[0].passed
    assert not check_activation_gate(c, "pilot", {"executed_rollouts_per_step": [float("nan")]})[0].passed


def test_the_metrics_of_two_roles_are_not_swapped() -> None:
    t, b = steps([1.0, 0.0], [0.0, 0.0], 1), steps([1.0, 0.0], [0.5, 0.5], 2)
    measured = collect_pilot_measures(t, {"t": t, "b": b}, "b", "t")
    checks = [c for c in SPEC.activation_gate.checks if c.metric.startswith("executed_group")]
    found = {r.metric: r.values for r in check_activation_gate(checks, "pilot", measured)}
    assert found == {"executed_group_size_gs1": [1.0], "executed_group_size_grpo": [2.0]}


# ---- loss and gradient


def test_the_tiny_model_gives_log_probabilities() -> None:
    model = TinyModel()
    total = sum(float(model([[5, 6]], [[7, k]])[0][1].exp()) for k in range(97))
    assert total == pytest.approx(1.0, abs=1e-12)
    short, long = model([[5]], [[7]])[0], model([[5, 6, 9]], [[7, 1, 2]])[0]
    assert float(short[0]) == pytest.approx(float(long[0]), abs=1e-15)  # causal


@pytest.mark.parametrize("token_mean", [True, False])
def test_torch_and_numpy_agree_on_loss_and_gradient(token_mean: bool) -> None:
    batch = make_fixed_batch(PROMPTS[:4], 3)
    data = make_plain_datums(batch, np.linspace(-1, 1, 12))
    a, b = compute_training_signal(data, token_mean=token_mean), compute_reference_signal(data, token_mean=token_mean)
    assert compare_signals("x", a, b, TIGHT, TIGHT).passed


def test_the_gradient_is_the_numerical_one() -> None:
    batch = make_fixed_batch(PROMPTS[:2], 2)
    data = make_plain_datums(batch, np.array([0.3, -0.7, 1.0, 0.2]))
    found = compute_training_signal(data, token_mean=True)
    at = sum(len(d.targets) for d in data[:1]) - 1  # the last token of the first rollout
    step = 1e-6
    nudged = [d._replace(old_log_probs=list(d.old_log_probs)) for d in data]
    nudged[0].old_log_probs[-1] -= step  # ratio depends on new - old: lowering old by h raises new by h
    change = (compute_training_signal(nudged, token_mean=True).loss - found.loss) / step
    assert found.to_log_probs[at] == pytest.approx(change, rel=1e-4)


def test_advantages_of_another_size_are_noticed() -> None:
    batch = make_fixed_batch(PROMPTS[:4], 2)
    a = np.linspace(-1, 1, 8)
    tolerance = Tolerance(atol=1e-5, rtol=1e-3, min_cosine=0.9999)
    right = compute_reference_signal(make_plain_datums(batch, a), token_mean=True)
    assert not compare_signals(
        "x", compute_training_signal(make_plain_datums(batch, a + 0.01), token_mean=True), right, tolerance, tolerance
    ).passed
    assert not compare_signals(
        "x", compute_training_signal(make_plain_datums(batch, a * 1.01), token_mean=True), right, tolerance, tolerance
    ).passed
    assert not compare_signals(
        "x", compute_training_signal(make_plain_datums(batch, -a), token_mean=True), right, tolerance, tolerance
    ).passed


def test_two_zero_gradients_are_no_agreement() -> None:
    batch = make_fixed_batch(PROMPTS[:2], 2)
    dead = compute_training_signal(make_plain_datums(batch, np.zeros(4)), token_mean=True)
    assert not compare_signals("dead", dead, dead, TIGHT, TIGHT).passed


# ---- the preflight as a whole


def preflight(path: OwnPath, advantage: str = "tfidf_kernel_loo_T0.1") -> dict:
    arm = SPEC.arms[1].model_copy(update={"advantage": advantage})
    return run_correctness_preflight(SPEC, arm, path, PROMPTS)


@pytest.mark.parametrize("advantage", ["tfidf_kernel_loo_T0.1", "length_buckets_loo", "batch_mean", "loo_mean"])
def test_the_paths_as_they_are_pass(advantage: str) -> None:
    found = preflight(OwnPath(), advantage)
    assert found["passed"], found


class Faulty(OwnPath):
    """The path with one thing wrong."""

    def __init__(self, spoil: Callable[[np.ndarray, FixedBatch], np.ndarray]) -> None:
        self.spoil = spoil

    def make_our_datums(self, baseline, batch: FixedBatch) -> list[Datum]:
        return make_plain_datums(batch, self.spoil(baseline.advantages(_batch(batch)), batch))


def _batch(batch: FixedBatch) -> Batch:
    return Batch.of(batch.prompts, batch.rewards, task_ids=batch.task_ids)


FAULTS: dict[str, Callable[[np.ndarray, FixedBatch], np.ndarray]] = {
    "whitened": lambda a, b: (a - a.mean()) / a.std(),
    "one rollout's advantage lost": lambda a, b: np.where(np.arange(len(a)) == 3, 0.0, a),
    "order of two rollouts swapped": lambda a, b: a[[1, 0, *range(2, len(a))]],
    "float16": lambda a, b: a.astype(np.float16).astype(float),
    "batch mean taken off too": lambda a, b: a - 0.02,
    "rewards instead of advantages": lambda a, b: b.rewards,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_path_stops_the_run(fault: str) -> None:
    assert not preflight(Faulty(FAULTS[fault]))["passed"]


def test_a_kernel_at_another_temperature_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollonce.experiments import preflight as module

    real = module.make_advantage_baseline
    monkeypatch.setattr(
        module,
        "make_advantage_baseline",
        lambda spec, name: (
            dataclasses.replace(real(spec, name), kernel=Softmax(temperature=0.13))
            if "tfidf" in name
            else real(spec, name)
        ),
    )
    found = preflight(OwnPath())
    assert not found["paths"][0]["comparisons"][1]["passed"]


def test_a_kernel_that_sees_its_own_reward_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KernelBaseline.predict
    monkeypatch.setattr(
        KernelBaseline,
        "predict",
        lambda self, batch, history=None: Prediction.of(
            batch, 0.9 * real(self, batch, history).baseline_B + 0.1 * batch.rewards_B
        ),
    )
    found = preflight(OwnPath())
    assert not found["passed"]
    assert not any(f["passed"] for f in found["forced"])


def test_shrinkage_fails_the_forced_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = KernelBaseline.predict

    def towards_loo(self, batch: Batch, history=None) -> Prediction:
        b = 0.99 * real(self, batch, history).baseline_B + 0.01 * reference.leave_one_out_mean(batch.rewards_B)
        return Prediction.of(batch, b)

    monkeypatch.setattr(KernelBaseline, "predict", towards_loo)
    activation, nonactivation = preflight(OwnPath())["forced"]
    assert not activation["passed"]
    assert nonactivation["passed"]


def test_without_an_independent_reference_nothing_is_shown() -> None:
    found = preflight(OwnPath(), "gs1_kriging")
    assert found["paths"][0]["missing_reference"]
    assert not found["passed"]


def test_gate_batches_are_those_registered() -> None:
    assert gates.N_BATCHES == 10_000
