"""Self-tuning: the fit, what falls back to LOO, what it finds, and that nothing of the batch being judged reaches
it."""

import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.optimize

from rollonce.baselines import Baseline, Batch, History, Kriging, NormWeighted, SelfTuning
from rollonce.baselines.evidence import fit_variance_shares, inverse_and_logdet, negative_log_evidence
from rollonce.errors import InputError
from rollonce.features import PromptStatistics, Tfidf
from rollonce.features.statistics import STATISTICS, prompt_statistics
from rollonce.kernels import Cosine, Exponential, Rbf
from rollonce.rollouts import Tasks
from rollonce.testing import check_baseline

WORDS = ["river", "apple", "ledger", "window", "quantum", "bridge", "carriage", "tower"]


def small(**settings) -> SelfTuning:
    return SelfTuning(kernels=[Cosine(Tfidf()), Rbf(PromptStatistics(["characters"]), 1.0)], **settings)


def planted(n: int, rng: np.random.Generator, useful: bool = True) -> tuple[list[str], np.ndarray]:
    """Prompts of two kinds, and the chance of success of each."""
    kind = rng.integers(0, 2, n)
    prompts = [
        f"{'prove the lemma about' if k else 'count the letters in'} {' '.join(rng.choice(WORDS, 4))} number {i}"
        for i, k in enumerate(kind)
    ]
    return prompts, (np.where(kind == 1, 0.1, 0.9) if useful else rng.permutation(np.where(kind == 1, 0.1, 0.9)))


def loo(r: np.ndarray) -> np.ndarray:
    return (r.sum() - r) / (len(r) - 1)


@pytest.mark.parametrize(
    "make",
    [
        SelfTuning,
        lambda: small(window=30),
        lambda: small(window=30, noise="bernoulli"),
        lambda: small(window=20, decay=0.9),
        lambda: small(refit_every=0),
        lambda: NormWeighted(small(window=30)),
    ],
)
def test_contract(make):
    check_baseline(make(), raise_on_failure=True)


def test_gradient_is_that_of_the_penalised_evidence():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(20, 3))
    kernels = np.stack([z @ z.T / 3, np.exp(-np.abs(z[:, :1] - z[:, 0]))])
    y, prior, theta = rng.normal(size=20), np.array([0.1, 0.1, 2.0]), np.array([0.3, -0.5, 0.2])
    _, g = negative_log_evidence(theta, kernels, y, prior)
    numeric = scipy.optimize.approx_fprime(theta, lambda t: negative_log_evidence(t, kernels, y, prior)[0], 1e-6)
    np.testing.assert_allclose(g, numeric, atol=1e-4)


def test_the_fit_is_scipys_optimum():
    rng = np.random.default_rng(1)
    for n in (12, 60):
        z = rng.normal(size=(n, 2))
        kernels = np.stack([np.exp(-np.abs(z[:, k : k + 1] - z[:, k])) for k in range(2)])
        y = np.linalg.cholesky(kernels[0] + 0.5 * np.eye(n)) @ rng.normal(size=n)
        prior = np.array([0.1, 0.1, 2.0])
        best = scipy.optimize.minimize(
            negative_log_evidence, np.zeros(3), (kernels, y, prior), jac=True, method="L-BFGS-B"
        )
        mine = fit_variance_shares(kernels, y, 0.1, 2.0)
        assert abs(negative_log_evidence(np.log(mine), kernels, y, prior)[0] - best.fun) < 2e-3
        assert mine.sum() == pytest.approx(1)
        assert mine.min() > 0


def test_weights_are_those_of_kriging_with_the_fitted_shares():
    rng = np.random.default_rng(2)
    prompts, p = planted(90, rng)
    b = small().fit(prompts).fit_rewards(prompts[:60], (rng.random(60) < p[:60]).astype(float))
    share, noise = b.variance_shares_K1[:-1] / b.spread_K, b.variance_shares_K1[-1] + 1e-6
    kriging = Kriging(kernels=b.kernels, variances=(share / noise).tolist(), nugget=0.0)
    batch = Batch.of(prompts[60:], rng.random(30))
    np.testing.assert_allclose(b.weights(batch), kriging.weights(batch), atol=1e-10)
    assert b.variance_shares_K1[:-1].sum() > 0.3  # it found something


def test_leave_one_out_mean_where_there_is_nothing_to_learn():
    rng = np.random.default_rng(3)
    prompts, _ = planted(80, rng)
    batch = Batch.of(prompts[:16], rng.random(16))
    young = small().fit(prompts)
    constant = small().fit(prompts).fit_rewards(prompts[16:], np.ones(64))
    few = small().fit(prompts).fit_rewards(prompts[16:40], rng.random(24))
    same = SelfTuning().fit(["one prompt"] * 40).fit_rewards(["one prompt"] * 40, rng.random(40))
    for b in (young, constant, few, same):
        np.testing.assert_allclose(b.predict(batch).baseline_B, loo(batch.rewards_B), atol=1e-9)
        assert b.variance_shares_K1[-1] == 1.0


def test_useless_features_cost_next_to_nothing_and_useful_ones_are_found():
    rng = np.random.default_rng(4)
    for useful in (True, False):
        mse, mse_loo = [], []
        for _ in range(6):
            prompts, p = planted(200, rng, useful)
            r = (rng.random(200) < p).astype(float)
            b = small().fit(prompts).fit_rewards(prompts[:120], r[:120])
            for at in (slice(120, 152), slice(152, 184)):
                mse.append(((b.predict(Batch.of(prompts[at], r[at])).baseline_B - p[at]) ** 2).mean())
                mse_loo.append(((loo(r[at]) - p[at]) ** 2).mean())
        ratio = (0.09 + np.mean(mse_loo)) / (0.09 + np.mean(mse))
        assert ratio > 1.8 if useful else ratio > 0.97


def test_online_it_learns_from_past_steps_only():
    rng = np.random.default_rng(5)
    prompts, p = planted(400, rng)
    b = small(window=64, refit_every=2).fit(prompts)
    for step in range(8):
        at = np.arange(step * 32, step * 32 + 32)
        batch = Batch.of([prompts[i] for i in at], (rng.random(32) < p[at]).astype(float))
        before = b.variance_shares_K1.copy()
        w = b.weights(batch)
        flipped = Batch(batch.tasks, 1 - batch.rewards_B)
        np.testing.assert_array_equal(w, b.weights(flipped))
        np.testing.assert_array_equal(before, b.variance_shares_K1)
        assert (before[-1] == 1.0) == (step < 1)  # refits after steps 1, 2, 4 ..., and every second
        b.observe(batch)
    assert b.variance_shares_K1[-1] < 0.7
    given = History.before_first_step()
    assert b.predict(batch, given).baseline_B == pytest.approx(loo(batch.rewards_B))


def test_bernoulli_noise_reads_past_rewards_and_never_the_batchs():
    rng = np.random.default_rng(6)
    prompts, p = planted(200, rng)
    b = small(window=96, noise="bernoulli").fit(prompts)
    r = (rng.random(200) < p).astype(float)
    for s in range(0, 128, 32):
        b.observe(Batch.of(prompts[s : s + 32], r[s : s + 32]))
    batch = Batch.of(prompts[128:160], r[128:160])
    w = b.weights(batch)
    np.testing.assert_array_equal(w, b.weights(Batch(batch.tasks, 1 - batch.rewards_B)))
    plain = small(window=96)
    plain.load_state_dict(b.state_dict())
    assert np.abs(w - plain.weights(batch)).max() > 1e-4
    np.testing.assert_allclose(w.sum(axis=1), 1)


def test_the_file_holds_a_vocabulary_once(tmp_path):
    prompts, _ = planted(60, np.random.default_rng(7))
    b = SelfTuning(window=32).fit(prompts).fit_rewards(prompts, np.arange(60) % 2)
    b.save(tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text()
    pool = json.loads(text)["state"]["pool"]
    assert sum("terms" in s for s in pool.values()) == 3
    batch = Batch.of(prompts[:20], np.arange(20) % 3)
    again = Baseline.load(tmp_path / "b.json")
    np.testing.assert_array_equal(b.predict(batch).baseline_B, again.predict(batch).baseline_B)


def test_it_fits_where_nothing_but_numpy_can_be_imported():
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('scipy', 'sklearn', 'numba', 'torch', 'pandas', 'optuna'):
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
from rollonce.baselines import SelfTuning
prompts = [f"count to {n}" for n in range(20)] + [f"prove lemma {n}" for n in range(20)]
print(SelfTuning().fit(prompts).fit_rewards(prompts, [1.0] * 20 + [0.0] * 20).variance_shares_K1[-1] < 0.9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_prompts_without_words_are_no_error():
    prompts = [f"{i}+{j}" for i in range(8) for j in range(8)]
    b = SelfTuning().fit(prompts).fit_rewards(prompts, [float(i) for i in range(8) for _ in range(8)])
    assert (b.spread_K[7:] == 0).all()  # those that need words
    assert b.variance_shares_K1[-1] < 0.8
    SelfTuning().fit(["", ""]).predict(Batch.of(["", ""], [0, 1]))


def test_what_is_refused():
    with pytest.raises(InputError, match="name kernels"):
        SelfTuning(kernels=[Cosine()], experts=[[1]])
    with pytest.raises(InputError, match="noise must be"):
        small(noise="poisson")
    with pytest.raises(InputError, match="not fitted"):
        small().predict(Batch.of(["aa bb", "cc dd"], [0, 1]))
    with pytest.raises(InputError, match="one finite reward a task"):
        small().fit(["aa bb", "cc dd"]).fit_rewards(["aa bb"], [0, 1])
    b = small().fit(["aa bb", "cc dd"])
    with pytest.raises(InputError, match="shares of 2 kernels"):
        b.load_state_dict(b.state_dict() | {"shares": [1.0]})


def test_blocks_that_see_the_same_tasks_share_a_solve_and_agree_with_those_that_do_not():
    rng = np.random.default_rng(8)
    prompts, p = planted(100, rng)
    tasks = Tasks(prompts)
    b = small().fit(tasks).fit_rewards(tasks, (rng.random(100) < p).astype(float))
    one = rng.permutation(100)[:64]
    columns = np.stack([np.concatenate([one[s : s + 16], one[:s], one[s + 16 :]]) for s in range(0, 64, 16)])
    visible = columns[:, :16, None] != columns[:, None, :]
    visible[1, 3, 20] = False
    ages = np.zeros(64, np.int64)
    shared = b.compute_weight_blocks(tasks, columns, 16, visible, ages)
    for k in range(4):
        single = b.compute_weight_blocks(
            Tasks([prompts[i] for i in columns[k]]), np.arange(64)[None], 16, visible[k : k + 1], ages
        )
        np.testing.assert_allclose(shared[k], single[0], atol=1e-10)


# ---------------------------------------------------------------------- features and kernels


def test_prompt_statistics():
    found = dict(zip(STATISTICS, prompt_statistics("Add 3, 4.5 and 3!\n(Now)"), strict=True))
    assert found["characters"] == pytest.approx(np.log1p(23))
    assert found["numbers"] == pytest.approx(np.log1p(3))
    assert found["distinct_numbers"] == pytest.approx(np.log1p(2))
    assert found["largest_number"] == pytest.approx(np.log1p(4.5))
    assert found["has_decimals"] == 1.0
    assert found["brackets"] == pytest.approx(np.log1p(2))
    assert np.isfinite(prompt_statistics("")).all()
    assert np.isfinite(prompt_statistics("9" * 500 + "\ud83d")).all()
    prompts, _ = planted(50, np.random.default_rng(9))
    z = PromptStatistics().fit(prompts).transform_tasks(prompts)
    assert (z**2).sum(axis=1).mean() == pytest.approx(1, abs=0.1)  # the mean over statistics of unit variances
    rank = PromptStatistics(["characters"], scale="rank").fit(prompts)
    other = PromptStatistics(["characters"], scale="rank")
    other.load_state_dict(json.loads(json.dumps(rank.state_dict())))
    np.testing.assert_array_equal(rank.transform_tasks(prompts), other.transform_tasks(prompts))
    order = np.argsort([len(q) for q in prompts], kind="stable")
    assert (np.diff(np.asarray(rank.transform_tasks(prompts))[order, 0]) >= 0).all()
    with pytest.raises(InputError, match="no prompt statistic"):
        PromptStatistics(["reward"])


@pytest.mark.parametrize("metric", ["euclidean", "cityblock"])
def test_exponential_kernel(metric):
    prompts, _ = planted(12, np.random.default_rng(10))
    feature = PromptStatistics(scale="rank").fit(prompts)
    x = np.asarray(feature.transform_tasks(prompts))
    d = np.abs(x[:, None] - x) if metric == "cityblock" else (x[:, None] - x) ** 2
    d = d.sum(axis=-1) if metric == "cityblock" else np.sqrt(d.sum(axis=-1))
    every = np.arange(12)[None]
    c = Exponential(feature, 0.7, metric).compute_covariance(Tasks(prompts), every, every)[0]
    np.testing.assert_allclose(c, np.exp(-d / 0.7), atol=1e-5)
    assert np.linalg.eigvalsh(c).min() > -1e-9


@pytest.mark.parametrize("n", [1, 2, 64, 65, 129, 256])
def test_the_inverse_by_halves_is_the_inverse(n):
    rng = np.random.default_rng(n)
    c = np.cov(rng.normal(size=(n, 2 * n))).reshape(n, n) + 0.01 * np.eye(n)
    inverse, logdet = inverse_and_logdet(c)
    np.testing.assert_allclose(inverse @ c, np.eye(n), atol=1e-9)
    np.testing.assert_allclose(inverse, inverse.T, rtol=0, atol=1e-9)
    assert logdet == pytest.approx(np.linalg.slogdet(c)[1], abs=1e-8)


def test_the_inverse_by_halves_refuses_what_has_no_cholesky_factor():
    c = np.eye(100)
    c[99, 99] = -1e-3
    with pytest.raises(np.linalg.LinAlgError):
        inverse_and_logdet(c)


def test_shares_that_leave_the_covariance_indefinite_are_turned_back_from():
    """Pairs of equal rewards under a kernel with the eigenvalues 2.5 and -0.5: the evidence rises with the kernel's
    share until the covariance stops being positive definite, at pi * 0.5 = 1 - pi, so at two thirds."""
    pair_of_n = np.repeat(np.arange(40), 2)
    kernel_nn = np.eye(80) + 1.5 * ((pair_of_n[:, None] == pair_of_n[None, :]) & ~np.eye(80, dtype=bool))
    y_n = np.random.default_rng(0).normal(size=40)[pair_of_n]
    share, noise = fit_variance_shares(kernel_nn[None], (y_n - y_n.mean()) / y_n.std(), 0.0, 0.0)
    assert 0.5 < share < 2 / 3 + 1e-5
    assert share + noise == pytest.approx(1)
    with pytest.raises(np.linalg.LinAlgError):  # at equal shares an eigenvalue of -0.25: no kernel at all
        fit_variance_shares((kernel_nn + (kernel_nn == 1.5))[None], (y_n - y_n.mean()) / y_n.std(), 0.0, 0.0)
