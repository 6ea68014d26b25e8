"""The GS1 baseline: a kernel-weighted mean of the other rollouts' rewards.

``b_i = sum_{j != i} w_ij r_j / sum_{j != i} w_ij`` over the batch, or batch and window (docs/mathematics.md, "The
kernel baseline"; post "You Only Rollout Once"). A row without weight falls back to the leave-one-out mean of what it
sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import LinearSmoother
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.large import LARGE, predict_large_batch
from rollonce.component import register
from rollonce.features.column import CategoryColumn
from rollonce.kernels import Buckets, Kernel, Same, Softmax, Uniform
from rollonce.kernels.base import BoolArray, normalise_log_weights
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class KernelBaseline(LinearSmoother):
    """Kernel-weighted mean of the other rewards.

    Args:
        kernel: Weights from pre-rollout features; the published example, word TF-IDF at T = 0.1, by default.
        window, decay, shrinkage: See `LinearSmoother`.

    >>> from rollonce.baselines import Batch, KernelBaseline
    >>> prompts = ["add two and two", "add two and five", "prove the lemma", "prove the claim"]
    >>> baseline = KernelBaseline().fit(prompts)
    >>> baseline.predict(Batch.of(prompts, [1.0, 1.0, 0.0, 0.0])).baseline_B.round(2).tolist()
    [1.0, 1.0, 0.01, 0.01]
    """

    type: ClassVar[str] = "kernel"
    source: ClassVar[str] = "post 'You Only Rollout Once', method and appendix B"
    kernel: Kernel = field(default_factory=Softmax)

    def describe(self) -> str:
        """The kernel and what was done to it."""
        return self.describe_with_settings(self.kernel.describe())

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """``W r`` (B,); for very large batches and windows block by block in float32 (see
        `rollonce.baselines.large`)."""
        window = self._history_within_window(history)
        if len(batch) * (len(batch) + len(window)) <= LARGE:
            return super().predict(batch, history)
        tasks = self._batch_with_window(batch, window)
        rewards = np.concatenate([batch.rewards_B, window.rewards_H])
        recency = self.decay ** np.concatenate([np.zeros(len(batch)), window.ages_H]).astype(np.float64)
        b, saw = predict_large_batch(
            self.kernel, tasks, n_rows=len(batch), rewards_M=rewards, recency_M=recency, shrinkage=self.shrinkage
        )
        return Prediction.of(batch, np.where(saw, b, self.prior), ~saw)

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """(K, B, M), see `LinearSmoother.compute_weight_blocks`."""
        rows_KB = columns_KM[:, :n_rows]
        if self.decay == 1:
            return self.kernel.normalised_weights(tasks, rows_KB, columns_KM, visible_KBM)
        log_w = self.kernel.log_weights(tasks, rows_KB, columns_KM, visible_KBM)
        return normalise_log_weights(log_w + ages_M * np.log(self.decay), visible_KBM)


@register
@dataclass
class LeaveOneOut(LinearSmoother):
    """The mean reward of the other rollouts in the batch (and window): ``w_ij = 1``."""

    type: ClassVar[str] = "loo"
    source: ClassVar[str] = (
        "post 'You Only Rollout Once', appendix B; leave-one-out form of FlashREINFORCE (Hu et al. 2026)"
    )

    def describe(self) -> str:
        return self.describe_with_settings("LOO mean")

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The mean of the others (B,), without a table of weights where that would be large."""
        window = self._history_within_window(history)
        if len(batch) * (len(batch) + len(window)) <= LARGE:
            return super().predict(batch, history)
        return KernelBaseline(Uniform(), window=self.window, decay=self.decay).predict(
            batch, self.history if history is None else history
        )

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """(K, B, M): equal, or by recency where there is decay."""
        return normalise_log_weights(np.broadcast_to(ages_M * np.log(self.decay), visible_KBM.shape), visible_KBM)


def published_tfidf(window: int = 0) -> KernelBaseline:
    """The post's TF-IDF example: word TF-IDF, ``exp(cos / 0.1)``."""
    return KernelBaseline(Softmax(), window=window)


def published_length_buckets(window: int = 512) -> KernelBaseline:
    """The post's length example: 5 quantile buckets of log prompt length over this batch and the previous 16 (of
    32)."""
    return KernelBaseline(Buckets(), window=window)


def family_mean_baseline(column: str = "family", window: int = 0) -> KernelBaseline:
    """Mean reward of the other rollouts with the same declared column."""
    return KernelBaseline(Same(CategoryColumn(column)), window=window)


__all__ = ["KernelBaseline", "LeaveOneOut", "family_mean_baseline", "published_length_buckets", "published_tfidf"]
