"""What is said of a board, and numbers as they are written."""

from __future__ import annotations

import dataclasses
import math

import pytest
from rich.console import Console

from rollonce import datasets
from rollonce.baselines import NoBaseline
from rollonce.reports import svg
from rollonce.reports.bars import draw_bar_as_text
from rollonce.reports.words import (
    describe_best_step,
    format_interval,
    format_number,
    format_with_interval,
    make_board_verdict,
)
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, Estimate, Score, score_rollouts


@pytest.fixture(scope="module")
def board() -> Board:
    rewards = [[float((t + g) % 3 > 0) for g in range(3)] for t in range(12)]
    return score_rollouts(
        Rollouts.from_groups(rewards, [f"task {t}" for t in range(12)]),
        baselines=[],
        batch_size=4,
        n_batches=10,
        resamples=0,
    )


def said(board: Board, *ratios: Estimate) -> tuple[str, bool | None]:
    """The verdict with these baselines ahead of LOO."""
    loo = board.scores[0]._replace(ratio=Estimate(1.0, 1.0, 1.0))
    ahead: list[Score] = [loo._replace(label=f"kernel {k}", ratio=r) for k, r in enumerate(ratios)]
    words = make_board_verdict(dataclasses.replace(board, scores=[*ahead, loo]))
    return " ".join([words.headline, *words.more]), words.apart


def test_verdicts(board: Board) -> None:
    text, apart = said(board, Estimate(1.3, 1.1, 1.5))
    assert apart is True
    assert text.startswith("Kernel 0 does best: B_eff")
    assert "1.30 [1.10, 1.50] times the LOO mean" in text
    text, apart = said(board, Estimate(1.3, 0.9, 1.9))
    assert apart is False
    assert "cannot be told apart" in text
    assert "No baseline here can be told apart" in text
    text, apart = said(board, Estimate(1.3, 0.9, 1.9), Estimate(1.1, 1.05, 1.15))
    assert apart is False
    assert "What can be told apart from it: kernel 1" in text
    text, apart = said(board, Estimate(1.3, math.nan, math.nan))
    assert apart is None
    assert "no interval was computed" in text
    text, apart = said(board)
    assert "Nothing here does better" in text


@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
def test_equal_rewards_have_no_winner(reward: float) -> None:
    for n_rollouts in (4, 1):
        table = Rollouts.from_groups([[reward] * n_rollouts] * 40, [f"task {t}" for t in range(40)])
        words = make_board_verdict(score_rollouts(table, n_batches=20, resamples=4))
        assert words.headline == "All rewards are equal: no baseline is better than another, nothing can be learned."
        assert words.apart is None


def test_without_noise_the_one_that_errs_least_is_named_not_the_one_with_a_ratio() -> None:
    rewards = [[float(t % 2)] * 4 for t in range(40)]
    table = Rollouts.from_groups(
        rewards, [f"task {t}" for t in range(40)], columns={"kind": [t % 2 for t in range(40)]}
    )
    words = make_board_verdict(score_rollouts(table, n_batches=50, resamples=0))
    assert words.headline.startswith("Same kind errs least")  # never wrong: E[A^2] = 0, and a ratio to it is 1/0


def test_numbers() -> None:
    assert format_number(-0.001) == "0.00"
    assert format_number(-1.5) == "−1.50"
    assert format_number(math.nan) == "-"
    assert format_interval(Estimate(1.022, 1.0212, 1.0227)) == "[1.021, 1.023]"
    assert format_interval(Estimate(1.0, 1.0, 1.0)) == "[1.00, 1.00]"
    assert format_interval(Estimate(1.0, math.nan, math.nan)) == ""
    # Which side of 1 an end lies on must show.
    assert format_with_interval(Estimate(1.16, 1.001, 1.35)) == "1.160 [1.001, 1.350]"


@pytest.mark.parametrize(
    ("estimate", "bar"),
    [
        (Estimate(1.5, 1.25, 1.75), "    | -o--  "),
        (Estimate(0.2, 0.1, 0.3), "<   |       "),
        (Estimate(3.0, 2.5, 3.5), "    |      >"),
        (Estimate(1.0, 0.8, 1.2), "  --o-      "),
        (Estimate(math.nan, math.nan, math.nan), "    |       "),
    ],
)
def test_bars(estimate: Estimate, bar: str) -> None:
    assert draw_bar_as_text(estimate, 0.5, 2.0, 12, fancy=False) == bar


def test_scales_hold_odd_values() -> None:
    assert svg.make_ratio_scale([]).low < 1 < svg.make_ratio_scale([]).high
    assert svg.make_logarithmic_scale([Estimate(math.inf, math.nan, math.nan), Estimate(-0.1, -0.2, 0.1)]).marks
    assert "circle" not in svg.draw_interval_bar(Estimate(math.nan, math.nan, math.nan), svg.make_ratio_scale([]))
    assert svg.draw_batch_size_curve({"perfect": [(8, 8.0)], "LOO mean": [(8, math.nan)]}) == ""
    assert "-" not in svg.draw_reward_histogram([0.5] * 10).split('height="')[1].split('"')[0]


def test_wide_terminals_get_wide_bars(board: Board) -> None:
    from rollonce.reports.table import print_baseline_board

    for width in (80, 160):
        console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        print_baseline_board(console, board)
        assert max(map(len, console.export_text().splitlines())) <= width


def test_a_predicted_batch_beyond_what_was_measured_is_not_given_as_a_number():
    """On short answers leaving the baseline out is predicted to be worth thousands of rollouts, off any curve."""
    table = datasets.load("logprob_smollm2_short")
    board = score_rollouts(table, baselines=[NoBaseline()], n_batches=200, resamples=0, exponent=2.0)
    (prediction,) = board.steps[NoBaseline().label]
    assert prediction.beyond_curve
    assert prediction.equivalent_batch.value > 64
    first, second = describe_best_step(board)
    assert "as with a batch of more than 64 instead of 32 (exponent 2)" in first
    assert second == "B_eff has another first: LOO mean."


def test_text_for_pages_is_escaped_and_has_its_subscripts_and_commands():
    from rollonce.reports.html import mark_up_sentence

    assert mark_up_sentence("B_eff < 3, `rollonce noise` says <b>") == (
        "B<sub>eff</sub> &lt; 3, <code>rollonce noise</code> says &lt;b&gt;"
    )
