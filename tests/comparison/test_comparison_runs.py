"""Reading a directory of runs: what is usable is used, and what is not is named with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import ITEMS, Planted, line, write_lines, write_runs

from rollonce.comparison import analyse_comparison, load_finished_runs
from rollonce.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two arms, three seeds."""
    return write_runs(tmp_path / "out", {"flashreinforce": Planted(line(0.2, 0.4)), "none": Planted(line(0.2, 0.3))})


def test_a_whole_directory(root: Path) -> None:
    runs = load_finished_runs(root)
    assert {name: [r.seed for r in some] for name, some in runs.arms.items()} == {
        "flashreinforce": [0, 1, 2],
        "none": [0, 1, 2],
    }
    assert runs.left_out == []
    assert runs.modes == ("sampled", "greedy")
    assert len(runs.items["sampled", "test"]) == len(ITEMS)
    run = runs.arms["flashreinforce"][0]
    assert run.series["sampled", "test"].at_E.tolist() == [0, 20, 40]
    assert run.series["sampled", "test"].levels_EI[1] == pytest.approx(np.full(20, 0.3))
    assert run.final_item_levels("greedy", "test") == pytest.approx(np.full(20, 0.5))
    assert run.cumulative_total_at(run.metrics.rollouts_T, np.array([0, 20, 40])).tolist() == [0, 640, 1280]
    assert run.metrics.cumulative_seconds_T("cpu")[-1] == pytest.approx(40.0)
    assert run.metrics.cumulative_seconds_T("wall")[-1] == pytest.approx(80.0)


def test_repeats_are_averaged(root: Path) -> None:
    for path in root.glob("runs/*/*/evaluations/*.jsonl"):
        rows = [json.loads(x) for x in path.read_text().splitlines()]
        write_lines(path, [r | {"repeat": k, "reward": float(k)} for r in rows for k in (0, 1, 1 + 1)])
    assert load_finished_runs(root).arms["none"][0].final_item_levels("sampled", "test") == pytest.approx(np.ones(20))


def break_file(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / name
        path.write_text(change(path.read_text()))

    return act


LAST = "evaluations/step_000040.jsonl"
ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no result": (lambda f: (f / "result.json").unlink(), "no result.json: it has not finished"),
    "interrupted": (break_file("result.json", lambda t: t.replace("done", "interrupted")), "ended as 'interrupted'"),
    "result cut": (break_file("result.json", lambda t: t[:9]), "result.json cannot be read"),
    "no metrics": (lambda f: (f / "metrics.jsonl").unlink(), "no metrics.jsonl"),
    "metrics cut": (break_file("metrics.jsonl", lambda t: t[:-30]), "metrics.jsonl, line 40 is not JSON"),
    "a step missing": (
        break_file("metrics.jsonl", lambda t: t.replace('{"step": 7,', '{"step": 8,')),
        'line 7: "step" is 8, not 7',
    ),
    "too few steps": (
        break_file("metrics.jsonl", lambda t: "\n".join(t.splitlines()[:30])),
        "says 40 steps, metrics.jsonl holds 30",
    ),
    "rollouts fall": (
        break_file("metrics.jsonl", lambda t: t.replace('"rollouts": 320,', '"rollouts": 3,')),
        '"rollouts" must be',
    ),
    "no seconds": (
        break_file("metrics.jsonl", lambda t: t.replace('"sample": 0.5', '"sample": null', 1)),
        '"cpu_seconds" must hold',
    ),
    "no evaluations": (lambda f: [p.unlink() for p in (f / "evaluations").iterdir()] and None, "no evaluations"),
    "not at the end": (lambda f: (f / LAST).unlink(), "last evaluation is of step 20 of 40"),
    "evaluation cut": (break_file(LAST, lambda t: t[:-25]), "step_000040.jsonl, line 40 is not JSON"),
    "an item missing": (
        break_file(LAST, lambda t: "\n".join(t.splitlines()[2:])),
        "19 test items (sampled) where most have 20, 19 in common",
    ),
    "an item twice": (break_file(LAST, lambda t: t + t.splitlines()[0]), "task 't000' has this repeat twice"),
    "no greedy": (
        break_file(LAST, lambda t: "\n".join(x for x in t.splitlines() if "greedy" not in x)),
        "lacks the test items (greedy)",
    ),
    "reward null": (
        break_file(LAST, lambda t: t.replace('"reward": 0.4', '"reward": null', 1)),
        'line 1 needs "task_id"',
    ),
    "bad split": (
        break_file(LAST, lambda t: t.replace('"repeat": 0', '"repeat": 0, "split": "train"', 1)),
        '"split" must be',
    ),
    "first evaluation empty": (break_file("evaluations/step_000000.jsonl", lambda t: ""), "step_000000.jsonl is empty"),
    "last evaluation empty": (break_file(LAST, lambda t: ""), "step_000040.jsonl is empty"),
    "folder gone": (lambda f: f.rename(f.with_name("moved")), "has not been started"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_run_is_named_and_left_out(kind: str, root: Path) -> None:
    act, reason = ODD[kind]
    act(root / "runs" / "flashreinforce" / "seed1")
    runs = load_finished_runs(root)
    assert [r.seed for r in runs.arms["flashreinforce"]] == [0, 2]
    assert [r.seed for r in runs.arms["none"]] == [0, 1, 2]
    (left,) = runs.left_out
    assert (left.arm, left.seed) == ("flashreinforce", "1")
    assert reason in left.reason


def test_empty_evaluations_on_the_way_are_passed_over(root: Path) -> None:
    # As runs with tasks.holdout = 0 left them: every evaluation but the first and the last had nothing to evaluate.
    for path in root.glob("runs/*/*/evaluations/step_000020.jsonl"):
        path.write_text("")
    runs = load_finished_runs(root)
    assert runs.left_out == []
    assert runs.arms["none"][0].series["sampled", "test"].at_E.tolist() == [0, 40]


def test_an_arm_without_any_run_and_one_too_many(root: Path) -> None:
    for seed in (0, 1, 2):
        (root / "runs" / "none" / f"seed{seed}" / "result.json").unlink()
    (root / "runs" / "stranger" / "seed0").mkdir(parents=True)
    runs = load_finished_runs(root)
    assert list(runs.arms) == ["flashreinforce"]
    assert [(x.arm, x.seed) for x in runs.left_out] == [
        ("none", "0"),
        ("none", "1"),
        ("none", "2"),
        ("stranger", "all"),
    ]


def test_a_run_that_collapsed_counts_with_what_it_ended_with(tmp_path: Path) -> None:
    arms = {
        "flashreinforce": Planted(line(0.2, 0.4)),
        "hot": Planted(line(0.2, 0.0), ends={1: ("collapsed", 30), 2: ("nan", 25)}),
    }
    runs = load_finished_runs(write_runs(tmp_path / "out", arms))
    assert runs.left_out == []
    levels = [r.final_item_levels("sampled", "test").mean() for r in runs.arms["hot"]]
    assert levels == pytest.approx([0.0, 0.05, 0.075])
    assert [r.has_ended_badly for r in runs.arms["hot"]] == [False, True, True]
    # Without an evaluation after the accident, zeros stand for it: the last one before would hide it.
    (tmp_path / "out/runs/hot/seed2/evaluations/step_000025.jsonl").unlink()
    run = load_finished_runs(tmp_path / "out").arms["hot"][2]
    assert run.stood_in
    assert run.final_item_levels("sampled", "test").tolist() == [0.0] * 20
    assert run.series["sampled", "test"].at_E.tolist() == [0, 20, 25]


def test_nan_in_metrics_is_no_reason_to_leave_a_nan_run_out(tmp_path: Path) -> None:
    root = write_runs(
        tmp_path / "out", {"hot": Planted(line(0.2, 0.0), ends={1: ("nan", 30)}), "none": Planted(line(0.2, 0.2))}
    )
    path = root / "runs/hot/seed1/metrics.jsonl"
    path.write_text(path.read_text().replace('"loss": 0.0', '"loss": NaN'))
    assert load_finished_runs(root).left_out == []


def test_a_holdout_along_the_way_and_test_items_at_both_ends(tmp_path: Path) -> None:
    arm = Planted(line(0.2, 0.4), holdout=line(0.1, 0.5))
    runs = load_finished_runs(write_runs(tmp_path / "out", {"none": arm}, along="holdout", every=10))
    assert (runs.final_split, runs.curve_split) == ("test", "holdout")
    run = runs.arms["none"][0]
    assert run.series["sampled", "holdout"].at_E.tolist() == [0, 10, 20, 30, 40]
    assert run.series["sampled", "test"].at_E.tolist() == [0, 40]


def test_a_run_without_the_holdout_that_others_curves_are_of(tmp_path: Path) -> None:
    arms = {
        name: Planted(line(0.2, end), holdout=line(0.1, 0.5)) for name, end in (("flashreinforce", 0.4), ("none", 0.3))
    }
    root = write_runs(tmp_path / "out", arms, along="holdout", every=10)
    for path in (
        root / "runs/none/seed1/evaluations"
    ).iterdir():  # evaluated on the test items alone, at its start and its end
        rows = [json.loads(x) for x in path.read_text().splitlines()]
        write_lines(path, [r for r in rows if r.get("split") != "holdout"])
    runs = load_finished_runs(root)
    assert [(x.arm, x.seed) for x in runs.left_out] == [("none", "1")]
    assert "no evaluation of the hold-out items" in runs.left_out[0].reason
    assert runs.curve_split == "holdout"
    assert [p.step for p in analyse_comparison(runs).arms[0].curve] == [0, 10, 20, 30, 40]


def test_a_holdout_that_few_runs_have_makes_no_curves(tmp_path: Path) -> None:
    arms = {
        "flashreinforce": Planted(line(0.2, 0.4), holdout=line(0.1, 0.5)),
        "none": Planted(line(0.2, 0.3)),
        "loo": Planted(line(0.2, 0.3)),
    }
    runs = load_finished_runs(write_runs(tmp_path / "out", arms, along="holdout", every=10))
    assert (runs.left_out, runs.curve_split) == ([], "test")
    assert [p.step for p in analyse_comparison(runs).arms[0].curve] == [0, 40]


def test_a_run_that_shares_no_step_with_the_others(tmp_path: Path) -> None:
    arms = {
        "flashreinforce": Planted(line(0.2, 0.4)),
        "none": Planted(line(0.2, 0.3)),
        "short": Planted(line(0.2, 0.3), ends={1: ("done", 30)}),
    }
    root = write_runs(tmp_path / "out", arms)
    for path in root.glob("runs/*/*/evaluations/step_000000.jsonl"):
        path.unlink()
    (root / "runs/short/seed1/evaluations/step_000020.jsonl").unlink()
    runs = load_finished_runs(root)
    assert [(x.arm, x.seed) for x in runs.left_out] == [("short", "1")]
    assert "not evaluated on the test items at step 20, as 8 others were" in runs.left_out[0].reason
    assert [p.step for p in analyse_comparison(runs).arms[0].curve] == [20, 40]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "compare.json: is not there"),
        ("{", "cannot be read as JSON"),
        ("[]", '"arms"'),
        ('{"arms": {}, "seeds": [0]}', '"arms"'),
        ('{"arms": {"none": {}}, "seeds": []}', '"seeds"'),
        ('{"arms": {"none": {}}, "seeds": ["a"]}', '"seeds"'),
        ('{"arms": {"none": 3}, "seeds": [0]}', "arm 'none' must be an object"),
    ],
)
def test_a_bad_directory_is_a_sentence(content: str | None, word: str, root: Path) -> None:
    (root / "compare.json").unlink()
    if content is not None:
        (root / "compare.json").write_text(content)
    with pytest.raises(InputError) as error:
        load_finished_runs(root)
    assert word in str(error.value)


def test_nothing_to_compare_is_a_sentence(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        load_finished_runs(tmp_path / "nowhere")
    for path in root.glob("runs/*/*/result.json"):
        path.unlink()
    with pytest.raises(InputError, match=r"no run in it can be used yet .*has not finished"):
        load_finished_runs(root)
