"""Each advantage once more, by `rollonce.reference` alone: what the fast code is held against before it may train
anything.

`None` where no independent reference exists; a required preflight then fails rather than compare code with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollonce import reference
from rollonce.baselines.catalogue import tfidf_temperature
from rollonce.experiments.advantages import LENGTH_BUCKETS
from rollonce.rollouts import FloatArray, IntArray


def reference_advantages(
    advantage: str, prompts: Sequence[str], task_ids: Sequence[str], rewards_B: FloatArray, fitted_on: Sequence[str]
) -> FloatArray | None:
    """``r - b`` in float64 (B,), from the formulas."""
    temperature = tfidf_temperature(advantage)
    if temperature is not None:
        similarity = reference.tfidf_similarity(prompts, fitted_on)
        return rewards_B - reference.gs1_kernel_baseline(similarity, rewards_B, temperature)
    if advantage == LENGTH_BUCKETS:
        return rewards_B - reference.length_bucket_baseline(_measure_prompt_lengths(prompts), rewards_B)
    if advantage == "group_mean":
        ids = np.asarray(task_ids)
        return np.array([r - rewards_B[ids == i].mean() for r, i in zip(rewards_B, ids, strict=True)])
    if advantage == "batch_mean":
        return rewards_B - rewards_B.mean()
    if advantage == "loo_mean":
        return rewards_B - reference.leave_one_out_mean(rewards_B)
    if advantage == "none":
        return rewards_B.copy()
    return None


def reference_on_tasks(advantage: str, prompts: Sequence[str], fitted_on: Sequence[str]) -> Callable[..., Any] | None:
    """The same for `rollonce.reference.simulate_effective_batch_size`: (task indices, rewards) -> b. Self-inclusive
    ones through their LOO twin."""
    temperature = tfidf_temperature(advantage)
    if temperature is not None:
        return reference.make_gs1_on_tasks(reference.tfidf_similarity(prompts, fitted_on), temperature)
    if advantage == LENGTH_BUCKETS:
        lengths = _measure_prompt_lengths(prompts)
        return lambda tasks, rewards: reference.length_bucket_baseline(lengths[tasks], rewards)
    if advantage in ("batch_mean", "loo_mean"):
        return reference.make_loo_on_tasks()
    if advantage == "none":
        return lambda tasks, rewards: np.zeros(len(tasks))
    return None


def make_two_clusters(temperature: float) -> tuple[list[str], FloatArray, FloatArray]:
    """Forced activation, five and three identical prompts, orthogonal across: prompts, rewards, analytic baseline
    (docs/mathematics.md, "The kernel baseline")."""
    cluster: IntArray = np.array([0, 1, 0, 0, 1, 0, 1, 0])
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.25, 0.5, 1.0])
    prompts = [("red apple basket", "seventeen engines hummed loudly")[c] for c in cluster]
    return prompts, rewards, reference.two_cluster_baseline(cluster, rewards, temperature)


def own_cluster_mean(prompts: Sequence[str], rewards: FloatArray) -> FloatArray:
    """What a kernel with no weight across clusters must give: the mean of the others in the own cluster (B,)."""
    b = np.empty(len(prompts))
    for i, own in enumerate(prompts):
        others = [r for j, (p, r) in enumerate(zip(prompts, rewards, strict=True)) if p == own and j != i]
        b[i] = sum(others) / len(others)
    return b


def _measure_prompt_lengths(prompts: Sequence[str]) -> FloatArray:
    return np.array([1 + len(p) for p in prompts], dtype=np.float64)  # the feature is ln(1 + characters)
