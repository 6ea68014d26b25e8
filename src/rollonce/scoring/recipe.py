"""The post's recipe for any baseline at all: draw a batch with one rollout for each task, ask for b, compare with the
task's other rollouts."""

from __future__ import annotations

import numpy as np

from rollonce.baselines import Baseline, Batch, History, LinearSmoother, NormWeighted
from rollonce.baselines.tags import Cost
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring.batches import draw_one_reward_each
from rollonce.scoring.crossfit import CrossFitted
from rollonce.scoring.visibility import make_visibility_blocks, places_of_first_copies, window_visible_to_all


def count_blocks_at_once(baseline: LinearSmoother | NormWeighted, n_rows: int, n_columns: int) -> int:
    """Blocks whose weights are computed together: what fits the processor's cache, and more where blocks that see the
    same rows can share a solve."""
    entries = 500_000 if baseline.tags.cost == Cost.TABLE else 4_000_000
    return max(1, entries // (n_rows * n_columns))


def predicted_baselines(
    baseline: Baseline, rollouts: Rollouts, columns_KM: IntArray, rewards_KM: FloatArray, n_rows: int, ages_M: IntArray
) -> FloatArray:
    """``b`` of every row of every batch (K, B), for one drawn reward in each column: `Baseline.predict` once for each
    batch, with the window as history. NaN for the second copy of a task in a batch (bootstrap).

    Args:
        baseline: Fitted.
        rollouts: The table.
        columns_KM: Positions of the tasks that each batch sees, its own rows first.
        rewards_KM: Their drawn rewards.
        n_rows: B.
        ages_M: Steps ago, 0 for the batch.
    """
    keys = rollouts.tasks.prompt_keys
    out = np.full((len(columns_KM), n_rows), np.nan)
    for k, columns in enumerate(columns_KM):
        first = places_of_first_copies(columns[:n_rows])
        rows, past = columns[first], columns[n_rows:]
        seen = window_visible_to_all(keys, rows, past)
        history = History(rollouts.tasks.take(past[seen]), rewards_KM[k, n_rows:][seen], ages_M[n_rows:][seen])
        out[k, first] = baseline.predict(Batch(rollouts.tasks.take(rows), rewards_KM[k, first]), history).baseline_B
    return out


def drawn_baselines(
    baseline: Baseline | CrossFitted,
    rollouts: Rollouts,
    columns_KM: IntArray,
    rewards_KM: FloatArray,
    n_rows: int,
    ages_M: IntArray,
    wanted_KB: BoolArray | None = None,
) -> FloatArray:
    """As `predicted_baselines`; of smoothers, norm-weighted ones too, by the weights of many batches at once, and of
    cross-fitted ones by fold. One whose window is shorter than these columns has the first of the other tasks in it.
    Where a row is not wanted (``wanted_KB``), anything may stand."""
    if isinstance(baseline, CrossFitted):
        return baseline.evaluate_by_fold(
            rollouts.tasks,
            columns_KM[:, :n_rows],
            lambda part, wanted: drawn_baselines(part, rollouts, columns_KM, rewards_KM, n_rows, ages_M, wanted),
        )
    window = min(getattr(baseline, "window", 0), columns_KM.shape[1] - n_rows)
    columns_KM, rewards_KM = columns_KM[:, : n_rows + window], rewards_KM[:, : n_rows + window]
    ages_M = np.concatenate([ages_M[:n_rows], ages_M[len(ages_M) - window :]])
    if not isinstance(baseline, LinearSmoother | NormWeighted):
        return predicted_baselines(baseline, rollouts, columns_KM, rewards_KM, n_rows, ages_M)
    keys = rollouts.tasks.prompt_keys
    out = np.empty((len(columns_KM), n_rows))
    chunk = count_blocks_at_once(baseline, n_rows, columns_KM.shape[1])
    for start in range(0, len(columns_KM), chunk):
        columns, rewards = columns_KM[start : start + chunk], rewards_KM[start : start + chunk]
        visible = make_visibility_blocks(keys, columns, n_rows)
        if wanted_KB is not None:
            visible &= wanted_KB[start : start + chunk, :, None]
        w = baseline.compute_weight_blocks(rollouts.tasks, columns, n_rows, visible, ages_M)
        nothing = ~w.any(axis=2)
        out[start : start + chunk] = np.where(nothing, baseline.prior, baseline.baselines_from_weights(w, rewards))
    return out


def recipe_squared_errors(
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
        baseline: Any baseline.
        rollouts: The table.
        columns_KM: Positions each batch sees, its own rows first.
        n_rows: B.
        ages_M: Steps ago that a column was sampled.
        rng: Draws the rollouts.
        held_out_target: Compare with the mean of the task's *other* G - 1 rollouts, as the post does (then the
            correction is ``s2 / (G - 1)``); otherwise with the mean of all G, which is as unbiased where b_i used no
            rollout of task i, and less noisy.
    """
    rewards_KM, _ = draw_one_reward_each(rollouts, columns_KM, rng)
    predict = drawn_baselines if isinstance(baseline, NormWeighted) else predicted_baselines
    b_KB = predict(baseline, rollouts, columns_KM, rewards_KM, n_rows, ages_M)
    rows_KB = columns_KM[:, :n_rows]
    target_KB = rollouts.means_N[rows_KB]
    if held_out_target:
        g = rollouts.group_sizes_N[rows_KB]
        target_KB = (target_KB * g - rewards_KM[:, :n_rows]) / (g - 1)
    return (b_KB - target_KB) ** 2
