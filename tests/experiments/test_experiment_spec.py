"""Reading a specification: the request's own file as it is; wrong ones named by path, with what was expected."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_fakes import SEED_SPEC, SPECS, small_spec, write_spec

from rollonce.baselines import Batch
from rollonce.errors import InputError
from rollonce.experiments.advantages import (
    LENGTH_BUCKETS,
    check_advantages,
    make_advantage_baseline,
    make_advantage_config,
)
from rollonce.experiments.derive import derive_settings
from rollonce.experiments.loading import load_specification
from rollonce.experiments.pins import make_package_pin, make_reference_pin, resolve_field_pins
from rollonce.experiments.safeguards import find_safeguards_switched_off


def test_the_requests_file_is_read_whole() -> None:
    loaded = load_specification(SEED_SPEC)
    assert loaded.unknown == []
    assert sorted(loaded.unresolved) == [
        f"correctness_preflight.paths[0].{k}_revision" for k in ("baseline", "reference")
    ]
    assert [a.rollouts for a in loaded.spec.arms] == [32, 32]
    assert len(loaded.spec.activation_gate.checks) == 7


def test_what_the_requests_file_says_in_words_is_found_there() -> None:
    s = derive_settings(load_specification(SEED_SPEC).spec)
    assert (s.engine, s.tasks, s.max_tokens) == ("cookbook", "gsm8k:hub", 512)
    assert (s.calibration_tasks, s.calibration_group_size, s.calibration_minutes) == (64, 8, 10.0)
    assert (s.pilot_steps, s.pilot_eval_items, s.restoration_atol, s.declared_gpus) == (3, 100, 1e-4, 1.0)
    assert (s.baseline, s.treatment, s.fallbacks) == ("grpo_g8", "gs1_tfidf_g1", (LENGTH_BUCKETS,))
    assert s.origins["max_tokens"].where == "command"
    assert s.origins["item_seconds"].where == "default"


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.spec.json")), ids=lambda p: p.name)
def test_every_shipped_specification_is_valid(path: Path) -> None:
    loaded = load_specification(path)
    check_advantages(loaded.spec)
    derive_settings(loaded.spec)
    assert loaded.unknown == []


def test_the_treatment_is_the_published_kernel() -> None:
    spec = load_specification(SEED_SPEC).spec
    config = make_advantage_config(spec, "tfidf_kernel_loo_T0.1")
    assert (config["type"], config["kernel"]["temperature"], config["window"], config["shrinkage"]) == (
        "kernel",
        0.1,
        0,
        0.0,
    )
    assert make_advantage_baseline(spec, "tfidf_kernel_loo_T0.25").config()["kernel"]["temperature"] == 0.25


def test_the_treatment_is_the_code_that_the_request_wrote_down() -> None:
    """Its twelve lines of Python stand in ``command``: they run here, against our arm, fitted on the same questions."""
    spec = load_specification(SEED_SPEC).spec
    code = re.search(r"from sklearn.*?return rewards - b\n", spec.command, re.DOTALL)
    assert code is not None
    words = ["apples", "boxes", "trains", "miles", "hours", "each", "costs", "many", "does", "she", "have", "left"]
    questions = [" ".join(np.random.default_rng(i).choice(words, size=8)) for i in range(60)]
    theirs: dict[str, Any] = {"train_questions": questions}
    exec(code[0], theirs)
    batch, rewards = questions[:32], np.random.default_rng(1).integers(0, 2, 32).astype(float)
    ours = make_advantage_baseline(spec, "tfidf_kernel_loo_T0.1").fit(questions)
    np.testing.assert_allclose(
        ours.advantages(Batch.of(batch, rewards)), theirs["gs1_adv"](batch, rewards), rtol=0, atol=1e-12
    )


def test_unknown_fields_are_kept_and_listed(tmp_path: Path) -> None:
    document = small_spec()
    document["colour"] = "green"
    document["dataset"]["mood"] = {"deep": 1}
    loaded = write_spec(tmp_path, document)
    assert loaded.unknown == ["colour", "dataset.mood"]
    assert (
        "does not know: colour, dataset.mood" in find_safeguards_switched_off(loaded, derive_settings(loaded.spec))[-1]
    )
    assert loaded.raw["colour"] == "green"
    assert loaded.sha256 != write_spec(tmp_path, small_spec(), "b.json").sha256


def test_layout_does_not_change_the_hash_but_values_do(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(small_spec(), indent=7))
    b.write_text(json.dumps(small_spec(), sort_keys=True))
    assert load_specification(a).sha256 == load_specification(b).sha256
    b.write_text(json.dumps(small_spec(**{"decision_rule.criteria.0.margin": -0.06})))
    assert load_specification(a).sha256 != load_specification(b).sha256


WRONG = [
    ("arms.1.group_size", "one", "arms[1].group_size: expected a valid integer"),
    ("arms.0.lr", -1.0, "arms[0].lr: expected greater than 0"),
    ("arms.1.lr", 9e-4, "arms[1].lr: expected optimizer.lr, 0.0002; found 0.0009"),
    (
        "arms.1.groups_per_batch",
        7,
        "arms[1]: group_size 1 x groups_per_batch 7 = 7 rollouts per step, but batch_size is 8",
    ),
    ("arms.1.steps", 4, "arms[1].steps: expected the specification's steps, 3; found 4"),
    ("arms.1.name", "grpo_g8", "arms[1].name: 'grpo_g8' stands twice"),
    ("decision_rule.alpha", 1.5, "decision_rule.alpha: expected less than 1; found 1.5"),
    ("decision_rule.method", "t_test", "decision_rule.method: expected 'paired_hoeffding'; found \"t_test\""),
    ("decision_rule.criteria.0.bounds", [1, 0], "decision_rule.criteria[0].bounds: expected [low, high]"),
    ("decision_rule.criteria.0.weights", {"gs1": 1}, "decision_rule.criteria[0].weights: expected names of arms"),
    ("decision_rule.criteria.0.margin", -1.0, "decision_rule.criteria[0].margin: expected a number between"),
    ("decision_rule.seeds", [0, 1], "decision_rule.seeds: expected the one seed"),
    ("activation_gate.checks.0.metric", "beff", "activation_gate.checks[0].metric: expected one of"),
    ("activation_gate.checks.0.min", None, "activation_gate.checks[0]: expected min, max or both"),
    ("activation_gate.checks.2.min", 0.5, "activation_gate.checks[2]: expected min <= max"),
    (
        "restoration_preflight.groups.0.arms.0.optimizer_config.learning_rate",
        1.0,
        "optimizer_config.learning_rate: expected 0.0002",
    ),
    ("restoration_preflight.groups.0.arms.0.name", "nobody", "arms[0].name: expected the name of an arm"),
    (
        "rollonce.roles",
        {"baseline": "x", "treatment": "grpo_g8"},
        "rollonce.roles.baseline: expected the name of an arm",
    ),
    ("training_type", "sft", "training_type: expected 'rl'"),
    ("batch_size", True, "batch_size: expected a valid integer; found true"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_field_is_named(tmp_path: Path, path: str, value: object, said: str) -> None:
    with pytest.raises(InputError) as caught:
        write_spec(tmp_path, small_spec(**{path: value}))
    assert said in str(caught.value)
    assert "small.spec.json" in str(caught.value)


def test_all_wrong_fields_are_named_at_once(tmp_path: Path) -> None:
    document = small_spec(**{"arms.0.lr": "x", "steps": 0})
    del document["optimizer"]
    with pytest.raises(InputError, match="3 fields are wrong") as caught:
        write_spec(tmp_path, document)
    assert "optimizer: missing" in str(caught.value)


def test_a_group_mean_of_one_is_refused(tmp_path: Path) -> None:
    document = small_spec(**{"arms.0.group_size": 1, "arms.0.groups_per_batch": 8})
    with pytest.raises(InputError, match=r"arms\[0\].group_size: expected at least 2 with advantage group_mean"):
        write_spec(tmp_path, document)


def test_an_advantage_that_means_nothing_is_refused(tmp_path: Path) -> None:
    loaded = write_spec(tmp_path, small_spec(**{"arms.1.advantage": "tfidf_kernel"}))
    with pytest.raises(InputError, match=r"arms\[1\].advantage: the advantage 'tfidf_kernel' means nothing here"):
        check_advantages(loaded.spec)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice"),
        ('{"a": NaN}', "holds NaN"),
        ("{", "is no JSON"),
        ("[1]", "is a JSON object, not list"),
        ("\udcff", "is no UTF-8 text"),
    ],
)
def test_what_is_no_specification_at_all(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=said):
        load_specification(path)


def test_pins_of_the_local_engine_are_what_is_installed(tmp_path: Path) -> None:
    loaded = write_spec(tmp_path, small_spec())
    found = resolve_field_pins(loaded, derive_settings(loaded.spec))
    assert found.open == {}
    assert set(found.resolved) == set(loaded.unresolved)
    assert (
        make_reference_pin()["sha256"] == found.resolved["correctness_preflight.paths[0].reference_revision"]["sha256"]
    )


def test_a_field_that_nothing_resolves_stays_open(tmp_path: Path) -> None:
    loaded = write_spec(tmp_path, small_spec(**{"dataset.split": "UNRESOLVED: pin the revision of the data"}))
    found = resolve_field_pins(loaded, derive_settings(loaded.spec))
    assert list(found.open) == ["dataset.split"]
    assert "write the value into the specification" in found.open["dataset.split"]


def test_a_package_pin_moves_with_its_files() -> None:
    pin = make_package_pin("orjson")
    assert pin is not None
    assert len(pin["sha256"]) == 64
    assert make_package_pin("orjson") == pin
    assert make_package_pin("pydantic")["sha256"] != pin["sha256"]  # type: ignore[index]
    assert make_package_pin("no-such-package-anywhere") is None


def test_every_test_that_the_table_of_requirements_names_is_there() -> None:
    root = SPECS.parent
    table = (root / "docs" / "experiments.md").read_text().partition("requirement by requirement")[2]
    named = set(re.findall(r"\btest_\w+\b", table))
    assert len(named) > 50
    code = "".join(p.read_text() for p in (root / "tests").rglob("*.py"))
    there = set(re.findall(r"def (test_\w+)", code)) | {p.stem for p in (root / "tests").rglob("test_*.py")}
    assert sorted(named - there) == []
