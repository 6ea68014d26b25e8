"""Streams of batches at a fixed policy, the same tasks and rollouts for every contender, and what each one's step makes
of them.

Shapes: ``_N`` tasks, ``_R`` rollouts in task order, ``_G`` rollouts of a task, ``_K`` batches of a stream, ``_B``
rollouts of a batch, ``_M`` what a batch sees, ``_A`` contenders, ``_D`` chosen parameters, ``_S`` stretches of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollonce.baselines import Baseline, Batch, History
from rollonce.noise.optimizers import OptimizerSettings, StepDirections
from rollonce.noise.resampling import draw_weighted_orders
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring import CrossFitted
from rollonce.scoring.batches import ages_of_columns
from rollonce.scoring.recipe import drawn_baselines


class GradientSample(NamedTuple):
    """The gradients of a table's rollouts, as far as progress needs them.

    Attributes:
        coordinates_RD: Gradients on randomly chosen parameters, float32.
        gram_RR: Inner products of the whole gradients, for norms of batches; None to estimate those from the chosen
            parameters.
        n_parameters: P, of which D were chosen.
    """

    coordinates_RD: np.ndarray
    gram_RR: FloatArray | None
    n_parameters: int


@dataclass(frozen=True, eq=False)
class Contender:
    """One way to make advantages, and the gradients that they multiply.

    Attributes:
        label: Its name in the table.
        baseline: Fitted (a cross-fitted one as well); what it predicts for a batch gives the advantages. None where
            ``values_R`` or ``gradients`` say all.
        group_size: Rollouts of a task in a batch: ``B / group_size`` tasks.
        gradients: Its own gradients with the advantages of its tokens in them (a token-level critic).
        values_R: What is taken off each rollout's reward, where that does not depend on the batch (the oracle).
        note: A sentence for the table.
    """

    label: str
    baseline: Baseline | CrossFitted | None
    group_size: int = 1
    gradients: GradientSample | None = None
    values_R: FloatArray | None = None
    note: str = ""

    @property
    def window_asked(self) -> int:
        """Rows of earlier steps that its baseline wants to see."""
        return int(getattr(self.baseline.twin(), "window", 0)) if self.baseline is not None else 0


class StreamBatches(NamedTuple):
    """One contender's batches: rows of the gradients and what each is multiplied by."""

    rows_KB: IntArray
    weights_KB: FloatArray
    gradients: GradientSample


class Streams:
    """Streams of batches, common to all contenders."""

    def __init__(
        self,
        rollouts: Rollouts,
        gradients: GradientSample,
        contenders: Sequence[Contender],
        optimizer: OptimizerSettings,
        batch_size: int,
        curve_sizes: Sequence[int],
    ) -> None:
        self.rollouts, self.gradients, self.contenders = rollouts, gradients, contenders
        self.optimizer, self.batch_size, self.curve_sizes = optimizer, batch_size, curve_sizes
        self.group_size = int(rollouts.group_sizes_N[0])
        # Those that multiply the same rows of the same gradients by other advantages share one matrix product.
        self.plain = [i for i, c in enumerate(contenders) if c.group_size == 1 and c.gradients is None]
        self.needs_norms = optimizer.kind == "normalised-sgd" or optimizer.max_grad_norm is not None
        self.windows = [0] * len(contenders)

    def measure_step_products(
        self, batch_tasks: IntArray, truth_tasks: IntArray, weights_N: FloatArray, steps: int, rng: np.random.Generator
    ) -> tuple[FloatArray, float]:
        """Mean over the steps of ``<mu, step>`` by contender and stretch (A + curve, S), and LOO's share of clipped
        batches."""
        g, b = self.group_size, self.batch_size
        n_batches = self.optimizer.burn_in_steps + steps
        order_KN = batch_tasks[draw_weighted_orders(weights_N[batch_tasks], n_batches, rng)]
        # A permutation of each task's rollouts: the first is the single rollout, the first G' are the group.
        draw_KNG = np.argsort(rng.random((*order_KN.shape, g)), axis=2)
        single_KN = order_KN * g + draw_KNG[:, :, 0]
        mu_D = self._estimate_true_gradient(truth_tasks, weights_N)
        n_all = len(self.contenders) + len(self.curve_sizes)
        directions = StepDirections(self.optimizer, n_all, mu_D)
        parts = [self._batches_of_contender(i, order_KN, draw_KNG, single_KN) for i in range(len(self.contenders))]
        rewards_KN = self.rollouts.rewards_R[single_KN]
        for size in self.curve_sizes:
            r = rewards_KN[:, :size]
            loo = (r.sum(axis=1, keepdims=True) - r) / (size - 1)
            parts.append(StreamBatches(single_KN[:, :size], (r - loo) / size, self.gradients))
        norms_KA = np.ones((n_batches, n_all))
        estimated_A = np.array([p.gradients.gram_RR is None for p in parts]) & self.needs_norms
        if self.needs_norms:
            for i in np.flatnonzero(~estimated_A):
                norms_KA[:, i] = self._norms_of_batches(parts[i])
        plain_KAB = np.stack([parts[i].weights_KB for i in self.plain], axis=1).astype(np.float32)
        others = [i for i in range(n_all) if i not in self.plain]
        gradients_AD = np.empty((n_all, len(mu_D)), np.float32)
        total = 0.0
        for k in range(n_batches):
            gradients_AD[self.plain] = plain_KAB[k] @ self.gradients.coordinates_RD[single_KN[k, :b]]
            for i in others:
                batches = parts[i]
                gradients_AD[i] = (
                    batches.weights_KB[k].astype(np.float32) @ batches.gradients.coordinates_RD[batches.rows_KB[k]]
                )
            if estimated_A.any():  # the chosen parameters' share of the squared norm is their share of the parameters
                squares_A = np.square(gradients_AD[estimated_A], dtype=np.float64).sum(axis=1)
                norms_KA[k, estimated_A] = np.sqrt(squares_A * self.gradients.n_parameters / gradients_AD.shape[1])
            products_AS = directions.step_along_direction(gradients_AD, norms_KA[k])
            if k >= self.optimizer.burn_in_steps:
                total = total + products_AS
        limit = self.optimizer.max_grad_norm
        clipped = float((norms_KA[:, 0] > limit).mean()) if limit is not None else 0.0
        return np.asarray(total) / steps, clipped

    def _estimate_true_gradient(self, tasks: IntArray, weights_N: FloatArray) -> FloatArray:
        """On the chosen parameters, from all rollouts of these tasks.

        What is taken off a reward moves nothing but the variance, as long as it is of other rollouts: the mean of the
        task's others, shrunk to the mean of the other tasks by the ratio of the variances within and between tasks.
        """
        g = self.group_size
        at = tasks[:, None] * g + np.arange(g)
        rewards = self.rollouts.rewards_R[at]
        n = len(tasks)
        elsewhere = (rewards.sum() - rewards.sum(axis=1, keepdims=True)) / (g * (n - 1))
        within = float(rewards.var(axis=1, ddof=1).mean()) if g > 1 else np.inf
        between = max(float(rewards.mean(axis=1).var(ddof=1)) - within / g, 1e-12) if g > 1 else 1e-12
        pseudo = min(within / between, 1e6)
        centre = (rewards.sum(axis=1, keepdims=True) - rewards + pseudo * elsewhere) / (g - 1 + pseudo)
        share = weights_N[tasks] / weights_N[tasks].sum() / g
        a = (rewards - centre) * share[:, None]
        return a.ravel().astype(np.float32) @ self.gradients.coordinates_RD[at.ravel()]

    def _batches_of_contender(
        self, i: int, order_KN: IntArray, draw_KNG: IntArray, single_KN: IntArray
    ) -> StreamBatches:
        """Rows and weights (advantage over B) of a contender's batches."""
        c, b = self.contenders[i], self.batch_size
        gradients = c.gradients or self.gradients
        if c.group_size > 1:
            n_tasks = b // c.group_size
            at = order_KN[:, :n_tasks, None] * self.group_size + draw_KNG[:, :n_tasks, : c.group_size]
            rows_KB = at.reshape(len(at), b)
            return StreamBatches(rows_KB, self._predicted_advantages(c, rows_KB) / b, gradients)
        rows_KB = single_KN[:, :b]
        if c.gradients is not None:
            return StreamBatches(rows_KB, np.full(rows_KB.shape, 1 / b), gradients)
        if c.values_R is not None:
            return StreamBatches(rows_KB, (self.rollouts.rewards_R - c.values_R)[rows_KB] / b, gradients)
        assert c.baseline is not None
        window = min(c.window_asked, order_KN.shape[1] - b)
        self.windows[i] = window
        columns_KM, seen_KM = order_KN[:, : b + window], single_KN[:, : b + window]
        rewards_KM = self.rollouts.rewards_R[seen_KM]
        ages_M = ages_of_columns(b, window)
        if c.baseline.tags.self_inclusive or c.baseline.tags.uses_lengths:
            return StreamBatches(rows_KB, self._predicted_advantages(c, rows_KB) / b, gradients)
        values_KB = drawn_baselines(c.baseline, self.rollouts, columns_KM, rewards_KM, b, ages_M)
        return StreamBatches(rows_KB, (rewards_KM[:, :b] - values_KB) / b, gradients)

    def _predicted_advantages(self, contender: Contender, rows_KB: IntArray) -> FloatArray:
        """Advantages as the arm itself makes them, its own scaling included, without history (K, B)."""
        assert isinstance(contender.baseline, Baseline)
        table, empty = self.rollouts, History.before_first_step()
        out = np.empty(rows_KB.shape)
        for k, rows in enumerate(rows_KB):
            lengths = None if table.lengths_R is None else table.lengths_R[rows]
            batch = Batch(table.tasks.take(rows // self.group_size), table.rewards_R[rows], lengths)
            out[k] = contender.baseline.predict(batch, empty).advantages_B
        return out

    def _norms_of_batches(self, batches: StreamBatches) -> FloatArray:
        """Norm of each whole batch gradient (K,), by the inner products."""
        gram_RR = batches.gradients.gram_RR
        assert gram_RR is not None
        out = np.empty(len(batches.rows_KB))
        for start in range(0, len(out), 256):
            rows, w = batches.rows_KB[start : start + 256], batches.weights_KB[start : start + 256]
            gram = gram_RR[rows[:, :, None], rows[:, None, :]]
            out[start : start + 256] = np.einsum("kb,kbc,kc->k", w, gram, w, optimize=True)
        return np.sqrt(np.maximum(out, 0.0))


def draw_random_halves(weights_N: FloatArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """A random half of the tasks and the other, with as many heavy tasks in each."""
    groups = [rng.permutation(np.flatnonzero(where)) for where in (weights_N > 1, weights_N <= 1)]
    first = np.concatenate([g[: len(g) // 2] for g in groups])
    second = np.concatenate([g[len(g) // 2 :] for g in groups])
    return np.sort(first), np.sort(second)


__all__ = ["Contender", "GradientSample", "StreamBatches", "Streams", "draw_random_halves"]
