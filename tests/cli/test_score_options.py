"""``rollonce score`` to a decision: a quick look, some rows only, the best one saved, the two closing lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cli_helpers import QUICK, Ran, rows, write

from rollonce.baselines import Baseline, Batch
from rollonce.baselines.catalogue import named_baseline


def test_only_some_rows_and_the_yardstick(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    ran = rollonce("score", path, *QUICK, "--only", "gs1_tfidf", "--only", "no baseline", "--only", "without", "--json")
    assert ran.code == 2
    assert "no baseline 'no baseline'" in ran.err
    ran = rollonce("score", path, *QUICK, "--only", "gs1_tfidf", "--only", "none", "--json")
    [board] = json.loads(ran.out)["boards"]
    assert {s["label"] for s in board["scores"]} == {
        "LOO mean",
        named_baseline("tfidf").label,
        named_baseline("none").label,
    }
    said = rollonce("score", path, *QUICK, "--only", "gs1_tdidf").err
    assert said.startswith("rollonce: no baseline 'gs1_tdidf'; did you mean 'gs1_tfidf'")


def test_it_closes_with_an_answer_and_a_next_step_and_saves_the_best(
    tmp_path: Path, rollonce: Callable[..., Ran]
) -> None:
    path, out = write(tmp_path / "a.jsonl", rows()), tmp_path / "best.json"
    ran = rollonce("score", path, *QUICK, "--quick", "--save-best", out)
    assert ran.code == 0
    following = ran.out.rstrip().splitlines()[-1]
    assert "\nIs one rollout per task enough here? " in ran.out
    assert following == f'Next: rollonce check {out}; then SingleRolloutGRPOTrainer(..., baseline="{out}")'
    assert "B_eff counts errors of the baseline" in " ".join(ran.out.split())
    [board] = json.loads(rollonce("score", path, *QUICK, "--quick", "--json").out)["boards"]
    best = board["scores"][0]["label"]
    assert f"wrote {out}: {best}, fitted on all 8 tasks" in ran.err
    assert board["decision"]["answer"] in ("yes", "no", "cannot tell")
    saved = Baseline.load(out)
    assert saved.label == best
    assert saved.provenance is not None
    assert saved.provenance["scored_on"] == "a"
    assert saved.provenance["reported_ratio_to_loo"][0] > 0


def test_any_row_can_be_saved(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    path, out = write(tmp_path / "a.jsonl", rows()), tmp_path / "b.json"
    assert rollonce("score", path, *QUICK, "--quick", "--save", "loo_window_4", "-o", out).code == 0
    batch = Batch.of(["x", "y", "z"], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(Baseline.load(out).predict(batch).baseline_B, [0.0, 0.5, 0.5])
    ran = rollonce("score", path, *QUICK, "--quick", "--save", "oracle", "-o", tmp_path / "c.json")
    assert (ran.code, "is not saved" in ran.err) == (2, True)
    assert not (tmp_path / "c.json").exists()


def test_rows_beyond_the_first_are_shown_with_all(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    short, full = (rollonce("score", path, *QUICK, "--quick", *more).out for more in ((), ("--all",)))
    assert "more rows: --all shows them" in short
    assert "more rows" not in full
    for text in (short, full):
        assert max(map(len, text.split("\nIs one rollout")[0].splitlines())) <= 80
        assert "\nLOO mean " in text
        assert "+ an example of GS1 as it was published" in text
    assert len(full.splitlines()) > len(short.splitlines())
