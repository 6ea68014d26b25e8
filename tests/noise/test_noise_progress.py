"""Progress of the optimizer's step: against torch's own Adam, closed forms, and worlds whose truth is simulated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from rollonce.baselines import Constant, LeaveOneOut, NoBaseline, ReinforcePlusPlus, Rloo
from rollonce.errors import InputError
from rollonce.noise.contenders import ORACLE, default_contenders, mean_of_other_rollouts
from rollonce.noise.exponent import adam_squared_norms, fit_surprisal_exponent
from rollonce.noise.optimizers import OptimizerSettings, StepDirections
from rollonce.noise.progress import LOO, measure_progress
from rollonce.noise.resampling import SHIFT, draw_weighted_orders, half_sample_weights
from rollonce.noise.streams import Contender, GradientSample
from rollonce.rollouts import Rollouts
from rollonce.scoring.batch_curve import SIZES, BatchCurve

NO_CLIP = OptimizerSettings(max_grad_norm=None)


class HeavyWorld(NamedTuple):
    """Tasks of different difficulty whose score norms are log-normal; the true gradient is known.

    A rollout is right with the task's probability p; its score is ``scale * ((right - p) (v + u_x) + noise)``, which
    has mean zero for every task, as a score must.
    """

    n_parameters: int = 48
    tail: float = 1.2
    right_scale: float = 0.4

    @property
    def direction(self) -> np.ndarray:
        return np.random.default_rng(5).normal(size=self.n_parameters)

    def rollouts(
        self, rng: np.random.Generator, shape: tuple[int, ...], p: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and scores of that shape, for probabilities that broadcast to it; each call has new tasks."""
        d = self.n_parameters
        right = rng.random(shape) < p
        own = 0.5 * rng.normal(size=(*p.shape, d))
        scale = np.exp(self.tail * rng.normal(size=shape))
        noise = rng.normal(size=(*shape, d))
        # Independent of the direction and of mean zero for right and wrong alike, so that the score has mean zero.
        noise *= np.where(right, self.right_scale, 1.0)[..., None]
        scores = scale[..., None] * ((right - p)[..., None] * (self.direction + own) + noise)
        return right.astype(float), scores

    def table(self, rng: np.random.Generator, n: int, g: int) -> tuple[Rollouts, GradientSample]:
        p = rng.beta(1.2, 1.8, size=(n, 1))
        rewards, scores = self.rollouts(rng, (n, g), p)
        flat = scores.reshape(n * g, -1).astype(np.float32)
        table = Rollouts.from_groups(list(rewards), [f"task {i}" for i in range(n)])
        return table, GradientSample(flat, (flat @ flat.T).astype(np.float64), self.n_parameters)

    def true_progress(self, advantage, batch: int, steps: int = 4000, size: int | None = None) -> float:
        """E[<mu, step>] of torch-like Adam over fresh tasks, with the true direction: the truth up to simulation."""
        rng = np.random.default_rng(11)
        size = size or batch
        directions = StepDirections(NO_CLIP, 1, self.direction)
        total = 0.0
        for k in range(steps + 60):
            p = rng.beta(1.2, 1.8, size=(size,))
            rewards, scores = self.rollouts(rng, (size,), p)
            gradient = (advantage(rewards) @ scores / size).astype(np.float32)[None]
            product = float(directions.step_along_direction(gradient, np.ones(1)).sum())
            total += product if k >= 60 else 0.0
        return total / steps


def loo_advantage(r: np.ndarray) -> np.ndarray:
    return r - (r.sum() - r) / (len(r) - 1)


def test_the_step_is_that_of_torchs_adam_with_clipping():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    settings = OptimizerSettings(beta1=0.8, beta2=0.9, epsilon=1e-6, max_grad_norm=2.0)
    mu, weight = rng.normal(size=30), torch.nn.Parameter(torch.zeros(30))
    adam = torch.optim.Adam([weight], lr=1.0, betas=(0.8, 0.9), eps=1e-6)
    directions = StepDirections(settings, 2, mu)
    for _ in range(12):
        gradient = rng.normal(size=30).astype(np.float32)
        before = weight.detach().clone()
        weight.grad = torch.from_numpy(gradient.copy())
        torch.nn.utils.clip_grad_norm_([weight], 2.0)
        adam.step()
        moved = (before - weight.detach()).double().numpy()
        both = np.stack([gradient, 0.5 * gradient])
        norms = np.linalg.norm(both, axis=1)
        ours = directions.step_along_direction(both, norms).sum(axis=1)
        assert ours[0] == pytest.approx(float(mu @ moved), rel=2e-4, abs=2e-5)


def test_plain_and_normalised_sgd_by_hand():
    mu = np.arange(20.0)
    gradient = np.ones((1, 20), np.float32)
    norm = np.array([np.sqrt(20.0)])
    plain = StepDirections(OptimizerSettings("sgd", max_grad_norm=None), 1, mu).step_along_direction(
        gradient.copy(), norm
    )
    clipped = StepDirections(OptimizerSettings("sgd", max_grad_norm=1.0), 1, mu).step_along_direction(
        gradient.copy(), norm
    )
    unit = StepDirections(OptimizerSettings("normalised-sgd"), 1, mu).step_along_direction(gradient.copy(), norm)
    assert plain.sum() == pytest.approx(190.0)
    assert clipped.sum() == pytest.approx(190.0 / np.sqrt(20))
    assert unit.sum() == pytest.approx(190.0 / np.sqrt(20))
    none = StepDirections(OptimizerSettings("normalised-sgd"), 1, mu).step_along_direction(
        np.zeros((1, 20), np.float32), np.zeros(1)
    )
    assert none.sum() == 0.0  # a batch whose advantages are all zero makes no step


def test_tasks_come_into_batches_in_proportion_to_their_weight():
    weights = half_sample_weights(60, 0, [3])
    assert weights + half_sample_weights(60, 1, [3]) == pytest.approx(2.0)
    assert weights.mean() == pytest.approx(1.0)
    orders = draw_weighted_orders(weights, 4000, np.random.default_rng(0))
    assert all(len(set(row)) == 60 for row in orders[:50].tolist())
    for size in (8, 16, 30):
        share = np.bincount(orders[:, :size].ravel(), minlength=60) / 4000 / (size / 60)
        assert share[weights > 1].mean() == pytest.approx(1 + SHIFT, abs=0.02)
        assert share[weights < 1].mean() == pytest.approx(1 - SHIFT, abs=0.02)


def test_under_plain_sgd_every_leave_one_out_baseline_makes_the_same_progress():
    # E<mu, X> = |mu|^2 whatever the baseline, as long as it does not see its own rollout.
    table, gradients = HeavyWorld(tail=0.3).table(np.random.default_rng(1), 80, 8)
    contenders = [Contender("none", NoBaseline()), Contender("half", Constant(0.5)), Contender("RLOO", Rloo(), 4)]
    report = measure_progress(
        table, gradients, contenders, OptimizerSettings("sgd", max_grad_norm=None), batch_size=16, steps=80
    )
    for row in report.rows:
        assert row.progress.value == pytest.approx(1.0, abs=0.08)
        assert row.progress.low <= 1 <= row.progress.high


def test_adams_step_forgets_a_common_factor_and_a_scaled_advantage_is_the_same_contender():
    table, gradients = HeavyWorld().table(np.random.default_rng(2), 60, 4)
    report = measure_progress(
        table,
        gradients,
        [Contender("whitened", ReinforcePlusPlus()), Contender("RLOO", Rloo(), 2), Contender("same", LeaveOneOut())],
        NO_CLIP,
        batch_size=8,
        replications=4,
        steps=40,
    )
    rows = {r.label: r for r in report.rows}
    assert rows["same"].progress == pytest.approx((1.0, 1.0, 1.0), abs=1e-9)
    assert rows["same"].equivalent_batch.value == pytest.approx(8.0, abs=1e-6)
    assert rows["whitened"].progress.value == pytest.approx(1.0, abs=0.05)
    assert [size for size, _ in report.curve] == [4, 6, 8, 12, 16]
    assert rows[LOO].progress == (1.0, 1.0, 1.0)


def test_without_inner_products_norms_come_from_the_kept_parameters():
    table, gradients = HeavyWorld().table(np.random.default_rng(2), 60, 4)
    assert gradients.gram_RR is not None
    settings = {"batch_size": 8, "replications": 4, "steps": 20}
    # Clipped below most norms, where a wrong norm would change every step; all parameters are kept here.
    clipping = OptimizerSettings(kind="sgd", max_grad_norm=float(np.sqrt(np.diag(gradients.gram_RR).mean()) / 10))
    contenders = [Contender("none", NoBaseline()), Contender("RLOO", Rloo(), 2)]
    exact = measure_progress(table, gradients, contenders, clipping, **settings)
    estimated = measure_progress(table, gradients._replace(gram_RR=None), contenders, clipping, **settings)
    assert exact.clipped_share > 0.5
    assert estimated.clipped_share == exact.clipped_share
    for one, other in zip(exact.rows, estimated.rows, strict=True):
        assert one.label == other.label
        assert other.progress == pytest.approx(one.progress, rel=1e-4)


def test_the_curve_is_solved_backwards_and_goes_on_straight():
    x = np.log(SIZES)
    curve = BatchCurve(SIZES, 0.4 * x - 0.05 * x**2)
    for point in (*x, -0.3, 0.1, 0.6):
        assert curve.log_size_for_progress(0.4 * point - 0.05 * point**2) == pytest.approx(point, abs=1e-9)
    top = 0.4 * np.log(2) - 0.05 * np.log(2) ** 2
    assert curve.log_size_for_progress(top + 0.1) == pytest.approx(np.log(2) + 0.1 / (0.4 - 0.1 * np.log(2)))
    assert np.isnan(BatchCurve(SIZES, 0.0 * x).log_size_for_progress(0.1))


def test_more_rollouts_are_worth_what_the_curve_says_and_a_lower_baseline_wins_where_right_ones_are_short():
    world = HeavyWorld(right_scale=0.15)
    table, gradients = world.table(np.random.default_rng(3), 160, 8)
    report = measure_progress(
        table, gradients, [Contender("low", Constant(0.1)), Contender("high", Constant(0.9))], NO_CLIP, batch_size=16
    )
    rows = {r.label: r for r in report.rows}
    assert [e.value for _, e in report.curve] == sorted(e.value for _, e in report.curve)
    assert rows["low"].progress.low > rows["high"].progress.high
    assert rows["low"].equivalent_batch.value > 16 > rows["high"].equivalent_batch.value


def test_the_oracle_is_the_mean_of_the_other_rollouts_and_contenders_have_names():
    table = Rollouts.from_groups([[0, 1, 1], [1, 0, 0]], ["a", "b"])
    assert mean_of_other_rollouts(table) == pytest.approx([1, 0.5, 0.5, 0, 0.5, 0.5])
    labels = [c.label for c in default_contenders(Rollouts.from_groups([[0, 1, 1, 1]] * 2, ["a", "b"]), [], 8)]
    assert ORACLE in labels
    assert any(label.startswith("RLOO, 4 x 2") for label in labels)
    assert any(label.startswith("GRPO with std, 2 x 4") for label in labels)


def test_the_exponent_of_an_exact_power_and_what_is_left_between_right_and_wrong():
    rng = np.random.default_rng(4)
    # Each surprisal once in a right rollout and once in a wrong one, so that neither explains the other.
    surprisal, rewards = np.repeat(np.exp(rng.normal(size=150)), 2), np.tile([0.0, 1.0], 150)
    task = np.repeat(np.arange(75), 4)
    exact = fit_surprisal_exponent(3 * surprisal**1.7, surprisal, rewards, task)
    assert exact.exponent == pytest.approx((1.7, 1.7, 1.7), abs=1e-9)
    assert exact.correlation == pytest.approx(1.0)
    shifted = fit_surprisal_exponent(surprisal**1.2 * np.exp(-0.5 * rewards), surprisal, rewards, task)
    assert shifted.exponent == pytest.approx((1.2, 1.2, 1.2), abs=1e-9)
    assert shifted.right_over_wrong == pytest.approx((-0.5, -0.5, -0.5), abs=1e-9)
    # Right rollouts with half the surprisal and an eighth of the squared norm: a power of 3 between them.
    halved, eighth = surprisal * 0.5**rewards, surprisal**1.2 * 0.125**rewards
    assert fit_surprisal_exponent(eighth, halved, rewards, task).between_rewards.value == pytest.approx(3.0, abs=1e-9)


def test_adams_metric_counts_each_parameter_in_units_of_its_own_size():
    rows = np.array([[1.0, 0.0], [0.0, 3.0], [1.0, 3.0]], np.float32)
    # Root mean squares: sqrt(2/3) and 3 sqrt(2/3), so each entry counts 1.5.
    assert adam_squared_norms(rows, 2) == pytest.approx([1.5, 1.5, 3.0], rel=1e-3)
    many = np.random.default_rng(0).normal(size=(2500, 3)).astype(np.float32)  # more than are taken at once
    wanted = (many.astype(np.float64) ** 2 / (many.astype(np.float64) ** 2).mean(axis=0)).sum(axis=1)
    assert adam_squared_norms(many, 30) == pytest.approx(10 * wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": 30}, "at least 90 tasks"),
        ({"contenders": [Contender("groups", Rloo(), 8)]}, "needs 8 rollouts of a task, not 4"),
        ({"contenders": [Contender("groups", Rloo(), 3)]}, "no multiple of 3"),
        ({"replications": 5}, "even number"),
        ({"optimizer": OptimizerSettings("rmsprop")}, "adam, sgd or normalised-sgd"),
        ({"optimizer": OptimizerSettings(beta1=1.0)}, "beta1 and beta2"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(change, says):
    table, gradients = HeavyWorld().table(np.random.default_rng(6), 40, 4)
    options = {"contenders": [], "optimizer": NO_CLIP, "batch_size": 8} | change
    with pytest.raises(InputError, match=says):
        measure_progress(table, gradients, **options)


def test_a_step_that_points_nowhere_is_refused():
    rng = np.random.default_rng(7)
    scores = rng.normal(size=(160, 30)).astype(np.float32)
    table = Rollouts.from_groups(list(rng.integers(2, size=(40, 4)).astype(float)), [f"t{i}" for i in range(40)])
    gradients = GradientSample(scores, (scores @ scores.T).astype(float), 30)
    with pytest.raises(InputError, match="no more than by chance"):
        measure_progress(table, gradients, [], NO_CLIP, batch_size=8, replications=8, steps=10)


@pytest.mark.slow
def test_intervals_cover_a_simulated_truth_with_heavy_tails():
    world = HeavyWorld()
    truth = {
        "none": world.true_progress(lambda r: r, 16),
        "half": world.true_progress(lambda r: r - 0.5, 16),
        LOO: world.true_progress(loo_advantage, 16),
        "double": world.true_progress(loo_advantage, 16, size=32),
    }
    covered = dict.fromkeys(("none", "half", "double"), 0)
    n_tables = 60
    for seed in range(n_tables):
        table, gradients = world.table(np.random.default_rng([8, seed]), 128, 8)
        contenders = [Contender("none", NoBaseline()), Contender("half", Constant(0.5))]
        report = measure_progress(table, gradients, contenders, NO_CLIP, batch_size=16, steps=40, seed=seed)
        intervals = {r.label: r.progress for r in report.rows} | {"double": dict(report.curve)[32]}
        for name in covered:
            covered[name] += intervals[name].low <= truth[name] / truth[LOO] <= intervals[name].high
    print({k: v / n_tables for k, v in covered.items()}, {k: v / truth[LOO] for k, v in truth.items()})
    # 95% of 60 is 57. Where a few rollouts decide, a sample may have missed the largest, and no interval from it knows
    # that: four in five is what is asked for here, and docs/noise.md says what was measured.
    assert all(v >= 48 for v in covered.values()), covered


@pytest.mark.slow
def test_two_halves_of_the_tasks_agree_within_their_intervals():
    world = HeavyWorld()
    apart = []
    for seed in range(10):
        both = []
        for half in range(2):
            table, gradients = world.table(np.random.default_rng([9, seed, half]), 128, 8)
            report = measure_progress(
                table, gradients, [Contender("low", Constant(0.1))], NO_CLIP, batch_size=16, steps=40, seed=seed
            )
            both.append(next(r.progress for r in report.rows if r.label == "low"))
        se = [np.log(e.high / e.low) / 2 / 2.18 for e in both]
        apart.append(abs(np.log(both[0].value / both[1].value)) / np.hypot(*se))
    assert np.mean(np.array(apart) < 2.1) >= 0.8, apart
