"""Kriging against refitting without the row, ridge against scikit-learn's, trees against their own file."""

import json

import numpy as np
import pytest
from sklearn.linear_model import Ridge as TheirRidge

from rollonce.baselines import Baseline, Batch, BoostedTrees, History, Kriging, LeaveOneOut, Ridge
from rollonce.errors import InputError
from rollonce.features import LogLength, NumberColumn, Tfidf
from rollonce.kernels import Buckets, Cosine, Rbf, Softmax
from rollonce.rollouts import Tasks

WORDS = ["river", "apple", "quantum", "ledger", "window", "bridge", "sum", "list"]


def prompts_of(rng, n):
    return [" ".join(rng.choice(WORDS, rng.integers(1, 10))) for _ in range(n)]


def brute_force(c, i, visible, y):
    """Row i's mean from the visible rows: generalised least squares mean and simple kriging, solved from scratch."""
    k = c[np.ix_(visible, visible)]
    one = np.ones(len(visible))
    mean = one @ np.linalg.solve(k, y[visible]) / (one @ np.linalg.solve(k, one))
    return mean + c[i, visible] @ np.linalg.solve(k, y[visible] - mean)


@pytest.mark.parametrize("window", [0, 10, 40])  # the last takes the path for few rows among many columns
@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_kriging_is_a_refit_without_the_row(window, decay):
    rng = np.random.default_rng(window)
    prompts, y, n = prompts_of(rng, 8 + window), rng.random(8 + window), 8
    baseline = Kriging([Cosine(), Rbf(LogLength(), 0.4)], [1.5, 0.5], nugget=0.3, window=window, decay=decay).fit(
        prompts
    )
    ages = np.concatenate([np.zeros(n), np.repeat(np.arange(window // 5, 0, -1), 5)])
    for a in range(window // 5, 0, -1):
        at = np.flatnonzero(ages == a)
        baseline.observe(Batch.of([prompts[i] for i in at], y[at]))
    got = baseline.predict(Batch.of(prompts[:n], y[:n])).baseline_B

    x = Tfidf().fit(prompts).transform_tasks(prompts).to_dense()
    length = np.log1p([len(p) for p in prompts])
    c = 1.5 * x @ x.T + 0.5 * np.exp(-((length[:, None] - length) ** 2) / (2 * 0.4**2)) + np.diag(0.3 + decay**-ages)
    want = [brute_force(c, i, np.delete(np.arange(n + window), i), y) for i in range(n)]
    np.testing.assert_allclose(got, want, atol=1e-10)


def test_kriging_is_the_leave_one_out_mean_when_the_features_carry_nothing():
    rng = np.random.default_rng(1)
    batch = Batch.of(prompts_of(rng, 9), rng.random(9))
    want = LeaveOneOut().predict(batch).baseline_B
    for baseline in (Kriging([Cosine(), Rbf()], [0.0, 0.0], nugget=0.7), Kriging([Cosine()], [1.0]), Kriging()):
        data = batch if baseline.variances == [0.0, 0.0] else Batch.of(["one prompt for all"] * 9, batch.rewards_B)
        np.testing.assert_allclose(baseline.fit(data.tasks).predict(data).baseline_B, want, atol=1e-12)


def test_kriging_weights_may_be_negative_but_sum_to_one():
    rng = np.random.default_rng(2)
    prompts = prompts_of(rng, 20)
    w = Kriging([Rbf(LogLength(), 1.0)], [30.0], nugget=0.0).fit(prompts).weights(Batch.of(prompts, rng.random(20)))
    assert w.min() < -1e-3
    np.testing.assert_allclose(w.sum(1), 1.0, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_kriging_with_hidden_copies_is_a_refit_without_all_of_them(seed):
    """What a bootstrap resample asks for: a row must not see its own copies either, any number of them."""
    rng = np.random.default_rng(seed)
    n, m = 9, 14
    prompts, y = prompts_of(rng, m), rng.random(m)
    tasks = Tasks(prompts)
    baseline = Kriging([Softmax(temperature=0.5)], [2.0], nugget=0.1).fit(prompts)
    hidden = rng.random((n, m)) < rng.choice([0.0, 0.1, 0.3, 0.6], n)[:, None]
    hidden[np.arange(n), np.arange(n)] = True
    hidden[0] = True  # sees nothing at all
    hidden[1], hidden[1, 12] = True, False  # sees one row
    hidden[2] = np.arange(m) == 2  # itself alone hidden
    hidden[3] = np.isin(np.arange(m), [3, 10])  # one copy: closed form
    w = baseline.compute_weight_blocks(tasks, np.arange(m)[None], n, ~hidden[None], np.zeros(m, np.int64))[0]
    assert (w[hidden] == 0).all()
    assert (w[0] == 0).all()
    c = baseline.reward_covariance(tasks, np.arange(m)[None])[0]
    for i in range(1, n):
        assert w[i].sum() == pytest.approx(1.0, abs=1e-10)
        assert w[i] @ y == pytest.approx(brute_force(c, i, np.flatnonzero(~hidden[i]), y), abs=1e-9)


def test_kriging_when_only_copies_are_visible_gives_no_weight():
    baseline = Kriging().fit(["a prompt", "other words"])
    w = baseline.compute_weight_blocks(
        Tasks(["a prompt"] * 3), np.arange(3)[None], 3, np.zeros((1, 3, 3), bool), np.zeros(3, np.int64)
    )
    assert (w == 0).all()


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_the_ways_to_solve_agree(decay):
    """One batch asked alone (its own rows of P), with a copy hidden from one row (all of P), and beside others that see
    the same tasks (one P for all): equal to 1e-10, and to the definition."""
    rng = np.random.default_rng(7)
    prompts, y = prompts_of(rng, 60), rng.random(60)
    tasks = Tasks(prompts)
    baseline = Kriging(window=52, decay=decay, nugget=0.1).fit(prompts)
    order = [rng.permutation(60) for _ in range(3)]
    columns = np.stack(order)
    ages = np.repeat([0, 1, 2], [8, 26, 26])
    visible = columns[:, :8, None] != columns[:, None, :]
    together = baseline.compute_weight_blocks(tasks, columns, 8, visible, ages)
    hidden_elsewhere = visible.copy()
    hidden_elsewhere[:, 7, 30] = False
    whole = baseline.compute_weight_blocks(tasks, columns, 8, hidden_elsewhere, ages)
    for k in range(3):
        alone = baseline.compute_weight_blocks(tasks, columns[k : k + 1], 8, visible[k : k + 1], ages)[0]
        np.testing.assert_allclose(together[k], alone, atol=1e-10)
        np.testing.assert_allclose(whole[k, :7], alone[:7], atol=1e-10)
        c = baseline.reward_covariance(tasks, columns[k : k + 1], ages)[0]
        for i in range(8):
            want = brute_force(c, i, np.flatnonzero(visible[k, i]), y[columns[k]])
            assert alone[i] @ y[columns[k]] == pytest.approx(want, abs=1e-10)


def test_kriging_beyond_its_exact_size_uses_the_newest_rows(monkeypatch):
    from rollonce.baselines import kriging_solver

    monkeypatch.setattr(kriging_solver, "EXACT_UP_TO", 12)
    rng = np.random.default_rng(3)
    prompts, y = prompts_of(rng, 30), rng.random(30)
    batch = Batch.of(prompts[:4], y[:4])
    many, few = Kriging(window=26).fit(prompts), Kriging(window=8).fit(prompts)
    for baseline in (many, few):
        baseline.observe(Batch.of(prompts[4:], y[4:]))
    np.testing.assert_allclose(many.predict(batch).baseline_B, few.predict(batch).baseline_B, atol=1e-13)
    assert (many.weights(batch)[:, 4:-8] == 0).all()


def test_kriging_refuses_what_is_no_covariance_and_bad_variances():
    with pytest.raises(InputError, match="no covariance"):
        Kriging([Buckets()], [1.0]).predict(Batch.of(["a", "b"], [1.0, 0.0]))
    for bad in ([-1.0], [float("nan")], [float("inf")]):
        with pytest.raises(InputError, match="finite and >= 0"):
            Kriging([Cosine()], bad)
    with pytest.raises(InputError, match="as many variances"):
        Kriging([Cosine()], [1.0, 2.0])


@pytest.mark.parametrize("decay", [1.0, 0.7])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 50.0])
def test_ridge_is_scikit_learns(penalty, decay):
    rng = np.random.default_rng(0)
    prompts, y, level = prompts_of(rng, 36), rng.random(36), rng.normal(size=36)
    features = [Tfidf(), LogLength(), NumberColumn("level")]
    baseline = Ridge(features, penalty, window=30, decay=decay).fit(Tasks(prompts, columns={"level": level}))
    ages = []
    for step in range(5):
        at = slice(6 * step, 6 * step + 6)
        baseline.observe(Batch.of(prompts[at], y[at], columns={"level": level[at]}))
        ages += [5 - step] * 6
    got = baseline.predict(Batch.of(prompts[30:], y[30:], columns={"level": level[30:]})).baseline_B

    tasks = Tasks(prompts, columns={"level": level})
    x = np.hstack([m.to_dense() if hasattr(m, "to_dense") else m for m in (f.transform_tasks(tasks) for f in features)])
    theirs = TheirRidge(alpha=penalty).fit(x[:30], y[:30], sample_weight=decay ** (np.array(ages) - 1.0))
    np.testing.assert_allclose(got, theirs.predict(x[30:]), atol=1e-9)


def test_ridge_without_history_is_the_leave_one_out_mean_and_with_it_ignores_the_batch():
    rng = np.random.default_rng(1)
    prompts = prompts_of(rng, 20)
    baseline = Ridge().fit(prompts)
    batch = Batch.of(prompts[:5], rng.random(5))
    np.testing.assert_allclose(baseline.predict(batch).baseline_B, LeaveOneOut().predict(batch).baseline_B, atol=1e-15)
    baseline.observe(Batch.of(prompts[5:], rng.random(15)))
    assert np.array_equal(
        baseline.predict(batch).baseline_B, baseline.predict(Batch.of(prompts[:5], rng.random(5))).baseline_B
    )


def stream(rng, steps, n=16):
    for _ in range(steps):
        prompts = [
            " ".join([str(rng.choice(["easy", "hard"])), *list(rng.choice(WORDS, rng.integers(1, 6)))])
            for _ in range(n)
        ]
        yield Batch.of(prompts, [float(rng.random() < (0.9 if p.startswith("easy") else 0.1)) for p in prompts])


def test_boosted_trees_come_back_bit_equal_at_every_step_of_the_window(tmp_path):
    rng = np.random.default_rng(0)
    batches = list(stream(rng, 14))
    baseline = BoostedTrees(iterations=8, window=70, min_rows=40, refit_every=3)
    baseline.fit([p for b in batches for p in b.tasks.prompts])
    ask = batches[0]
    for step, batch in enumerate(batches):
        baseline.observe(batch)
        baseline.save(tmp_path / "trees.json")
        loaded = Baseline.load(tmp_path / "trees.json")
        assert np.array_equal(loaded.predict(ask).baseline_B, baseline.predict(ask).baseline_B), step
        again = BoostedTrees(iterations=8, window=70, min_rows=40, refit_every=3)
        again.load_state_dict(json.loads(json.dumps(baseline.state_dict())))
        for later in batches[:4]:
            loaded.observe(later)
            again.observe(later)
        assert np.array_equal(loaded.predict(ask).baseline_B, again.predict(ask).baseline_B), step


def test_critics_learn_what_the_stream_teaches():
    rng = np.random.default_rng(1)
    batches = list(stream(rng, 12))
    prompts = [p for b in batches for p in b.tasks.prompts]
    ask = Batch.of(["easy river", "hard river"], [0.0, 1.0])
    for baseline in (BoostedTrees(iterations=20), Ridge(penalty=0.5)):
        baseline.fit(prompts)
        for batch in batches:
            baseline.observe(batch)
        easy, hard = baseline.predict(ask).baseline_B
        assert easy > hard + 0.3, baseline.label


def test_boosted_trees_ignore_directions_that_are_rounding():
    """Identical prompts leave one direction; what lies beyond it is noise that differs with the order of rows."""
    baseline = BoostedTrees([Tfidf()], iterations=10, min_rows=10).fit(["one prompt for all"])
    rng = np.random.default_rng(2)
    baseline.observe(Batch.of(["one prompt for all"] * 60, rng.random(60)))
    b = baseline.predict(Batch.of(["one prompt for all"] * 5, [0.0] * 5)).baseline_B
    np.testing.assert_allclose(b, np.full(5, baseline.history.rewards_H.mean()), atol=1e-6)

    prompts = ["aa bb cc", "bb cc dd dd", "cc dd ee ff", "aa ff"]  # four directions for sixteen components
    baseline = BoostedTrees([Tfidf()], iterations=30, min_rows=10, components=16).fit(prompts)
    at = rng.integers(0, 4, 200)
    baseline.observe(Batch.of([prompts[i] for i in at], rng.random(200)))
    assert all(projection[1].shape[1] == 4 for projection in baseline._fitted[1])
    b = baseline.predict(Batch.of([prompts[i] for i in at], rng.random(200))).baseline_B
    assert all(np.ptp(b[at == i]) == 0 for i in range(4))


def test_history_given_as_an_argument_trains_for_that_call_only():
    rng = np.random.default_rng(3)
    batches = list(stream(rng, 6))
    history = History.before_first_step()
    for b in batches:
        history = history.with_batch_appended(b)
    baseline = BoostedTrees(iterations=5, min_rows=20).fit([p for b in batches for p in b.tasks.prompts])
    ask = batches[0]
    with_history = baseline.predict(ask, history).baseline_B
    assert np.ptp(with_history) > 0
    untrained = baseline.predict(ask)
    assert untrained.baseline_B.tolist() == [0.0] * len(ask)
    assert untrained.only_prior_B.all()
