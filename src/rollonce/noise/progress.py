"""Progress: how far the optimizer's step, made of batches with a given baseline, points along the true gradient.

Adam, or a clipped gradient, makes of any batch a step of nearly fixed length, so what a baseline changes is how well
the step points. With ``mu`` the true gradient and the optimizer's own recursion over a stream of batches at a fixed
policy,

    progress of a baseline = E[<mu, step>],     relative to the in-batch leave-one-out mean (LOO) at the same B.

``mu`` comes from one half of the tasks and the batches from the other, both ways and over many random halves: products
of equal rollouts would be biased. Every contender sees the same batches. Beside its progress stands the *equivalent
batch*: how large a batch LOO needs to make the same progress, read off a curve through LOO at B/2, 3B/4, B, 3B/2 and
2B that the same streams measure.

Intervals are over tasks (`rollonce.noise.resampling`), with the variance that comes from the draw of halves and
batches, and from the choice of parameters, added; ratios are paired. docs/mathematics.md, "What a step feels".

Shapes: ``_N`` tasks, ``_R`` rollouts in task order, ``_K`` batches of a stream, ``_B`` rollouts of a batch, ``_A``
contenders, ``_D`` chosen parameters, ``_S`` stretches of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.stats

from rollonce.baselines import Baseline, Batch, History, LeaveOneOut
from rollonce.errors import InputError
from rollonce.noise.optimizers import STRETCHES, OptimizerSettings, StepDirections
from rollonce.noise.resampling import SHIFT, half_sample_weights, weighted_orders
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring import CrossFitted, Estimate
from rollonce.scoring.batch_curve import SIZES, BatchCurve
from rollonce.scoring.recipe import drawn_baselines

LOO = LeaveOneOut().label
LEAST_SHARE = 0.25
"""At least this share of the variance over replications counts as that over tasks, whatever halvings explain of it."""


class NoDirectionError(InputError):
    """The steps of the yardstick do not point along the true gradient, so that nothing can be compared with them."""


class GradientSample(NamedTuple):
    """The gradients of a table's rollouts, as far as progress needs them.

    Attributes:
        coordinates_RD: Gradients on randomly chosen parameters, float32.
        gram_RR: Inner products of the whole gradients, for norms of batches.
        n_parameters: P, of which D were chosen.
    """

    coordinates_RD: np.ndarray
    gram_RR: FloatArray
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


class ProgressRow(NamedTuple):
    """One contender's result.

    Attributes:
        label: Its name.
        progress: Of the optimizer's step over LOO's, with its 95% interval.
        equivalent_batch: The batch size at which LOO makes the same progress, with its interval; NaN where the curve
            is too flat to be read.
        beyond_curve: The equivalent batch lies outside of the sizes that were measured: extrapolated.
        window: Rows of other tasks that it could see; ``window_asked``: that it asked for.
        group_size: Rollouts of a task in a batch.
        note: A sentence about it.
    """

    label: str
    progress: Estimate
    equivalent_batch: Estimate
    beyond_curve: bool
    window: int
    window_asked: int
    group_size: int
    note: str


class ProgressReport(NamedTuple):
    """All rows, most progress first, and how they were measured.

    Attributes:
        rows: `ProgressRow`, LOO among them.
        curve: (batch size, LOO's progress over that at B), B among them.
        batch_size: B.
        optimizer: Whose step it is.
        clipped_share: Share of LOO's batches whose norm was clipped.
        n_tasks, n_coordinates, n_parameters, n_steps: Behind every value.
        notes: Sentences that the reader must know.
    """

    rows: list[ProgressRow]
    curve: list[tuple[int, Estimate]]
    batch_size: int
    optimizer: OptimizerSettings
    clipped_share: float
    n_tasks: int
    n_coordinates: int
    n_parameters: int
    n_steps: int
    notes: list[str]


def measure_progress(
    rollouts: Rollouts,
    gradients: GradientSample,
    contenders: Sequence[Contender],
    optimizer: OptimizerSettings | None = None,
    *,
    batch_size: int = 32,
    replications: int = 24,
    halves: int = 2,
    steps: int = 60,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> ProgressReport:
    """Progress of every contender's step relative to LOO's, and its equivalent batch, with 95% intervals over tasks.

    Args:
        rollouts: N tasks with G rollouts each, of one policy.
        gradients: Of those rollouts, in the same order.
        contenders: What to measure; LOO is always there.
        optimizer: Whose step; Adam as `rollonce train` has it by default.
        batch_size: B.
        replications: Weightings of the tasks, an even number; the degrees of freedom of the intervals.
        halves: Random halvings of the tasks in each replication, at least 2: what they differ by is no spread of tasks.
        steps: Counted steps of each stream, after the optimizer's burn-in. There are ``2 * halves * replications``
            streams.
        seed: Of everything random.
        progress: Called with (what, done, total).

    Raises:
        InputError: groups of different sizes, fewer than 3 B tasks, or fewer rollouts than a contender's group.
        NoDirectionError: LOO's step does not point along the true gradient: more tasks or rollouts are needed.
    """
    optimizer = (optimizer or OptimizerSettings()).checked()
    n, b = rollouts.n_tasks, batch_size
    group_sizes = np.unique(rollouts.group_sizes_N)
    if len(group_sizes) != 1:
        raise InputError(f"progress needs the same number of rollouts of every task, not {group_sizes.tolist()}")
    if n < 3 * b:
        raise InputError(
            f"progress at batches of {b} needs at least {3 * b} tasks (batches come from one half of them, the true "
            f"gradient from the other), not {n}: sample more, or lower --batch-size"
        )
    if replications < 4 or replications % 2 or halves < 2 or steps < 1:
        raise InputError("replications must be an even number of at least 4, halves at least 2 and steps at least 1")
    chosen = [Contender(LOO, LeaveOneOut()), *(c for c in contenders if c.label != LOO)]
    for contender in chosen:
        if contender.group_size > group_sizes[0]:
            raise InputError(f"{contender.label} needs {contender.group_size} rollouts of a task, not {group_sizes[0]}")
        if b % contender.group_size:
            raise InputError(f"{contender.label}: batches of {b} are no multiple of {contender.group_size}")
    sizes = [round(f * b) for f in SIZES if 2 <= round(f * b) <= n // 2]
    stream = _Streams(rollouts, gradients, chosen, optimizer, b, sizes)
    totals = np.empty((replications, halves, len(chosen) + len(sizes), STRETCHES))
    clipped = []
    for r in range(replications):
        weights_N = half_sample_weights(n, r, [seed, 41])
        for h in range(halves):
            rng = np.random.default_rng([seed, 42, r, h])
            parts = _halves(weights_N, rng)
            both = [stream.run(parts[i], parts[1 - i], weights_N, steps, rng) for i in range(2)]
            totals[r, h] = (both[0][0] + both[1][0]) / 2
            clipped += [both[0][1], both[1][1]]
            if progress:
                progress("progress", r * halves + h + 1, replications * halves)
    return _summarise(totals, chosen, sizes, stream, float(np.mean(clipped)), replications * halves * 2 * steps)


def _halves(weights_N: FloatArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """A random half of the tasks and the other, with as many heavy tasks in each."""
    groups = [rng.permutation(np.flatnonzero(where)) for where in (weights_N > 1, weights_N <= 1)]
    first = np.concatenate([g[: len(g) // 2] for g in groups])
    second = np.concatenate([g[len(g) // 2 :] for g in groups])
    return np.sort(first), np.sort(second)


class _Streams:
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

    def run(
        self, batch_tasks: IntArray, truth_tasks: IntArray, weights_N: FloatArray, steps: int, rng: np.random.Generator
    ) -> tuple[FloatArray, float]:
        """Mean over the steps of ``<mu, step>`` by contender and stretch (A + curve, S), and LOO's share of clipped
        batches."""
        g, b = self.group_size, self.batch_size
        n_batches = self.optimizer.burn_in + steps
        order_KN = batch_tasks[weighted_orders(weights_N[batch_tasks], n_batches, rng)]
        # A permutation of each task's rollouts: the first is the single rollout, the first G' are the group.
        draw_KNG = np.argsort(rng.random((*order_KN.shape, g)), axis=2)
        single_KN = order_KN * g + draw_KNG[:, :, 0]
        mu_D = self._true_gradient(truth_tasks, weights_N)
        n_all = len(self.contenders) + len(self.curve_sizes)
        directions = StepDirections(self.optimizer, n_all, mu_D)
        parts = [self._part(i, order_KN, draw_KNG, single_KN) for i in range(len(self.contenders))]
        rewards_KN = self.rollouts.rewards_R[single_KN]
        for size in self.curve_sizes:
            r = rewards_KN[:, :size]
            loo = (r.sum(axis=1, keepdims=True) - r) / (size - 1)
            parts.append(_Part(single_KN[:, :size], (r - loo) / size, self.gradients))
        norms_KA = (
            np.stack([self._norms(p) for p in parts], axis=1) if self.needs_norms else np.ones((n_batches, n_all))
        )
        plain_KAB = np.stack([parts[i].weights_KB for i in self.plain], axis=1).astype(np.float32)
        others = [i for i in range(n_all) if i not in self.plain]
        gradients_AD = np.empty((n_all, len(mu_D)), np.float32)
        total = 0.0
        for k in range(n_batches):
            gradients_AD[self.plain] = plain_KAB[k] @ self.gradients.coordinates_RD[single_KN[k, :b]]
            for i in others:
                p = parts[i]
                gradients_AD[i] = p.weights_KB[k].astype(np.float32) @ p.gradients.coordinates_RD[p.rows_KB[k]]
            products_AS = directions.step(gradients_AD, norms_KA[k])
            if k >= self.optimizer.burn_in:
                total = total + products_AS
        limit = self.optimizer.max_grad_norm
        clipped = float((norms_KA[:, 0] > limit).mean()) if limit is not None else 0.0
        return np.asarray(total) / steps, clipped

    def _true_gradient(self, tasks: IntArray, weights_N: FloatArray) -> FloatArray:
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

    def _part(self, i: int, order_KN: IntArray, draw_KNG: IntArray, single_KN: IntArray) -> _Part:
        """Rows and weights (advantage over B) of a contender's batches."""
        c, b = self.contenders[i], self.batch_size
        gradients = c.gradients or self.gradients
        if c.group_size > 1:
            n_tasks = b // c.group_size
            at = order_KN[:, :n_tasks, None] * self.group_size + draw_KNG[:, :n_tasks, : c.group_size]
            rows_KB = at.reshape(len(at), b)
            return _Part(rows_KB, self._predicted(c, rows_KB) / b, gradients)
        rows_KB = single_KN[:, :b]
        if c.gradients is not None:
            return _Part(rows_KB, np.full(rows_KB.shape, 1 / b), gradients)
        if c.values_R is not None:
            return _Part(rows_KB, (self.rollouts.rewards_R - c.values_R)[rows_KB] / b, gradients)
        assert c.baseline is not None
        window = min(c.window_asked, order_KN.shape[1] - b)
        self.windows[i] = window
        columns_KM, seen_KM = order_KN[:, : b + window], single_KN[:, : b + window]
        rewards_KM = self.rollouts.rewards_R[seen_KM]
        ages_M = np.concatenate([np.zeros(b, np.int64), 1 + np.arange(window)[::-1] // b])
        if c.baseline.tags.self_inclusive or c.baseline.tags.uses_lengths:
            return _Part(rows_KB, self._predicted(c, rows_KB) / b, gradients)
        values_KB = drawn_baselines(c.baseline, self.rollouts, columns_KM, rewards_KM, b, ages_M)
        return _Part(rows_KB, (rewards_KM[:, :b] - values_KB) / b, gradients)

    def _predicted(self, contender: Contender, rows_KB: IntArray) -> FloatArray:
        """Advantages as the arm itself makes them, its own scaling included, without history (K, B)."""
        assert isinstance(contender.baseline, Baseline)
        table, empty = self.rollouts, History.empty()
        out = np.empty(rows_KB.shape)
        for k, rows in enumerate(rows_KB):
            lengths = None if table.lengths_R is None else table.lengths_R[rows]
            batch = Batch(table.tasks.take(rows // self.group_size), table.rewards_R[rows], lengths)
            out[k] = contender.baseline.predict(batch, empty).advantages_B
        return out

    def _norms(self, part: _Part) -> FloatArray:
        """Norm of each whole batch gradient (K,)."""
        out = np.empty(len(part.rows_KB))
        for start in range(0, len(out), 256):
            rows, w = part.rows_KB[start : start + 256], part.weights_KB[start : start + 256]
            gram = part.gradients.gram_RR[rows[:, :, None], rows[:, None, :]]
            out[start : start + 256] = np.einsum("kb,kbc,kc->k", w, gram, w, optimize=True)
        return np.sqrt(np.maximum(out, 0.0))


class _Part(NamedTuple):
    """One contender's batches: rows of the gradients and what each is multiplied by."""

    rows_KB: IntArray
    weights_KB: FloatArray
    gradients: GradientSample


def _summarise(
    totals: FloatArray,
    contenders: Sequence[Contender],
    sizes: Sequence[int],
    stream: _Streams,
    clipped_share: float,
    n_steps: int,
) -> ProgressReport:
    """Ratios to LOO, equivalent batches and their intervals from (replication, halving, contender, stretch) means."""
    replicated = totals.sum(axis=3)
    mean_A = replicated.mean(axis=(0, 1))
    n_contenders = len(contenders)
    kept = stream.gradients.coordinates_RD.shape[1] / stream.gradients.n_parameters
    spread = _Spread(totals, mean_A, left_out=1 - kept)
    doubt = spread.over_tasks(np.eye(len(mean_A))[0])
    if not (mean_A[0] > 0 and doubt < 1):
        raise NoDirectionError(
            f"the steps of the {LOO} point along the true gradient no more than by chance, so nothing can be compared "
            "with them: sample more tasks or more rollouts of each"
        )
    logs_A = np.log(np.maximum(mean_A, 1e-300) / mean_A[0])
    b = stream.batch_size
    curve = BatchCurve(np.array(sizes) / b, logs_A[n_contenders:])
    rows = []
    for i, c in enumerate(contenders):
        ratio, equivalent, beyond = Estimate(1.0, 1.0, 1.0), Estimate(float(b), float(b), float(b)), False
        if i:
            ratio = spread.ratio(mean_A[i] / mean_A[0], _unit(len(mean_A), i, 0))
            equivalent, beyond = _equivalent(mean_A, logs_A, i, n_contenders, curve, spread, b)
        window = stream.windows[i]
        rows.append(ProgressRow(c.label, ratio, equivalent, beyond, window, c.window_asked, c.group_size, c.note))
    rows.sort(key=lambda row: -row.progress.value if np.isfinite(row.progress.value) else np.inf)
    measured = [(b, Estimate(1.0, 1.0, 1.0))]
    for j, size in enumerate(sizes, n_contenders):
        measured.append((size, spread.ratio(mean_A[j] / mean_A[0], _unit(len(mean_A), j, 0))))
    return ProgressReport(
        rows=rows,
        curve=sorted(measured),
        batch_size=b,
        optimizer=stream.optimizer,
        clipped_share=clipped_share,
        n_tasks=stream.rollouts.n_tasks,
        n_coordinates=stream.gradients.coordinates_RD.shape[1],
        n_parameters=stream.gradients.n_parameters,
        n_steps=n_steps,
        notes=_notes(stream, curve, rows, doubt),
    )


class _Spread:
    """Standard errors of linear combinations of the contenders' log progress."""

    def __init__(self, totals: FloatArray, mean_A: FloatArray, left_out: float) -> None:
        safe_A = np.where(np.abs(mean_A) > 0, mean_A, np.nan)
        self.relative_RHA = totals.sum(axis=3) / safe_A
        self.stretches_SA = (totals.mean(axis=(0, 1)) / safe_A[:, None]).T
        self.degrees = len(totals) // 2  # replications come in mirrored pairs
        self.left_out = left_out

    def of(self, weights_A: FloatArray) -> float:
        """Standard error of ``sum_a weights_a log(progress_a)`` by the delta method."""
        return float(np.hypot(self.over_tasks(weights_A), self.over_parameters(weights_A)))

    def over_tasks(self, weights_A: FloatArray) -> float:
        """The part of it from the sample of tasks, and from the draw of halves and batches."""
        used = weights_A != 0
        z_RH = self.relative_RHA[:, :, used] @ weights_A[used]
        n_replications, n_halves = z_RH.shape
        within = float(z_RH.var(axis=1, ddof=1).mean())
        between = float(z_RH.mean(axis=1).var(ddof=1))
        tasks = max(between - within / n_halves, LEAST_SHARE * between) / SHIFT**2
        return float(np.sqrt(tasks + within / (n_replications * n_halves)))

    def over_parameters(self, weights_A: FloatArray) -> float:
        """The part from the choice of D of P parameters: a jackknife over stretches of them."""
        used = weights_A != 0
        part_S = self.stretches_SA[:, used] @ weights_A[used]
        n = len(part_S)
        return float(np.sqrt(((part_S - part_S.mean()) ** 2).sum() * n / (n - 1) * self.left_out))

    def ratio(self, value: float, weights_A: FloatArray) -> Estimate:
        """A ratio with its interval, symmetric on the log scale."""
        se = self.of(weights_A)
        if not (np.isfinite(se) and value > 0):
            return Estimate(float(value), np.nan, np.nan)
        factor = float(np.exp(min(float(scipy.stats.t.ppf(0.975, self.degrees)) * se, 700.0)))
        return Estimate(float(value), float(value / factor), float(value * factor))


def _unit(n: int, plus: int, minus: int) -> FloatArray:
    out = np.zeros(n)
    out[plus] += 1
    out[minus] -= 1
    return out


def _equivalent(
    mean_A: FloatArray, logs_A: FloatArray, i: int, n_contenders: int, curve: BatchCurve, spread: _Spread, b: int
) -> tuple[Estimate, bool]:
    x = curve.solve(float(logs_A[i])) if mean_A[i] > 0 else np.nan
    if not np.isfinite(x):
        return Estimate(np.nan, np.nan, np.nan), False
    weights_A = _unit(len(mean_A), i, 0)
    at_curve_C = curve.weights_at(x)
    weights_A[n_contenders:] -= at_curve_C
    weights_A[0] += at_curve_C.sum()
    estimate = spread.ratio(1.0, weights_A / curve.slope(x))
    value = b * float(np.exp(x))
    return Estimate(value, value * estimate.low, value * estimate.high), not curve.measured(x)


def _notes(stream: _Streams, curve: BatchCurve, rows: Sequence[ProgressRow], doubt: float) -> list[str]:
    notes = []
    if doubt > 0.5:
        notes.append(
            f"How far the {LOO}'s own step points along the true gradient is known to +-{1.96 * doubt:.0%} only: more "
            "rollouts of each task would narrow every interval."
        )
    cut = [r for r in rows if r.window < r.window_asked]
    if cut:
        notes.append(
            f"A window of {cut[0].window_asked} rows was asked for; batches come from one half of the tasks, which "
            "leaves "
            f"{cut[0].window} other tasks beside a batch."
        )
    if not np.isfinite(curve.solve(0.0)):
        notes.append(
            "LOO's progress hardly rises with the batch here, so that no equivalent batch can be read off its curve."
        )
    return notes


__all__ = ["LOO", "Contender", "GradientSample", "ProgressReport", "ProgressRow", "measure_progress"]
