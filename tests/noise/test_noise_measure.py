"""Measured gradient noise against worlds where it is known."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from noise_worlds import BANDIT, Bandit, unrelated

from rollonce.baselines import Constant, FlashReinforce, LeaveOneOut, NoBaseline, Rloo, Tracker, family_mean_baseline
from rollonce.errors import InputError
from rollonce.noise.measure import measure_gradient_noise, noise_baselines, with_joint_column
from rollonce.noise.moments import measure_lag_effect
from rollonce.rollouts import Rollouts
from rollonce.scoring.quantities import Design
from rollonce.scoring.recipe import drawn_baselines

B = 4
NONE = NoBaseline().label


def rows_of(report):
    return {r.label: r for r in report.rows}


@pytest.fixture(scope="module")
def many():
    """Reports on 100 small samples of one world."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(100):
        table, gram = BANDIT.draw(rng, 24, 4)
        out.append(
            measure_gradient_noise(
                table,
                gram,
                [NoBaseline(), Constant(0.3), family_mean_baseline("kind").fit(table.tasks)],
                batch_size=B,
                n_batches=300,
            )
        )
    return out


def agrees(values, truth, sigmas=4.0):
    """The mean of independent estimates is within four of its standard errors of the truth, and that error says
    something."""
    values = np.asarray(values)
    se = values.std(ddof=1) / np.sqrt(len(values))
    assert se < 0.2 * abs(truth)
    assert abs(values.mean() - truth) < sigmas * se, (values.mean(), truth, se)


def test_noise_is_unbiased_against_closed_forms(many):
    rows = [rows_of(r) for r in many]
    agrees([r["LOO mean"].noise for r in rows], BANDIT.loo_noise(B))
    agrees([r[NONE].noise for r in rows], BANDIT.constant_noise(0.0, B))
    agrees([r["constant 0.3"].noise for r in rows], BANDIT.constant_noise(0.3, B))
    agrees([r["oracle (true mean)"].noise for r in rows], BANDIT.oracle_noise(B))


def test_the_closed_form_of_loo_is_that_of_brute_force():
    rng = np.random.default_rng(1)
    kind = rng.integers(3, size=(400_000, B))
    right = rng.random(kind.shape) < BANDIT.p_M[kind]
    a = right - (right.sum(axis=1, keepdims=True) - right) / (B - 1)
    x = (a[:, :, None] * (right - BANDIT.p_M[kind])[:, :, None] * BANDIT.x_MD[kind]).mean(axis=1)
    assert x.var(axis=0).sum() == pytest.approx(BANDIT.loo_noise(B), rel=0.01)


def test_signal_and_the_variances_between_and_within_tasks(many):
    unit = [r.loo_noise.value for r in many]
    agrees([r.approximations.signal.value * u for r, u in zip(many, unit, strict=True)], BANDIT.mu2)
    agrees(
        [r.approximations.g2_between.value * u * B for r, u in zip(many, unit, strict=True)], BANDIT.own2 - BANDIT.mu2
    )
    within = float(BANDIT.weighted(BANDIT.p_M).mean()) - BANDIT.own2
    agrees([r.approximations.g2_within.value * u * B for r, u in zip(many, unit, strict=True)], within)


def test_groups_against_the_closed_form(many):
    for at, size in enumerate((2,)):
        assert many[0].groups[at].group_size == size
        agrees([r.groups[at].ratio.value * r.loo_noise.value for r in many], BANDIT.rloo_noise(size, B))
        # Without a baseline: E|g_1 r_1 + g_2 r_2|^2 / 4 is (E r^2 |g|^2 + |mu_n|^2) / 2.
        none = ((float(BANDIT.weighted(0.0).mean()) + BANDIT.own2) / 2 - BANDIT.mu2) / (B / size)
        agrees([r.groups[at].ratio_none.value * r.loo_noise.value for r in many], none)


def test_squared_advantages_are_the_identity(many):
    rows = [rows_of(r) for r in many]
    mse_none = float((BANDIT.p_M**2).mean())
    tau2 = float(BANDIT.p_M.var())
    mse_loo = tau2 * B / (B - 1) + BANDIT.s2 / (B - 1)
    assert BANDIT.reward_variance * B / (B - 1) == pytest.approx(BANDIT.s2 + mse_loo)
    # A ratio of means is biased by the order of 1/N: 1% here.
    assert np.mean([r[NONE].predicted.value for r in rows]) == pytest.approx(
        (BANDIT.s2 + mse_none) / (BANDIT.s2 + mse_loo), rel=0.05
    )
    closed = [r[NONE].predicted_closed / r[NONE].predicted.value for r in rows]
    assert np.mean(closed) == pytest.approx(1, abs=0.03)


def test_intervals_cover():
    """Log ratio of REINFORCE without a baseline and of the kind's mean to LOO: 95% intervals hold the truth in at least
    88 of 100 samples."""
    rng = np.random.default_rng(2)
    kind = rng.integers(3, size=(300_000, B))
    right = (rng.random(kind.shape) < BANDIT.p_M[kind]).astype(float)
    scores = (right - BANDIT.p_M[kind])[:, :, None] * BANDIT.x_MD[kind]
    same = (kind[:, :, None] == kind[:, None, :]) & ~np.eye(B, dtype=bool)
    loo = (right.sum(axis=1, keepdims=True) - right) / (B - 1)
    mean = np.where(same.any(axis=2), np.einsum("kij,kj->ki", same, right) / np.maximum(same.sum(axis=2), 1), loo)
    x = ((right - mean)[:, :, None] * scores).mean(axis=1)
    truth = {
        NONE: BANDIT.constant_noise(0.0, B) / BANDIT.loo_noise(B),
        "same kind": x.var(axis=0).sum() / BANDIT.loo_noise(B),
    }
    found = {label: 0 for label in truth}
    widths = []
    for _ in range(100):
        table, gram = BANDIT.draw(rng, 60, 4)
        report = measure_gradient_noise(
            table, gram, [NoBaseline(), family_mean_baseline("kind").fit(table.tasks)], batch_size=B, n_batches=800
        )
        for label, value in truth.items():
            ratio = rows_of(report)[label].ratio
            found[label] += ratio.low <= value <= ratio.high
            widths.append(ratio.high / ratio.low)
    assert min(found.values()) >= 88, found
    assert np.median(widths) < 2.5  # and not by being endless


def test_measured_is_predicted_where_the_approximations_hold():
    rng = np.random.default_rng(3)
    table, gram = unrelated(rng, 64, 8)
    report = measure_gradient_noise(
        table,
        gram,
        [NoBaseline(), Constant(0.5), LeaveOneOut(window=32), family_mean_baseline("kind").fit(table.tasks)],
        batch_size=8,
    )
    for row in report.rows:
        assert row.gap.value == pytest.approx(1, abs=0.05), row.label
        assert row.norm.value == pytest.approx(1, abs=1e-9) or row.label.startswith("oracle"), row.label
        assert row.b_eff_measured.value == pytest.approx(row.b_eff, rel=0.08), row.label
    ratio = {r.label: r.ratio.value for r in report.rows}
    # s2 = .16, tau2 = .09; LOO: .25 * 8 / 7.
    assert ratio["oracle (true mean)"] == pytest.approx(0.16 / (0.25 * 8 / 7), rel=0.1)
    assert ratio[NONE] == pytest.approx(0.5 / (0.25 * 8 / 7), rel=0.1)
    # Tasks' gradients do not differ (they are zero), so groups lose nothing by seeing fewer tasks: E[A^2] = s2 G / (G -
    # 1).
    for group in report.groups:
        truth = 0.16 * group.group_size / (group.group_size - 1) / (0.25 * 8 / 7)
        assert group.ratio.value == pytest.approx(truth, rel=0.12)
        assert group.predicted.value == pytest.approx(group.ratio.value, rel=0.05)
    assert report.approximations.signal.low < 0 < report.approximations.signal.high


def test_no_baseline_beats_its_prediction_where_wrong_answers_have_long_gradients():
    """As with bare short answers: without a baseline the wrong rollouts, reward 0, contribute nothing at all."""
    rng = np.random.default_rng(4)
    table, gram = unrelated(rng, 64, 8, wrong_norm=3.0)
    report = measure_gradient_noise(table, gram, [NoBaseline(), Constant(0.5)], batch_size=8)
    rows = rows_of(report)
    # E[r |g|^2] = p, E|g|^2 = p + 9 (1 - p), p = .5 in the mean: factor 1/5. A constant half has A^2 = 1/4 always:
    # factor 1.
    assert rows[NONE].norm.value == pytest.approx(0.2, rel=0.1)
    assert rows["constant 0.5"].norm.value == pytest.approx(1, abs=1e-9)
    assert rows[NONE].gap.high < 0.5
    assert rows[NONE].ratio.high < 1 < rows[NONE].predicted.low
    assert report.approximations.norm_good_to_bad == pytest.approx(1 / 9)
    assert report.approximations.norm_reward_correlation == pytest.approx(-1)
    # The gap is the norms' doing, and said to be.
    assert rows[NONE].norm_to_loo.value == pytest.approx(rows[NONE].gap.value, rel=0.05)


def test_cross_covariance_is_seen():
    """At B = 2 each rollout is the other's whole baseline, and they covary by as much as the squared true gradient."""
    world = Bandit(np.array([0.5]), np.array([[1.0]]))
    rng = np.random.default_rng(5)
    found = []
    for _ in range(100):
        report = measure_gradient_noise(*world.draw(rng, 40, 4), [], batch_size=2, n_batches=500)
        found.append(report.approximations.cross.value * report.loo_noise.value)
    agrees(found, world.mu2 / 2)
    # And is nothing where there is no true gradient.
    level = measure_gradient_noise(*unrelated(rng, 64, 4), [NoBaseline()], batch_size=8).approximations.cross
    assert level.low < 0 < level.high
    assert abs(level.value) < 0.02


def test_one_long_rollout_is_said():
    rng = np.random.default_rng(6)
    table, gram = unrelated(rng, 32, 4)
    assert measure_gradient_noise(
        table, gram, [], batch_size=4, n_batches=200
    ).approximations.norm_top_share == pytest.approx(1 / 128)
    scale = np.ones(128)
    scale[5] = np.sqrt(127.0)  # as much as all others together
    report = measure_gradient_noise(table, gram * np.outer(scale, scale), [], batch_size=4, n_batches=200)
    assert report.approximations.norm_top_share == pytest.approx(0.5)


def test_influence_of_an_average_is_exact():
    """Over all batches the covariance with membership gives back each task's own value."""
    t = np.array([0.3, -1.0, 2.0, 0.7, 5.0, -0.2, 0.0])
    batches = np.array(list(itertools.combinations(range(7), 3)))
    design = Design(batches, 7)
    assert design.influence_of_tasks(t[batches].mean(axis=1)) == pytest.approx(t - t.mean(), abs=1e-12)
    assert design.mean_over_tasks(t).standard_error == pytest.approx(t.std(ddof=1) / np.sqrt(7))


def test_ratios_of_quantities_are_the_delta_method():
    rng = np.random.default_rng(7)
    a, c = rng.random(50) + 1, rng.random(50) + 2
    design = Design(np.zeros((5, 3), dtype=np.int64) + np.arange(3), 50)
    ratio = design.mean_over_tasks(a) / design.mean_over_tasks(c)
    z = a / c.mean() - c * a.mean() / c.mean() ** 2
    assert ratio.value == pytest.approx(a.mean() / c.mean())
    assert ratio.standard_error == pytest.approx(z.std(ddof=1) / np.sqrt(50))
    assert ((design.mean_over_tasks(a) * 2.0 - 1.0) / 4.0).standard_error == pytest.approx(
        a.std(ddof=1) / np.sqrt(50) / 2
    )
    same = design.mean_over_tasks(a) / design.mean_over_tasks(a)
    assert same.standard_error == pytest.approx(0, abs=1e-12)
    interval = ratio.estimate_with_interval()
    assert interval.low * interval.high == pytest.approx(interval.value**2)


def test_pairs_agree_with_the_jackknife():
    rng = np.random.default_rng(8)
    y = rng.standard_normal((20, 3)) + 0.4
    table = y @ y.T
    q = Design(np.arange(4)[None].repeat(3, axis=0), 20).mean_over_pairs(table)

    def u(keep):
        part = table[np.ix_(keep, keep)]
        return (part.sum() - np.trace(part)) / (len(keep) * (len(keep) - 1))

    rest = np.array([u(np.delete(np.arange(20), i)) for i in range(20)])
    assert q.value == pytest.approx(u(np.arange(20)))
    jackknife = np.sqrt(19 / 20 * ((rest - rest.mean()) ** 2).sum())
    assert q.standard_error == pytest.approx(jackknife, rel=0.1)


def test_a_twin_stands_in_and_needs_nothing():
    rng = np.random.default_rng(9)
    table, gram = BANDIT.draw(rng, 24, 3)
    row = rows_of(measure_gradient_noise(table, gram, [FlashReinforce()], batch_size=B, n_batches=200))[
        "FlashREINFORCE batch mean"
    ]
    assert (row.scored_as, row.ratio.value, row.gap.value) == ("LOO mean", 1.0, 1.0)


def test_same_seed_same_report_and_another_seed_another():
    table, gram = BANDIT.draw(np.random.default_rng(10), 24, 4)
    one, two, other = (
        measure_gradient_noise(table, gram, [NoBaseline()], batch_size=B, n_batches=200, seed=s) for s in (0, 0, 1)
    )
    assert str(one) == str(two)  # NaN is not equal to itself, its text is
    assert one.loo_noise.value != other.loo_noise.value


def test_predict_and_weights_give_the_same_baseline():
    """Smoothers go by blocks of weights, others by predict; both must say the same, window and hidden prompts
    included."""
    rng = np.random.default_rng(11)
    prompts = [f"task {i % 9} of some" for i in range(12)]  # three prompts twice
    table = Rollouts.from_groups(rng.random((12, 2)), prompts)
    columns = np.array([rng.permutation(12)[:7] for _ in range(6)])
    rewards, ages = rng.random((6, 7)), np.array([0, 0, 0, 0, 1, 1, 1])
    smoother = LeaveOneOut(window=3)
    got = drawn_baselines(smoother, table, columns, rewards, 4, ages)
    keys = table.tasks.prompt_keys
    for k in range(6):
        for i in range(4):
            seen = [
                j for j in range(7) if (j < 4 and j != i) or (j >= 4 and keys[columns[k, j]] != keys[columns[k, i]])
            ]
            assert got[k, i] == pytest.approx(rewards[k, seen].mean())


def test_lag_of_nothing_is_nothing_and_a_turned_gradient_is_seen():
    rng = np.random.default_rng(12)
    kind = rng.integers(3, size=80)
    p, x = BANDIT.p_M[kind], BANDIT.x_MD[kind]

    def sample(turn):
        right = rng.random((80, 6)) < p[:, None]
        scores = ((right - p[:, None])[:, :, None] * (x @ turn)[:, None, :]).reshape(480, -1)
        table = Rollouts.from_groups(right.astype(float), [f"t {i}" for i in range(80)])
        return table, scores, measure_gradient_noise(table, scores @ scores.T, [], batch_size=8, n_batches=500)

    flip = np.diag([-1.0, -1.0, -1.0])
    on = sample(np.eye(3))
    same, opposite = measure_lag_effect(on, sample(np.eye(3))), measure_lag_effect(on, sample(flip))
    assert same.cosine.value == pytest.approx(1, abs=0.1)
    assert same.cosine.low <= 1.001
    assert opposite.cosine.value == pytest.approx(-1, abs=0.1)
    assert same.noise == pytest.approx(1, abs=0.3)
    assert measure_lag_effect(on, sample(2 * np.eye(3))).noise == pytest.approx(4, rel=0.3)


def test_what_tasks_differ_by_is_no_part_of_the_cosine():
    """Half of the tasks pull one way, half the other; what they share is turned round by the lag."""
    rng = np.random.default_rng(14)
    own = np.where(np.arange(12) % 2 == 0, 1.0, -1.0)

    def sample(shared):
        right = (rng.random((12, 80)) < 0.5).astype(float)
        x = np.stack([own, np.full(12, shared)], axis=1)
        scores = ((right - 0.5)[:, :, None] * x[:, None, :]).reshape(960, 2)
        level = SimpleNamespace(loo_noise=SimpleNamespace(value=1.0))
        return Rollouts.from_groups(right, [f"t {i}" for i in range(12)]), scores, level

    # Each pair of tasks n != m has own_n own_m, which sums to -12 over all pairs, against 132 * 0.9^2 of what is
    # shared.
    sum_of_own, shared = -12.0, 132 * 0.9**2
    assert measure_lag_effect(sample(0.9), sample(-0.9)).cosine.value == pytest.approx(
        (sum_of_own - shared) / (sum_of_own + shared), rel=0.08
    )
    assert measure_lag_effect(sample(0.9), sample(0.9)).cosine.value == pytest.approx(1, abs=0.05)


def test_default_baselines_and_the_joint_column():
    rng = np.random.default_rng(13)
    columns = with_joint_column({"family": list("aabb") * 16, "level": list("1212") * 16})
    assert columns["family+level"][:4] == ["a / 1", "a / 2", "b / 1", "b / 2"]
    assert with_joint_column({"family": ["a"]}) == {"family": ["a"]}
    p = np.where(np.arange(64) % 4 < 2, 0.8, 0.3)
    table = Rollouts.from_groups(
        (rng.random((64, 4)) < p[:, None]).astype(float), [f"count {i} of it" for i in range(64)], columns=columns
    )
    chosen = noise_baselines(table, window=32)
    labels = [b.label for b in chosen]
    assert len(set(labels)) == len(labels)
    for label in (
        NONE,
        "LOO mean",
        "LOO mean, window 32",
        "same family+level",
        "self-tuning",
        "self-tuning, window 32",
    ):
        assert label in labels
    report = measure_gradient_noise(table, np.eye(256), chosen, batch_size=8, n_batches=100)
    assert {r.label for r in report.rows} == {*labels, "oracle (true mean)"}
    assert all(np.isfinite(r.ratio.value) for r in report.rows)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: measure_gradient_noise(
                Rollouts.from_groups([[1, 1]] * 8, [f"t{i}" for i in range(8)]), np.eye(16), [], batch_size=4
            ),
            "all 16 rewards are 1",
        ),
        (
            lambda: measure_gradient_noise(
                Rollouts.from_groups([[0]] * 8, [f"t{i}" for i in range(8)]), np.eye(8), [], batch_size=4
            ),
            "same number of rollouts",
        ),
        (
            lambda: measure_gradient_noise(
                Rollouts.from_groups([[0, 1]] * 8, [f"t{i}" for i in range(8)]), np.eye(15), [], batch_size=4
            ),
            "Gram matrix",
        ),
        (
            lambda: measure_gradient_noise(
                Rollouts.from_groups([[0, 1]] * 8, [f"t{i}" for i in range(8)]), np.zeros((16, 16)), [], batch_size=4
            ),
            "zero",
        ),
        (
            lambda: measure_gradient_noise(*BANDIT.draw(np.random.default_rng(0), 8, 2), [Rloo()], batch_size=4),
            "needs groups",
        ),
        (
            lambda: measure_gradient_noise(*BANDIT.draw(np.random.default_rng(0), 8, 2), [Tracker()], batch_size=4),
            "needs repeats",
        ),
        (
            lambda: measure_gradient_noise(*BANDIT.draw(np.random.default_rng(0), 8, 2), [], batch_size=4, n_batches=5),
            "100 batches",
        ),
        (
            lambda: measure_gradient_noise(
                BANDIT.draw(np.random.default_rng(0), 8, 2)[0], np.ones((16, 16)), [], batch_size=4
            ),
            "not above zero",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(make, says):
    with pytest.raises(InputError, match=says):
        make()
