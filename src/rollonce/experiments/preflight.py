"""Correctness preflight: nothing is trained before the custom advantage path was shown to be the stock one with the
treatment off, and the registered formula with it on; and before the treatment was seen to act where it must, and not to
act where it must not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rollonce import reference
from rollonce.baselines import Baseline, Batch, KernelBaseline
from rollonce.baselines.catalogue import tfidf_temperature
from rollonce.experiments.advantages import LENGTH_BUCKETS, make_advantage_baseline
from rollonce.experiments.datums import (
    Comparison,
    Datum,
    FixedBatch,
    compare_signals,
    compute_reference_signal,
    compute_training_signal,
    make_fixed_batch,
    make_plain_datums,
)
from rollonce.experiments.reference_paths import make_two_clusters, own_cluster_mean, reference_advantages
from rollonce.experiments.spec import ArmSpec, PreflightPath, Spec
from rollonce.kernels import Buckets, Softmax
from rollonce.rollouts import FloatArray

EXACT = 1e-12
N_PROMPTS = 32

Advantages = Callable[[Baseline, FixedBatch], FloatArray]


class AdvantagePath(Protocol):
    """How an engine turns a batch into what is sent: the code under test.

    Attributes:
        token_mean: Whether the loss is a mean over response tokens (our loop's) or their sum (the cookbook's).
        sent_scaled: Whether the datums carry that mean in their advantages, for a service that adds up.
        against: What the treatment-off side is compared with, in words.
    """

    token_mean: bool
    sent_scaled: bool
    against: str

    def make_our_datums(self, baseline: Baseline, batch: FixedBatch) -> list[Datum]:
        """The datums of our path with this baseline."""
        ...

    def make_stock_datums(self, batch: FixedBatch) -> list[Datum]:
        """The datums of the stock group-mean path."""
        ...


class OwnPath:
    """The local engine's: ``baseline.advantages``; its stock is `rollonce.reference`'s group mean."""

    token_mean = True
    sent_scaled = False
    against = "the group mean written out in numpy (no trainer of others is involved on the local engine)"

    def make_our_datums(self, baseline: Baseline, batch: FixedBatch) -> list[Datum]:
        return make_plain_datums(batch, baseline.advantages(to_baseline_batch(batch)))

    def make_stock_datums(self, batch: FixedBatch) -> list[Datum]:
        found = reference_advantages("group_mean", batch.prompts, batch.task_ids, batch.rewards, ())
        assert found is not None
        return make_plain_datums(batch, found)


def to_baseline_batch(batch: FixedBatch) -> Batch:
    return Batch.of(batch.prompts, batch.rewards, task_ids=batch.task_ids)


class Forced(NamedTuple):
    """A batch whose baseline is known beforehand."""

    what: str
    largest_difference: float
    passed: bool
    note: str = ""


def run_correctness_preflight(
    spec: Spec, treatment: ArmSpec, path: AdvantagePath, train_prompts: Sequence[str]
) -> dict[str, Any]:
    """All comparisons of the registered paths; ``passed`` says whether all held.

    Args:
        spec: The specification.
        treatment: The arm with the custom advantage.
        path: The engine's.
        train_prompts: What vocabularies are fitted on; the fixed batch's prompts are the first of them.
    """
    prompts = list(dict.fromkeys(train_prompts))[:N_PROMPTS]
    fitted = make_advantage_baseline(spec, treatment.advantage).fit(list(train_prompts))
    paths = []
    for registered in spec.correctness_preflight.paths:
        off, on = (
            _compare_treatment_off(path, prompts, registered),
            _compare_treatment_on(path, prompts, registered, treatment, fitted, train_prompts),
        )
        paths.append(
            {
                "id": registered.id,
                "comparisons": [c.to_dict() for c in (off, on) if c is not None],
                "missing_reference": on is None,
            }
        )
    forced = [
        f._asdict() for f in (_check_forced_activation(spec, treatment, fitted), _check_forced_nonactivation(fitted))
    ]
    passed = all(c["passed"] for p in paths for c in p["comparisons"]) and not any(
        p["missing_reference"] for p in paths
    )
    return {
        "passed": passed and all(f["passed"] for f in forced),
        "paths": paths,
        "forced": forced,
        "treatment_off_against": path.against,
        "gradients": (
            "taken on a tiny float64 model on this machine, from the datums that would be sent: a service returns none"
        ),
        "loss": "importance sampling, "
        + ("mean over response tokens" if path.token_mean else "sum over response tokens"),
        "treatment": fitted.config(),
    }


def _compare_treatment_off(path: AdvantagePath, prompts: Sequence[str], registered: PreflightPath) -> Comparison:
    batch = make_fixed_batch(prompts[:4], 8)
    from rollonce.baselines import Grpo

    t = registered.tolerances
    ours = compute_training_signal(
        path.make_our_datums(Grpo(), batch), token_mean=path.token_mean and not path.sent_scaled
    )
    stock = compute_training_signal(path.make_stock_datums(batch), token_mean=path.token_mean)
    return compare_signals(
        "treatment off (group mean, G=8) against the stock baseline", ours, stock, t.baseline_loss, t.baseline_gradient
    )


def _compare_treatment_on(
    path: AdvantagePath,
    prompts: Sequence[str],
    registered: PreflightPath,
    arm: ArmSpec,
    fitted: Baseline,
    train: Sequence[str],
) -> Comparison | None:
    groups = arm.group_size if fitted.tags.needs_groups else 1
    batch = make_fixed_batch(prompts[: max(2, N_PROMPTS // groups)], groups, seed=1)
    wanted = reference_advantages(arm.advantage, batch.prompts, batch.task_ids, batch.rewards, train)
    if wanted is None:
        return None
    t = registered.tolerances
    ours = compute_training_signal(
        path.make_our_datums(fitted, batch), token_mean=path.token_mean and not path.sent_scaled
    )
    right = compute_reference_signal(make_plain_datums(batch, wanted), token_mean=path.token_mean)
    return compare_signals(
        "treatment on against the float64 reference", ours, right, t.reference_loss, t.reference_gradient
    )


def _check_forced_activation(spec: Spec, arm: ArmSpec, fitted: Baseline) -> Forced:
    """Two clusters of five and three, identical within and orthogonal across."""
    made = make_advantage_baseline(spec, arm.advantage)
    prompts, rewards, analytic = make_two_clusters(1.0)
    what = "forced activation: two clusters of 5 and 3"
    if (
        tfidf_temperature(arm.advantage) is not None
        and isinstance(made, KernelBaseline)
        and isinstance(made.kernel, Softmax)
    ):
        # At T = 1, where a wrong formula shows; at the registered 0.1 the other cluster weighs 5e-5.
        made = dataclasses.replace(made, kernel=dataclasses.replace(made.kernel, temperature=1.0))
        what += ", T = 1"
    elif arm.advantage == LENGTH_BUCKETS and isinstance(made, KernelBaseline) and isinstance(made.kernel, Buckets):
        analytic = own_cluster_mean(prompts, rewards)
    else:
        same = {
            "batch_mean": rewards.mean() + 0 * rewards,
            "loo_mean": reference.leave_one_out_mean(rewards),
            "none": 0 * rewards,
        }
        if arm.advantage not in same:
            return Forced(what, 0.0, True, f"{fitted.label}: no analytic value is known for it; not judged")
        analytic, what = same[arm.advantage], "two clusters, which must make no difference to it"
    b = made.fit(prompts).predict(Batch.of(prompts, rewards)).baseline_B
    largest = float(np.abs(b - analytic).max())
    return Forced(what, largest, largest <= EXACT)


def _check_forced_nonactivation(fitted: Baseline) -> Forced:
    what = "forced non-activation: identical prompts give the LOO mean"
    tags = fitted.tags
    if not tags.neutral or tags.self_inclusive or tags.needs_groups or tags.needs_history:
        return Forced(what, 0.0, True, f"{fitted.label} does not claim it; not judged")
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.0])
    b = fitted.predict(Batch.of(["the same words for every task"] * len(rewards), rewards)).baseline_B
    largest = float(np.abs(b - reference.leave_one_out_mean(rewards)).max())
    return Forced(what, largest, largest <= EXACT)
