"""The reference against values worked out by hand, and the package against the reference."""

import ast
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from rollonce import reference
from rollonce.baselines import (
    Batch,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    Rloo,
    published_length_buckets,
    published_tfidf,
)
from rollonce.features import CategoryColumn, LogLength
from rollonce.kernels import Rbf, Same, Softmax

WORDS = ["river", "apple", "naïve", "quantum", "ledger", "window", "Σίσυφος", "bridge", "12", "x_1"]


def prompts_of(rng, n):
    return [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(n)]


def test_it_imports_numpy_and_the_standard_library_only():
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) == {"numpy"}


def test_word_tfidf_is_scikit_learns_default():
    rng = np.random.default_rng(0)
    texts = [*prompts_of(rng, 20), "", "The THE the İstanbul 東京 a I 3.14 don't"]
    theirs = TfidfVectorizer().fit(texts)
    vocabulary, idf = reference.fit_tfidf_vocabulary(texts)
    assert list(vocabulary) == theirs.get_feature_names_out().tolist()
    np.testing.assert_allclose(
        reference.tfidf_unit_vectors(texts, vocabulary, idf), theirs.transform(texts).toarray(), atol=1e-14
    )
    x = theirs.transform(texts)
    np.testing.assert_allclose(reference.tfidf_similarity(texts), (x @ x.T).toarray(), atol=1e-14)


def test_the_seeds_own_lines_give_the_same_baseline():
    """The formula as the specification's wrapper writes it, with scikit-learn."""
    rng = np.random.default_rng(1)
    train = prompts_of(rng, 50)
    prompts, rewards = train[:12], rng.random(12)
    x = TfidfVectorizer().fit(train).transform(prompts)
    w = np.exp((x @ x.T).toarray() / 0.1)
    np.fill_diagonal(w, 0.0)
    seed = (w @ rewards) / w.sum(1)
    np.testing.assert_allclose(
        reference.gs1_kernel_baseline(reference.tfidf_similarity(prompts, train), rewards), seed, atol=1e-12
    )
    np.testing.assert_allclose(
        published_tfidf().fit(train).predict(Batch.of(prompts, rewards)).baseline_B, seed, atol=1e-12
    )


def test_two_clusters_at_T_1_with_unequal_sizes_by_hand():
    # Three "red" and two "blue": a formula that forgets the -1, or swaps the clusters' sizes, gives other numbers.
    prompts, rewards = ["red apple", "red apple", "red apple", "blue sea", "blue sea"], [1.0, 0.0, 0.5, 0.0, 1.0]
    e = math.e
    want = [
        (e * 0.5 + 1) / (2 * e + 2),
        (e * 1.5 + 1) / (2 * e + 2),
        (e * 1 + 1) / (2 * e + 2),
        (e * 1 + 1.5) / (e + 3),
        1.5 / (e + 3),
    ]
    cluster = [0, 0, 0, 1, 1]
    np.testing.assert_allclose(reference.two_cluster_baseline(cluster, rewards, 1.0), want, atol=1e-15)
    np.testing.assert_allclose(reference.gs1_kernel_baseline(prompts, rewards, 1.0), want, atol=1e-15)
    fast = KernelBaseline(Softmax(temperature=1.0)).fit(prompts)
    np.testing.assert_allclose(fast.predict(Batch.of(prompts, rewards)).baseline_B, want, atol=1e-15)


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("sizes", [(1, 9), (2, 5), (4, 4)])
def test_two_clusters_at_any_temperature(temperature, sizes):
    rng = np.random.default_rng(sizes[0])
    cluster = rng.permutation(np.repeat([0, 1], sizes))
    prompts, rewards = [["red apple", "blue sea"][c] for c in cluster], rng.random(sum(sizes))
    want = reference.two_cluster_baseline(cluster, rewards, temperature)
    np.testing.assert_allclose(reference.gs1_kernel_baseline(prompts, rewards, temperature), want, atol=1e-13)
    fast = KernelBaseline(Softmax(temperature=temperature)).fit(prompts)
    np.testing.assert_allclose(fast.predict(Batch.of(prompts, rewards)).baseline_B, want, atol=1e-13)


def test_identical_prompts_do_not_activate_the_kernel():
    rewards = [1.0, 0.0, 0.25, 0.75]
    np.testing.assert_allclose(
        reference.gs1_kernel_baseline(["same words"] * 4, rewards), [1 / 3, 2 / 3, 1.75 / 3, 1.25 / 3], atol=1e-15
    )
    np.testing.assert_allclose(reference.leave_one_out_mean(rewards), [1 / 3, 2 / 3, 1.75 / 3, 1.25 / 3], atol=1e-15)


def test_alone_it_gives_the_prior():
    assert reference.gs1_kernel_baseline(["a b"], [1.0]).tolist() == [0.0]
    assert reference.leave_one_out_mean([1.0], prior=0.5).tolist() == [0.5]


def test_buckets_by_hand():
    assert reference.quantile_buckets(range(1, 11)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert reference.quantile_buckets([1, 1, 1, 1, 2, 3, 4, 5, 6, 7]).tolist() == [0, 0, 0, 0, 2, 2, 3, 3, 4, 4]
    assert reference.quantile_buckets([7, 7, 7]).tolist() == [0, 0, 0]
    got = reference.length_bucket_baseline([1, 2, 3, 4, 5, 6], [1.0, 0.0, 0.5, 0.25, 0.0, 0.75])
    np.testing.assert_allclose(got, [0.0, 1.0, 0.4, 0.45, 0.5, 0.35], atol=1e-15)


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_package_agrees_with_the_reference(seed, window):
    rng = np.random.default_rng(seed)
    prompts, rewards, n = prompts_of(rng, 12 + window), rng.random(12 + window), 12
    batch = Batch.of(prompts[:n], rewards[:n])
    similarity = reference.tfidf_similarity(prompts)[:n]
    lengths = [len(p) + 1 for p in prompts]
    cases = [
        (LeaveOneOut(window=window), reference.leave_one_out_mean(rewards, n)),
        (published_tfidf(window), reference.gs1_kernel_baseline(similarity, rewards, 0.1)),
        (
            KernelBaseline(Softmax(temperature=0.7), window=window),
            reference.gs1_kernel_baseline(similarity, rewards, 0.7),
        ),
        (published_length_buckets(window), reference.length_bucket_baseline(lengths, rewards, n)),
    ]
    for baseline, want in cases:
        baseline.fit(prompts)
        if window:
            baseline.observe(Batch.of(prompts[n:], rewards[n:]))
        np.testing.assert_allclose(baseline.predict(batch).baseline_B, want, atol=1e-12, err_msg=baseline.label)


@pytest.mark.parametrize("seed", [0, 1])
def test_kriging_agrees_with_deleting_the_row_and_solving_again(seed):
    rng = np.random.default_rng(seed)
    prompts, rewards = prompts_of(rng, 14), rng.random(14)
    baseline = Kriging([Softmax(temperature=0.5), Rbf(LogLength(), 0.4)], [0.8, 0.3], nugget=0.2).fit(prompts)
    x = np.log1p([len(p) for p in prompts])
    k = (
        0.8 * np.exp((reference.tfidf_similarity(prompts) - 1) / 0.5)
        + 0.3 * np.exp(-((x[:, None] - x) ** 2) / (2 * 0.4**2))
        + 0.2 * np.eye(14)
    )
    want = reference.kriging_baseline(k, 1.0, rewards)
    np.testing.assert_allclose(baseline.predict(Batch.of(prompts, rewards)).baseline_B, want, atol=1e-11)


def test_moments_by_hand():
    # s2_x: 1/2, 0, 1/3; means 1/2, 1, 1/3.
    m = reference.reward_moments([[1, 0], [1, 1, 1], [0, 0, 1]])
    s2 = (1 / 2 + 0 + 1 / 3) / 3
    means = [1 / 2, 1.0, 1 / 3]
    centre = sum(means) / 3
    tau2 = sum((x - centre) ** 2 for x in means) / 2 - (1 / 4 + 0 + 1 / 9) / 3
    assert m.s2 == pytest.approx(s2, abs=1e-15)
    assert m.tau2 == pytest.approx(tau2, abs=1e-15)
    assert m.snr == pytest.approx(tau2 / s2, abs=1e-14)
    assert math.isnan(reference.reward_moments([[1, 1], [0, 0]]).snr)
    with pytest.raises(ValueError, match="two rollouts"):
        reference.reward_moments([[1], [0, 1]])


@pytest.mark.parametrize(("snr", "published"), [(2.36, 9.3), (1.81, 10.9), (0.31, 23.8), (4.91, 5.2)])
def test_the_four_published_values(snr, published):
    assert reference.loo_beff_closed_form(snr, 32) == pytest.approx(published, abs=0.2)
    # The same thing from its parts, with s2 = 1.
    assert reference.loo_beff_closed_form(snr, 32) == pytest.approx(
        reference.effective_batch_size(1.0, snr * 32 / 31 + 1 / 31, 32), abs=1e-12
    )


def test_closed_form_mse_by_hand():
    # Two tasks, equal weight on the other: (m_1 - m_0)^2 + v_1 - s2_0 / G.
    got = reference.closed_form_squared_error(
        np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.5, 0.75]), np.array([0.25, 0.1875]), np.array([0.125, 0.0625])
    )
    np.testing.assert_allclose(got, [0.0625 + 0.1875 - 0.125, 0.0625 + 0.25 - 0.0625], atol=1e-15)


def beta_bernoulli(rng, n=60, g=8):
    return (rng.random((n, g)) < rng.beta(0.7, 0.7, n)[:, None]).astype(float)


def test_the_recipe_agrees_with_the_closed_forms():
    rng = np.random.default_rng(3)
    rewards, prompts = beta_bernoulli(rng), prompts_of(rng, 60)
    m = reference.reward_moments(rewards)
    loo = reference.simulate_effective_batch_size(rewards, reference.make_loo_on_tasks(), batches=4000)
    assert loo.b_eff == pytest.approx(reference.loo_beff_closed_form(m.snr, 32), abs=0.25)
    assert abs(loo.mse - (m.tau2 * 32 / 31 + m.s2 / 31)) < 4 * loo.mse_se

    similarity = reference.tfidf_similarity(prompts)
    simulated = reference.simulate_effective_batch_size(
        rewards, reference.make_gs1_on_tasks(similarity), batches=4000, seed=1
    )
    means, variances = rewards.mean(1), rewards.var(1)
    noise = rewards.var(1, ddof=1) / 8
    exact = []
    for _ in range(4000):
        at = rng.choice(60, 32, replace=False)
        w = np.exp(similarity[np.ix_(at, at)] / 0.1)
        np.fill_diagonal(w, 0.0)
        exact.append(
            reference.closed_form_squared_error(w / w.sum(1, keepdims=True), means[at], variances[at], noise[at]).mean()
        )
    assert abs(simulated.mse - np.mean(exact)) < 4 * math.hypot(simulated.mse_se, np.std(exact) / math.sqrt(4000))


def test_a_baseline_that_used_the_target_rollouts_looks_better_than_perfect():
    """The group's whole mean differs from the held-out mean by (r - held-out mean) / G, so the recipe gives -s2 / G."""
    rewards = beta_bernoulli(np.random.default_rng(4), 50, 4)
    cheat = reference.simulate_effective_batch_size(rewards, lambda tasks, r: rewards.mean(1)[tasks], batches=2000)
    assert cheat.mse == pytest.approx(-cheat.s2 / 4, abs=4 * cheat.mse_se)
    assert cheat.b_eff == pytest.approx(32 * 4 / 3, rel=0.02)


def test_rloo_by_hand():
    rewards = np.array([[1.0, 0.0, 0.0, 1.0]])
    b = Rloo().predict(Batch.of(["p"] * 4, rewards[0], task_ids=["t"] * 4)).baseline_B
    np.testing.assert_allclose(b, [(rewards[0].sum() - x) / 3 for x in rewards[0]], atol=1e-15)


def test_the_recipe_with_a_window_ragged_groups_and_too_few_tasks():
    rng = np.random.default_rng(5)
    rewards = [rng.random(int(g)) for g in rng.integers(2, 7, 50)]
    wide = reference.simulate_effective_batch_size(
        rewards, reference.make_loo_on_tasks(10), batch_size=10, window=30, batches=3000
    )
    narrow = reference.simulate_effective_batch_size(
        rewards, reference.make_loo_on_tasks(10), batch_size=10, batches=3000
    )
    assert wide.mse < narrow.mse
    m = reference.reward_moments(rewards)
    assert abs(wide.mse - (m.tau2 + (m.tau2 + m.s2) / 39)) < 5 * wide.mse_se
    assert reference.simulate_effective_batch_size(
        rewards, reference.make_loo_on_tasks(10), batch_size=10, batches=50
    ) == reference.simulate_effective_batch_size(rewards, reference.make_loo_on_tasks(10), batch_size=10, batches=50)
    with pytest.raises(ValueError, match="needs 60 distinct tasks; there are 50"):
        reference.simulate_effective_batch_size(rewards, reference.make_loo_on_tasks(10), batch_size=10, window=50)
    with pytest.raises(ValueError, match="two rollouts or more"):
        reference.simulate_effective_batch_size([[1.0]] * 40, reference.make_loo_on_tasks())


def test_family_mean_is_the_weighted_baseline_of_equal_families():
    rng = np.random.default_rng(6)
    family, rewards = rng.integers(0, 4, 12), rng.random(12)
    want = reference.weighted_baseline(family[:, None] == family, rewards)
    batch = Batch.of(["p"] * 12, rewards, columns={"family": family})
    np.testing.assert_allclose(
        KernelBaseline(Same(CategoryColumn("family"))).predict(batch).baseline_B, want, atol=1e-14
    )
