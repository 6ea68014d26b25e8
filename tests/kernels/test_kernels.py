"""Kernels against values worked out by hand."""

import math

import numpy as np
import pytest

from rollonce import reference
from rollonce.baselines import Batch, KernelBaseline
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.features import CategoryColumn, LogLength, NumberColumn, Tfidf
from rollonce.kernels import Buckets, Cosine, Mixture, Nearest, Product, Rbf, Same, Softmax, Uniform

ALONE = ["red", "green", "blue"]  # words in common: none


def batch(prompts, rewards, **columns):
    return Batch.of(prompts, rewards, columns=columns or None)


def b_of(kernel, prompts, rewards, **columns):
    data = batch(prompts, rewards, **columns)
    return KernelBaseline(kernel).fit(data.tasks).predict(data).baseline_B


def lengths(*n):
    return ["x" * k for k in n]


def test_softmax_of_a_cosine_by_hand():
    # Prompts 0 and 1 are the same, 2 shares nothing: weights e^(1/T) and 1.
    e = math.exp(1 / 0.5)
    got = b_of(Softmax(temperature=0.5), ["red", "red", "blue"], [1.0, 0.0, 0.5])
    np.testing.assert_allclose(got, [(e * 0 + 0.5) / (e + 1), (e * 1 + 0.5) / (e + 1), 0.5], atol=1e-15)


@pytest.mark.parametrize("temperature", [1e-3, 1e-9, 1e-30, 1e-320])
def test_cold_softmax_is_the_nearest_neighbour_and_ties_share(temperature):
    prompts = ["a1 b1 c1 d1", "a1 b1 c1 e1", "a1 b1 c1 f1", "g1 h1"]
    # Row 0's nearest are 1 and 2, equally far; row 3 is equally far from all, at similarity 0.
    got = b_of(Softmax(temperature=temperature), prompts, [1.0, 0.0, 0.5, 0.3])
    np.testing.assert_allclose(got, [0.25, 0.75, 0.5, 0.5], atol=1e-9)
    np.testing.assert_allclose(b_of(Nearest(k=1), prompts, [1.0, 0.0, 0.5, 0.3]), got, atol=1e-9)


def test_nearest_neighbours_share_ties_that_differ_by_rounding_only():
    # Equal similarities summed in different orders differ in the last digit; that must not make one of them the winner.
    words = ["aa", "bb", "cc", "dd", "ee", "ff"]
    untied = split = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        prompts = [" ".join(rng.choice(words, 4, replace=False)) for _ in range(12)]
        rewards = rng.random(12)
        similarity = reference.tfidf_similarity(prompts)
        untied += sum(len(np.unique(row)) > len(np.unique(row.round(9))) for row in similarity)
        want = reference.gs1_kernel_baseline(similarity.round(9), rewards, 1e-12)
        np.testing.assert_allclose(b_of(Softmax(temperature=1e-12), prompts, rewards), want, atol=1e-12)
        far = np.where(np.eye(12, dtype=bool), -1.0, similarity.round(9))
        nearest = reference.weighted_baseline(far == far.max(axis=1, keepdims=True), rewards)
        np.testing.assert_allclose(b_of(Nearest(k=1), prompts, rewards), nearest, atol=1e-12)
        far = np.where(np.eye(12, dtype=bool), -1.0, similarity)
        split += int(
            (
                (far == far.max(axis=1, keepdims=True)).sum(1)
                < (far.round(9) == far.round(9).max(axis=1, keepdims=True)).sum(1)
            ).sum()
        )
    assert untied > 10  # such ties did occur,
    assert split > 5  # and at the top, too


@pytest.mark.parametrize(
    "kernel", [Softmax(temperature=1e12), Rbf(length_scale=1e8), Nearest(k=99), Buckets(n=1), Uniform()], ids=repr
)
def test_the_wide_limit_is_the_leave_one_out_mean(kernel):
    rewards = np.array([1.0, 0.0, 0.5, 0.25])
    got = b_of(kernel, ["red apple", "red", "blue sea water", "x2 y2"], rewards)
    np.testing.assert_allclose(got, (rewards.sum() - rewards) / 3, atol=1e-9)


@pytest.mark.parametrize(
    "kernel", [Cosine(), Same(), Product([Cosine(), Same()]), Mixture([Cosine(), Same()], [1, 1])], ids=repr
)
def test_rows_without_weight_fall_back_to_the_leave_one_out_mean(kernel):
    rewards = np.array([1.0, 0.0, 0.5])
    np.testing.assert_allclose(b_of(kernel, ALONE, rewards, family=["f", "g", "h"]), [0.25, 0.75, 0.5], atol=1e-15)


def test_tiny_rbf_neither_overflows_nor_loses_the_nearest():
    got = b_of(Rbf(LogLength(), length_scale=1e-200), lengths(1, 2, 4, 100), [0.0, 1.0, 0.5, 0.2])
    np.testing.assert_allclose(got, [1.0, 0.0, 1.0, 0.5], atol=1e-12)


def test_rbf_by_hand():
    n = [3, 4]  # standardised: mean 3.5, deviation 0.5: -1 and 1
    w = math.exp(-(2.0**2) / (2 * 0.7**2))
    got = b_of(Rbf(NumberColumn("level"), 0.7), ["p", "q", "r"], [1.0, 0.0, 0.5], level=[*n, 3])
    assert w < 1
    centre, scale = np.mean([3, 4, 3]), np.std([3, 4, 3])
    w = math.exp(-((1 / scale) ** 2) / (2 * 0.7**2))
    assert centre == pytest.approx(10 / 3)
    np.testing.assert_allclose(got, [(w * 0 + 1 * 0.5) / (w + 1), 0.75, (1.0 + w * 0) / (1 + w)], atol=1e-14)


def test_nearest_counts_all_ties_with_the_kth():
    got = b_of(Nearest(LogLength(), k=1), lengths(5, 5, 5, 50), [1.0, 0.0, 0.5, 0.0])
    np.testing.assert_allclose(got, [0.25, 0.75, 0.5, 0.5], atol=1e-15)
    got = b_of(Nearest(LogLength(), k=2), lengths(1, 10, 100, 1000), [1.0, 0.0, 0.5, 0.3])
    np.testing.assert_allclose(got, [0.25, 0.75, 0.15, 0.25], atol=1e-15)


def test_length_buckets_as_qcut_cuts_ten_different_lengths():
    # Edges of 1..10 lie between 2|3, 4|5, 6|7, 8|9: pairs.
    rewards = np.arange(10) / 10
    got = b_of(Buckets(), lengths(*range(1, 11)), rewards)
    np.testing.assert_allclose(got, rewards[[1, 0, 3, 2, 5, 4, 7, 6, 9, 8]], atol=1e-15)


def test_length_buckets_share_equal_lengths_and_may_leave_a_bucket_empty():
    # Lengths 1 1 1 1 2 3 4 5 6 7. Quantile positions 1.8, 3.6, 5.4, 7.2: edges 1, between 1 and 2, between 3 and 4,
    # between 5 and 6. pandas.qcut: (.., 1] holds the four ones, nothing is in (1, e2], then {2, 3}, {4, 5}, {6, 7}.
    rewards = np.array([1.0, 0.0, 0.0, 0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7])
    got = b_of(Buckets(), lengths(1, 1, 1, 1, 2, 3, 4, 5, 6, 7), rewards)
    np.testing.assert_allclose(got, [0.5 / 3, 0.5, 0.5, 1 / 3, 0.2, 0.1, 0.4, 0.3, 0.7, 0.6], atol=1e-15)


def test_length_buckets_are_closed_on_the_right():
    # Six lengths 1..6: the edges are exactly 2, 3, 4, 5, so {1, 2}, {3}, {4}, {5}, {6}; buckets of one fall back.
    rewards = np.array([1.0, 0.0, 0.5, 0.25, 0.0, 0.75])
    loo = (rewards.sum() - rewards) / 5
    np.testing.assert_allclose(b_of(Buckets(), lengths(*range(1, 7)), rewards), [0.0, 1.0, *loo[2:]], atol=1e-15)


def test_length_buckets_count_the_window_for_edges_and_means():
    kernel = KernelBaseline(Buckets(n=2), window=4)
    kernel.observe(batch(lengths(1, 2, 30, 40), [1.0, 0.0, 0.5, 0.25]))
    # Visible: 5, 50 | 1, 2, 30, 40; the median lies between 5 and 30.
    np.testing.assert_allclose(kernel.predict(batch(lengths(5, 50), [0.9, 0.1])).baseline_B, [0.5, 0.375], atol=1e-15)


def test_buckets_need_one_number_a_task():
    with pytest.raises(InputError, match="'tfidf' gives"):
        b_of(Buckets(Tfidf()), ["red apple", "blue sea"], [1.0, 0.0])


def test_same_column_value_is_the_family_mean_and_alone_it_is_the_mean_of_the_rest():
    got = b_of(Same(CategoryColumn("family")), ["p", "q", "r", "s"], [1.0, 0.0, 0.5, 0.25], family=["x", "x", "x", "y"])
    np.testing.assert_allclose(got, [0.25, 0.75, 0.5, 0.5], atol=1e-15)


def test_product_multiplies_and_mixture_averages_normalised_weights():
    prompts, rewards, family = ["red", "red", "blue", "red"], [1.0, 0.0, 0.5, 0.25], ["x", "x", "x", "y"]
    e = math.exp(1.0)
    got = b_of(Product([Softmax(temperature=1.0), Same()]), prompts, rewards, family=family)
    np.testing.assert_allclose(got[0], (e * 0 + 0.5) / (e + 1), atol=1e-15)  # row 3 is of another family
    got = b_of(Mixture([Softmax(temperature=1.0), Same()], [1, 3]), prompts, rewards, family=family)
    softmax = (e * 0 + 0.5 + e * 0.25) / (2 * e + 1)
    np.testing.assert_allclose(got[0], 0.25 * softmax + 0.75 * 0.25, atol=1e-15)
    # Row 3 has nobody in its family: that part leaves its share to the other.
    np.testing.assert_allclose(got[3], (e * 1 + e * 0 + 0.5) / (2 * e + 1), atol=1e-15)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Softmax(temperature=0.0), "temperature"),
        (lambda: Softmax(temperature=float("nan")), "temperature"),
        (lambda: Rbf(length_scale=-1.0), "length_scale"),
        (lambda: Nearest(k=0), "k"),
        (lambda: Buckets(n=0), "n"),
        (lambda: Product([]), "at least one"),
        (lambda: Mixture([Uniform()], []), "shares"),
        (lambda: Mixture([Uniform()], [0.0]), "shares"),
        (lambda: Mixture([Uniform(), Cosine()], [1.0, -1.0]), "shares"),
        (lambda: from_config({"type": "softmax", "temprature": 1}), "no setting 'temprature'"),
        (lambda: from_config({"type": "softmx"}), "unknown type 'softmx'"),
        (
            lambda: from_config({"type": "product", "kernels": [{"type": "log_length"}]}),
            "must be a Kernel, not 'log_length'",
        ),
    ],
)
def test_bad_settings_name_the_setting(make, word):
    with pytest.raises(InputError, match=word):
        make()


@pytest.mark.parametrize("kernel", [Nearest(), Buckets(), Mixture([Uniform()], [1.0])], ids=repr)
def test_what_is_no_covariance_says_so(kernel):
    with pytest.raises(InputError, match="no covariance"):
        kernel.compute_covariance(batch(ALONE, [0.0] * 3).tasks, np.arange(3)[None], np.arange(3)[None])


@pytest.mark.parametrize("kernel", [Cosine(), Softmax(), Rbf(), Uniform(), Product([Softmax(), Rbf()])], ids=repr)
def test_covariances_are_symmetric_and_positive_semi_definite(kernel):
    tasks = batch(["red apple pie", "red car", "blue car", "a long text about the blue sea", "apple"], [0.0] * 5).tasks
    kernel.fit(tasks)
    at = np.arange(5)[None]
    c = kernel.compute_covariance(tasks, at, at)[0]
    np.testing.assert_allclose(c, c.T, atol=1e-15)
    np.testing.assert_allclose(np.diagonal(c), 1.0, atol=1e-12)
    assert np.linalg.eigvalsh(c).min() > -1e-12
    np.testing.assert_allclose(kernel.compute_covariance(tasks, at[:, :2], at[:, 1:])[0], c[:2, 1:], atol=1e-12)


@pytest.mark.parametrize("kernel", [Softmax(), Rbf(), Nearest(k=3), Cosine(), Buckets(n=3)], ids=repr)
def test_blocks_and_single_batches_give_the_same_weights(kernel):
    rng = np.random.default_rng(1)
    words = ["red", "blue", "sea", "car", "pie", "apple"]
    tasks = batch([" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(40)], np.zeros(40)).tasks
    kernel.fit(tasks)
    columns = np.stack([rng.choice(40, 12, replace=False) for _ in range(50)])
    visible = np.ones((50, 8, 12), bool)
    visible[:, np.arange(8), np.arange(8)] = False
    many = kernel.log_weights(tasks, columns[:, :8], columns, visible)  # looked up in the full table
    for k in (0, 49):
        one = kernel.log_weights(
            tasks.take(columns[k]).detached(), np.arange(8)[None], np.arange(12)[None], visible[k : k + 1]
        )
        np.testing.assert_allclose(np.exp(one[0]), np.exp(many[k]), atol=1e-12)
