"""What an audit could bend: each test is one of its attempts. All of them went through before the ledger, the checked
settings and the strict fields were there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from experiment_fakes import FakeEngine, open_run, put, small_spec, write_spec

from rollonce.errors import InputError
from rollonce.experiments import gates
from rollonce.experiments.derive import derive_settings
from rollonce.experiments.files import compute_json_digest, read_finished_lines
from rollonce.experiments.ledger import make_ledger_path
from rollonce.experiments.loading import LoadedSpec, load_specification
from rollonce.experiments.pins import make_package_pin, make_reference_pin, resolve_field_pins
from rollonce.experiments.records import Chain
from rollonce.experiments.safeguards import find_safeguards_switched_off
from rollonce.experiments.stages import RunOutcome, before_spending, run_experiment
from rollonce.reports.experiment import write_experiment_report


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "N_BATCHES", 50)
    monkeypatch.setattr(gates, "RESAMPLES", 0)
    monkeypatch.setattr(
        before_spending, "run_correctness_preflight", lambda *a: {"passed": True, "paths": [], "forced": []}
    )


@pytest.fixture
def spec(tmp_path: Path) -> LoadedSpec:
    return write_spec(tmp_path, small_spec())


def go(loaded: LoadedSpec, directory: Path, **engine: Any) -> tuple[RunOutcome, Chain]:
    run, fake = open_run(loaded, directory)
    for name, value in engine.items():
        setattr(fake, name, value)
    return run_experiment(run), Chain(directory)


def stop_at(loaded: LoadedSpec, directory: Path, event: str, nth: int = 1) -> FakeEngine:
    """A sitting that ends, as if killed, when something is about to happen for the nth time."""
    run, engine = open_run(loaded, directory)
    count = [0]

    def tick(what: str) -> None:
        count[0] += what == event
        if count[0] == nth:
            raise KeyboardInterrupt

    engine.tick = tick
    with pytest.raises(KeyboardInterrupt):
        run_experiment(run)
    run.ledger.count_elapsed_time("x", write=True)
    return engine


def change_line(file: Path, number: int, **values: Any) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[number] |= values
    file.write_text("".join(json.dumps(r, sort_keys=True, separators=(",", ":")) + "\n" for r in rows))


# ---- the directory


def test_an_edited_copy_of_the_specification_does_not_pass_for_the_one_in_force(tmp_path: Path) -> None:
    """The audit's attempt: a gate of 0.5 in the run's own copy, and a revision that differs from it as allowed."""
    document = small_spec(**{"activation_gate.checks.0.min": 9.0, "rollonce.fallbacks": ["length_buckets_loo"]})
    loaded = write_spec(tmp_path, document)
    outcome, _ = go(loaded, tmp_path / "run")
    assert outcome.stage == "gate_offline"
    put(document, "activation_gate.checks.0.min", 0.5)
    (tmp_path / "run/spec.json").write_text(json.dumps(document))
    document["arms"][1]["advantage"] = "length_buckets_loo"
    document["rollonce"]["revision"] = {"of": loaded.sha256, "reason": "the gate failed; the fallback"}
    with pytest.raises(InputError, match=r"spec\.json: was changed or removed after stage 'start'"):
        open_run(write_spec(tmp_path, document, "revised.json"), tmp_path / "run")


def test_a_record_dropped_from_the_end_is_noticed(tmp_path: Path) -> None:
    loaded = write_spec(tmp_path, small_spec(**{"activation_gate.checks.0.min": 9.0}))
    go(loaded, tmp_path / "run")
    records = tmp_path / "run/records.jsonl"
    records.write_text("".join(line + "\n" for line in records.read_text().splitlines()[:-1]))  # the failed gate
    with pytest.raises(InputError, match=r"had 8 lines and has 7: lines were taken out"):
        open_run(loaded, tmp_path / "run")


def test_without_its_ledger_a_run_does_not_go_on(spec: LoadedSpec, tmp_path: Path) -> None:
    stop_at(spec, tmp_path / "run", "train grpo_g8 2")
    make_ledger_path(tmp_path / "run").unlink()
    with pytest.raises(InputError, match="the run's ledger is missing"):
        open_run(spec, tmp_path / "run")


def test_a_forged_row_in_an_unfinished_calibration_is_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    stop_at(spec, tmp_path / "run", "sample", nth=3)
    file = tmp_path / "run/calibration.jsonl"
    assert len(file.read_text().splitlines()) == 16
    change_line(file, 3, rewards=[1.0] * 6)
    with pytest.raises(InputError, match=r"calibration\.jsonl: was changed after it was written"):
        go(spec, tmp_path / "run")


def test_rows_put_behind_an_unfinished_calibration_are_not_read(spec: LoadedSpec, tmp_path: Path) -> None:
    plain, chain = go(spec, tmp_path / "plain")
    stop_at(spec, tmp_path / "run", "sample", nth=3)
    file = tmp_path / "run/calibration.jsonl"
    row = json.loads(file.read_text().splitlines()[0])
    with file.open("a") as f:
        for i in range(16, 32):
            f.write(json.dumps(row | {"task_id": f"cal{i}", "rewards": [1.0] * 6}) + "\n")
    forged, found = go(spec, tmp_path / "run")
    assert forged == plain
    scores = [c.latest_of_stage("gate_offline").data["score"] for c in (chain, found)]  # type: ignore[union-attr]
    assert scores[0] == scores[1]


def test_the_other_arms_weights_under_this_arms_name_are_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    stop_at(spec, tmp_path / "run", "answer", nth=2)  # the pilot's, then the first of the evaluation
    weights = [tmp_path / f"run/arms/{name}/weights" for name in ("gs1_tfidf_g1", "grpo_g8")]
    assert weights[0].read_text() != weights[1].read_text()
    weights[0].write_text(weights[1].read_text())
    with pytest.raises(InputError, match=r"weights: was changed or removed after stage 'arm:gs1_tfidf_g1'"):
        go(spec, tmp_path / "run")


def test_weights_that_are_changed_while_the_run_goes_on_are_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    """Within one sitting: after the arm was recorded, and before it is evaluated."""
    run, engine = open_run(spec, tmp_path / "run")
    weights = tmp_path / "run/arms/grpo_g8/weights"

    def forge(what: str) -> None:
        if what == "train gs1_tfidf_g1 1" and weights.exists():
            weights.write_text("gs1_tfidf_g1")

    engine.tick = forge
    with pytest.raises(InputError, match=r"weights: was changed or removed after stage 'arm:grpo_g8' recorded it"):
        run_experiment(run)


def test_a_forged_grade_in_an_unfinished_evaluation_is_noticed(
    spec: LoadedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollonce.experiments import evaluate

    monkeypatch.setattr(evaluate, "ROWS", 8)
    stop_at(spec, tmp_path / "run", "answer", nth=4)
    change_line(tmp_path / "run/evaluation/grpo_g8.jsonl", 0, reward=0.125)
    with pytest.raises(InputError, match=r"evaluation/grpo_g8\.jsonl: was changed after it was written"):
        go(spec, tmp_path / "run")


def test_a_forged_step_of_an_unfinished_arm_is_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    stop_at(spec, tmp_path / "run", "train gs1_tfidf_g1 2", nth=2)  # the pilot's second step, then the arm's
    change_line(tmp_path / "run/arms/gs1_tfidf_g1/log.jsonl", 0, self_weight_max=0.0, learning_rate=5e-4)
    with pytest.raises(InputError, match="was changed after it was written"):
        go(spec, tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    [
        "spec.json",
        "calibration.jsonl",
        "pilot/grpo_g8.steps.jsonl",
        "arms/grpo_g8.steps.jsonl",
        "evaluation/grpo_g8.jsonl",
    ],
)
def test_the_report_verifies_what_it_prints(spec: LoadedSpec, tmp_path: Path, name: str) -> None:
    outcome, _ = go(spec, tmp_path / "run")
    write_experiment_report(tmp_path / "run", "command", outcome)
    file = tmp_path / "run" / name
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(InputError, match="was changed or removed after stage"):
        write_experiment_report(tmp_path / "run", "command", outcome)


def test_the_report_says_that_it_could_not_compare_the_end_of_the_chain(spec: LoadedSpec, tmp_path: Path) -> None:
    outcome, _ = go(spec, tmp_path / "run")
    make_ledger_path(tmp_path / "run").unlink()
    _, text = write_experiment_report(tmp_path / "run", "command", outcome)
    assert "whether records were dropped from the end cannot be told" in text.read_text()


# ---- safeguards that are off

OFF = [
    ({"activation_gate.checks": []}, "the activation gate has no check on calibration rollouts"),
    ({"activation_gate.checks": []}, "the activation gate has no check on the pilot's logs"),
    ({"activation_gate.applicable": False}, "the activation gate is switched off"),
    ({"correctness_preflight.paths": []}, "the correctness preflight has no path"),
    ({"correctness_preflight.required": False}, "the correctness preflight is switched off"),
    (
        {"correctness_preflight.paths.0.tolerances.reference_gradient": {"atol": 1e6, "rtol": 1.0, "min_cosine": -1.0}},
        "the tolerance reference_gradient of gs1_advantage_estimator is so wide",
    ),
    ({"restoration_preflight.applicable": False}, "the restoration preflight is switched off"),
    ({"restoration_preflight.groups": []}, "no optimizer settings are registered for grpo_g8, gs1_tfidf_g1"),
    ({"budget": {}}, "no budget is registered"),
    ({"feasibility_required": False}, "feasibility is not required"),
    ({"generation_audit.max_eval_overlaps": 5}, "the data audit lets 5 pass"),
    (
        {"command": "B_eff calibration: 64 tasks x 8 rollouts.", "rollonce.calibration_tasks": 32},
        "rollonce.calibration_tasks is 32, where the registered text says 64 (command: 'B_eff calibration: 64 tasks",
    ),
    (
        {"restoration_preflight.reason": "A mismatch over atol 1e-6 aborts.", "rollonce.restoration_atol": 5e-3},
        "rollonce.restoration_atol is 0.005, where the registered text says 1e-06",
    ),
    ({"rollonce.training": {"loss": {"kl": 0.5}}}, 'beside the registered ones: {"training": {"loss": {"kl": 0.5}}}'),
]


@pytest.mark.parametrize(("changes", "said"), OFF, ids=[said for _, said in OFF])
def test_a_safeguard_that_is_off_stands_on_the_first_page(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    outcome, _ = go(write_spec(tmp_path, small_spec(**changes)), tmp_path / "run")
    page, text = write_experiment_report(tmp_path / "run", "command", outcome)
    for words in (page.read_text(), text.read_text()):
        words = words.replace("&#39;", "'").replace("&#34;", '"')
        assert said in words
        # Before anything else: the verdict's table, the evaluation, the gate.
        at = words.index(said)
        assert all(at < words.rindex(later) for later in ("Activation gate", "Evaluation", "Records") if later in words)


def test_the_shipped_specifications_switch_nothing_off() -> None:
    for path in (Path(__file__).parents[2] / "specs").glob("*.spec.json"):
        loaded = load_specification(path)
        assert find_safeguards_switched_off(loaded, derive_settings(loaded.spec)) == [], path.name


@pytest.mark.parametrize(
    ("path", "name", "near"),
    [
        ("budget", "max_wall_minuts", "did you mean 'max_wall_minutes'?"),
        ("activation_gate", "aplicable", "did you mean 'applicable'?"),
        ("activation_gate.checks.0", "minimum", "there are metric, min, max, measures"),
        ("correctness_preflight", "requird", "did you mean 'required'?"),
        ("restoration_preflight", "group", "did you mean 'groups'?"),
        ("preflight", "prob", "did you mean 'probe'?"),
        ("arms.1", "groupsize", "did you mean 'group_size'?"),
        ("rollonce", "calibration_task", "did you mean 'calibration_tasks'?"),
    ],
)
def test_an_unknown_field_where_safeguards_are_is_refused_with_the_nearest_name(
    tmp_path: Path, path: str, name: str, near: str
) -> None:
    document = small_spec()
    put(document, f"{path}.{name}", 1)
    with pytest.raises(InputError, match="no such field, so it would guard nothing") as caught:
        write_spec(tmp_path, document)
    assert near in str(caught.value)


# ---- pins


def test_a_pin_that_is_written_down_is_compared(tmp_path: Path) -> None:
    key = "correctness_preflight.paths.0.reference_revision"
    sha = make_reference_pin()["sha256"]
    for text in (sha, f"sha256:{sha}", sha[:12]):
        loaded = write_spec(tmp_path, small_spec(**{key: text}))
        assert resolve_field_pins(loaded, derive_settings(loaded.spec)).open == {}
    loaded = write_spec(tmp_path, small_spec(**{key: "0" * 64}))
    with pytest.raises(InputError, match=r"pins '0{64}', and installed is rollonce/reference.py") as caught:
        go(loaded, tmp_path / "run")
    assert sha in str(caught.value)


def test_a_version_is_a_pin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollonce.experiments import pins

    monkeypatch.setattr(pins, "make_package_pin", lambda name: make_package_pin("orjson"))
    version = make_package_pin("orjson")["version"]  # type: ignore[index]
    key = "correctness_preflight.paths.0.baseline_revision"
    settings = derive_settings(write_spec(tmp_path, small_spec()).spec).with_command_option(
        "engine", "cookbook", "test"
    )
    good = write_spec(tmp_path, small_spec(**{key: f"tinker-cookbook=={version}"}))
    assert resolve_field_pins(good, settings).open == {}
    bad = write_spec(tmp_path, small_spec(**{key: "tinker-cookbook==0.0.1"}))
    assert list(resolve_field_pins(bad, settings).open) == ["correctness_preflight.paths[0].baseline_revision"]


# ---- preflights


def test_the_probe_comes_before_the_calibration_with_the_registered_batches(spec: LoadedSpec, tmp_path: Path) -> None:
    run, engine = open_run(spec, tmp_path / "run")
    events: list[str] = []
    engine.tick = events.append
    run_experiment(run)
    # One task in its group of four (eight in the request's file); two prompts where groups are of one.
    assert events[:3] == ["probe grpo_g8 4", "probe gs1_tfidf_g1 2", "sample"]


@pytest.mark.parametrize("number", ["loss", "moved", "largest_ratio_error"])
def test_a_first_step_that_is_not_finite_stops_the_run(spec: LoadedSpec, tmp_path: Path, number: str) -> None:
    run, engine = open_run(spec, tmp_path / "run")
    real = engine.probe_arm_training
    engine.probe_arm_training = lambda arm, tasks: real(arm, tasks)._replace(**{number: float("nan")})  # type: ignore[method-assign]
    outcome = run_experiment(run)
    assert (outcome.code, outcome.stage) == (1, "probe")
    assert f"grpo_g8: {number} of its first step is not finite" in outcome.sentence
    page, _ = write_experiment_report(tmp_path / "run", "command", outcome)
    assert f"{number} of its first step is not finite" in page.read_text()


def test_log_probabilities_that_are_not_finite_stop_the_run(spec: LoadedSpec, tmp_path: Path) -> None:
    """In the records and with a page: no fault of the program."""
    outcome, _ = go(spec, tmp_path / "run", drift={"grpo_g8": float("nan")})
    assert (outcome.code, outcome.stage) == (1, "restoration")
    assert "log-probabilities of grpo_g8 and grpo_g8 differ by None (limit 0.0001)" in outcome.sentence
    write_experiment_report(tmp_path / "run", "command", outcome)


def test_adapters_trained_with_another_seed_than_recorded_stop_the_run(spec: LoadedSpec, tmp_path: Path) -> None:
    """As if the recipe's own client were asked for without the seed that the throw-away clients had."""
    run, engine = open_run(spec, tmp_path / "run")
    real = engine._adam
    engine._adam = lambda arm: real(arm) | ({"seed": 7} if (run.directory / "arms").exists() else {})  # type: ignore[method-assign]
    outcome = run_experiment(run)
    assert (outcome.code, outcome.stage) == (1, "arm:grpo_g8")
    assert "seed [7] instead of 1" in outcome.sentence


def test_adapters_asked_for_with_another_seed_stop_the_run(spec: LoadedSpec, tmp_path: Path) -> None:
    outcome, _ = go(spec, tmp_path / "run", adapter_change={"seed": None})
    assert (outcome.code, outcome.stage) == (1, "restoration")
    assert "seed None instead of 1" in outcome.sentence


def test_an_arms_own_client_is_held_to_the_common_start(spec: LoadedSpec, tmp_path: Path) -> None:
    """The throw-away clients of the restoration preflight agree, and the one that is trained does not."""
    outcome, chain = go(spec, tmp_path / "run", late_drift={"gs1_tfidf_g1": 2e-4})
    assert chain.latest_of_stage("restoration").status == "passed"  # type: ignore[union-attr]
    assert (outcome.code, outcome.stage) == (1, "pilot")
    assert "gs1_tfidf_g1 starts elsewhere" in outcome.sentence


def test_an_optimizer_that_changes_after_the_probe_is_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    run, engine = open_run(spec, tmp_path / "run")
    real = engine._adam
    engine._adam = lambda arm: real(arm) | ({"eps": 1e-5} if (run.directory / "arms").exists() else {})  # type: ignore[method-assign]
    outcome = run_experiment(run)
    assert (outcome.code, outcome.stage) == (1, "arm:grpo_g8")
    assert "eps [1e-05] instead of 1e-08" in outcome.sentence


def test_an_optimizer_that_nobody_read_back_is_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    """As if an engine had nothing to say of eps: silence is no agreement."""
    run, engine = open_run(spec, tmp_path / "run")
    real = engine._adam
    engine._adam = lambda arm: {k: v for k, v in real(arm).items() if k != "eps"}  # type: ignore[method-assign]
    outcome = run_experiment(run)
    assert (outcome.code, outcome.stage) == (1, "probe")
    assert "eps was not read back" in outcome.sentence


def test_a_client_that_was_never_compared_with_the_common_start_is_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    """As if a recipe made its client by a way that nobody watches."""
    outcome, _ = go(spec, tmp_path / "run", compares_its_start=False)
    assert (outcome.code, outcome.stage) == (1, "pilot")
    assert "its own training client was never compared" in outcome.sentence


# ---- what is registered of the data and the grading


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eval.n_examples": 25}, "the test set has 24 items; eval.n_examples registers 25"),
        ({"eval.n_examples": 20}, "the test set has 24 items; eval.n_examples registers 20"),
        ({"dataset.n_examples": 41}, "the training set has 40 rows; dataset.n_examples registers 41"),
        ({"max_seq_len": 101}, "over max_seq_len 101"),
    ],
)
def test_registered_sizes_are_enforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    real = FakeEngine.load_experiment_tasks
    monkeypatch.setattr(FakeEngine, "load_experiment_tasks", lambda self: real(self)._replace(train_rows=40))
    outcome, _ = go(write_spec(tmp_path, small_spec(**changes)), tmp_path / "run")
    assert (outcome.code, outcome.stage) == (1, "data_audit")
    assert said in outcome.sentence


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eval.metric": "pass@8, sampled"}, "exact match of a greedy answer is what is graded here"),
        ({"eval.aggregation": "max"}, "eval.aggregation"),
        ({"generation_audit.answer_comparison": "numeric_exact"}, "are compared by task_grader, not by numeric_exact"),
        (
            {"dataset.hf_path": "someone/else", "rollonce.tasks": "gsm8k:hub", "generation_audit": {}},
            "gsm8k is openai/gsm8k here, not 'someone/else'",
        ),
        ({"max_seq_len": 96}, "max_seq_len: 96 leaves no room for a prompt beside 96 tokens"),
        ({"command": "python -m tinker_cookbook.recipes.math_rl.train lora_rank=8"}, "lora_rank=8, the fields None"),
    ],
)
def test_what_is_registered_and_not_done_here_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="the specification contradicts itself") as caught:
        derive_settings(write_spec(tmp_path, small_spec(**changes)).spec)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        (
            "command",
            "It is capped at ten minutes.",
            "command says 'It is capped at ten minutes.', and",
        ),
        ("command", "python -m my.recipe", "engine cannot be read from it"),
        ("method", "With max_tokens as usual.", "max_tokens cannot be read from it: write it as rollonce.max_tokens"),
    ],
)
def test_a_sentence_that_cannot_be_read_stops(tmp_path: Path, field: str, text: str, said: str) -> None:
    document = small_spec(**{field: text})
    for own in ("engine", "max_tokens", "calibration_minutes"):
        del document["rollonce"][own]
    with pytest.raises(InputError) as caught:
        derive_settings(write_spec(tmp_path, document).spec)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": {"train": {"max_new_tokens": 2048}}}, "rollonce.training.train.max_new_tokens would replace"),
        ({"training": {"train": {"learning_rate": 1.0}}}, "rollonce.training.train.learning_rate would replace"),
        ({"training": {"policy": {"lora_rank": 2}}}, "rollonce.training.policy.lora_rank would replace"),
        ({"training": {"tasks": {"source": "gsm8k:hub"}}}, "rollonce.training.tasks.source would replace"),
        ({"arm_training": {"grpo_g8": {"group_size": 2}}}, "rollonce.arm_training.grpo_g8.group_size would replace"),
    ],
)
def test_our_own_section_replaces_nothing_that_is_registered(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    from rollonce.experiments.engines.loop_config import make_loop_config

    loaded = write_spec(tmp_path, small_spec(**{f"rollonce.{k}": v for k, v in changes.items()}))
    settings = derive_settings(loaded.spec)
    with pytest.raises(InputError, match=said.replace(".", r"\.")):
        make_loop_config(loaded.spec, settings, loaded.spec.arms[0], 3, service=False)


def test_two_sentences_that_differ_stop(tmp_path: Path) -> None:
    document = small_spec(**{"method": "We use max_tokens=64.", "eval.metric": "exact, greedy, max_tokens 128"})
    del document["rollonce"]["max_tokens"]
    with pytest.raises(InputError, match=r"max_tokens is 64 by method .* and 128 by eval\.metric"):
        derive_settings(write_spec(tmp_path, document).spec)


# ---- roles


def test_roles_come_from_names_and_not_from_the_order(tmp_path: Path) -> None:
    document = small_spec()
    document["arms"].reverse()
    loaded = write_spec(tmp_path, document)
    settings = derive_settings(loaded.spec)
    assert (settings.baseline, settings.treatment) == ("grpo_g8", "gs1_tfidf_g1")
    outcome, _ = go(loaded, tmp_path / "run", skill={"grpo_g8": 0.0, "gs1_tfidf_g1": 1.0})
    assert outcome.sentence.startswith("Validated: a difference of +1.0000")


def test_names_that_tell_no_role_are_asked_about(tmp_path: Path) -> None:
    document = json.loads(json.dumps(small_spec()).replace("gs1_tfidf_g1", "kernel_arm"))
    with pytest.raises(InputError, match=r"which arm is the treatment\? 0 of grpo_g8, kernel_arm have 'gs1'"):
        derive_settings(write_spec(tmp_path, document).spec)


# ---- what may be mended


def test_a_renderer_can_be_mended_until_something_was_spent(spec: LoadedSpec, tmp_path: Path) -> None:
    from rollonce.experiments.run import ExperimentRun

    directory = tmp_path / "run"
    directory.mkdir()
    settings = derive_settings(spec.spec)
    first, second = (settings.with_command_option("renderer", name, "--renderer") for name in ("qwen3_5", "role_colon"))
    run = ExperimentRun(spec, first, FakeEngine(spec.spec, first), directory)
    assert run.chain.records[-1].data["settings"]["renderer"] == "qwen3_5"
    mended = ExperimentRun(spec, second, FakeEngine(spec.spec, second), directory)
    assert mended.chain.records[-1].stage == "settings"
    assert {r.spec for r in mended.chain.records} == {spec.sha256}  # outside of the specification's hash
    outcome = run_experiment(mended)
    _, text = write_experiment_report(directory, "command", outcome)
    page = (directory / "report.html").read_text()
    assert "renderer role_colon" in page
    with pytest.raises(InputError, match=r"renderer from 'role_colon' to 'qwen3_5' cannot be changed"):
        ExperimentRun(spec, first, FakeEngine(spec.spec, first), directory)
    assert text.exists()


# ---- two learning rates


def two_rates() -> dict[str, Any]:
    document = small_spec()
    arms = []
    for arm in document["arms"]:
        arms += [arm | {"name": f"{arm['name']}_low"}, arm | {"name": f"{arm['name']}_high", "lr": 4e-4}]
    document["arms"] = arms
    config = document["restoration_preflight"]["groups"][0]["arms"][0]
    document["restoration_preflight"]["groups"][0]["arms"] = [
        config | {"name": a["name"], "optimizer_config": config["optimizer_config"] | {"learning_rate": a["lr"]}}
        for a in arms
    ]
    groups = {g: [f"{g}_low", f"{g}_high"] for g in ("grpo_g8", "gs1_tfidf_g1")}
    document["rollonce"]["selection"] = {"tasks": 12, "groups": groups}
    document["experiment_features"] = {"adaptive_selection": True}
    return document


def test_a_two_rate_grid_is_chosen_on_holdout_tasks_and_only_the_chosen_are_evaluated(tmp_path: Path) -> None:
    loaded = write_spec(tmp_path, two_rates())
    skill = {"grpo_g8_low": 0.0, "grpo_g8_high": 1.0, "gs1_tfidf_g1_low": 1.0, "gs1_tfidf_g1_high": 1.0}
    outcome, chain = go(loaded, tmp_path / "run", skill=skill)
    assert outcome.code == 0
    record = chain.latest_of_stage("selection")
    assert record is not None
    # Equal ones: the lower rate.
    assert record.data["chosen"] == {"grpo_g8_high": "grpo_g8", "gs1_tfidf_g1_low": "gs1_tfidf_g1"}
    evaluated = [r.stage for r in chain.records if r.stage.startswith("evaluation:")]
    assert evaluated == ["evaluation:grpo_g8_high", "evaluation:gs1_tfidf_g1_low"]
    assert outcome.sentence.startswith("Inconclusive: a difference of +0.0000")
    asked = {r["task_id"] for r in read_finished_lines(tmp_path / "run/selection/grpo_g8_low.jsonl")}
    assert asked == {f"sel{i}" for i in range(12)}  # none of the test, none of the training set


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["arms"][1].update(lr=2e-4), "two of its arms have the same learning rate"),
        (lambda d: d["arms"][1].update(seed=2), "may differ in name and learning rate alone"),
        (lambda d: d["rollonce"]["selection"]["groups"]["grpo_g8"].pop(), "expected every arm in one group"),
        (lambda d: d.pop("experiment_features"), "expected true beside rollonce.selection"),
        (
            lambda d: d["rollonce"].pop("selection"),
            "adaptive_selection: expected false: there is no rollonce.selection",
        ),
    ],
)
def test_a_grid_that_is_none_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    document = two_rates()
    change(document)
    with pytest.raises(InputError) as caught:
        write_spec(tmp_path, document)
    assert said in str(caught.value)


def test_the_digest_of_a_checkpoint_is_of_names_and_bytes(tmp_path: Path) -> None:
    from rollonce.experiments.records import compute_path_digest

    (tmp_path / "final").mkdir()
    (tmp_path / "final/a").write_text("1")
    before = compute_path_digest(tmp_path / "final")
    assert before == compute_json_digest({"a": compute_path_digest(tmp_path / "final/a")})
    (tmp_path / "final/a").rename(tmp_path / "final/b")
    assert compute_path_digest(tmp_path / "final") != before
