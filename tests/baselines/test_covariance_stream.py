"""Covariances kept from step to step are those of the rows computed afresh, to the last bit."""

import numpy as np
import pytest

from rollonce.baselines import Baseline, Batch, History, SelfTuning
from rollonce.baselines.covariance_stream import CovarianceStream
from rollonce.baselines.kernel_library import make_kernels_and_experts
from rollonce.features import Tfidf
from rollonce.features.sparse import SparseRows
from rollonce.rollouts import Tasks

TOPICS = [
    "add {a} and {b}",
    "what is {a} times {b}, in words?",
    "prove that the lemma of {w} holds for {a}",
    "{w} {v} {w}",
]
WORDS = ["river", "apple", "ledger", "naïve", "quantum", "bridge"]


def prompts(n: int, rng: np.random.Generator) -> list[str]:
    return [
        TOPICS[rng.integers(4)].format(a=rng.integers(99), b=rng.integers(99), w=rng.choice(WORDS), v=rng.choice(WORDS))
        for _ in range(n)
    ]


def test_step_by_step_and_all_at_once_have_the_same_bits_and_are_the_kernels_covariances():
    rng = np.random.default_rng(0)
    texts = prompts(150, rng)
    kernels = make_kernels_and_experts()[0]
    for kernel in kernels:
        kernel.fit(Tasks(texts))
    steps = [Tasks([texts[i] for i in at]) for at in np.split(rng.permutation(150), [7, 40, 41, 90, 120])]
    stream, kept = CovarianceStream(kernels), []
    for tasks in steps[:-1]:
        stream.append_step_rows(tasks, keep=64)
        kept = (kept + tasks.prompts)[-64:]
    assert len(stream) == 64
    whole = CovarianceStream(kernels)
    whole.append_step_rows(Tasks(kept), keep=64)
    for n in (1, 30, 64):
        np.testing.assert_array_equal(stream.covariances_by_kernel(n), whole.covariances_by_kernel(n))
    every = np.arange(64)[None]
    for k, kernel in enumerate(kernels):
        exact = kernel.compute_covariance(Tasks(kept), every, every)[0]
        # |x - y| of nearly equal rows turns an error of 1e-8 in the inner product into its root
        np.testing.assert_allclose(stream.covariances_by_kernel(64)[k], exact, atol=5e-4)
    weights = rng.random(len(kernels))
    weights[2] = 0.0
    batch = steps[-1]
    seen = Tasks([*batch.prompts, *kept[-50:]])
    every = np.arange(len(seen))[None]
    direct = sum(w * k.compute_covariance(seen, every, every)[0] for w, k in zip(weights, kernels, strict=True))
    np.testing.assert_allclose(stream.visible_covariance(batch, 50, weights), direct, atol=2e-3)
    np.testing.assert_array_equal(
        stream.visible_covariance(batch, 50, weights), whole.visible_covariance(batch, 50, weights)
    )


def test_inner_products_in_any_order_are_exact():
    rng = np.random.default_rng(1)
    texts = prompts(200, rng)
    matrix = Tfidf(analyzer="char", ngrams=(1, 4)).fit(texts).compute_feature_matrix(Tasks(texts))
    rows = matrix.with_rounded_numbers()
    assert np.abs(rows.data - matrix.data).max() <= 2.0**-25
    dense = rows.to_dense()
    scaled = np.rint(dense * 2.0**24).astype(object)  # whole numbers: no rounding anywhere
    for few in (np.arange(3), np.arange(150, 153), np.array([5, 199, 5]), np.arange(100)):
        exact = (scaled[few[:3]] @ scaled.T).astype(np.float64) * 2.0**-48
        np.testing.assert_array_equal(rows[few].dot_with_transposed(rows)[:3], exact)
    assert rows[np.arange(2)].exact
    assert SparseRows.stack_vertically([rows, rows]).exact
    assert not SparseRows.stack_vertically([rows, matrix]).exact
    empty = Tfidf(analyzer="char", ngrams=(1, 4)).fit(texts).compute_feature_matrix(Tasks([""])).with_rounded_numbers()
    np.testing.assert_array_equal(empty.dot_with_transposed(rows), np.zeros((1, 200)))


@pytest.mark.parametrize("window", [20, 48, 200])
def test_a_saved_baseline_goes_on_with_the_same_bits(window, tmp_path):
    rng = np.random.default_rng(2)
    texts = prompts(300, rng)
    baseline = SelfTuning(window=window, max_rows=60, refit_every=2, min_rows=16).fit(texts)
    steps = [Batch.of([texts[i] for i in at], rng.random(len(at))) for at in np.split(np.arange(300), 12)]
    for step, batch in enumerate(steps):
        if step == 7:
            baseline.save(tmp_path / "b.json")
            other = Baseline.load(tmp_path / "b.json")
        said = baseline.predict(batch).baseline_B
        if step >= 7:
            np.testing.assert_array_equal(said, other.predict(batch).baseline_B)
            other.observe(batch)
        baseline.observe(batch)
    assert baseline.variance_shares_K1[-1] < 1


def test_rows_given_are_those_observed():
    rng = np.random.default_rng(3)
    texts = prompts(200, rng)
    baseline = SelfTuning(window=48, max_rows=60, refit_every=2, min_rows=16).fit(texts)
    history = History.before_first_step()
    for at in np.split(np.arange(180), 9):
        batch = Batch.of([texts[i] for i in at], rng.random(20))
        np.testing.assert_allclose(
            baseline.predict(batch).baseline_B, baseline.predict(batch, history).baseline_B, rtol=0, atol=1e-12
        )
        baseline.observe(batch)
        history = history.with_batch_appended(batch)
