"""What is drawn: batches of distinct tasks, the same ones for every baseline that is compared, and rollouts of them."""

from __future__ import annotations

import numpy as np
from numba import njit

from rollonce.rollouts import FloatArray, IntArray, Rollouts


@njit(cache=True)
def _shuffle_heads(n: int, uniform_KM: np.ndarray) -> np.ndarray:
    """The first M entries of K random permutations of range(n), in O(K M) time and O(n) memory (Fisher-Yates, undone
    after each)."""
    n_batches, m = uniform_KM.shape
    out = np.empty((n_batches, m), dtype=np.int64)
    order = np.arange(n)
    picked = np.empty(m, dtype=np.int64)
    for k in range(n_batches):
        for i in range(m):
            j = i + int(uniform_KM[k, i] * (n - i))
            picked[i] = j
            order[i], order[j] = order[j], order[i]
            out[k, i] = order[i]
        for i in range(m - 1, -1, -1):
            j = picked[i]
            order[i], order[j] = order[j], order[i]
    return out


def draw_columns(n_tasks: int, n_columns: int, n_batches: int, rng: np.random.Generator) -> IntArray:
    """K batches of M distinct positions out of N (K, M)."""
    return _shuffle_heads(n_tasks, rng.random((n_batches, n_columns)))


def draw_batches(n_tasks: int, batch_size: int, window: int, n_batches: int, rng: np.random.Generator) -> IntArray:
    """K batches of B distinct tasks, each with a window of that many others (K, B + window); the batches do not depend
    on the window."""
    heads_KB = draw_columns(n_tasks, batch_size, n_batches, rng)
    if not window:
        return heads_KB
    out = np.empty((n_batches, batch_size + window), dtype=np.int64)
    out[:, :batch_size] = heads_KB
    mask_N = np.ones(n_tasks, dtype=bool)
    picks_KH = draw_columns(n_tasks - batch_size, window, n_batches, rng)
    for k in range(n_batches):
        mask_N[heads_KB[k]] = False
        out[k, batch_size:] = (
            np.flatnonzero(mask_N)[picks_KH[k]] if n_tasks < 20_000 else _pick_others(heads_KB[k], picks_KH[k])
        )
        mask_N[heads_KB[k]] = True
    return out


def draw_runs(n_tasks: int, batch_size: int, window: int, n_batches: int, rng: np.random.Generator) -> IntArray:
    """As `draw_batches`, in runs of batches that see the same tasks, so that one solve serves a run.

    A draw of ``B + window`` tasks is dealt into batches of B, each with all the rest as its window: each is distributed
    as a batch with its window drawn afresh, and weights do not depend on which of the other tasks came in the batch.
    Batches of a run are not independent of each other; intervals over tasks do not rest on that.
    """
    n_columns = batch_size + window
    length = n_columns // batch_size
    out = np.empty((n_batches, n_columns), dtype=np.int64)
    sets = draw_columns(n_tasks, n_columns, -(-n_batches // length), rng)
    for k in range(n_batches):
        one, at = sets[k // length], (k % length) * batch_size
        out[k] = np.concatenate([one[at : at + batch_size], one[:at], one[at + batch_size :]])
    return out


def draw_rewards(rollouts: Rollouts, tasks_: IntArray, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """One random rollout of each task: its reward, and its place in the group."""
    sizes = rollouts.group_sizes_N[tasks_]
    at = (rng.random(tasks_.shape) * sizes).astype(np.int64)
    return rollouts.rewards_R[rollouts.offsets_N1[:-1][tasks_] + at], at


def column_ages(batch_size: int, window: int) -> IntArray:
    """Steps ago of each column: 0 for the batch, then one step per B rows; the newest rows last (B + window,)."""
    steps = 1 + np.arange(window)[::-1] // batch_size
    return np.concatenate([np.zeros(batch_size, np.int64), steps])


def _pick_others(head_B: IntArray, picks_H: IntArray) -> IntArray:
    """The picks-th elements of range(N) without ``head``, without listing them all."""
    out = picks_H.copy()
    for task in np.sort(head_B):
        out[out >= task] += 1
    return out
