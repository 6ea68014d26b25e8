"""The post's recipe for any baseline at all: draw a batch with one rollout a task, ask for b, compare with the task's
other rollouts."""

from __future__ import annotations

import numpy as np

from rollonce.baselines import Baseline, Batch, History
from rollonce.rollouts import FloatArray, IntArray, Rollouts


def draw_rewards(rollouts: Rollouts, tasks_: IntArray, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """One random rollout of each task: its reward, and its place in the group."""
    sizes = rollouts.group_sizes_N[tasks_]
    at = (rng.random(tasks_.shape) * sizes).astype(np.int64)
    return rollouts.rewards_R[rollouts.offsets_N1[:-1][tasks_] + at], at


def recipe_errors(
    baseline: Baseline,
    rollouts: Rollouts,
    columns_KM: IntArray,
    n_rows: int,
    ages_M: IntArray,
    rng: np.random.Generator,
    *,
    held_out_target: bool = False,
) -> FloatArray:
    """``(b_i - m_i)^2`` of every row of every batch, without the noise correction (K, B).

    Args:
        baseline: Any baseline; its ``predict`` is called once a batch, with the window as history.
        rollouts: The table.
        columns_KM: Positions each batch sees, its own rows first.
        n_rows: B.
        ages_M: Steps ago that a column was sampled.
        rng: Draws the rollouts.
        held_out_target: Compare with the mean of the task's *other* G - 1 rollouts, as the post does (then the
            correction is ``s2 / (G - 1)``); otherwise with the mean of all G, which is as unbiased where b_i used no
            rollout of task i, and less noisy.
    """
    out = np.full((len(columns_KM), n_rows), np.nan)
    keys = rollouts.tasks.prompt_keys
    size_N, mean_N = rollouts.group_sizes_N, rollouts.means_N
    for k, columns in enumerate(columns_KM):
        reward_M, _ = draw_rewards(rollouts, columns, rng)
        # In a bootstrap resample a task may come twice; only its first copy is in the batch, the other rows have no
        # error.
        first = np.unique(columns[:n_rows], return_index=True)[1]
        first.sort()
        rows, past = columns[first], columns[n_rows:]
        # A row of the window that has the prompt of a row of the batch would leak; it is left out for the whole batch.
        fresh = ~np.isin(keys[past], keys[rows])
        batch = Batch(rollouts.tasks.take(rows), reward_M[first])
        history = History(rollouts.tasks.take(past[fresh]), reward_M[n_rows:][fresh], ages_M[n_rows:][fresh])
        b = baseline.predict(batch, history).baseline_B
        target = mean_N[rows]
        if held_out_target:
            g = size_N[rows]
            target = (mean_N[rows] * g - reward_M[first]) / (g - 1)
        out[k, first] = (b - target) ** 2
    return out


def tracker_errors(baseline: Baseline, rollouts: Rollouts) -> FloatArray:
    """``E[(b - r)^2] - s2_i`` per task (N,) of a baseline that learns from the task's own earlier rollouts.

    Each rollout in turn is the new one and the group's others, in order, are its past: the new one is independent of
    what b used. Groups of one give NaN. O(R G).
    """
    out = np.full(rollouts.n_tasks, np.nan)
    for n in map(int, np.flatnonzero(rollouts.group_sizes_N > 1)):
        group = rollouts.group(n)
        one = rollouts.tasks.take([n])
        g = len(group)
        errors = []
        for held in range(g):
            past = np.delete(np.arange(g), held)
            history = History(rollouts.tasks.take(np.full(g - 1, n)), group[past], np.arange(g - 1, 0, -1))
            b = baseline.predict(Batch(one, group[held : held + 1]), history).baseline_B
            errors.append((float(b[0]) - group[held]) ** 2)
        out[n] = np.mean(errors) - rollouts.variances_N[n]
    return out
