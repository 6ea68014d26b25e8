"""Weighs the other rewards by how large the gradients of such rollouts are, around any smoother.

The best baseline for rewards is not the best for a step. The variance of a step's gradient is least at

    b* = E[m r] / E[m],     m the squared norm of a rollout's score,

which lies *below* the mean reward where right rollouts, being likely, have small gradients. Squared norms are
heavy-tailed, and as raw weights worse than none; what is used is their typical size at a given reward. They go as a
power ``a`` of the surprisal ``S = -log pi(rollout)``, so with ``slope`` the regression of ``log S`` on the reward over
*past* rollouts

    b_i = sum_j w_ij m(r_j) r_j / sum_j w_ij m(r_j),     log m(r) = a * slope * r,

with the smoother's own weights ``w_ij``. For rewards of 0 and 1 ``m`` is the geometric mean of ``S^a`` at each reward.
No log-probability of the batch being judged is read, so a rollout's own cannot move its baseline.

Source: Weaver & Tao 2001, theorem 4; Greensmith, Bartlett & Baxter 2004, section 3 (the optimal baseline);
docs/mathematics.md, "Baselines for a step".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from rollonce.baselines.base import Baseline, LinearSmoother
from rollonce.baselines.batch import Batch, History, Prediction, log_probs_from_state, log_probs_to_state
from rollonce.baselines.kernel import KernelBaseline, LeaveOneOut
from rollonce.baselines.large import LARGE
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import tasks_from_prompts
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray, Tasks

LEAST_SURPRISAL = 1e-3
"""Nats; a rollout that was all but certain counts with this."""
MOST_TILT = float(np.log(20.0))
"""The weights of the highest and the lowest reward differ by a factor of at most 20."""


@register
@dataclass
class NormWeighted(Baseline):
    """A smoother whose rewards are weighted by the typical squared gradient norm of rollouts with that reward.

    Args:
        smoother: Where the weights ``w_ij`` come from: any linear smoother, Kriging and self-tuning among them.
        exponent: Of the surprisal; between 1 and 2 for plain gradients, larger where the optimizer or the policy make
            it so. It belongs to a policy: `rollonce noise` measures it (``between rewards``).
        learn_rows: Newest observed rollouts with a log-probability that the slope is fitted on.
        min_rows: With fewer of them it is the smoother itself (or has the slope that `fit_rewards` found).

    Without log-probabilities it is the smoother itself. The slope is shrunk by what of it is noise, so that it also is
    where surprisal says nothing about rewards.

    >>> past = Batch.of([f"task {i}" for i in range(64)], [0.0, 1.0] * 32, log_probs=[-4.0, -2.0] * 32)
    >>> baseline = NormWeighted(exponent=2.0).fit(past.tasks)
    >>> baseline.observe(past)  # right rollouts have half the surprisal, so a quarter of the weight
    >>> batch = Batch.of(["a", "b", "c"], [0.0, 1.0, 0.0])
    >>> baseline.predict(batch).baseline_B.round(3).tolist()
    [0.2, 0.0, 0.2]
    """

    type: ClassVar[str] = "norm_weighted"
    source: ClassVar[str] = "Weaver & Tao 2001; Greensmith, Bartlett & Baxter 2004"
    smoother: LinearSmoother = field(default_factory=LeaveOneOut)
    exponent: float = 2.0
    learn_rows: int = 256
    min_rows: int = 32
    _given_slope: float | None = field(default=None, init=False, repr=False)
    _rewards_H: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False, compare=False)
    _log_probs_H: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.exponent) and self.exponent >= 0):
            raise InputError(f"the exponent of the surprisal must be a number of at least 0, not {self.exponent}")
        if not 8 <= self.min_rows <= self.learn_rows:
            raise InputError(
                f"min_rows must be at least 8 and at most learn_rows, not {self.min_rows} and {self.learn_rows}"
            )

    @property
    def window(self) -> int:
        """Rows of earlier steps whose rewards count, as the smoother has it."""
        return self.smoother.window

    @window.setter
    def window(self, rows: int) -> None:
        self.smoother.window = rows

    @property
    def tags(self) -> Tags:
        """The smoother's; the weights follow past rewards and log-probabilities."""
        return replace(
            self.smoother.tags,
            uses_log_probs=True,
            needs_history=True,
            neutral=False,
            scale_equivariant=False,
        )

    def describe(self) -> str:
        return f"{self.smoother.label}, norm-weighted" + (f" a={self.exponent:.3g}" if self.exponent != 2 else "")

    @property
    def keep_rows(self) -> int:
        return max(self.smoother.keep_rows, self.learn_rows)

    @property
    def history(self) -> History:
        """The smoother's."""
        return self.smoother.history

    @property
    def surprisal_slope(self) -> float:
        """Change of ``log S`` with the reward in use (nats per unit of reward); 0 before anything was learned."""
        return self._fit_or_given_slope(self._rewards_H, self._log_probs_H)

    # ------------------------------------------------------------------ what is learned

    def fit_rewards(
        self,
        tasks: Sequence[str] | Tasks,
        rewards: Sequence[float] | FloatArray,
        log_probs: Sequence[float] | FloatArray | None = None,
    ) -> Self:
        """Fit the slope, and what the smoother learns from rewards, on one rollout each of other tasks than those to be
        judged. Returns itself.

        Args:
            tasks: N tasks (or their prompts).
            rewards: N rewards.
            log_probs: N summed log-probabilities, NaN where unknown; without them the slope stays unknown.

        Raises:
            InputError: if the numbers differ.
        """
        tasks = tasks_from_prompts(tasks)
        learn = getattr(self.smoother, "fit_rewards", None)
        if learn is not None:
            learn(tasks, rewards)
        if log_probs is not None:
            y, known = np.asarray(rewards, np.float64), np.asarray(log_probs, np.float64)
            if y.shape != (len(tasks),) or known.shape != y.shape:
                raise InputError(
                    f"fit_rewards needs one reward and one log-probability per task: {len(tasks)} tasks, shapes "
                    f"{y.shape} and {known.shape}"
                )
            used = np.isfinite(known)
            self._given_slope = fit_surprisal_slope(y[used], known[used]) if used.sum() >= self.min_rows else None
        return self

    def _fit_or_given_slope(self, rewards_H: FloatArray, log_probs_H: FloatArray | None) -> float:
        if log_probs_H is not None:
            at = np.flatnonzero(np.isfinite(log_probs_H))[-self.learn_rows :]
            if len(at) >= self.min_rows:
                return fit_surprisal_slope(rewards_H[at], log_probs_H[at])
        return self._given_slope or 0.0

    def observe(self, batch: Batch) -> None:
        """Let the step's rollouts join the smoother's history, and their log-probabilities what the slope is fitted
        on."""
        self.smoother.observe(batch)
        if batch.log_probs_B is None:
            return
        known = np.isfinite(batch.log_probs_B)
        self._rewards_H = np.concatenate([self._rewards_H, batch.rewards_B[known]])[-self.learn_rows :]
        self._log_probs_H = np.concatenate([self._log_probs_H, batch.log_probs_B[known]])[-self.learn_rows :]

    # ------------------------------------------------------------------ prediction

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """``b`` (B,); the declared prior where a row sees nothing. With a history given that has
        log-probabilities the slope is fitted on it."""
        if history is None:
            slope, past_H = self.surprisal_slope, self.smoother.history.keep_newest_rows(self.window).rewards_H
        else:
            known = history.log_probs_H is not None
            slope = self._fit_or_given_slope(history.rewards_H, history.log_probs_H) if known else self.surprisal_slope
            past_H = history.keep_newest_rows(self.window).rewards_H
        if not slope:
            return self.smoother.predict(batch, history)
        rewards_M = np.concatenate([batch.rewards_B, past_H])
        if isinstance(self.smoother, KernelBaseline | LeaveOneOut) and len(batch) * len(rewards_M) > LARGE:
            return self._predict_large_batch(batch, history, rewards_M, self.exponent * slope)
        w_BM = self.smoother.weights(batch, history)
        b_B = tilted_weighted_means(w_BM[None], rewards_M[None], self.exponent * slope)[0]
        nothing_B: BoolArray = ~np.asarray(w_BM.any(axis=1))
        return Prediction.of(batch, np.where(nothing_B, self.prior, b_B), nothing_B)

    def _predict_large_batch(
        self, batch: Batch, history: History | None, rewards_M: FloatArray, tilt: float
    ) -> Prediction:
        """Without the table of weights: the smoother's own means of ``m (r - lowest)`` and of ``m``."""
        m_1M, low_11 = norm_weights_of_rewards(rewards_M[None], tilt)
        m_M, low = m_1M[0], float(low_11[0, 0])
        past = (self.smoother.history if history is None else history).keep_newest_rows(self.window)

        def smoothed_mean_of(values_M: FloatArray) -> Prediction:
            n = len(batch)
            return self.smoother.predict(replace(batch, rewards_B=values_M[:n]), replace(past, rewards_H=values_M[n:]))

        above, below = smoothed_mean_of(m_M * (rewards_M - low)), smoothed_mean_of(m_M)
        nothing_B = below.only_prior_B
        b_B = low + above.baseline_B / np.where(nothing_B, 1.0, below.baseline_B)
        return Prediction.of(batch, np.where(nothing_B, self.prior, b_B), nothing_B)

    def compute_weight_blocks(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """The smoother's weights before any norms, see `LinearSmoother.compute_weight_blocks`."""
        return self.smoother.compute_weight_blocks(tasks, columns_KM, n_rows, visible_KBM, ages_M)

    def baselines_from_weights(self, w_KBM: FloatArray, rewards_KM: FloatArray) -> FloatArray:
        """``b`` (K, B) from weights of the smoother and rewards; see `LinearSmoother.baselines_from_weights`."""
        return tilted_weighted_means(w_KBM, rewards_KM, self.exponent * self.surprisal_slope)

    # ------------------------------------------------------------------ state

    def own_state(self) -> dict[str, Any]:
        """The slope given, and under ``history`` the rewards and log-probabilities that it is fitted on."""
        state: dict[str, Any] = {} if self._given_slope is None else {"slope": self._given_slope}
        if len(self._rewards_H):
            kept = {"rewards": self._rewards_H.tolist(), "log_probs": log_probs_to_state(self._log_probs_H)}
            state["history"] = kept
        return state

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Restore it.

        Raises:
            InputError: if there are not as many log-probabilities as rewards, or one is no finite number of at most 0.
        """
        slope = state.get("slope")
        self._given_slope = None if slope is None else float(slope)
        kept = state.get("history", {"rewards": [], "log_probs": []})
        self._rewards_H = np.asarray(kept["rewards"], np.float64)
        known = log_probs_from_state(kept["log_probs"], len(self._rewards_H))
        self._log_probs_H = np.zeros(0) if known is None else known


def fit_surprisal_slope(rewards_H: FloatArray, log_probs_H: FloatArray) -> float:
    """Least-squares slope of ``log S`` on the reward, times ``max(0, 1 - se^2 / slope^2)`` (James-Stein, positive
    part): where there is nothing but noise it is mostly 0.

    Args:
        rewards_H: H rewards.
        log_probs_H: H finite log-probabilities; ``S = -log_prob``, at least `LEAST_SURPRISAL`.
    """
    n = len(rewards_H)
    x = rewards_H - rewards_H.mean() if n else rewards_H
    size = float(np.abs(rewards_H).max(initial=0.0))
    if n < 3 or float(np.ptp(rewards_H)) <= 1e-9 * max(size, 1e-300):
        return 0.0
    y = np.log(np.maximum(-log_probs_H, LEAST_SURPRISAL))
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    variance = float(rest @ rest) / (n - 2) / float(x @ x)
    return slope * max(0.0, 1 - variance / slope**2) if slope else 0.0


def tilted_weighted_means(w_KBM: FloatArray, rewards_KM: FloatArray, tilt: float) -> FloatArray:
    """``sum_j w_ij m_j r_j / sum_j w_ij m_j`` (K, B) with ``log m_j = tilt * r_j``.

    Weights may be negative (Kriging): the denominator is kept between the smallest and the largest ``m``, and the
    result between the rewards, or the plain weighted mean where that lies outside of them.

    Args:
        w_KBM: Weights whose rows sum to 1, or all 0.
        rewards_KM: Rewards of the columns.
        tilt: Nats per unit of reward.
    """
    plain_KB = np.einsum("kbm,km->kb", w_KBM, rewards_KM)
    if not tilt or not rewards_KM.shape[1]:
        return plain_KB
    m_KM, low_K1 = norm_weights_of_rewards(rewards_KM, tilt)
    high_K1 = rewards_KM.max(axis=1, keepdims=True)
    below_KB = np.einsum("kbm,km->kb", w_KBM, m_KM)
    below_KB = np.clip(below_KB, m_KM.min(axis=1, keepdims=True), m_KM.max(axis=1, keepdims=True))
    above_KB = np.einsum("kbm,km->kb", w_KBM, m_KM * (rewards_KM - low_K1))
    # b - plain, with rewards measured from the lowest: sum w m (r - plain) / sum w m.
    moved_KB = (above_KB - np.einsum("kbm,km->kb", w_KBM, m_KM) * (plain_KB - low_K1)) / below_KB
    return np.clip(plain_KB + moved_KB, np.minimum(low_K1, plain_KB), np.maximum(high_K1, plain_KB))


def norm_weights_of_rewards(rewards_KM: FloatArray, tilt: float) -> tuple[FloatArray, FloatArray]:
    """``m = exp(tilt (r - lowest))`` with the tilt limited by `MOST_TILT` (K, M), and the lowest rewards (K, 1)."""
    low_K1, high_K1 = rewards_KM.min(axis=1, keepdims=True), rewards_KM.max(axis=1, keepdims=True)
    tilt_K1 = np.clip(tilt * (high_K1 - low_K1), -MOST_TILT, MOST_TILT)
    return np.exp(tilt_K1 * (rewards_KM - low_K1) / np.maximum(high_K1 - low_K1, 1e-300)), low_K1


__all__ = ["NormWeighted", "fit_surprisal_slope", "norm_weights_of_rewards", "tilted_weighted_means"]
