"""What is drawn: batches of distinct tasks, the same ones for every baseline that is compared, and rollouts of them."""

from __future__ import annotations

import numpy as np

from rollonce.rollouts import FloatArray, IntArray, Rollouts

_ENTRIES_AT_ONCE = 8_000_000
_CACHED_ENTRIES = 300_000  # what fits the processor's cache


def draw_distinct_columns(n_tasks: int, n_columns: int, n_batches: int, rng: np.random.Generator) -> IntArray:
    """K batches of M distinct positions out of N (K, M)."""
    return permutation_heads(n_tasks, rng.random((n_batches, n_columns)))


def permutation_heads(n: int, uniform_KM: FloatArray) -> IntArray:
    """The first M entries of K random permutations of range(n) (K, M), by Fisher and Yates, many of them at a time."""
    n_batches, n_columns = uniform_KM.shape
    out = np.empty((n_batches, n_columns), dtype=np.int64)
    step_M1 = np.arange(n_columns)[:, None]
    chunk = max(1, _CACHED_ENTRIES // n)
    for start in range(0, n_batches, chunk):
        uniform_MK = uniform_KM[start : start + chunk].T
        n_chunk = uniform_MK.shape[1]
        order = np.repeat(np.arange(n), n_chunk)  # (n, K), flat
        other_MK = (step_M1 + (uniform_MK * (n - step_M1)).astype(np.int64)) * n_chunk + np.arange(n_chunk)
        for i in range(n_columns):
            out[start : start + chunk, i] = order[other_MK[i]]
            order[other_MK[i]] = order[i * n_chunk : (i + 1) * n_chunk]
    return out


def draw_windowed_batches(
    n_tasks: int, batch_size: int, window: int, n_batches: int, rng: np.random.Generator
) -> IntArray:
    """K batches of B distinct tasks, each with a window of that many others (K, B + window); the batches do not depend
    on the window."""
    return _batches_from_uniform(n_tasks, *_draw_uniform_numbers(n_batches, batch_size, window, rng))


def draw_task_resamples(
    n_tasks: int, batch_size: int, window: int, n_batches: int, resamples: int, seed: int
) -> tuple[IntArray, IntArray]:
    """R resamples of the tasks, drawn with replacement (R, N), and K batches of each, as `draw_windowed_batches` draws
    them from distinct tasks (R, K, B + window)."""
    task_of_RN = np.stack(
        [np.random.default_rng([seed, 4, r]).integers(n_tasks, size=n_tasks) for r in range(resamples)]
    )
    drawn = [
        _draw_uniform_numbers(n_batches, batch_size, window, np.random.default_rng([seed, 5, r]))
        for r in range(resamples)
    ]
    places = _batches_from_uniform(n_tasks, *(np.concatenate(part) for part in zip(*drawn, strict=True)))
    columns_RKM = np.take_along_axis(task_of_RN, places.reshape(resamples, -1), axis=1)
    return task_of_RN, columns_RKM.reshape(resamples, n_batches, -1)


def _draw_uniform_numbers(
    n_batches: int, batch_size: int, window: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    return rng.random((n_batches, batch_size)), rng.random((n_batches, window))


def _batches_from_uniform(n_tasks: int, heads_KB: FloatArray, picks_KH: FloatArray) -> IntArray:
    batches_KB = permutation_heads(n_tasks, heads_KB)
    if not picks_KH.shape[1]:
        return batches_KB
    picks = permutation_heads(n_tasks - batches_KB.shape[1], picks_KH)
    return np.concatenate([batches_KB, pick_other_tasks(batches_KB, picks, n_tasks)], axis=1)


def pick_other_tasks(heads_KB: IntArray, picks_KH: IntArray, n_tasks: int) -> IntArray:
    """The picks-th of the tasks, in order, that are not in the batch (K, H)."""
    out = np.empty_like(picks_KH)
    chunk = max(1, _CACHED_ENTRIES // n_tasks)
    for start in range(0, len(heads_KB), chunk):
        heads = heads_KB[start : start + chunk]
        is_other_KN = np.ones((len(heads), n_tasks), dtype=bool)
        np.put_along_axis(is_other_KN, heads, False, axis=1)
        others = np.broadcast_to(np.arange(n_tasks), is_other_KN.shape)[is_other_KN]
        first_K1 = np.arange(len(heads))[:, None] * (len(others) // max(1, len(heads)))
        others.take(first_K1 + picks_KH[start : start + chunk], out=out[start : start + chunk])
    return out


def draw_runs_of_batches(
    n_tasks: int, batch_size: int, window: int, n_batches: int, rng: np.random.Generator
) -> IntArray:
    """As `draw_windowed_batches`, in runs of batches that see the same tasks, so that one solve serves a run.

    A draw of ``B + window`` tasks is dealt into batches of B, each with all the rest as its window: each is distributed
    as a batch with its window drawn afresh, and weights do not depend on which of the other tasks came in the batch.
    Batches of a run are not independent of each other; intervals over tasks do not rest on that.
    """
    n_columns = batch_size + window
    length = n_columns // batch_size
    out = np.empty((n_batches, n_columns), dtype=np.int64)
    sets = draw_distinct_columns(n_tasks, n_columns, -(-n_batches // length), rng)
    for k in range(n_batches):
        one, at = sets[k // length], (k % length) * batch_size
        out[k] = np.concatenate([one[at : at + batch_size], one[:at], one[at + batch_size :]])
    return out


def draw_one_reward_each(rollouts: Rollouts, tasks_: IntArray, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """One random rollout of each task: its reward, and its place in the group."""
    sizes = rollouts.group_sizes_N[tasks_]
    at = (rng.random(tasks_.shape) * sizes).astype(np.int64)
    return rollouts.rewards_R[rollouts.offsets_N1[:-1][tasks_] + at], at


def ages_of_columns(batch_size: int, window: int) -> IntArray:
    """Steps ago of each column: 0 for the batch, then one step per B rows; the newest rows last (B + window,)."""
    steps = 1 + np.arange(window)[::-1] // batch_size
    return np.concatenate([np.zeros(batch_size, np.int64), steps])
