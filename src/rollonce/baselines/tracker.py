"""A running estimate of each task's own mean reward over its earlier rollouts, as in SPO; needs tasks to come again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray, IntArray


@register
@dataclass
class Tracker(Baseline):
    """Discounted Beta tracker per task: ``b = (prior_mean * strength + sum_a d^a r_a) / (strength + sum_a d^a)``.

    Args:
        discount: ``d``, per earlier rollout of the task; rollouts of one batch share the weight that they would have
            had in turn.
        strength: Pseudo-rollouts at the prior mean.
        prior_mean: Used until a task has come before; with None, the running mean of all rewards observed so far.

    A task is its normalised prompt. Rows of one batch never count for each other.

    Source: SPO (single-stream policy optimisation), Xu and Ding 2025.
    """

    type: ClassVar[str] = "tracker"
    source: ClassVar[str] = "SPO, Xu & Ding 2025"
    discount: float = 0.9
    strength: float = 1.0
    prior_mean: float | None = None
    sums_: dict[str, tuple[float, float]] = field(default_factory=dict, init=False, repr=False)
    total_: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1 or self.strength < 0:
            raise InputError(
                f"a tracker needs a discount in (0, 1] and strength >= 0, not {self.discount} and {self.strength}"
            )

    @property
    def tags(self) -> Tags:
        """Needs repeats; sees nothing of the batch's other rewards."""
        free = self.prior_mean is None
        return Tags(
            needs_repeats=True, needs_history=True, neutral=False, shift_equivariant=free, scale_equivariant=free
        )

    def describe(self) -> str:
        return f"per-task tracker (d={self.discount:g})"

    def _prior_mean_in_use(self) -> float:
        if self.prior_mean is not None:
            return self.prior_mean
        weight, total = self.total_
        return total / weight if weight > 0 else self.prior

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """(B,), from the rollouts observed before (or those in ``history``, oldest first)."""
        if history is not None:
            return self._fresh_after_history(history).predict(batch)
        known = self.prior_mean is not None or self.total_[0] > 0
        prior = self._prior_mean_in_use()
        out = np.empty(len(batch))
        only_prior_B = np.zeros(len(batch), dtype=bool)
        for i, name in enumerate(batch.tasks.identities):
            weight, total = self.sums_.get(name, (0.0, 0.0))
            below = self.strength + weight
            out[i] = (self.strength * prior + total) / below if below > 0 else prior
            only_prior_B[i] = weight == 0 and not known
        return Prediction.of(batch, out, only_prior_B)

    def _fresh_after_history(self, history: History) -> Tracker:
        """A fresh one that has observed these rows alone."""
        fresh = Tracker(self.discount, self.strength, self.prior_mean)
        if not len(history):
            return fresh
        key_H, reward_H = history.tasks.prompt_keys, history.rewards_H
        # By task, the newest first; equal ages by reward, so that sums do not depend on the order of a batch.
        order_H = np.lexsort((reward_H, history.ages_H, key_H))
        key_H, age_H = key_H[order_H], history.ages_H[order_H]
        new_task_H = np.append(True, key_H[1:] != key_H[:-1])
        new_step_H = new_task_H | np.append(True, age_H[1:] != age_H[:-1])
        start_S = np.flatnonzero(new_step_H)
        count_S = np.diff(np.append(start_S, len(key_H)))
        task_S = (np.cumsum(new_task_H) - 1)[start_S]
        fade_S = self.discount ** (start_S - np.flatnonzero(new_task_H)[task_S]).astype(np.float64)
        weight_S = fade_S * self._weight_of_several(count_S)
        total_S = weight_S * np.add.reduceat(reward_H[order_H], start_S) / count_S
        weights, totals = np.bincount(task_S, weight_S), np.bincount(task_S, total_S)
        names = history.tasks.take(order_H[new_task_H]).identities
        fresh.sums_ = {n: (float(w), float(t)) for n, w, t in zip(names, weights, totals, strict=True)}
        fresh.total_ = (float(len(history)), float(reward_H.sum()))
        return fresh

    def _weight_of_several(self, n_S: IntArray) -> FloatArray:
        """``1 + d + ... + d^(n - 1)``: what n rollouts of one task in a batch weigh together."""
        if self.discount == 1:
            return n_S.astype(np.float64)
        return (1 - self.discount ** n_S.astype(np.float64)) / (1 - self.discount)

    def observe(self, batch: Batch) -> None:
        """Count the batch's rewards for their tasks; several of one task count alike, whatever order they are in."""
        groups: dict[str, list[float]] = {}
        for name, reward in zip(batch.tasks.identities, batch.rewards_B, strict=True):
            groups.setdefault(name, []).append(float(reward))
        for key, rewards in groups.items():
            weight, total = self.sums_.get(key, (0.0, 0.0))
            fade = self.discount ** len(rewards)
            new = float(self._weight_of_several(np.array(len(rewards))))
            self.sums_[key] = (fade * weight + new, fade * total + new * (sum(sorted(rewards)) / len(rewards)))
        self.total_ = (self.total_[0] + len(batch), self.total_[1] + float(batch.rewards_B.sum()))

    def own_state(self) -> dict[str, Any]:
        """The sums per task, which are all that it keeps of its history."""
        return (
            {"history": {"sums": {k: list(v) for k, v in self.sums_.items()}, "total": list(self.total_)}}
            if self.sums_
            else {}
        )

    def load_own_state(self, state: dict[str, Any]) -> None:
        kept = state.get("history", {})
        self.sums_ = {k: (float(w), float(t)) for k, (w, t) in kept.get("sums", {}).items()}
        weight, total = kept.get("total", (0.0, 0.0))
        self.total_ = (float(weight), float(total))


@register
@dataclass
class Oracle(Baseline):
    """The task's true mean reward, given beforehand by task id: the ceiling, MSE 0.

    Args:
        means: Mean reward by task id, from extra rollouts or known.
    """

    type: ClassVar[str] = "oracle"
    means: dict[str, float] = field(default_factory=dict)

    @property
    def tags(self) -> Tags:
        """Needs extra rollouts; follows no change of the batch."""
        return Tags(needs_repeats=True, neutral=False, shift_equivariant=False, scale_equivariant=False)

    def describe(self) -> str:
        return "oracle (true mean)"

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """(B,).

        Raises:
            InputError: for a task whose mean is not known.
        """
        missing = [str(t) for t in batch.tasks.task_ids if str(t) not in self.means]
        if missing:
            raise InputError(
                f"the oracle does not know task {missing[0]!r} ({len(missing)} of {len(batch)} are missing)"
            )
        return Prediction.of(batch, np.array([self.means[str(t)] for t in batch.tasks.task_ids], dtype=np.float64))
