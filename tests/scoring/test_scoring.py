"""The three estimators against each other, against closed forms, and against the numbers worked out elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollonce import datasets, reference
from rollonce.baselines import (
    Batch,
    Blend,
    Constant,
    FlashReinforce,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    NoBaseline,
    Oracle,
    ReinforcePlusPlus,
    Ridge,
    Rloo,
    Tracker,
    published_tfidf,
)
from rollonce.errors import InputError
from rollonce.features import Tfidf
from rollonce.kernels import Buckets, Nearest, Rbf, Same, Softmax
from rollonce.rollouts import Rollouts
from rollonce.scoring import (
    Scorer,
    dead_group_fraction,
    effective_batch_of_loo,
    moments,
    score_group_baselines,
    score_rollouts,
)
from rollonce.scoring.batches import draw_distinct_columns
from rollonce.scoring.closed_form import smoother_squared_errors
from rollonce.scoring.recipe import recipe_squared_errors
from rollonce.scoring.repeats import tracker_squared_errors

# An independent check of the shipped sets: s2, tau2, SNR, then B_eff at B = 32 of LOO, 5 in-batch length buckets, word
# TF-IDF at T = 0.1.
PUBLISHED_TABLE = {
    "game24_gpt4_cot": (0.0325, 0.0062, 0.19, 26.0, 23.9, 24.5),
    "amc_aime_llama3b_rg400": (0.0570, 0.0274, 0.48, 20.9, 18.2, 20.4),
    "taubench_airline_gpt4o": (0.1467, 0.0997, 0.68, 18.5, 16.6, 17.2),
    "gsm8k_qwen25coder_1.5b": (0.1387, 0.1041, 0.75, 17.7, 18.2, 17.2),
    "creative_writing_gpt4_judge": (0.0128, 0.0100, 0.78, 17.4, 15.7, 16.7),
    "rg_smollm2_135m": (0.1091, 0.0939, 0.86, 16.7, 15.1, 17.6),
    "cruxeval_input_codellama7b_t02": (0.0419, 0.1886, 4.51, 5.6, 4.9, 5.0),
    "rg_easy_gemma3_27b_G3": (0.0311, 0.1738, 5.58, 4.7, 4.6, 5.0),
}


@pytest.fixture(scope="module", params=sorted(PUBLISHED_TABLE))
def real(request):
    return datasets.load(request.param)


def test_reproduces_the_table_of_an_independent_check(real):
    s2, tau2, snr, loo, buckets, tfidf = PUBLISHED_TABLE[real.name]
    m = moments(real, resamples=50)
    assert m.s2.value == pytest.approx(s2, abs=6e-5)
    assert m.tau2.value == pytest.approx(tau2, abs=6e-5)
    assert m.snr.value == pytest.approx(snr, abs=6e-3)
    scorer = Scorer(real, n_batches=6000, resamples=0)
    got = [
        scorer.score_baseline(b.fit(real.tasks)) for b in (LeaveOneOut(), KernelBaseline(Buckets()), published_tfidf())
    ]
    for score, level in zip(got, (loo, buckets, tfidf), strict=True):
        assert score.b_eff.value == pytest.approx(level, abs=0.25)
        assert score.ratio.value == pytest.approx(level / loo, abs=0.02)


def test_three_estimators_agree_on_every_set(real):
    """Closed form, the sampled recipe through predict(), and reference.py, within 4 Monte-Carlo standard errors of each
    other."""
    baseline = published_tfidf().fit(real.tasks)
    columns = draw_distinct_columns(real.n_tasks, 32, 1500, np.random.default_rng(5))
    ages = np.zeros(32, np.int64)
    noise = real.variances_N / real.group_sizes_N
    closed = (
        smoother_squared_errors(baseline, real.tasks, columns, 32, ages, real.means_N, real.biased_variances_N)
        - noise[columns]
    )
    sampled = recipe_squared_errors(baseline, real, columns, 32, ages, np.random.default_rng(6), held_out_target=True)
    held = sampled - (real.variances_N / (real.group_sizes_N - 1))[columns]
    per_batch = closed.mean(axis=1) - held.mean(axis=1)
    assert abs(per_batch.mean()) < 4 * per_batch.std() / np.sqrt(len(per_batch))
    groups = [real.group(n) for n in range(real.n_tasks)]
    third = reference.simulate_effective_batch_size(
        groups, reference.make_gs1_on_tasks(reference.tfidf_similarity(real.tasks.prompts), 0.1), batches=1500, seed=7
    )
    se = np.hypot(third.mse_se, closed.mean(axis=1).std() / np.sqrt(1500))
    assert third.s2 == pytest.approx(float(real.variances_N.mean()), rel=1e-12)
    assert third.mse == pytest.approx(float(closed.mean()), abs=4 * se)


@pytest.mark.parametrize(("snr", "published"), [(2.36, 9.3), (1.81, 10.9), (0.31, 23.8), (4.91, 5.2)])
def test_loo_closed_form_lands_on_the_posts_four_values(snr, published):
    assert effective_batch_of_loo(snr, 32) == pytest.approx(published, abs=0.2)
    assert effective_batch_of_loo(snr, 32) == pytest.approx(reference.loo_beff_closed_form(snr, 32), rel=1e-14)


def test_loo_scored_over_all_batches_equals_its_closed_form_exactly():
    """All C(6, 3) batches of a small table: MSE = tau2 B/(B-1) + s2/(B-1), to rounding."""
    rng = np.random.default_rng(0)
    table = Rollouts.from_groups(rng.random((6, 4)), [f"t{i}" for i in range(6)])
    from itertools import combinations

    columns = np.array(list(combinations(range(6), 3)))
    e = smoother_squared_errors(
        LeaveOneOut(), table.tasks, columns, 3, np.zeros(3, np.int64), table.means_N, table.biased_variances_N
    )
    mse = (e - (table.variances_N / 4)[columns]).mean()
    m = moments(table, resamples=20)
    assert mse == pytest.approx(m.tau2.value * 3 / 2 + m.s2.value / 2, rel=1e-12)
    assert 3 * m.s2.value / (m.s2.value + mse) == pytest.approx(effective_batch_of_loo(m.snr.value, 3), rel=1e-12)


def test_closed_form_integrates_the_draw_of_rollouts_out():
    """Two tasks, two rollouts each: the four draws enumerated by hand."""
    table = Rollouts.from_groups([[0, 1], [1, 3]], ["a", "b"])
    e = smoother_squared_errors(
        LeaveOneOut(),
        table.tasks,
        np.array([[0, 1]]),
        2,
        np.zeros(2, np.int64),
        table.means_N,
        table.biased_variances_N,
    )
    # Task 0 is judged by a rollout of task 1 (1 or 3) against its mean 0.5: (0.25 + 6.25) / 2. Task 1 by 0 or 1 against
    # 2: (4 + 1) / 2.
    np.testing.assert_allclose(e, [[3.25, 2.5]])


def test_fast_table_and_general_path_agree():
    table = datasets.load("rg_smollm2_135m")
    rng = np.random.default_rng(1)
    columns = draw_distinct_columns(table.n_tasks, 50, 40, rng)
    columns[3, 5] = columns[3, 0]  # a copy, as in a bootstrap resample
    ages = np.concatenate([np.zeros(32, np.int64), 1 + np.arange(18) // 6])
    for b in (
        published_tfidf(),
        KernelBaseline(Rbf(), shrinkage=0.3, decay=0.8),
        KernelBaseline(Same()),
        LeaveOneOut(decay=0.7),
    ):
        b.window = 18
        b.fit(table.tasks)
        fast = smoother_squared_errors(b, table.tasks, columns, 32, ages, table.means_N, table.biased_variances_N)
        general = smoother_squared_errors(
            Blend([b], [1.0]), table.tasks, columns, 32, ages, table.means_N, table.biased_variances_N
        )
        np.testing.assert_allclose(fast, general, rtol=1e-9, atol=1e-12)


def test_windows_hide_the_own_prompt_and_batches_the_own_task():
    """Two ids share a prompt: in a window the twin is hidden (it would leak), so b is the mean of the rest."""
    table = Rollouts.from_groups([[1, 1], [0, 0], [0, 0], [1, 1]], ["same", "other", "third", "SAME "])
    kernel = KernelBaseline(Softmax(Tfidf(), temperature=0.01), window=2).fit(table.tasks)
    e = smoother_squared_errors(
        kernel,
        table.tasks,
        np.array([[0, 1, 2, 3]]),
        2,
        np.array([0, 0, 1, 1]),
        table.means_N,
        table.biased_variances_N,
    )
    assert e[0, 0] == pytest.approx(1.0)  # task 0 sees 1 and 2 alone, both 0: error (0 - 1)^2
    e = smoother_squared_errors(
        kernel,
        table.tasks,
        np.array([[0, 3, 1, 2]]),
        2,
        np.array([0, 0, 1, 1]),
        table.means_N,
        table.biased_variances_N,
    )
    assert e[0, 0] == pytest.approx(0.0)  # in one batch the twin is an honest other rollout


def test_shorter_window_and_usable_window():
    table = datasets.load("taubench_airline_gpt4o")
    score = Scorer(table, n_batches=50, resamples=0).score_baseline(LeaveOneOut(window=512))
    assert (score.window, score.window_asked) == (18, 512)
    board = score_rollouts(table, baselines=[LeaveOneOut(window=512)], n_batches=50, resamples=0)
    assert any("18 other tasks" in note for note in board.notes)


def test_draws_are_distinct_uniform_and_other_tasks():
    columns = draw_distinct_columns(10, 4, 20_000, np.random.default_rng(0))
    assert all(len(set(row)) == 4 for row in columns[:200])
    np.testing.assert_allclose(np.bincount(columns.ravel(), minlength=10) / columns.size, 0.1, atol=0.005)
    table = Rollouts.from_groups(np.ones((40, 2)), [str(i) for i in range(40)])
    columns = Scorer(table, 8, n_batches=50, resamples=0).draw_common_batches(20)
    assert all(len(set(row)) == 28 for row in columns)


def test_special_baselines_by_hand():
    table = Rollouts.from_groups([[0, 1], [1, 1], [0, 0], [1, 0]], ["a", "b", "c", "d"])
    scorer = Scorer(table, 3, n_batches=4000, resamples=0)
    s2 = 0.25
    none = scorer.score_baseline(NoBaseline())  # mean of m^2 - s2_i / 2 over tasks: (0 + 1 + 0 + 0) / 4
    assert none.mse == pytest.approx(0.25, abs=0.02)
    assert none.b_eff.value == pytest.approx(3 * s2 / (s2 + none.mse), rel=1e-9)
    assert scorer.score_baseline(Constant(0.5)).mse == pytest.approx((-0.25 + 0.25 + 0.25 - 0.25) / 4, abs=0.02)
    oracle = scorer.score_baseline(Oracle())
    assert (oracle.b_eff.value, oracle.mse, oracle.needs) == (3.0, 0.0, "extra rollouts")
    # A tracker without a prior after one earlier rollout of the task predicts it: MSE = s2_i.
    errors = tracker_squared_errors(Tracker(discount=1.0, strength=0.0), table)
    np.testing.assert_allclose(errors, table.variances_N)
    loo = scorer.score_baseline(LeaveOneOut())
    for twin in (FlashReinforce(), ReinforcePlusPlus()):
        score = scorer.score_baseline(twin)
        assert score.scored_as == "LOO mean"
        assert score.b_eff == loo.b_eff
    with pytest.raises(InputError, match="needs groups"):
        scorer.score_baseline(Rloo())


def test_groups_stand_apart_and_dead_groups_are_counted():
    table = Rollouts.from_groups([[1, 1, 1, 0], [0, 0, 0, 0]], ["a", "b"])
    # Pairs: 3 of 6 equal in the first task, all in the second.
    assert dead_group_fraction(table, 2) == pytest.approx((3 / 6 + 1) / 2)
    assert dead_group_fraction(table, 4) == pytest.approx((0 + 1) / 2)
    assert np.isnan(dead_group_fraction(table, 8))
    g2, g4 = score_group_baselines(table, 32, b_eff=16.0, group_sizes=(2, 4))
    assert (g2.b_eff, g2.variance, g2.tasks_per_step) == (16.0, 2.0, 16.0)
    assert g4.b_eff == 24.0
    # At the crossing rho both predicted variances are equal: rho + B / B_eff = rho G + G / (G - 1).
    assert g4.crossing + 32 / 16 == pytest.approx(g4.crossing * 4 + 4 / 3)
    board = score_rollouts(
        datasets.load("gsm8k_qwen25coder_1.5b"),
        baselines=[LeaveOneOut(), Tracker(), Oracle()],
        n_batches=50,
        resamples=0,
    )
    assert [s.label for s in board.scores] == ["LOO mean"]
    assert {s.needs for s in board.apart} == {"repeats", "extra rollouts"}


def test_ridge_and_kriging_in_a_window_agree_with_the_recipe():
    table = datasets.load("rg_smollm2_135m")
    columns = draw_distinct_columns(table.n_tasks, 52, 400, np.random.default_rng(3))
    ages = np.concatenate([np.zeros(32, np.int64), np.ones(20, np.int64)])
    keys = table.tasks.prompt_keys
    fresh = np.array([len(set(keys[c])) == 52 for c in columns])  # the recipe drops a shared prompt for the whole batch
    columns = columns[fresh]
    for b in (
        Ridge(window=20),
        Kriging(window=20),
        KernelBaseline(Nearest(k=5), window=20),
        KernelBaseline(Buckets(), window=20),
    ):
        b.fit(table.tasks)
        closed = smoother_squared_errors(
            b, table.tasks, columns, 32, ages, table.means_N, table.biased_variances_N
        ).mean(axis=1)
        sampled = recipe_squared_errors(b, table, columns, 32, ages, np.random.default_rng(4)).mean(axis=1)
        difference = closed - sampled
        assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(difference)) + 1e-9, b.label


def test_groups_of_one_rank_by_advantage_and_say_why_no_level():
    table = datasets.load("gsm8k_qwen25coder_1.5b")
    single = Rollouts.from_groups([[table.group(n)[0]] for n in range(table.n_tasks)], table.tasks.prompts)
    board = score_rollouts(single, baselines=[published_tfidf(), KernelBaseline(Rbf())], n_batches=500, resamples=20)
    assert all(np.isnan(s.b_eff.value) for s in board.scores)
    assert any("single rollout" in n for n in board.notes)
    loo = board.loo
    assert loo is not None
    for s in board.scores:
        assert s.ratio.value == pytest.approx(loo.advantage_variance / s.advantage_variance)


def test_equal_rewards_give_no_division():
    with np.errstate(all="raise"):
        table = Rollouts.from_groups(np.ones((10, 3)), [f"task {i} words" for i in range(10)])
        board = score_rollouts(table, batch_size=4, n_batches=50, resamples=10)
    assert board.moments.s2.value == 0
    assert any("s2 = 0" in n for n in board.notes)
    varied = Rollouts.from_groups(
        np.repeat(np.arange(10.0)[:, None], 3, axis=1), [f"task {i} words" for i in range(10)]
    )
    board = score_rollouts(varied, batch_size=4, n_batches=50, resamples=10)
    assert all(s.b_eff.value == 0 or np.isnan(s.b_eff.value) for s in board.scores)


def test_refusals_say_what_to_do():
    one = Rollouts.from_groups([[1, 0]], ["a"])
    with pytest.raises(InputError, match="only one task"):
        Scorer(one)
    few = Rollouts.from_groups(np.ones((5, 2)), list("abcde"))
    with pytest.raises(InputError, match="--batch-size 5"):
        Scorer(few)
    with pytest.raises(InputError, match="same prompt"):
        Scorer(Rollouts.from_groups(np.ones((5, 2)), ["a"] * 5), 2)


def test_same_seed_same_board_and_batches_are_common():
    table = datasets.load("taubench_airline_gpt4o")
    a, b = (score_rollouts(table, baselines=[published_tfidf()], n_batches=200, resamples=10, seed=3) for _ in range(2))
    assert a.to_dict() == b.to_dict()
    c = score_rollouts(table, baselines=[published_tfidf()], n_batches=200, resamples=10, seed=4)
    assert c.scores[0].b_eff != a.scores[0].b_eff


def test_held_out_fits_on_the_other_tasks():
    table = datasets.load("gsm8k_qwen25coder_1.5b")
    baseline = published_tfidf()
    score_rollouts(table, baselines=[baseline], n_batches=50, resamples=0, held_out=0.5)
    fitted = set(baseline.kernel.feature.vocabulary_)  # type: ignore[attr-defined]
    everything = set(published_tfidf().fit(table.tasks).kernel.feature.vocabulary_)  # type: ignore[attr-defined]
    assert fitted < everything


def test_large_tables_never_build_a_square():
    """20,000 tasks: a table of similarities would be 3.2 GB; the peak stays far below."""
    import tracemalloc

    words = np.array([f"w{i}" for i in range(500)])
    rng = np.random.default_rng(0)
    prompts = [" ".join(w) for w in words[rng.integers(500, size=(20_000, 12))]]
    table = Rollouts.from_groups((rng.random((20_000, 2)) < 0.5).astype(float), prompts)
    baseline = published_tfidf(64).fit(prompts[:500])
    baseline.kernel.feature.transform_tasks(table.tasks)  # type: ignore[attr-defined]
    tracemalloc.start()
    Scorer(table, n_batches=100, resamples=2, batches_per_resample=20).score_baseline(baseline)
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()


def test_batch_of_uses_response_lengths_nowhere():
    batch = Batch.of(["a b", "c d"], [0.0, 1.0])
    assert batch.response_lengths_B is None


def test_worth_a_table_counts_over_calls(monkeypatch):
    """Many small calls add up: the table is computed once rather than each block for itself."""
    import rollonce.kernels.base as base

    table = datasets.load("rg_smollm2_135m")
    calls = []
    plain = base.full_pairwise_table
    monkeypatch.setattr(base, "full_pairwise_table", lambda *a, **k: (calls.append(1), plain(*a, **k))[1])
    baseline = published_tfidf().fit(table.tasks)
    columns = draw_distinct_columns(table.n_tasks, 8, 2, np.random.default_rng(0))
    visible = columns[:, :, None] != columns[:, None, :]
    first = baseline.compute_weight_blocks(table.tasks, columns, 8, visible, np.zeros(8, np.int64))
    for _ in range(20):
        last = baseline.compute_weight_blocks(table.tasks, columns, 8, visible, np.zeros(8, np.int64))
    assert 0 < len(calls) < 20
    np.testing.assert_allclose(first, last, atol=1e-12)


@pytest.mark.parametrize("reward", [0.1, 1.0, 1e6 / 3])
def test_an_error_that_is_rounding_alone_is_none(reward: float) -> None:
    """All rewards equal: whatever averages rewards errs not at all (0.1 + 0.1 + 0.1 is no 0.3, in float64), and has
    nothing to be compared by; without a baseline the error is r^2, with a constant of 0.5 it is (r - 0.5)^2."""
    table = Rollouts.from_groups([[reward] * 3] * 30, [f"task {n} {'x' * n}" for n in range(30)])
    board = score_rollouts(table, batch_size=8, window=8, n_batches=20, resamples=5)
    assert (board.moments.s2.value, board.moments.tau2.value) == (0.0, 0.0)
    assert math.isnan(board.moments.snr.value)
    really = {"REINFORCE without a baseline": reward**2, "constant 0.5": (reward - 0.5) ** 2}
    assert len(board.scores) > 15
    for score in board.scores:
        assert score.mse == pytest.approx(really.get(score.label, 0.0), rel=1e-12, abs=0.0), score.label
        assert math.isfinite(score.ratio.value) == (score.label in really), score.label
