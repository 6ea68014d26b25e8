"""Closed-form errors that never form a table of weights, held to the formula on the weights themselves."""

import numpy as np
import pytest
import scipy.stats

from rollonce.baselines import KernelBaseline, Kriging, LeaveOneOut, LinearSmoother, Ridge, SelfTuning
from rollonce.baselines.positive_definite import inverses_of_stack
from rollonce.features import CategoryColumn
from rollonce.kernels import Buckets, Nearest, Same, Softmax
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring.batches import permutation_heads, pick_other_tasks
from rollonce.scoring.closed_form import smoother_squared_errors
from rollonce.scoring.intervals import student_t_quantile
from rollonce.scoring.pair_loop import sums_by_loop
from rollonce.scoring.pair_sums import SeenColumns, runs_of_equal_sets, sums_by_products, sums_of_equal_weights
from rollonce.scoring.visibility import make_visibility_blocks

BATCH = 6


def random_table(n: int, seed: int, twins: bool) -> Rollouts:
    """N tasks of a few words each; with twins, the first two pairs of neighbours share their prompts (case apart)."""
    rng = np.random.default_rng(seed)
    words = ["add", "prove", "count", "lemma", "integer", "the", "long"]
    prompts = [f"{' '.join(rng.choice(words, rng.integers(1, 6)))} number{i}" for i in range(n)]
    if twins:
        prompts[1], prompts[3] = prompts[0].upper(), f"{prompts[2]}  "
    columns = {"family": [str(f) for f in rng.integers(4, size=n)]}
    return Rollouts.from_groups(rng.random((n, 3)), prompts, columns=columns)


def columns_of_batches(n: int, window: int, how: str, rng: np.random.Generator, n_batches: int = 10) -> IntArray:
    """Columns (K, B + window): distinct tasks, copies among them, or runs of five batches that see the same."""
    if how == "distinct":
        return np.stack([rng.permutation(n)[: BATCH + window] for _ in range(n_batches)])
    columns = rng.integers(n, size=(n_batches, BATCH + window))
    return columns if how == "copies" else np.stack([rng.permutation(columns[k // 5]) for k in range(n_batches)])


def ages_of(window: int) -> IntArray:
    return np.concatenate([np.zeros(BATCH, np.int64), 1 + np.arange(window)[::-1] // BATCH])


def errors_by_weights(baseline: LinearSmoother, table: Rollouts, columns: IntArray) -> FloatArray:
    """``(sum_j w m_j - m_i)^2 + sum_j w^2 v_j`` from the weights that the baseline would use in a batch."""
    ages, mean_N, v_N = ages_of(columns.shape[1] - BATCH), table.means_N, table.biased_variances_N
    visible = make_visibility_blocks(table.tasks.prompt_keys, columns, BATCH)
    w = baseline.compute_weight_blocks(table.tasks, columns, BATCH, visible, ages)
    bias = np.einsum("kbm,km->kb", w, mean_N[columns]) - mean_N[columns[:, :BATCH]]
    errors = bias**2 + np.einsum("kbm,km->kb", w**2, v_N[columns])
    return np.where(visible.any(axis=2), errors, np.nan)


def closed_form_errors(baseline: LinearSmoother, table: Rollouts, columns: IntArray) -> FloatArray:
    ages, moments = ages_of(columns.shape[1] - BATCH), (table.means_N, table.biased_variances_N)
    return smoother_squared_errors(baseline, table.tasks, columns, BATCH, ages, *moments)


def kriging_like(kind: type, window: int, table: Rollouts) -> LinearSmoother:
    if kind is SelfTuning:
        rewards = np.array([table.group(i)[0] for i in range(table.n_tasks)])
        return SelfTuning(window=window, min_rows=8).fit(table.tasks).fit_rewards(table.tasks, rewards)
    return kind(window=max(window, 1) if kind is Ridge else window).fit(table.tasks)


# Windows: none; all other tasks, few and many columns (one system for each batch, or for each run); most and some of
# the other tasks (from the precision of all tasks, or by a system of their own).
@pytest.mark.parametrize(("n", "window"), [(20, 0), (20, 14), (90, 84), (100, 80), (120, 70)])
@pytest.mark.parametrize("how", ["distinct", "copies", "runs"])
@pytest.mark.parametrize("twins", [False, True])
@pytest.mark.parametrize("kind", [Kriging, SelfTuning, Ridge])
def test_errors_from_precisions_are_those_of_the_weights(kind, n, window, how, twins):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        table = random_table(n, seed, twins)
        columns = columns_of_batches(n, window, how, rng)
        baseline = kriging_like(kind, window, table)
        expected = errors_by_weights(baseline, table, columns)
        np.testing.assert_allclose(closed_form_errors(baseline, table, columns), expected, rtol=1e-8)


@pytest.mark.parametrize("window", [0, 14])
@pytest.mark.parametrize("how", ["distinct", "copies", "runs"])
def test_tasks_chosen_from_a_larger_table_are_scored_alike(window, how):
    """Their numbers of prompts are those of the larger table and lie beyond N, as in `rollonce tune`, which splits."""
    larger = random_table(60, 3, twins=True)
    table = larger.select(np.arange(59, 39, -1))
    assert table.tasks.prompt_keys.max() > table.n_tasks
    columns = columns_of_batches(20, window, how, np.random.default_rng(0))
    family = KernelBaseline(Same(CategoryColumn("family")), shrinkage=0.25, window=window)
    for baseline in (LeaveOneOut(window=window), family, KernelBaseline(Buckets(), window=window, decay=0.9)):
        fitted = baseline.fit(table.tasks)
        expected = errors_by_weights(fitted, table, columns)
        np.testing.assert_allclose(closed_form_errors(fitted, table, columns), expected, rtol=1e-8)
    for kind in (Kriging, SelfTuning, Ridge):
        fitted = kriging_like(kind, window, table)
        expected = errors_by_weights(fitted, table, columns)
        np.testing.assert_allclose(closed_form_errors(fitted, table, columns), expected, rtol=1e-8)


@pytest.mark.parametrize("window", [60, 150])
def test_features_far_from_zero_cost_no_digits(window):
    """A gram matrix with a condition number of tens of thousands, nearly all of it along the constant."""
    table = random_table(200, 0, twins=False)
    long = Rollouts.from_groups(table.rewards_R.reshape(200, 3), [f"{'x' * 20_000} {p}" for p in table.tasks.prompts])
    baseline = Ridge(window=window).fit(long.tasks)
    assert np.linalg.cond(baseline.gram_of_all(long.tasks) + np.eye(200)) > 1e4
    for how in ("distinct", "runs"):
        columns = columns_of_batches(200, window, how, np.random.default_rng(1))
        expected = errors_by_weights(baseline, long, columns)
        np.testing.assert_allclose(closed_form_errors(baseline, long, columns), expected, rtol=1e-8)


def test_a_badly_conditioned_stack_is_inverted_by_numpy():
    a = np.random.default_rng(0).normal(size=(40, 32, 1))
    c = 1e7 * (a @ a.swapaxes(1, 2)) + np.eye(32)
    np.testing.assert_array_equal(inverses_of_stack(c, 3e8), np.linalg.inv(c))


def test_a_batch_of_copies_of_one_task_sees_nothing():
    table = random_table(9, 0, twins=False)
    columns = np.array([[4] * BATCH, [4, 4, 4, 4, 4, 7]])
    for kind in (Kriging, SelfTuning):
        errors = closed_form_errors(kriging_like(kind, 0, table), table, columns)
        assert np.isnan(errors[0]).all()
        assert np.isfinite(errors[1]).all()


@pytest.mark.parametrize("how", ["distinct", "copies", "runs"])
@pytest.mark.parametrize("twins", [False, True])
@pytest.mark.parametrize("window", [0, 9, 14])
@pytest.mark.parametrize(("decay", "shrinkage"), [(1.0, 0.0), (1.0, 0.4), (0.8, 0.3)])
def test_errors_of_classes_tables_and_neighbours_are_those_of_the_weights(how, twins, window, decay, shrinkage):
    table = random_table(20, 3, twins)
    columns = columns_of_batches(20, window, how, np.random.default_rng(4))
    for kernel in (Buckets(n=4), Same(CategoryColumn("family")), Softmax(), Nearest(k=3)):
        baseline = KernelBaseline(kernel, window=window, decay=decay, shrinkage=shrinkage).fit(table.tasks)
        expected = errors_by_weights(baseline, table, columns)
        np.testing.assert_allclose(closed_form_errors(baseline, table, columns), expected, rtol=1e-9, atol=1e-15)
    loo = LeaveOneOut(window=window, decay=decay)
    expected = errors_by_weights(loo, table, columns)
    np.testing.assert_allclose(closed_form_errors(loo, table, columns), expected, rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_sums_over_pairs_come_out_the_same_in_every_way(seed):
    rng = np.random.default_rng(seed)
    n, window = 15, 8
    key_N = np.arange(n)
    key_N[3] = 2
    columns, weights = rng.integers(n, size=(7, BATCH + window)), rng.random((n, n))
    factor_M = np.concatenate([np.ones(BATCH), rng.random(window)])
    seen = SeenColumns(columns, BATCH, key_N, factor_M, rng.random(n), rng.random(n))
    visible = make_visibility_blocks(key_N, columns, BATCH)

    def sums_by_hand(table: FloatArray) -> FloatArray:
        f = np.where(visible, factor_M, 0.0)
        w, m, v = (f * table[columns[:, :BATCH, None], columns[:, None]], *(x[columns][:, None] for x in seen[4:]))
        return np.stack([w.sum(axis=2), (w * m).sum(axis=2), (w**2 * v).sum(axis=2), (f * w * v).sum(axis=2)])

    np.testing.assert_allclose(sums_by_products(weights, seen), sums_by_hand(weights), rtol=1e-12)
    by_loop = np.moveaxis(sums_by_loop(weights, columns, *seen[1:]), 2, 0)
    np.testing.assert_allclose(by_loop, sums_by_hand(weights), rtol=1e-12)
    np.testing.assert_allclose(sums_of_equal_weights(seen), sums_by_hand(np.ones((n, n))), rtol=1e-12)
    class_N = key_N % 3
    of_class = (class_N[:, None] == class_N).astype(float)
    by_class = sums_of_equal_weights(seen, class_N[columns])
    np.testing.assert_allclose(by_class, sums_by_hand(of_class), rtol=1e-12, atol=1e-14)


def test_batches_that_see_the_same_tasks_are_a_run():
    columns = np.array([[0, 1, 2], [2, 0, 1], [2, 2, 1], [1, 2, 2], [0, 1, 2]])
    first, run = runs_of_equal_sets(columns, 3)
    assert first.tolist() == [0, 2, 4]
    assert run.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 32, 70])
@pytest.mark.parametrize("n_blocks", [1, 40])
def test_inverses_of_a_stack(size, n_blocks):
    a = np.random.default_rng(size).normal(size=(n_blocks, size, size))
    c = a @ a.swapaxes(1, 2) + np.eye(size)
    np.testing.assert_allclose(inverses_of_stack(c, 1.0) @ c, np.broadcast_to(np.eye(size), c.shape), atol=1e-10)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 39, 40, 99, 1164, 10_000, 20_000, 2.5])
def test_students_quantile_is_scipys(degrees):
    assert student_t_quantile(float(degrees)) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=1e-11)


def test_permutation_heads_are_those_of_fisher_and_yates():
    n, uniform = 2_000, np.random.default_rng(0).random((400, 5))  # more than one chunk
    expected = []
    for row in uniform:
        order = list(range(n))
        for i, u in enumerate(row):
            j = i + int(u * (n - i))
            order[i], order[j] = order[j], order[i]
        expected.append(order[: len(row)])
    np.testing.assert_array_equal(permutation_heads(n, uniform), expected)


def test_other_tasks_are_picked_by_their_number_among_those_left():
    picked = pick_other_tasks(np.array([[4, 0], [1, 2]]), np.array([[0, 2, 1], [3, 0, 2]]), 6)
    np.testing.assert_array_equal(picked, [[1, 3, 2], [5, 0, 4]])
