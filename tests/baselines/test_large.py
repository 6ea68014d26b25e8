"""Very large batches: the blocked float32 path against the float64 table, by lowering the threshold that chooses it."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import rollonce.baselines.kernel as kernel_module
from rollonce.baselines import Batch, KernelBaseline, LeaveOneOut
from rollonce.features import LogLength, Tfidf
from rollonce.features.base import Feature
from rollonce.kernels import Buckets, Cosine, Nearest, Product, Rbf, Same, Softmax


class Dense(Feature):
    """Eight numbers a prompt, from a hash of its text."""

    type = "dense_for_test"

    def config(self):
        return {"type": self.type}

    def nested_components(self):
        return {}

    def compute_feature_matrix(self, tasks):
        return np.array([np.random.default_rng(zlib.crc32(p.encode())).normal(size=8) for p in tasks.prompts])


KERNELS = {
    "softmax": Softmax(Tfidf()),
    "softmax dense": Softmax(Dense(), temperature=4.0),
    "softmax cold": Softmax(Dense(), temperature=0.05),
    "rbf": Rbf(LogLength(), length_scale=0.1),
    "rbf dense": Rbf(Dense(), length_scale=1.0),
    "rbf far": Rbf(Dense(), length_scale=0.02),
    "nearest": Nearest(Dense(), k=5),
    "nearest sparse": Nearest(Tfidf(), k=3),
    "buckets": Buckets(),
    "same": Same(),
    "product": Product([Softmax(Tfidf()), Rbf(LogLength())]),
    "cosine": Cosine(Tfidf()),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("window", "decay", "shrinkage"), [(0, 1.0, 0.0), (150, 0.9, 0.3)])
def test_blocked_path_equals_the_table(monkeypatch, name, window, decay, shrinkage):
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(60)]

    def batch(n):
        prompts = [" ".join(rng.choice(words, size=rng.integers(3, 12))) for _ in range(n)]
        return Batch.of(prompts, 1000 + (rng.random(n) < 0.5), columns={"family": rng.choice(list("abcdef"), size=n)})

    baseline = KernelBaseline(KERNELS[name], shrinkage=shrinkage, window=window, decay=decay)
    baseline.fit(batch(300).tasks)
    for _ in range(3):
        baseline.observe(batch(50))
    step = batch(300)
    exact = baseline.predict(step).baseline_B
    monkeypatch.setattr(kernel_module, "LARGE", 0)
    np.testing.assert_allclose(baseline.predict(step).baseline_B, exact, atol=1e-4)
    plain = LeaveOneOut(window=window, decay=decay)
    plain.load_own_state(baseline.own_state())
    large = plain.predict(step).baseline_B
    monkeypatch.setattr(kernel_module, "LARGE", 10**9)
    np.testing.assert_allclose(large, plain.predict(step).baseline_B, atol=1e-9)


def test_numpy_fallback_of_the_compiled_loop(monkeypatch):
    from rollonce.baselines import large

    monkeypatch.setattr(kernel_module, "LARGE", 0)
    rng = np.random.default_rng(1)
    prompts = [" ".join(f"w{i}" for i in rng.integers(80, size=6)) for _ in range(90)]
    baseline = KernelBaseline().fit(prompts)
    step = Batch.of(prompts, rng.random(90))
    compiled = baseline.predict(step).baseline_B
    monkeypatch.setattr(large, "_compiled", large._add_rare_term_products_numpy)
    np.testing.assert_allclose(baseline.predict(step).baseline_B, compiled, atol=1e-6)


def test_a_window_computes_each_rows_features_once(monkeypatch):
    rng = np.random.default_rng(2)
    feature = Tfidf()
    baseline = KernelBaseline(Softmax(feature), window=64)
    prompts = [f"alpha beta{i} gamma{i % 7}" for i in range(160)]
    baseline.fit(prompts)
    computed = []
    plain = Tfidf.compute_feature_matrix
    monkeypatch.setattr(
        Tfidf, "compute_feature_matrix", lambda self, tasks: (computed.append(len(tasks)), plain(self, tasks))[1]
    )
    for start in range(0, 160, 16):
        step = Batch.of(prompts[start : start + 16], rng.random(16))
        baseline.predict(step)
        baseline.observe(step)
    assert sum(computed) == 160
