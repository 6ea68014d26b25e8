"""Properties of every linear smoother on any batch that hypothesis can think of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollonce import reference
from rollonce.baselines import Batch, Blend, KernelBaseline, Kriging, LeaveOneOut, Ridge, published_tfidf
from rollonce.kernels import Buckets, Cosine, Mixture, Nearest, Product, Rbf, Same, Softmax

WORDS = ["aa", "bb", "cc", "dd", "é", "東京", ""]
FITTED_ON = ["aa bb", "cc dd aa", "東京", "bb bb"]

CONVEX = [
    LeaveOneOut,
    published_tfidf,
    lambda: KernelBaseline(Softmax(temperature=1e-9)),
    lambda: KernelBaseline(Nearest(k=2)),
    lambda: KernelBaseline(Buckets(n=3)),
    lambda: KernelBaseline(Rbf()),
    lambda: KernelBaseline(Cosine(), shrinkage=0.3),
    lambda: KernelBaseline(Product([Softmax(), Same()])),
    lambda: KernelBaseline(Mixture([Cosine(), Same(), Buckets()], [0.2, 0.5, 0.3]), window=6, decay=0.7),
    lambda: KernelBaseline(window=5, shrinkage=0.5),
    lambda: Blend([LeaveOneOut(window=4), published_tfidf()], [1.0, 2.0]),
]
SMOOTHERS = [*CONVEX, Kriging, lambda: Kriging(window=6, decay=0.8), lambda: Ridge(window=7)]

prompt = st.lists(st.sampled_from(WORDS), min_size=0, max_size=6).map(" ".join)
reward = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-100, 100))
rows = st.lists(st.tuples(prompt, reward, st.sampled_from(["x", "y"])), min_size=1, max_size=9)


def batch_of(data) -> Batch:
    return Batch.of([p for p, _, _ in data], [r for _, r, _ in data], columns={"family": [f for _, _, f in data]})


def made(make, past):
    baseline = make().fit(FITTED_ON)
    for step in past:
        baseline.observe(batch_of(step))
    return baseline


@pytest.mark.parametrize("make", SMOOTHERS, ids=lambda m: m().label)
@settings(max_examples=25, deadline=None)
@given(data=rows, past=st.lists(rows, max_size=2), c=st.floats(-50, 50), k=st.floats(0.01, 20), seed=st.integers(0, 99))
def test_smoothers(make, data, past, c, k, seed):
    baseline, batch = made(make, past), batch_of(data)
    w, prediction = baseline.weights(batch), baseline.predict(batch)
    b, seen = prediction.baseline_B, ~prediction.only_prior_B
    size = 1e-9 * (1 + max(abs(r) for step in [data, *past] for _, r, _ in step))
    n = len(batch)
    assert (np.diagonal(w) == 0).all()
    np.testing.assert_allclose(w.sum(1)[seen], 1.0, atol=1e-9)
    assert (w[~seen] == 0).all()
    assert (b[~seen] == 0).all()

    order = np.random.default_rng(seed).permutation(n)
    np.testing.assert_allclose(baseline.predict(batch_of([data[i] for i in order])).baseline_B, b[order], atol=size)

    def changed(f):
        return (
            made(make, [[(p, f(r), q) for p, r, q in step] for step in past])
            .predict(batch_of([(p, f(r), q) for p, r, q in data]))
            .baseline_B
        )

    np.testing.assert_allclose(changed(lambda r: r + c)[seen], b[seen] + c, atol=size + 1e-8)
    np.testing.assert_allclose(changed(lambda r: r * k)[seen], b[seen] * k, atol=20 * size + 1e-8)

    i = seed % n
    other = batch_of([(p, 77.0 if j == i else r, f) for j, (p, r, f) in enumerate(data)])
    assert abs(baseline.predict(other).baseline_B[i] - b[i]) <= size


@pytest.mark.parametrize("make", CONVEX, ids=lambda m: m().label)
@settings(max_examples=25, deadline=None)
@given(data=rows, past=st.lists(rows, max_size=2))
def test_kernel_means_lie_among_the_rewards_that_they_see(make, data, past):
    baseline, batch = made(make, past), batch_of(data)
    w, b = baseline.weights(batch), baseline.predict(batch).baseline_B
    assert w.min() >= 0
    visible = np.concatenate([batch.rewards_B, baseline.history.keep_newest_rows(baseline.window).rewards_H])
    for i in range(len(batch)):
        others = np.delete(visible, i)
        if len(others):
            assert (
                others.min() - 1e-9 * (1 + abs(others.min())) <= b[i] <= others.max() + 1e-9 * (1 + abs(others.max()))
            )


@settings(max_examples=40, deadline=None)
@given(
    cluster=st.lists(st.booleans(), min_size=2, max_size=12),
    temperature=st.floats(0.02, 20),
    seed=st.integers(0, 999),
)
def test_two_clusters_of_any_sizes(cluster, temperature, seed):
    rewards = np.random.default_rng(seed).normal(size=len(cluster))
    prompts = ["red apple" if c else "blue sea" for c in cluster]
    got = (
        KernelBaseline(Softmax(temperature=temperature))
        .fit(["red apple", "blue sea"])
        .predict(Batch.of(prompts, rewards))
        .baseline_B
    )
    np.testing.assert_allclose(
        got, reference.two_cluster_baseline(np.array(cluster, int), rewards, temperature), atol=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 30), min_size=2, max_size=25), n=st.integers(1, 6), seed=st.integers(0, 999))
def test_buckets_are_the_references(lengths, n, seed):
    rewards = np.random.default_rng(seed).random(len(lengths))
    got = KernelBaseline(Buckets(n=n)).predict(Batch.of(["x" * k for k in lengths], rewards)).baseline_B
    np.testing.assert_allclose(
        got, reference.length_bucket_baseline(np.array(lengths) + 1.0, rewards, buckets=n), atol=1e-12
    )
