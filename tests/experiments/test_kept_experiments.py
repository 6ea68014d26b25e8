"""The experiments kept under studies/: their chains hold, their files are those on record, and their items give the
same verdict again."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollonce.experiments.decision import decide_verdict
from rollonce.experiments.derive import derive_settings, resolve_role_name
from rollonce.experiments.files import compute_json_digest
from rollonce.experiments.loading import load_specification
from rollonce.experiments.records import Chain

STUDIES = Path(__file__).parents[2] / "studies" / "experiments"
KEPT = sorted(p.parent for p in STUDIES.glob("*/records.jsonl"))
ENDS = {
    "local_twin": ("decision", "passed"),
    "local_follow_up": ("decision", "passed"),
    "local_inconclusive": ("decision", "passed"),
    "local_gate_fails": ("gate_offline", "failed"),
}


def content(folder: Path, name: str) -> bytes:
    plain = folder / name
    return plain.read_bytes() if plain.is_file() else gzip.decompress((folder / f"{name}.gz").read_bytes())


def rows(folder: Path, name: str) -> list[Any]:
    return [json.loads(line) for line in content(folder, name).splitlines()]


def test_all_four_are_there() -> None:
    assert {p.name for p in KEPT} == set(ENDS)


@pytest.mark.parametrize("folder", KEPT, ids=lambda p: p.name)
def test_chain_files_and_verdict(folder: Path) -> None:
    chain = Chain(folder)
    last = chain.records[-1]
    assert (last.stage, last.status) == ENDS[folder.name]
    for record in chain.records:
        for name, known in record.files.items():
            assert hashlib.sha256(content(folder, name)).hexdigest() == known, name
    loaded = load_specification(folder / "spec.json")
    assert loaded.sha256 == chain.records[0].spec
    assert (
        compute_json_digest(json.loads((STUDIES.parents[1] / "specs" / f"{folder.name}.spec.json").read_text()))
        == loaded.sha256
    )
    if last.stage != "decision":
        return
    settings = derive_settings(loaded.spec)
    grades = {}
    for key in {k for c in loaded.spec.decision_rule.criteria for k in c.weights}:
        items = rows(folder, f"evaluation/{resolve_role_name(settings, key)}.jsonl")
        assert len({r["task_id"] for r in items}) == len(items) == loaded.spec.eval.n_examples
        grades[key] = {r["task_id"]: r["reward"] for r in items}
    order = list(next(iter(grades.values())))
    again = decide_verdict(loaded.spec.decision_rule, {k: np.array([g[i] for i in order]) for k, g in grades.items()})
    assert again.verdict == last.data["verdict"]
    for mine, theirs in zip(again.criteria, last.data["criteria"], strict=True):
        assert mine.hoeffding.low == pytest.approx(theirs["hoeffding"]["low"], abs=1e-12)
