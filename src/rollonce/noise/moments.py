"""What needs no simulation: moments of each task's gradients, the groups' noise, and what another sampler does.

Rollouts of a task are exchangeable and independent, so products of *different* ones, each with a baseline from the
remaining ones, are unbiased; tasks are independent, so the noise of K groups is that of one task's gradient over K.

Shapes: ``_N`` tasks, ``_G`` rollouts of a task, ``_R`` = N x G rollouts in task order, ``_D`` numbers of a sketch.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from rollonce.noise.report import Lag, NoiseGroup, NoiseReport
from rollonce.rollouts import FloatArray, Rollouts
from rollonce.scoring import Estimate, dead_group_fraction
from rollonce.scoring.quantities import Design, Quantity

_MAX_SUBSETS = 70


class TaskMoments(NamedTuple):
    """``products_NN[n, m]``: inner product of two tasks' mean gradients; ``perfect_N``: E[(r - p)^2 |g|^2]; ``own_N``:
    |mu_n|^2."""

    products_NN: FloatArray
    perfect_N: FloatArray
    own_N: FloatArray


def estimate_task_moments(rollouts: Rollouts, gram_RR: FloatArray, g: int) -> TaskMoments:
    """Unbiased moments of each task under the perfect baseline, from held-out means: no rollout meets its own reward in
    its baseline."""
    n = rollouts.n_tasks
    r_NG = rollouts.rewards_R.reshape(n, g)
    rest_NG = (r_NG.sum(axis=1, keepdims=True) - r_NG) / (g - 1)
    a_R = (r_NG - rest_NG).reshape(-1)
    products = (gram_RR * a_R[:, None] * a_R[None, :]).reshape(n, g, n, g).sum(axis=(1, 3)) / g**2
    if g < 3:
        return TaskMoments(products, np.full(n, np.nan), np.full(n, np.nan))
    at = np.arange(n)
    block_NGG = gram_RR.reshape(n, g, n, g)[at, :, at, :]
    norms_NG = np.einsum("ngg->ng", block_NGG)
    # (r - rest)^2 is (r - p)^2 plus the variance of rest, which the other rollouts tell without bias and which is
    # independent of g.
    squares = (r_NG**2).sum(axis=1, keepdims=True) - r_NG**2
    s2_rest_NG = (squares - (g - 1) * rest_NG**2) / (g - 2)
    perfect = (((r_NG - rest_NG) ** 2 - s2_rest_NG / (g - 1)) * norms_NG).mean(axis=1)
    # Pairs of one task: both baselines from the G - 2 others. Their shared error e adds E[e^2] |E g|^2 = 0.
    total = r_NG.sum(axis=1)[:, None, None]
    others_NGG = (total - r_NG[:, :, None] - r_NG[:, None, :]) / (g - 2)
    pair = (r_NG[:, :, None] - others_NGG) * (r_NG[:, None, :] - others_NGG) * block_NGG
    own = (pair.sum(axis=(1, 2)) - np.einsum("ngg->n", pair)) / (g * (g - 1))
    return TaskMoments(products, perfect, own)


def split_between_within(
    design: Design, tasks: TaskMoments, mu2: Quantity, g: int
) -> tuple[Quantity | None, Quantity | None]:
    """g2_between and g2_within (docs/mathematics.md, "Effective batch size"); None for groups below 3."""
    if g < 3:
        return None, None
    own = design.mean_over_tasks(tasks.own_N)
    return own - mu2, design.mean_over_tasks(tasks.perfect_N) - own


def measure_group_noise(
    rollouts: Rollouts,
    gram_RR: FloatArray,
    design: Design,
    size: int,
    b: int,
    mu2: Quantity,
    loo_noise: Quantity,
    between: Quantity | None,
    within: Quantity | None,
    seed: int,
) -> NoiseGroup:
    """Groups of ``size``: tasks are independent, so the noise is that of one task's gradient over the number of
    tasks."""
    n, g = rollouts.n_tasks, int(rollouts.group_sizes_N[0])
    k = b // size
    at = np.arange(n)
    block_NGG = gram_RR.reshape(n, g, n, g)[at, :, at, :]
    r_NG = rollouts.rewards_R.reshape(n, g)
    square_rloo, square_none = np.zeros(n), np.zeros(n)
    subsets = _subsets_of_group(g, size, seed)
    for s in subsets:
        r, block = r_NG[:, s], block_NGG[:, s][:, :, s]
        a = r - (r.sum(axis=1, keepdims=True) - r) / (size - 1)
        square_rloo += np.einsum("nk,nkl,nl->n", a, block, a) / size**2
        square_none += np.einsum("nk,nkl,nl->n", r, block, r) / size**2
    measured = (design.mean_over_tasks(square_rloo / len(subsets)) - mu2) / k
    none = (design.mean_over_tasks(square_none / len(subsets)) - mu2) / k
    predicted = Estimate(np.nan, np.nan, np.nan)
    if between is not None and within is not None:
        predicted = ((between / k + within * (1 + 1 / (size - 1)) / b) / loo_noise).estimate_with_interval()
    return NoiseGroup(
        size,
        k,
        (measured / loo_noise).estimate_with_interval(),
        predicted,
        (none / loo_noise).estimate_with_interval(),
        dead_group_fraction(rollouts, size),
    )


def _subsets_of_group(g: int, size: int, seed: int) -> list[list[int]]:
    """All subsets of that size, or seventy of them, dealt so that few overlap, where there are more."""
    every = itertools.combinations(range(g), size)
    first = list(itertools.islice(every, _MAX_SUBSETS + 1))
    if len(first) <= _MAX_SUBSETS:
        return [list(s) for s in first]
    rng = np.random.default_rng([seed, 23])
    out: list[list[int]] = []
    while len(out) < _MAX_SUBSETS:
        order = rng.permutation(g)
        out += [sorted(order[i : i + size].tolist()) for i in range(0, g - size + 1, size)]
    return out


def measure_lag_effect(
    on: tuple[Rollouts, FloatArray, NoiseReport], lagged: tuple[Rollouts, FloatArray, NoiseReport]
) -> Lag:
    """Compare two samplers of the same tasks.

    Args:
        on: On-policy rollouts, sketches of their gradients (R, D), and what was measured.
        lagged: The same of the lagged sampler, sketched with the same seed.
    """
    tables = [_mean_task_gradients(rollouts, sketches) for rollouts, sketches, _ in (on, lagged)]
    n = len(tables[0])
    # Pairs of different tasks only, also across samplers: within a task the products would hold the spread between
    # tasks.
    sums = []
    for a, b in ((0, 1), (0, 0), (1, 1)):
        c_NN = tables[a] @ tables[b].T
        np.fill_diagonal(c_NN, 0.0)
        sums.append((c_NN.sum(), c_NN.sum(axis=0) + c_NN.sum(axis=1)))
    cosine = lambda c, a, b: float(c / np.sqrt(a * b)) if a > 0 and b > 0 else np.nan  # noqa: E731
    value = cosine(*(total for total, _ in sums))
    rest_N = np.array([cosine(*(total - rows[i] for total, rows in sums)) for i in range(n)])
    half = 1.96 * float(np.sqrt((n - 1) * rest_N.var()))
    return Lag(lagged[2].loo_noise.value / on[2].loo_noise.value, Estimate(value, value - half, value + half))


def _mean_task_gradients(rollouts: Rollouts, sketches_RD: FloatArray) -> FloatArray:
    """Each task's mean gradient (N, D), baselines from the task's other rollouts."""
    n, g = rollouts.n_tasks, int(rollouts.group_sizes_N[0])
    r_NG = rollouts.rewards_R.reshape(n, g)
    a_NG = r_NG - (r_NG.sum(axis=1, keepdims=True) - r_NG) / (g - 1)
    return np.einsum("ng,ngd->nd", a_NG, sketches_RD.reshape(n, g, -1), optimize=True).astype(np.float64) / g


__all__ = ["TaskMoments", "estimate_task_moments", "measure_group_noise", "measure_lag_effect", "split_between_within"]
