"""Mixing experts by their past advantages: regret to the best and to LOO, drift, what is refused, and that no reward
leaks."""

import numpy as np
import pytest
import scipy.optimize

from rollonce.baselines import (
    Baseline,
    Batch,
    BoostedTrees,
    Constant,
    ExpertMixture,
    FlashReinforce,
    KernelBaseline,
    LeaveOneOut,
    Ridge,
    Rloo,
    SelfTuning,
)
from rollonce.baselines.stacking import exponential_weights_step, fit_stacking_weights, project_to_simplex
from rollonce.errors import InputError
from rollonce.features import CategoryColumn, Tfidf
from rollonce.kernels import Cosine, Same
from rollonce.testing import check_baseline

RULES = ["stacking", "weights", "best"]


def families() -> list[Baseline]:
    """LOO, and the means of two declared groupings."""
    return [LeaveOneOut(), KernelBaseline(Same(CategoryColumn("a"))), KernelBaseline(Same(CategoryColumn("b")))]


def stream(n_steps: int, rng: np.random.Generator, difficulty):
    """Batches of 32 with two independent labels; ``difficulty(step, a, b)`` is the chance of success."""
    for step in range(n_steps):
        a, b = rng.integers(0, 2, 32), rng.integers(0, 2, 32)
        p = difficulty(step, a, b)
        r = (rng.random(32) < p).astype(float)
        columns = {"a": [f"a{x}" for x in a], "b": [f"b{x}" for x in b]}
        yield Batch.of([f"task {step} {i}" for i in range(32)], r, columns=columns)


def play(mixture: ExpertMixture, batches):
    """Losses of the mixture (T,) and of each expert (T, M), step by step."""
    mine, theirs = [], []
    for batch in batches:
        mine.append((mixture.advantages(batch) ** 2).mean())
        theirs.append([(e.advantages(batch) ** 2).mean() for e in mixture.experts])
        mixture.observe(batch)
    return np.array(mine), np.array(theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExpertMixture([KernelBaseline(), SelfTuning(kernels=[Cosine(Tfidf())], window=20), Ridge(window=40)]),
        lambda: ExpertMixture([KernelBaseline(), LeaveOneOut(window=20)], rule="weights"),
        lambda: ExpertMixture([KernelBaseline(), LeaveOneOut()], rule="best"),
        lambda: ExpertMixture([BoostedTrees(min_rows=20), KernelBaseline()]),
    ],
)
def test_contract(make):
    check_baseline(make(), raise_on_failure=True)


def test_simplex_and_stacking_are_the_optimum():
    rng = np.random.default_rng(0)
    for _ in range(10):
        v = rng.normal(size=4)
        x = project_to_simplex(v)
        assert x.min() >= 0
        assert x.sum() == pytest.approx(1)
        e = rng.normal(size=(6, 4))
        gram = e.T @ e / 6
        a = fit_stacking_weights(gram, 0.1, 1)

        def loss(w, gram=gram):
            return w @ gram @ w + 0.1 * ((w - np.eye(4)[1]) ** 2).sum()

        sums_to_one = {"type": "eq", "fun": lambda w: w.sum() - 1}
        best = scipy.optimize.minimize(
            loss, np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints=[sums_to_one], method="SLSQP"
        )
        assert loss(a) <= best.fun + 1e-7
    np.testing.assert_allclose(fit_stacking_weights(np.ones((3, 3)), 0.0, 2), [0, 0, 1])  # equal experts: stays at home


@pytest.mark.parametrize("rule", RULES)
def test_the_useful_feature_is_found(rule):
    rng = np.random.default_rng(1)
    mixture = ExpertMixture(families(), rule=rule)
    mine, theirs = play(mixture, stream(80, rng, lambda t, a, b: np.where(a == 1, 0.9, 0.1)))
    assert mixture.mixture_shares_M.argmax() == 1
    assert mixture.mixture_shares_M[1] > 0.7
    late = slice(40, None)
    assert mine[late].mean() < theirs[late, 1].mean() * 1.03 < theirs[late, 0].mean() * 0.5


@pytest.mark.parametrize("rule", RULES)
def test_useless_features_cost_next_to_nothing(rule):
    rng = np.random.default_rng(2)
    mine, theirs = play(ExpertMixture(families(), rule=rule), stream(150, rng, lambda t, a, b: np.full(32, 0.5)))
    assert mine.mean() < theirs[:, 0].mean() * 1.01  # LOO is the best expert here


@pytest.mark.parametrize("rule", RULES)
def test_drift_is_followed(rule):
    """From the 60th step on the other label tells the difficulty."""
    rng = np.random.default_rng(3)
    mixture = ExpertMixture(families(), rule=rule, discount=0.9, share=0.02)
    mine, theirs = play(mixture, stream(120, rng, lambda t, a, b: np.where((a if t < 60 else b) == 1, 0.9, 0.1)))
    best = np.where(np.arange(120) < 60, theirs[:, 1], theirs[:, 2])
    assert mixture.mixture_shares_M.argmax() == 2
    # Summed regret to the best sequence of experts, in steps' losses: a few steps' worth after each change.
    assert (mine - best).sum() < 20 * (theirs[:, 0] - best).mean()
    assert mine.mean() < theirs.mean(axis=0).min()  # better than any fixed expert
    assert mine.mean() < theirs[:, 0].mean() * 0.85


def test_exponential_weights_keep_their_bound_on_any_sequence():
    """``sum L(mix) - min_m sum L_m <= 2 R^2 ln M`` at rate 1 without a share (Cesa-Bianchi & Lugosi, theorem 3.2)."""
    rng = np.random.default_rng(4)
    for kind in range(6):
        m, t = 4, 300
        w, mixed, each = np.full(m, 1 / m), 0.0, np.zeros(m)
        for step in range(t):
            r = rng.random(8) if kind % 2 else (rng.random(8) < 0.5).astype(float)
            b = rng.random((m, 8))
            if kind > 3:  # against the learner: the heaviest expert is the worst
                b[w.argmax()] = 1 - r
            if kind == 2:
                b[step % m] = r
            mixed += ((r - w @ b) ** 2).mean()
            losses = ((r - b) ** 2).mean(axis=1)
            each += losses
            w = exponential_weights_step(w, losses, 0.5, 0.0)
        assert mixed - each.min() <= 2 * np.log(m) + 1e-9


def test_fixed_share_keeps_its_bound_against_a_sequence_that_changes():
    rng = np.random.default_rng(5)
    m, t, share = 3, 400, 0.01
    w, mixed, best = np.full(m, 1 / m), 0.0, 0.0
    for step in range(t):
        r = (rng.random(8) < 0.5).astype(float)
        b = np.full((m, 8), 0.5)
        good = 0 if step < 200 else 1
        b[good] = 0.8 * r + 0.1
        mixed += ((r - w @ b) ** 2).mean()
        losses = ((r - b) ** 2).mean(axis=1)
        best += losses[good]
        w = exponential_weights_step(w, losses, 0.5, share)
    changes = 1
    bound = 2 * ((changes + 1) * np.log(m) + changes * np.log(1 / share) + (t - 1 - changes) * np.log(1 / (1 - share)))
    assert mixed - best <= bound
    assert w.argmax() == 1


def test_shares_come_from_past_steps_only():
    rng = np.random.default_rng(6)
    mixture = ExpertMixture(families())
    for batch in stream(10, rng, lambda t, a, b: np.where(a == 1, 0.9, 0.1)):
        before = mixture.mixture_shares_M
        straight = mixture.predict(batch).baseline_B
        for i in (0, 17):
            r = batch.rewards_B.copy()
            r[i] = 50.0
            assert mixture.predict(Batch(batch.tasks, r)).baseline_B[i] == straight[i]
        np.testing.assert_array_equal(before, mixture.mixture_shares_M)
        mixture.observe(batch)
    assert (mixture.mixture_shares_M != before).any()
    assert np.isfinite(mixture.expert_losses_M).all()


def test_before_anything_was_seen_it_is_loo_and_loo_is_always_there():
    rng = np.random.default_rng(7)
    mixture = ExpertMixture([Ridge(), KernelBaseline()]).fit(["aa bb", "cc dd", "aa cc"])
    assert isinstance(mixture.experts[0], LeaveOneOut)
    batch = Batch.of(["aa bb", "cc dd", "aa cc"], rng.random(3))
    np.testing.assert_allclose(mixture.predict(batch).baseline_B, LeaveOneOut().predict(batch).baseline_B)
    assert np.isnan(mixture.expert_losses_M).all()


@pytest.mark.parametrize("rule", RULES)
def test_a_file_in_mid_stream_goes_on_with_the_same_bits(rule, tmp_path):
    rng = np.random.default_rng(8)
    mixture = ExpertMixture([*families(), LeaveOneOut(window=64)], rule=rule)
    batches = list(stream(12, rng, lambda t, a, b: np.where(a == 1, 0.7, 0.2)))
    for batch in batches[:7]:
        mixture.observe(batch)
    mixture.save(tmp_path / "m.json")
    other = Baseline.load(tmp_path / "m.json")
    for batch in batches[7:]:
        np.testing.assert_array_equal(mixture.predict(batch).baseline_B, other.predict(batch).baseline_B)
        mixture.observe(batch)
        other.observe(batch)


def test_offline_it_learns_from_other_tasks_and_keeps_no_rows(tmp_path):
    rng = np.random.default_rng(9)
    prompts = [f"{'prove' if i % 2 else 'count'} number {i}" for i in range(160)]
    r = (rng.random(160) < np.where(np.arange(160) % 2, 0.1, 0.9)).astype(float)
    mixture = ExpertMixture([KernelBaseline(), SelfTuning(kernels=[Cosine(Tfidf())]), Constant(0.5)])
    mixture.fit(prompts).fit_rewards(prompts[:128], r[:128])
    assert mixture.mixture_shares_M[2] > 0.5
    assert mixture.experts[2].variance_shares_K1[0] > 0.1
    mixture.save(tmp_path / "m.json")
    batch = Batch.of(prompts[128:], r[128:])
    np.testing.assert_array_equal(
        mixture.predict(batch).baseline_B, Baseline.load(tmp_path / "m.json").predict(batch).baseline_B
    )
    assert (mixture.advantages(batch) ** 2).mean() < 0.8 * (LeaveOneOut().advantages(batch) ** 2).mean()


def test_what_is_refused():
    for bad in (FlashReinforce(), Rloo()):
        with pytest.raises(InputError, match="cannot be an expert"):
            ExpertMixture([bad])
    with pytest.raises(InputError, match="rule must be"):
        ExpertMixture(rule="vote")
    with pytest.raises(InputError, match="discount in"):
        ExpertMixture(discount=0)
    mixture = ExpertMixture(families())
    with pytest.raises(InputError, match="finite 3 x 3"):
        mixture.load_state_dict({"given": {"gram": [[1.0]], "weights": [1.0], "steps": 1, "rows": 1, "largest": 1}})
