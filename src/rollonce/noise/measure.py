"""Measured gradient noise of every baseline at a fixed policy, beside what B_eff predicts, and the derivation's
approximations one by one.

With ``g_i`` the score gradient of trajectory i, a batch's gradient is ``X = sum_i A_i g_i / B`` over B tasks, one
rollout each. Its noise, the trace of its covariance, is

    V = E[A^2 |g|^2] / B  +  (B - 1) / B * E[A_i A_j <g_i, g_j>]  -  |mu|^2,        mu the true gradient, the same for
    all baselines.

``B_eff`` stands for ``V ~ E[A^2]``. That holds as far as score norms have nothing to do with advantages
(``E[A^2 |g|^2] = E[A^2] E[|g|^2]``), rollouts of a batch do not covary through each other's baselines
(``E[A_i A_j <g_i, g_j>] = |mu|^2``), noise is far above signal, and the sampler is the policy being trained. Each of
these is measured here on its own. ``mu`` is a U-statistic over pairs of tasks; the oracle's and the groups' noise
follow from per-task moments without simulation (docs/mathematics.md, "Effective batch size").

Shapes: ``_N`` tasks, ``_G`` rollouts of a task, ``_R`` = N x G rollouts in task order, ``_K`` batches, ``_B`` rollouts
of a batch, ``_M`` what it can see (itself and a window of other tasks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rollonce.baselines import (
    Baseline,
    Constant,
    FlashReinforce,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    LinearSmoother,
    NoBaseline,
    SelfTuning,
    family_mean_baseline,
    published_tfidf,
)
from rollonce.baselines.catalogue import norm_weighted_baselines
from rollonce.errors import InputError
from rollonce.kernels import Buckets
from rollonce.noise.moments import estimate_task_moments, measure_group_noise, split_between_within
from rollonce.noise.report import Approximations, NoiseReport, NoiseRow
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring import CrossFitted, Estimate, Scorer, cross_fit_baseline
from rollonce.scoring.quantities import Design, Quantity
from rollonce.scoring.recipe import drawn_baselines


def noise_baselines(
    rollouts: Rollouts, window: int = 512, norm_exponent: float | None = None
) -> list[Baseline | CrossFitted]:
    """What `rollonce noise` measures by default, fitted on the prompts; each in batch, and with a window where that is
    of use.

    The self-tuning and the norm-weighted ones are cross-fitted: what serves a task learned from other tasks' rewards.
    Without ``norm_weighted_exponent``, the exponent of the surprisal between rewards, there are no norm-weighted ones.
    """
    tasks = rollouts.tasks
    out: list[Baseline] = [NoBaseline(), Constant(), FlashReinforce(), LeaveOneOut(), published_tfidf(), Kriging()]
    names = tasks.column_names
    out += [family_mean_baseline(c) for c in names]
    windowed: list[Baseline] = [
        LeaveOneOut(window=window),
        KernelBaseline(Buckets(), window=window),
        published_tfidf(window),
    ]
    windowed += [*(family_mean_baseline(c, window=window) for c in names), Kriging(window=window)]
    if window:
        out += windowed
    fitted: list[Baseline | CrossFitted] = [b.fit(tasks) for b in out]
    if rollouts.n_tasks >= 64 and np.ptp(rollouts.rewards_R) > 0:
        for w in dict.fromkeys((0, window)):
            fitted.append(cross_fit_baseline(SelfTuning(window=w), rollouts))
        if norm_exponent is not None:
            fitted += [cross_fit_baseline(b, rollouts) for b in norm_weighted_baselines(window, norm_exponent)]
    return fitted


def with_joint_column(columns: dict[str, Sequence[object]]) -> dict[str, Sequence[object]]:
    """Declared columns, and where there are several the combination of all, as a column of its own (family+level)."""
    if len(columns) < 2:
        return dict(columns)
    joint = [" / ".join(map(str, values)) for values in zip(*columns.values(), strict=True)]
    return {**columns, "+".join(columns): joint}


def measure_gradient_noise(
    rollouts: Rollouts,
    gram_RR: FloatArray,
    baselines: Sequence[Baseline | CrossFitted],
    *,
    lengths_R: FloatArray | None = None,
    batch_size: int = 32,
    n_batches: int = 4000,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> NoiseReport:
    """Noise of each baseline on common batches of distinct tasks, one random rollout each.

    Args:
        rollouts: N tasks, G rollouts each, of one policy.
        gram_RR: Inner products of their score gradients, in the same order.
        baselines: Fitted. A self-inclusive one is measured as its leave-one-out twin; the in-batch LOO mean and the
            oracle are always there.
        lengths_R: Response tokens, for the variation of the token-mean's denominator.
        batch_size: B.
        n_batches: K; well above N, or the intervals are wide for want of batches.
        seed: Of batches and draws.
        progress: Called with (label, done, total).

    Raises:
        InputError: groups of different sizes or of one, fewer than 2 B tasks, rewards all equal, or a baseline that
            needs groups or repeats.
    """
    g = _check_noise_sample(rollouts, gram_RR, n_batches)
    n = rollouts.n_tasks
    scorer = Scorer(rollouts, batch_size, n_batches, resamples=0, seed=seed)
    heads_KB = scorer.draw_common_batches(0)
    design = Design(heads_KB, n)
    draws_KB = heads_KB * g + np.random.default_rng([seed, 21]).integers(g, size=heads_KB.shape)
    drawn = _Drawn(
        scorer,
        draws_KB,
        rollouts.rewards_R[draws_KB],
        gram_RR[draws_KB[:, :, None], draws_KB[:, None, :]],
        np.diag(gram_RR)[draws_KB],
    )
    tasks = estimate_task_moments(rollouts, gram_RR, g)
    mu2 = design.mean_over_pairs(tasks.products_NN)
    norm2 = design.mean_over_batches(drawn.norms_KB.mean(axis=1))
    todo = list(baselines)
    if not any(isinstance(b, LeaveOneOut) and not b.window for b in todo):
        todo.insert(0, LeaveOneOut())
    loo = _parts_of_noise(drawn, design, LeaveOneOut(), mu2, norm2, seed)
    if not loo.noise.value > 1e-12 * norm2.value:
        raise InputError(
            f"the noise of the LOO mean comes out at {loo.noise.value:.2g}, not above zero: sample more tasks, or "
            "check the gradients"
        )
    oracle = (design.mean_over_tasks(tasks.perfect_N) - mu2) / batch_size if g >= 3 else None
    rows = []
    for i, baseline in enumerate(todo):
        if progress:
            progress(baseline.label, i, len(todo))
        rows.append(_row_of_contender(baseline, drawn, design, loo, oracle, mu2, norm2, seed))
    if oracle is not None:
        rows.append(_row_of_oracle(oracle, loo, mu2, norm2, design.mean_over_tasks(rollouts.variances_N), batch_size))
    rows.sort(key=lambda r: r.ratio.value if np.isfinite(r.ratio.value) else np.inf)
    if progress:
        progress("", len(todo), len(todo))
    between, within = split_between_within(design, tasks, mu2, g)
    groups = [
        measure_group_noise(rollouts, gram_RR, design, size, batch_size, mu2, loo.noise, between, within, seed)
        for size in (2, 4, 8, 16)
        if size <= g and batch_size % size == 0 and size < batch_size
    ]
    unit = loo.noise * batch_size
    nothing = Estimate(np.nan, np.nan, np.nan)
    good_R = rollouts.rewards_R > rollouts.rewards_R.mean()
    norms_R = np.diag(gram_RR)
    denominators = None if lengths_R is None else lengths_R[draws_KB].sum(axis=1)
    approximations = Approximations(
        loo.cross.estimate_with_interval(log=False),
        loo.norm.estimate_with_interval(),
        float(norms_R[good_R].mean() / norms_R[~good_R].mean()),
        float(np.corrcoef(norms_R, rollouts.rewards_R)[0, 1]) if np.ptp(norms_R) > 0 else 0.0,
        float(np.sort(norms_R)[-max(1, round(0.01 * len(norms_R))) :].sum() / norms_R.sum()),
        (mu2 / loo.noise).estimate_with_interval(log=False),
        (mu2 / unit).estimate_with_interval(log=False),
        (between / unit).estimate_with_interval(log=False) if between is not None else nothing,
        (within / unit).estimate_with_interval(log=False) if within is not None else nothing,
        (between / within).estimate_with_interval(log=False) if between is not None and within is not None else nothing,
        float(denominators.std() / denominators.mean()) if denominators is not None else np.nan,
    )
    return NoiseReport(
        rows,
        groups,
        approximations,
        batch_size,
        n,
        g,
        n_batches,
        float(rollouts.rewards_R.mean()),
        scorer.s2,
        loo.noise.estimate_with_interval(),
        _notes_on_noise(rows, n, batch_size, g),
    )


class _Drawn(NamedTuple):
    """The common batches: rollouts, their rewards, Gram blocks and squared norms."""

    scorer: Scorer
    rollouts_KB: IntArray
    rewards_KB: FloatArray
    gram_KBB: FloatArray
    norms_KB: FloatArray


class _Parts(NamedTuple):
    noise: Quantity
    squared: Quantity
    norm: Quantity
    cross: Quantity


def _check_noise_sample(rollouts: Rollouts, gram_RR: FloatArray, n_batches: int) -> int:
    sizes = np.unique(rollouts.group_sizes_N)
    if len(sizes) != 1 or sizes[0] < 2:
        raise InputError(
            f"noise needs the same number of rollouts of every task, at least 2; these groups are of {sizes.tolist()}"
        )
    if gram_RR.shape != (rollouts.n_rollouts,) * 2:
        raise InputError(
            f"{rollouts.n_rollouts} rollouts need a Gram matrix of as many rows, not of shape {gram_RR.shape}"
        )
    if np.ptp(rollouts.rewards_R) == 0:
        raise InputError(
            f"all {rollouts.n_rollouts} rewards are {rollouts.rewards_R[0]:g}: a batch mean leaves no advantage to "
            "measure"
        )
    if not np.diag(gram_RR).any():
        raise InputError("all score gradients are zero: the policy leaves nothing to chance")
    if n_batches < 100:
        raise InputError(f"at least 100 batches are needed for an estimate of noise, not {n_batches}")
    return int(sizes[0])


def _advantages_on_batches(drawn: _Drawn, baseline: Baseline | CrossFitted, window: int, seed: int) -> FloatArray:
    scorer, b = drawn.scorer, drawn.scorer.batch_size
    columns = scorer.draw_common_batches(window)
    rewards = drawn.rewards_KB
    if window:
        g = int(scorer.rollouts.group_sizes_N[0])
        past = columns[:, b:]
        at = past * g + np.random.default_rng([seed, 22]).integers(g, size=past.shape)
        rewards = np.concatenate([rewards, scorer.rollouts.rewards_R[at]], axis=1)
    b_KB = drawn_baselines(baseline, scorer.rollouts, columns, rewards, b, scorer.ages_with_window(window))
    return drawn.rewards_KB - b_KB


def _parts_of_noise(
    drawn: _Drawn,
    design: Design,
    baseline: Baseline | CrossFitted,
    mu2: Quantity,
    norm2: Quantity,
    seed: int,
    window: int = 0,
) -> _Parts:
    """Noise, E[A^2], norm factor and cross share of one baseline."""
    b = drawn.scorer.batch_size
    a_KB = _advantages_on_batches(drawn, baseline, window, seed)
    total_K = np.einsum("kb,kbc,kc->k", a_KB, drawn.gram_KBB, a_KB, optimize=True) / b**2
    own_K = (a_KB**2 * drawn.norms_KB).sum(axis=1) / b**2
    own, squared = design.mean_over_batches(own_K), design.mean_over_batches((a_KB**2).mean(axis=1))
    noise = design.mean_over_batches(total_K) - mu2
    cross = design.mean_over_batches(total_K - own_K) - mu2 * ((b - 1) / b)
    return _Parts(noise, squared, own * b / (squared * norm2), cross / noise)


def _row_of_contender(
    baseline: Baseline | CrossFitted,
    drawn: _Drawn,
    design: Design,
    loo: _Parts,
    oracle: Quantity | None,
    mu2: Quantity,
    norm2: Quantity,
    seed: int,
) -> NoiseRow:
    scorer = drawn.scorer
    tags = baseline.tags
    if tags.needs_groups or tags.needs_repeats:
        raise InputError(
            f"{baseline.label} needs {'groups' if tags.needs_groups else 'repeats'} and has no noise at one rollout "
            "per task"
        )
    twin = baseline.twin()
    asked = int(getattr(twin, "window", 0))
    window = scorer.usable_window_rows(asked)
    parts = _parts_of_noise(drawn, design, twin, mu2, norm2, seed, window)
    ratio, predicted = parts.noise / loo.noise, parts.squared / loo.squared
    closed = np.nan
    if isinstance(twin, LinearSmoother | NoBaseline | Constant) or (
        isinstance(twin, CrossFitted) and twin.is_linear_smoother
    ):
        errors = scorer.unbiased_squared_errors(twin, scorer.draw_common_batches(window), window)
        errors_loo = scorer.unbiased_squared_errors(LeaveOneOut(), scorer.draw_common_batches(0), 0)
        closed = float((scorer.s2 + np.nanmean(errors)) / (scorer.s2 + np.nanmean(errors_loo)))
    is_loo = isinstance(twin, LeaveOneOut) and not window
    one = Estimate(1.0, 1.0, 1.0)
    return NoiseRow(
        baseline.label,
        one if is_loo else ratio.estimate_with_interval(),
        one if is_loo else predicted.estimate_with_interval(),
        1.0 if is_loo else closed,
        one if is_loo else (ratio / predicted).estimate_with_interval(),
        parts.norm.estimate_with_interval(),
        one if is_loo else (parts.norm / loo.norm).estimate_with_interval(),
        parts.cross.estimate_with_interval(log=False),
        parts.noise.value,
        scorer.batch_size * scorer.s2 / parts.squared.value,
        (oracle / parts.noise * scorer.batch_size).estimate_with_interval()
        if oracle is not None
        else Estimate(np.nan, np.nan, np.nan),
        window,
        asked,
        twin.label if twin is not baseline else "",
    )


def _row_of_oracle(oracle: Quantity, loo: _Parts, mu2: Quantity, norm2: Quantity, s2: Quantity, b: int) -> NoiseRow:
    ratio, predicted = oracle / loo.noise, s2 / loo.squared
    norm = (oracle * b + mu2) / (s2 * norm2)
    return NoiseRow(
        "oracle (true mean)",
        ratio.estimate_with_interval(),
        predicted.estimate_with_interval(),
        predicted.value,
        (ratio / predicted).estimate_with_interval(),
        norm.estimate_with_interval(),
        (norm / loo.norm).estimate_with_interval(),
        Estimate(0.0, 0.0, 0.0),
        oracle.value,
        float(b),
        Estimate(float(b), float(b), float(b)),
        note="ceiling: the task's other rollouts stand for its true mean, and their own noise is taken out exactly",
    )


def _notes_on_noise(rows: Sequence[NoiseRow], n: int, b: int, g: int) -> list[str]:
    notes = []
    cut = [r for r in rows if r.window < r.window_asked]
    if cut:
        notes.append(
            f"A window of {cut[0].window_asked} rows was asked for, but {n} tasks less a batch of {b} leave "
            f"{cut[0].window} other tasks; that many were used."
        )
    if any(r.window for r in rows):
        notes.append("Intervals hold the sampling of tasks in the batch, not that of the rows in a window.")
    if g < 3:
        notes.append(
            "With 2 rollouts a task neither the oracle nor g2_between and g2_within can be told; sample at least 3."
        )
    return notes


__all__ = ["measure_gradient_noise", "noise_baselines", "with_joint_column"]
