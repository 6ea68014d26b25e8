"""The matrix: shapes, honest cells, sentences, and the command line's refusals."""

import json

import numpy as np
import pytest

from rollonce.cli import main
from rollonce.errors import InputError
from rollonce.scoring import Estimate
from rollonce.tuning.space import Space
from rollonce.tuning.transfer import Cell, draw_candidate_configs, measure_kernel_transfer, sentence_about_row

from .planted import planted, useless


@pytest.fixture(scope="module")
def matrix():
    return measure_kernel_transfer(
        [planted(90), useless(90)], n_candidates=10, n_batches=30, report_batches=60, resamples=10
    )


def test_rows_columns_and_cross_fitted_cells(matrix):
    assert matrix.columns == ["planted", "useless"]
    assert [c.cross_fitted for c in matrix.rows["tuned on planted"]] == [True, False]
    assert [c.cross_fitted for c in matrix.rows["tuned on useless"]] == [False, True]
    assert all(c.cross_fitted for c in matrix.rows["the pool of all sets"])
    assert [c.ratio.value for c in matrix.rows["LOO mean"]] == pytest.approx([1, 1])
    json.dumps(matrix.to_dict(), allow_nan=False)


def test_the_planted_feature_is_found_at_home_and_useless_elsewhere(matrix):
    home, away = matrix.rows["tuned on planted"]
    assert home.ratio.low > 1.3
    assert away.ratio.value < 1.02


def test_leave_one_set_out_is_the_other_sets_choice(matrix):
    # With two sets, "all but planted" chooses on useless alone, and the other way round.
    assert matrix.rows["all sets but this one"][0].ratio == matrix.rows["tuned on useless"][0].ratio
    assert matrix.rows["all sets but this one"][1].ratio == matrix.rows["tuned on planted"][1].ratio


def test_candidates_look_at_no_reward_and_repeat_with_the_seed():
    a, b = (draw_candidate_configs(Space(), 12, 5) for _ in range(2))
    assert a == b
    assert a[0]["type"] == "loo"


def test_sentences_say_where_it_gains_and_loses():
    cells = [Cell(Estimate(*x), "k", False) for x in ((1.2, 1.1, 1.3), (0.9, 0.8, 0.95), (1.0, 0.9, 1.1))]
    said = sentence_about_row("tuned on A", cells, ["A", "B", "C"])
    assert "gains on A (1.20 [1.10, 1.30])" in said
    assert "loses on B (0.90 [0.80, 0.95])" in said
    assert "1 of 3" in said
    assert f"{np.cbrt(1.2 * 0.9):.2f}." in said


def test_refusals(capsys):
    with pytest.raises(InputError, match="two sets"):
        measure_kernel_transfer([planted(40)])
    with pytest.raises(InputError, match="two sets are called"):
        measure_kernel_transfer([planted(40), planted(40)])
    assert main(["transfer", "gsm8k"]) == 2
    assert main(["tune", "gsm8k", "--budget", "soon"]) == 2
    assert main(["tune", "gsm8k", "--sampler", "hillclimb", "--storage", "x.db"]) == 2
    assert main(["plan", "--power"]) == 2
    assert main(["plan", "gsm8k", "--snr", "1"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.count("rollonce:") == 5


def test_plan_prints(capsys):
    assert main(["plan", "--power", "--n", "1319", "--margin", "-0.05", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rules"][0]["smallest"] == pytest.approx(0.0248, abs=5e-5)
    assert main(["plan", "gsm8k_qwen25coder_1.5b"]) == 0
    assert "17.7" in capsys.readouterr().out
