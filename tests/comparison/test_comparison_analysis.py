"""The comparison on planted effects whose figures are worked out here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import ITEMS, Level, Planted, line, write_runs

from rollonce.comparison import Analysis, ComparisonSettings, analyse_comparison, load_finished_runs
from rollonce.comparison.curves import first_reach_of_level, kaplan_meier_median, ratio_of_means
from rollonce.comparison.shadow import compute_shadow_ratios
from rollonce.errors import InputError
from rollonce.reports.comparison_words import learning_rate_sentences

GROUPS = {"group_size": 8, "rollouts_per_step": 32, "learning_rate": 2e-4}
SEED = (-0.02, 0.0, 0.05)
"""Effect of each seed; mean 0.01, so that nothing cancels by chance."""


def seeded(end: float, sign: float = 1.0):
    """0.2 at the start; at the end ``end`` and the seed's effect; items of the second family 0.1 higher throughout."""
    return lambda seed, step, item: 0.2 + 0.1 * (item % 2) + (end - 0.2 + sign * SEED[seed]) * step / 40


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    arms = {
        "none": Planted(seeded(0.3)),
        "flashreinforce": Planted(seeded(0.4)),
        "grpo": Planted(seeded(0.35), entry=GROUPS),
        "critic": Planted(
            lambda seed, step, item: seeded(0.4)(seed, step, item) + (0.2 * step / 40 if item % 2 else 0.0),
            seconds={"sample": 0.5, "grade": 0.1, "advantage": 0.0, "critic": 1.0, "update": 0.4},
        ),
    }
    return analyse_comparison(load_finished_runs(write_runs(tmp_path_factory.mktemp("runs") / "out", arms)))


def difference(found: Analysis, arm: str):
    return next(d for d in found.differences if d.arm == arm)


def test_levels(found: Analysis) -> None:
    assert found.reference == "flashreinforce"
    assert [a.name for a in found.arms] == ["flashreinforce", "none", "grpo", "critic"]
    flash = found.summary_of_arm("flashreinforce")
    assert flash.final["sampled"].estimate.value == pytest.approx(0.4 + 0.05 + 0.01)
    assert flash.final["greedy"].estimate.value == pytest.approx(0.56)
    assert flash.by_seed["sampled"] == pytest.approx([0.43, 0.45, 0.50])
    assert flash.start == pytest.approx(0.25)
    assert flash.gain is not None
    assert flash.gain.estimate.value == pytest.approx(0.21)
    assert flash.iqm == pytest.approx(0.46)
    assert (flash.tasks_per_step, flash.group_size) == (32, 1)
    assert (found.summary_of_arm("grpo").tasks_per_step, found.summary_of_arm("grpo").group_size) == (4, 8)


def test_paired_by_seed_where_a_seed_means_the_same_tasks(found: Analysis) -> None:
    # Same seed effects in both arms: seed by seed the difference is exactly -0.1 everywhere, from which no spread can
    # be learnt.
    none = difference(found, "none")
    assert none.paired
    assert none.final["sampled"].estimate.value == pytest.approx(-0.1)
    assert none.final["sampled"].why_no_interval == "no spread"
    assert math.isnan(none.smallest)
    assert none.seeds_needed is None
    # Groups of 8 meet other tasks: not paired, so the seeds' spread is in the interval.
    grpo = difference(found, "grpo")
    assert not grpo.paired
    assert "other group sizes" in grpo.why
    assert grpo.final["sampled"].estimate.value == pytest.approx(-0.05)
    # Items are alike in both arms, so this is Welch's: se = sqrt(2 var(SEED) / 3), 4 degrees of freedom.
    se = math.sqrt(2 * np.var(SEED, ddof=1) / 3)
    assert grpo.final["sampled"].se == pytest.approx(se)
    assert grpo.final["sampled"].df == pytest.approx(4)


@pytest.mark.parametrize(("pairing", "paired"), [("none", False), ("seed", True), ("auto", True)])
def test_pairing_can_be_said(pairing: str, paired: bool, tmp_path: Path) -> None:
    arms = {"flashreinforce": Planted(seeded(0.4)), "none": Planted(seeded(0.3))}
    found = analyse_comparison(
        load_finished_runs(write_runs(tmp_path / "out", arms)), ComparisonSettings(pairing=pairing)
    )
    assert found.differences[0].paired is paired


def test_holm_over_arms(found: Analysis) -> None:
    p = [d.final["sampled"].p for d in found.differences]
    adjusted = [d.p_holm["sampled"] for d in found.differences]
    assert math.isnan(p[0])
    assert math.isnan(adjusted[0])
    rest = sorted(p[1:])  # of three comparisons, one without a p
    assert sorted(adjusted[1:]) == pytest.approx([min(1, 3 * rest[0]), min(1, max(3 * rest[0], 2 * rest[1]))])


def test_families(found: Analysis) -> None:
    assert [(f.family, f.n_items) for f in found.families] == [("family0", 10), ("family1", 10)]
    first, second = found.families
    assert first.start == pytest.approx(0.2)
    assert second.start == pytest.approx(0.3)
    assert first.cells["flashreinforce"].level.value == pytest.approx(0.41)
    assert math.isnan(first.cells["flashreinforce"].difference.value)
    assert first.cells["critic"].difference.value == pytest.approx(0.0)
    assert second.cells["critic"].difference.value == pytest.approx(0.2)
    # The critic's difference is the same with every seed and item of a family: no p, and no bold cell.
    assert math.isnan(second.cells["critic"].p_holm)
    assert math.isnan(first.cells["critic"].p_holm)


def test_families_that_vary(tmp_path: Path) -> None:
    # Family 1 is 0.2 above, give or take 0.01 by seed: t = 0.2 / (0.01 / sqrt(3)) = 34.64, 2 degrees of freedom; family
    # 0 has no spread.
    def above(seed: int, step: int, item: int) -> float:
        return seeded(0.4)(seed, step, item) + ((0.2 + 0.01 * (seed - 1)) * step / 40 if item % 2 else 0.0)

    arms = {"flashreinforce": Planted(seeded(0.4)), "critic": Planted(above)}
    first, second = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", arms))).families
    assert math.isnan(first.cells["critic"].p_holm)
    assert second.cells["critic"].p_holm == pytest.approx(2 * 2 * stats.t.sf(0.2 * math.sqrt(3) / 0.01, 2))  # two cells


def test_time(found: Analysis) -> None:
    critic = found.summary_of_arm("critic").times
    assert critic.total.value == pytest.approx(80.0)
    assert critic.per_step["critic"] == pytest.approx(1.0)
    assert critic.shares["critic"] == pytest.approx(0.5)
    assert critic.ratio.value == pytest.approx(2.0)
    assert math.isnan(found.summary_of_arm("flashreinforce").times.ratio.value)
    assert found.clock == "cpu"


def test_area_under_a_straight_line_is_its_middle(found: Analysis) -> None:
    flash = found.summary_of_arm("flashreinforce")
    assert flash.area.estimate.value == pytest.approx((0.25 + 0.46) / 2)
    assert difference(found, "none").area.estimate.value == pytest.approx(-0.05)
    assert [p.step for p in flash.curve] == [0, 20, 40]
    assert [p.rollouts for p in flash.curve] == [0, 640, 1280]
    assert [p.seconds for p in flash.curve] == pytest.approx([0, 20, 40])
    assert flash.curve[1].level.value == pytest.approx((0.25 + 0.46) / 2)


def test_reach_half_way(found: Analysis) -> None:
    reach = found.reach
    assert reach is not None
    assert reach.level == pytest.approx((0.25 + 0.46) / 2)
    # Seed s climbs 0.2 + SEED[s] in 1280 rollouts: the level, 0.105 up, is at 1280 * 0.105 / (0.2 + SEED[s]).
    needed = [1280 * 0.105 / (0.2 + s) for s in SEED]
    flash = reach.rollouts["flashreinforce"]
    assert (flash.n_reached, flash.n_runs) == (3, 3)
    assert flash.median == pytest.approx(needed[1])
    assert flash.mean_within.value == pytest.approx(np.mean(needed))
    assert reach.seconds["flashreinforce"].median == pytest.approx(needed[1] / 32)
    # none climbs 0.1 + SEED[s]: only seed 2 (0.15) reaches 0.105; the others are censored at 1280.
    none = reach.rollouts["none"]
    assert none.n_reached == 1
    assert none.median == math.inf
    assert reach.rollout_horizon == 1280
    assert none.mean_within.value == pytest.approx((1280 + 1280 + 1280 * 0.105 / 0.15) / 3)
    assert none.ratio.value > 1
    # The critic takes 2 s a step: it reaches the level sooner in rollouts, later in seconds.
    assert reach.rollouts["critic"].ratio.value < 1 < reach.seconds["critic"].ratio.value


def test_reach_of_a_given_level_and_of_none(found: Analysis, tmp_path: Path) -> None:
    flat = write_runs(tmp_path / "flat", {"none": Planted(line(0.3, 0.3)), "loo": Planted(line(0.3, 0.4))})
    assert analyse_comparison(load_finished_runs(flat)).reach is None  # the reference gains nothing
    asked = analyse_comparison(load_finished_runs(flat), ComparisonSettings(level=0.35)).reach
    assert asked is not None
    assert asked.rollouts["none"].n_reached == 0
    assert asked.rollouts["loo"].median == pytest.approx(640)


def test_first_reach_and_kaplan_meier() -> None:
    x = np.array([0.0, 10.0, 20.0])
    assert first_reach_of_level(x, np.array([0.5, 0.1, 0.1]), 0.4) == (0.0, True)
    assert first_reach_of_level(x, np.array([0.1, 0.3, 0.2]), 0.25) == (7.5, True)
    assert first_reach_of_level(x, np.array([0.1, 0.2, 0.2]), 0.25) == (20.0, False)
    # Censored before the first event: of 4 at risk at 5 one goes (.75), of 2 at 8 one (.375): the median is 8.
    assert kaplan_meier_median([5, 6, 8, 9, 4], [True, False, True, False, False]) == 8
    assert kaplan_meier_median([5.0, 6.0, 7.0], [True, False, False]) == math.inf
    # Runs that ended badly never get there and stay at risk: 2 of 3 remain at 500, which is not half.
    assert kaplan_meier_median([math.inf, math.inf, 500], [False, False, True]) == math.inf
    assert kaplan_meier_median([math.inf, 400, 500], [False, True, True]) == 500


def test_the_ratio_is_that_of_the_means_shown_beside_it() -> None:
    # Means 5 and 1. Var(mean) of the first: 18 / 2 = 9, over 5^2 = .36; the second has no spread, so df = 1.
    found = ratio_of_means(np.array([2.0, 8.0]), np.array([1.0, 1.0]))
    assert found.value == pytest.approx(5.0)
    assert math.log(found.high / 5) == pytest.approx(stats.t.ppf(0.975, 1) * 0.6)
    assert found.low * found.high == pytest.approx(25.0)  # symmetric on the log scale
    # Both vary: .36 and var 2 / 2 over 2^2 = .25, df = .61^2 / (.36^2 / 1 + .25^2 / 1).
    found = ratio_of_means(np.array([2.0, 8.0]), np.array([1.0, 3.0]))
    assert found.value == pytest.approx(2.5)
    assert math.log(found.high / 2.5) == pytest.approx(
        stats.t.ppf(0.975, 0.61**2 / (0.36**2 + 0.25**2)) * math.sqrt(0.61)
    )
    assert ratio_of_means(np.array([0.0, 4.0]), np.array([1.0, 3.0])).value == pytest.approx(
        1.0
    )  # one was there from the start
    nothing = ratio_of_means(np.array([3.0, 3.0]), np.array([2.0, 2.0]))
    assert nothing.value == pytest.approx(1.5)
    assert math.isnan(nothing.low)


def test_a_run_that_ended_badly_never_reaches_the_level(tmp_path: Path) -> None:
    # The other arm climbs from .2 to .32: .26 at step 20, where two seeds collapse, and .3 at step 20 + 20 * .04 / .06
    # with the third. Censored at 20 the two would leave the third alone at risk, and the median would be its 33.3
    # steps.
    arms = {
        "flashreinforce": Planted(line(0.2, 0.4)),
        "hot": Planted(line(0.2, 0.32), ends={0: ("collapsed", 20), 1: ("nan", 20)}),
    }
    reach = analyse_comparison(
        load_finished_runs(write_runs(tmp_path / "out", arms)), ComparisonSettings(level=0.3)
    ).reach
    assert reach is not None
    for table, scale in ((reach.rollouts, 32), (reach.seconds, 1)):
        assert table["flashreinforce"].median == pytest.approx(20 * scale)
        assert (table["hot"].n_reached, table["hot"].median) == (1, math.inf)
        assert table["hot"].mean_within.value == pytest.approx(
            100 / 3 * scale
        )  # all with the horizon, the latest end there is


def test_shadow_ratios_are_cumulated_not_averaged(tmp_path: Path) -> None:
    # LOO 0.3 in every second step and 0.1 else, a baseline 0.2 throughout: sums 0.2 / 0.2 = 1, the mean of ratios would
    # be 1 by chance only where both halves weigh alike, so the third baseline has 0.05 where LOO has 0.1: (0.3 + 0.1) /
    # (0.3 + 0.05).
    shadow = {
        "loo": lambda step: 0.3 if step % 2 else 0.1,
        "flat": 0.2,
        "better": lambda step: 0.3 if step % 2 else 0.05,
    }
    runs = load_finished_runs(write_runs(tmp_path / "out", {"none": Planted(line(0.2, 0.3), shadow=shadow)}))
    ratios = compute_shadow_ratios(runs.arms["none"], "loo")
    assert set(ratios) == {"flat", "better"}
    assert ratios["flat"].value == pytest.approx(1.0)
    assert ratios["better"].value == pytest.approx(0.4 / 0.35)
    # 40 steps in blocks of 4: each block is alike, so nothing is uncertain.
    assert (ratios["better"].low, ratios["better"].high) == pytest.approx((0.4 / 0.35, 0.4 / 0.35))
    found = analyse_comparison(runs)
    assert found.loo == "loo"
    assert found.shadow["better"].value == pytest.approx(0.4 / 0.35)


def test_shadow_intervals_cover(tmp_path: Path) -> None:
    from rollonce.comparison.shadow import _jackknife_ratio

    rng, inside, n = np.random.default_rng(3), 0, 400
    for _ in range(n):
        blocks = rng.gamma(20, 1 / 20, (30, 2)) * np.array([0.25, 0.2])
        e = _jackknife_ratio(blocks)
        inside += e.low <= 1.25 <= e.high
    assert 0.92 <= inside / n <= 0.98


def grid(rates: dict[float, tuple[float, float]], **more) -> dict[str, Planted]:
    """An arm at several rates: (final test level, final hold-out level)."""
    return {
        f"{name}@{rate:g}": Planted(
            seeded(test - shift),
            holdout=lambda seed, step, item, h=hold: 0.2 + (h - 0.2) * step / 40,
            entry={"arm": name, "learning_rate": rate, "group_size": 1, "rollouts_per_step": 32},
            **more.get(f"{name}@{rate:g}", {}),
        )
        for name, shift in (("flashreinforce", 0.0), ("critic", 0.1))
        for rate, (test, hold) in rates.items()
    }


def test_learning_rates_are_chosen_on_the_holdout_and_reported_on_test(tmp_path: Path) -> None:
    # The best on test (1e-3) is not the best on the hold-out (2e-4): the latter decides.
    arms = grid(
        {1e-4: (0.3, 0.25), 2e-4: (0.4, 0.5), 1e-3: (0.5, 0.3)}, **{"critic@0.001": {"ends": {0: ("collapsed", 20)}}}
    )
    found = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", arms)))
    assert [a.name for a in found.arms] == ["flashreinforce", "critic"]
    assert [a.rate for a in found.arms] == [2e-4, 2e-4]
    assert "hold-out" in found.arms[0].how
    assert found.arms[0].final["sampled"].estimate.value == pytest.approx(0.4 + 0.05 + 0.01)
    flash, critic = found.rates
    assert [p.rate for p in flash.points] == [1e-4, 2e-4, 1e-3]
    assert [p.final.estimate.value for p in flash.points] == pytest.approx([0.36, 0.46, 0.56])
    assert flash.chosen == "flashreinforce@0.0002"
    assert (critic.points[2].n_collapsed, critic.points[2].n_runs) == (1, 3)
    assert critic.points[2].collapsed.value == pytest.approx(1 / 3)
    assert flash.over_rates is not None
    assert flash.over_rates.estimate.value == pytest.approx((0.36 + 0.46 + 0.56) / 3)
    assert flash.against_reference is None
    assert critic.against_reference is not None
    # A tenth below, but for seed 0 at 1e-3, which stopped half-way at 0.25 + (0.2 - 0.02) / 2 of its 0.43: 0.09 lower.
    assert critic.against_reference.estimate.value == pytest.approx(-0.1 - 0.09 / 9)


def leave_only(root: Path, seeds: dict[str, tuple[int, ...]]) -> None:
    """Take the results of the other seeds away, as while a grid is still running."""
    for arm, kept in seeds.items():
        for folder in (root / "runs" / arm).iterdir():
            if int(folder.name.removeprefix("seed")) not in kept:
                (folder / "result.json").unlink()


@pytest.mark.parametrize(
    ("seeds", "rate", "how"),
    [
        # By all seeds 2e-4 is best; 1e-3 has run the seed with the highest hold-out alone, where the others are higher
        # still.
        ({"flashreinforce@0.001": (2,)}, 2e-4, "highest mean on the hold-out over the 1 seed that all rates have"),
        ({"flashreinforce@0.0001": (0,), "flashreinforce@0.0002": (0, 1), "flashreinforce@0.001": (1, 2)}, 1e-3,
         "highest mean on the hold-out among the 2 rates with the most seeds (2 each): no seed was run at all rates"),
        ({"flashreinforce@0.0001": (0, 1), "flashreinforce@0.0002": (0,), "flashreinforce@0.001": (2,)}, 1e-4,
         "highest mean on the hold-out, being the only rate with 2 seeds: no seed was run at all rates"),
        ({"flashreinforce@0.0001": (0,), "flashreinforce@0.0002": (1,), "flashreinforce@0.001": (2,)}, 1e-3,
         "highest mean on the hold-out among the 3 rates with the most seeds (1 each): no seed was run at all rates, "
         "nor at all of these"),
    ],
)  # fmt: skip
def test_rates_are_compared_over_the_seeds_they_share(seeds: dict, rate: float, how: str, tmp_path: Path) -> None:
    # Hold-out at the end: a rate's level and .2 a seed. At 1e-4 .1, .3, .5; at 2e-4 .2, .4, .6; at 1e-3 .15, .35, .55,
    # but .45 with seed 1.
    arms = {
        f"flashreinforce@{r:g}": Planted(
            seeded(0.4),
            holdout=lambda seed, step, item, h=h, r=r: (
                (h + 0.2 * seed + (0.1 if (r, seed) == (1e-3, 1) else 0.0)) * step / 40
            ),
            entry={"arm": "flashreinforce", "learning_rate": r, "group_size": 1, "rollouts_per_step": 32},
        )
        for r, h in ((1e-4, 0.1), (2e-4, 0.2), (1e-3, 0.15))
    }
    root = write_runs(tmp_path / "out", arms)
    leave_only(root, seeds)
    found = analyse_comparison(load_finished_runs(root))
    assert (found.arms[0].rate, found.arms[0].how) == (rate, how)


def test_holm_over_the_arms_of_a_grid(tmp_path: Path) -> None:
    arms = {
        f"{name}@{r:g}": Planted(
            lambda seed, step, item, low=low: 0.2 + (0.2 - low + 0.01 * seed) * step / 40,
            entry={"arm": name, "learning_rate": r, "group_size": 1, "rollouts_per_step": 32},
        )
        for name, low in (("flashreinforce", 0.0), ("lower", 0.025), ("alike", 0.001))
        for r in (1e-4, 1e-3)
    }
    found = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", arms)))
    # Welch over seeds of sd .01: se = .01 sqrt(2 / 3), 4 degrees of freedom; t = 3.06 and 0.12, p = .038 and .91.
    p = [2 * stats.t.sf(gap / (0.01 * math.sqrt(2 / 3)), 4) for gap in (0.025, 0.001)]
    assert p[0] < 0.05 < 2 * p[0]
    _, lower, alike = found.rates
    assert lower.against_reference is not None
    assert lower.against_reference.p == pytest.approx(p[0])
    assert lower.against_reference.estimate.high < 0  # its own interval, not corrected
    assert (lower.p_holm, alike.p_holm) == pytest.approx((2 * p[0], p[1]))
    assert "no difference shown to flashreinforce (Holm's correction over 2 arms)" in learning_rate_sentences(found)[1]


def test_without_a_holdout_the_middle_rate_stands_for_the_arm(tmp_path: Path) -> None:
    arms = {
        name: Planted(p.level, entry=p.entry)
        for name, p in grid({1e-4: (0.3, 0), 2e-4: (0.4, 0), 1e-3: (0.5, 0)}).items()
    }
    found = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", arms)))
    assert [a.rate for a in found.arms] == [2e-4, 2e-4]
    assert "no hold-out" in found.arms[0].how


def test_ending_below_the_start_is_a_collapse(tmp_path: Path) -> None:
    arms = {
        "none": Planted(line(0.3, 0.24)),
        "loo": Planted(line(0.3, 0.26)),
        "hot": Planted(line(0.3, 0.3), ends={1: ("nan", 20)}),
    }
    found = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", arms)), ComparisonSettings(drop=0.05))
    assert [a.n_collapsed for a in found.arms] == [3, 0, 1]
    assert any("hot seed 1 (nan" in note for note in found.notes)


def test_a_drop_within_the_noise_of_the_items_is_no_collapse(tmp_path: Path) -> None:
    """40 items of 0 or 1, half of them right at the start. Ten lost and seven won are a drop of 7.5 points with a
    standard error of 10; eighteen lost are 45 points with one of 8."""
    items = [("sums", f"t{i:03d}") for i in range(40)]

    def changes(lost: int, won: int) -> Level:
        return lambda seed, step, item: float(
            (item < 20) if step == 0 else (lost <= item < 20 or 20 <= item < 20 + won)
        )

    arms = {"none": Planted(changes(10, 7)), "loo": Planted(changes(18, 0))}
    found = analyse_comparison(
        load_finished_runs(write_runs(tmp_path / "out", arms, items=items)), ComparisonSettings(drop=0.05)
    )
    assert [arm.name for arm in found.arms] == ["none", "loo"]
    assert [arm.n_collapsed for arm in found.arms] == [0, 3]


def test_seeds_that_only_one_arm_has(tmp_path: Path) -> None:
    root = write_runs(tmp_path / "out", {"flashreinforce": Planted(seeded(0.4)), "none": Planted(seeded(0.3))})
    (root / "runs/none/seed2/result.json").unlink()
    found = analyse_comparison(load_finished_runs(root))
    assert found.differences[0].final["sampled"].n_seeds == 2
    assert found.differences[0].final["sampled"].estimate.value == pytest.approx(-0.1)  # seeds 0 and 1 of both
    assert found.summary_of_arm("flashreinforce").final["sampled"].estimate.value == pytest.approx(
        0.46
    )  # all of its own
    assert any("only one of the two arms" in note for note in found.notes)


def test_the_reference_of_compare_json(tmp_path: Path) -> None:
    arms = {"flashreinforce": Planted(line(0.2, 0.3)), "grpo": Planted(line(0.2, 0.4), entry=GROUPS)}
    root = write_runs(tmp_path / "out", arms, config={"reference": "grpo"})
    found = analyse_comparison(load_finished_runs(root))
    assert found.reference == "grpo"
    assert (
        analyse_comparison(load_finished_runs(root), ComparisonSettings(reference="flashreinforce")).reference
        == "flashreinforce"
    )


def test_one_seed_says_so(tmp_path: Path) -> None:
    found = analyse_comparison(
        load_finished_runs(
            write_runs(tmp_path / "out", {"none": Planted(line(0.2, 0.3)), "loo": Planted(line(0.2, 0.4))}, seeds=[0])
        )
    )
    assert math.isnan(found.differences[0].final["sampled"].estimate.low)
    assert any(note.startswith("Only one seed") for note in found.notes)
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_wall_clock_where_the_policy_is_not_on_the_cpu(tmp_path: Path) -> None:
    root = write_runs(
        tmp_path / "out", {"none": Planted(line(0.2, 0.3))}, config={"config": {"policy": {"device": "cuda"}}}
    )
    found = analyse_comparison(load_finished_runs(root))
    assert found.clock == "wall"
    assert found.arms[0].times.total.value == pytest.approx(80.0)


def test_without_shadow_families_greedy_and_entries(tmp_path: Path) -> None:
    arm = Planted(line(0.2, 0.3), shadow={}, entry={})
    items = [("", task) for _, task in ITEMS]
    found = analyse_comparison(
        load_finished_runs(write_runs(tmp_path / "out", {"none": arm, "loo": arm}, items=items, greedy=False))
    )
    assert (found.modes, found.families, found.shadow, found.loo, found.rates) == (("sampled",), [], {}, "", [])
    assert math.isnan(found.arms[0].rate)
    assert found.differences[0].final["sampled"].why_no_interval == "no spread"


@pytest.mark.parametrize(
    "bad",
    [
        {"reference": "nobody"},
        {"pairing": "maybe"},
        {"difference": 2.0},
        {"power": 0.2},
        {"drop": 0.0},
        {"drop": math.nan},
        {"resamples": 3},
        {"seed": -1},
        {"level": 40},
        {"level": -0.1},
        {"level": math.nan},
    ],
)
def test_bad_settings_are_sentences(bad: dict, tmp_path: Path) -> None:
    runs = load_finished_runs(write_runs(tmp_path / "out", {"none": Planted(line(0.2, 0.3))}))
    with pytest.raises(InputError):
        analyse_comparison(runs, ComparisonSettings(**bad))


def test_json_has_no_nan(found: Analysis) -> None:
    text = json.dumps(found.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["reach"]["rollouts"]["none"]["median"] is None
    assert back["differences"][0]["final"]["sampled"]["estimate"]["value"] == pytest.approx(-0.1)
    assert back["families"][1]["cells"]["critic"]["difference"]["value"] == pytest.approx(0.2)
