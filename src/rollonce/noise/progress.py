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

Shapes: ``_A`` contenders; the others as in `rollonce.noise.streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rollonce.baselines import LeaveOneOut
from rollonce.errors import InputError
from rollonce.noise.optimizers import STRETCHES, OptimizerSettings
from rollonce.noise.resampling import half_sample_weights
from rollonce.noise.spread import Spread, contrast_weights
from rollonce.noise.streams import Contender, GradientSample, Streams, draw_random_halves
from rollonce.rollouts import FloatArray, Rollouts
from rollonce.scoring import Estimate
from rollonce.scoring.batch_curve import SIZES, BatchCurve

LOO = LeaveOneOut().label


class NoDirectionError(InputError):
    """The steps of the yardstick do not point along the true gradient, so that nothing can be compared with them."""


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


def refuse_too_few_tasks(n_tasks: int, batch_size: int) -> None:
    """Whoever is about to sample for `measure_progress` asks this first.

    Raises:
        InputError: fewer than three batches of tasks.
    """
    if n_tasks < 3 * batch_size:
        raise InputError(
            f"progress at batches of {batch_size} needs at least {3 * batch_size} tasks (batches come from one half of "
            f"them, the true gradient from the other), not {n_tasks}: sample more, or lower --batch-size"
        )


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
    optimizer = (optimizer or OptimizerSettings()).checked_settings()
    n, b = rollouts.n_tasks, batch_size
    group_sizes = np.unique(rollouts.group_sizes_N)
    if len(group_sizes) != 1:
        raise InputError(f"progress needs the same number of rollouts of every task, not {group_sizes.tolist()}")
    refuse_too_few_tasks(n, b)
    if replications < 4 or replications % 2 or halves < 2 or steps < 1:
        raise InputError("replications must be an even number of at least 4, halves at least 2 and steps at least 1")
    chosen = [Contender(LOO, LeaveOneOut()), *(c for c in contenders if c.label != LOO)]
    for contender in chosen:
        if contender.group_size > group_sizes[0]:
            raise InputError(f"{contender.label} needs {contender.group_size} rollouts of a task, not {group_sizes[0]}")
        if b % contender.group_size:
            raise InputError(f"{contender.label}: batches of {b} are no multiple of {contender.group_size}")
    sizes = [round(f * b) for f in SIZES if 2 <= round(f * b) <= n // 2]
    stream = Streams(rollouts, gradients, chosen, optimizer, b, sizes)
    totals = np.empty((replications, halves, len(chosen) + len(sizes), STRETCHES))
    clipped = []
    for r in range(replications):
        weights_N = half_sample_weights(n, r, [seed, 41])
        for h in range(halves):
            rng = np.random.default_rng([seed, 42, r, h])
            parts = draw_random_halves(weights_N, rng)
            both = [stream.measure_step_products(parts[i], parts[1 - i], weights_N, steps, rng) for i in range(2)]
            totals[r, h] = (both[0][0] + both[1][0]) / 2
            clipped += [both[0][1], both[1][1]]
            if progress:
                progress("progress", r * halves + h + 1, replications * halves)
    return _report_on_streams(totals, chosen, sizes, stream, float(np.mean(clipped)), replications * halves * 2 * steps)


def _report_on_streams(
    totals: FloatArray,
    contenders: Sequence[Contender],
    sizes: Sequence[int],
    stream: Streams,
    clipped_share: float,
    n_steps: int,
) -> ProgressReport:
    """Ratios to LOO, equivalent batches and their intervals from (replication, halving, contender, stretch) means."""
    replicated = totals.sum(axis=3)
    mean_A = replicated.mean(axis=(0, 1))
    n_contenders = len(contenders)
    kept = stream.gradients.coordinates_RD.shape[1] / stream.gradients.n_parameters
    spread = Spread(totals, mean_A, left_out=1 - kept)
    doubt = spread.error_over_tasks(np.eye(len(mean_A))[0])
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
            ratio = spread.ratio_with_interval(mean_A[i] / mean_A[0], contrast_weights(len(mean_A), i, 0))
            equivalent, beyond = _equivalent_batch(mean_A, logs_A, i, n_contenders, curve, spread, b)
        window = stream.windows[i]
        rows.append(ProgressRow(c.label, ratio, equivalent, beyond, window, c.window_asked, c.group_size, c.note))
    rows.sort(key=lambda row: -row.progress.value if np.isfinite(row.progress.value) else np.inf)
    measured = [(b, Estimate(1.0, 1.0, 1.0))]
    for j, size in enumerate(sizes, n_contenders):
        measured.append((size, spread.ratio_with_interval(mean_A[j] / mean_A[0], contrast_weights(len(mean_A), j, 0))))
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
        notes=_notes_on_progress(stream, curve, rows, doubt),
    )


def _equivalent_batch(
    mean_A: FloatArray, logs_A: FloatArray, i: int, n_contenders: int, curve: BatchCurve, spread: Spread, b: int
) -> tuple[Estimate, bool]:
    x = curve.log_size_for_progress(float(logs_A[i])) if mean_A[i] > 0 else np.nan
    if not np.isfinite(x):
        return Estimate(np.nan, np.nan, np.nan), False
    weights_A = contrast_weights(len(mean_A), i, 0)
    at_curve_C = curve.measurement_weights_at(x)
    weights_A[n_contenders:] -= at_curve_C
    weights_A[0] += at_curve_C.sum()
    estimate = spread.ratio_with_interval(1.0, weights_A / curve.slope_at_log_size(x))
    value = b * float(np.exp(x))
    return Estimate(value, value * estimate.low, value * estimate.high), not curve.is_measured_size(x)


def _notes_on_progress(stream: Streams, curve: BatchCurve, rows: Sequence[ProgressRow], doubt: float) -> list[str]:
    notes = []
    if doubt > 0.5:
        notes.append(
            f"How far the {LOO}'s own step points along the true gradient is known to +-{1.96 * doubt:.0%} only: more "
            "rollouts of each task would narrow every interval."
        )
    cut = [r for r in rows if r.window < r.window_asked]
    if cut:
        notes.append(
            f"A window of {cut[0].window_asked} rows was asked for; batches come from one half of the tasks, "
            f"which leaves {cut[0].window} other tasks beside a batch."
        )
    if not np.isfinite(curve.log_size_for_progress(0.0)):
        notes.append(
            "LOO's progress hardly rises with the batch here, so that no equivalent batch can be read off its curve."
        )
    return notes


__all__ = ["LOO", "NoDirectionError", "ProgressReport", "ProgressRow", "measure_progress"]
