"""The stages in order, the rules that a run may not bend, and bad days."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from experiment_fakes import FakeEngine, colour_tasks, open_run, small_spec, write_spec

from rollonce.errors import InputError
from rollonce.experiments import evaluate, gates, ledger
from rollonce.experiments.engine import Answer, StartPolicy
from rollonce.experiments.feasibility import compare_with_budget, project_phase_seconds
from rollonce.experiments.files import compute_json_digest, read_finished_lines
from rollonce.experiments.loading import LoadedSpec
from rollonce.experiments.records import Chain
from rollonce.experiments.spec import ArmSpec, Budget
from rollonce.experiments.stages import RunOutcome, before_spending, run_experiment, training
from rollonce.files import make_write_error
from rollonce.tasks import Task

STAGES = [
    "start",
    "pins",
    "data_audit",
    "correctness",
    "restoration",
    "probe",
    "calibration",
    "gate_offline",
    "pilot",
    "gate_online",
    "feasibility",
]
STAGES += ["arm:grpo_g8", "arm:gs1_tfidf_g1", "evaluation:grpo_g8", "evaluation:gs1_tfidf_g1", "decision"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "N_BATCHES", 50)
    monkeypatch.setattr(gates, "RESAMPLES", 0)
    # What it computes is the business of test_experiment_preflight.py; test_the_real_preflight_... lets it run here
    # once.
    monkeypatch.setattr(
        before_spending, "run_correctness_preflight", lambda *a: {"passed": True, "paths": [], "forced": []}
    )


REAL_PREFLIGHT = before_spending.run_correctness_preflight


def go(loaded: LoadedSpec, directory: Path, **engine: Any) -> tuple[RunOutcome, Chain]:
    run, fake = open_run(loaded, directory)
    for name, value in engine.items():
        setattr(fake, name, value)
    outcome = run_experiment(run)
    return outcome, Chain(directory)


@pytest.fixture
def spec(tmp_path: Path) -> LoadedSpec:
    return write_spec(tmp_path, small_spec())


def test_a_run_walks_every_stage_once_and_ends_with_a_verdict(spec: LoadedSpec, tmp_path: Path) -> None:
    outcome, chain = go(spec, tmp_path / "run")
    assert outcome.code == 0
    assert [r.stage for r in chain.records] == STAGES
    assert {r.status for r in chain.records} == {"passed"}
    assert {r.spec for r in chain.records} == {spec.sha256}
    assert outcome.sentence.startswith("Inconclusive")  # 24 items: half-width 0.55
    rows = {
        a: [r["reward"] for r in read_finished_lines(tmp_path / f"run/evaluation/{a}.jsonl")]
        for a in ("grpo_g8", "gs1_tfidf_g1")
    }
    wanted = (sum(rows["gs1_tfidf_g1"]) - sum(rows["grpo_g8"])) / 24
    assert chain.records[-1].data["criteria"][0]["hoeffding"]["value"] == pytest.approx(wanted)


def test_running_again_does_nothing_again(spec: LoadedSpec, tmp_path: Path) -> None:
    first, chain = go(spec, tmp_path / "run")
    run, _ = open_run(spec, tmp_path / "run", lambda what: pytest.fail(f"{what} was done again"))
    assert run_experiment(run) == first
    assert len(Chain(tmp_path / "run").records) == len(chain.records)


def test_both_signs_reach_the_verdict(tmp_path: Path) -> None:
    """The treatment's grades carry the weight +1: an arm that is always right against one that never is, and the other
    way round."""
    spec = write_spec(tmp_path, small_spec())
    better, _ = go(spec, tmp_path / "better", skill={"grpo_g8": 0.0, "gs1_tfidf_g1": 1.0})
    worse, _ = go(spec, tmp_path / "worse", skill={"grpo_g8": 1.0, "gs1_tfidf_g1": 0.0})
    assert better.sentence.startswith("Validated: a difference of +1.0000")
    assert worse.sentence.startswith("Failed: a difference of -1.0000")
    assert (better.code, worse.code) == (0, 0)


def test_the_real_preflight_stands_in_the_records(
    spec: LoadedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_spending, "run_correctness_preflight", REAL_PREFLIGHT)
    outcome, chain = go(spec, tmp_path / "run")
    assert outcome.code == 0
    record = chain.latest_of_stage("correctness")
    assert record is not None
    assert [c["passed"] for c in record.data["paths"][0]["comparisons"]] == [True, True]


def test_a_failed_preflight_stops_the_run(spec: LoadedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"passed": False, "paths": [], "forced": [{"what": "forced activation", "passed": False}]}
    monkeypatch.setattr(before_spending, "run_correctness_preflight", lambda *a: found)
    outcome, _ = go(spec, tmp_path / "run")
    assert (outcome.code, outcome.stage, outcome.sentence) == (
        1,
        "correctness",
        "correctness preflight: forced activation",
    )


# ---- the specification


def test_an_edited_specification_is_refused_and_what_changed_is_named(spec: LoadedSpec, tmp_path: Path) -> None:
    go(spec, tmp_path / "run")
    edited = write_spec(tmp_path, small_spec(**{"activation_gate.checks.0.min": 1.01}), "edited.json")
    with pytest.raises(InputError, match=r"activation_gate.checks\[0\].min: 1.03 became 1.01") as caught:
        open_run(edited, tmp_path / "run")
    assert "cannot be changed any more" in str(caught.value)


def failed_gate(tmp_path: Path, **more: Any) -> tuple[LoadedSpec, RunOutcome]:
    document = small_spec(**{"activation_gate.checks.0.min": 9.0, "rollonce.fallbacks": ["length_buckets_loo"], **more})
    loaded = write_spec(tmp_path, document)
    outcome, _ = go(loaded, tmp_path / "run")
    return loaded, outcome


def revised(loaded: LoadedSpec, tmp_path: Path, name: str = "revised.json", **changes: Any) -> LoadedSpec:
    document = json.loads(json.dumps(loaded.raw))
    document["arms"][1]["advantage"] = "length_buckets_loo"
    document["rollonce"]["revision"] = {"of": loaded.sha256, "reason": "the gate failed; the pre-approved fallback"}
    from experiment_fakes import put

    for path, value in changes.items():
        put(document, path, value)
    return write_spec(tmp_path, document, name)


def test_a_failed_gate_stops_with_its_record_and_stays_failed(tmp_path: Path) -> None:
    loaded, outcome = failed_gate(tmp_path)
    assert (outcome.code, outcome.stage) == (1, "gate_offline")
    assert ">= 9 was registered" in outcome.sentence
    assert "pre-approved fallback (length_buckets_loo)" in outcome.sentence
    chain = Chain(tmp_path / "run")
    assert [r.stage for r in chain.records] == STAGES[:8]
    assert chain.records[-1].status == "failed"
    run, _ = open_run(
        loaded, tmp_path / "run", lambda what: pytest.fail(f"{what}: a failed gate is not measured again")
    )
    assert run_experiment(run) == outcome


def test_the_preapproved_fallback_is_adopted_and_scored_on_the_same_calibration(tmp_path: Path) -> None:
    loaded, _ = failed_gate(tmp_path)
    calibration = (tmp_path / "run/calibration.jsonl").read_bytes()
    run, engine = open_run(revised(loaded, tmp_path), tmp_path / "run")
    engine.tick = lambda what: pytest.fail("sampled again") if what == "sample" else None
    outcome = run_experiment(run)
    chain = Chain(tmp_path / "run")
    assert [r.stage for r in chain.records][8:] == ["revision", "correctness", "probe", "gate_offline"]
    assert (outcome.code, outcome.stage) == (1, "gate_offline")  # 9.0 is out of reach for it too
    assert chain.records[-1].data["advantage"] == "length_buckets_loo"
    assert (tmp_path / "run/calibration.jsonl").read_bytes() == calibration
    assert chain.records[8].data["of"] == loaded.sha256
    remarks = run.collect_deviations()
    assert any("pre-approved fallback length_buckets_loo replaced tfidf_kernel_loo_T0.1" in d for d in remarks)
    assert "the post's prompt-length-bucket kernel has a window of 16 batches" in remarks[-1]
    with pytest.raises(InputError, match="not the specification that the run"):
        open_run(loaded, tmp_path / "run")  # the old one is no longer in force


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"activation_gate.checks.0.min": 1.0},
            r"changes more than the treatment's advantage \(activation_gate.checks\[0\].min",
        ),
        (
            {"arms.1.advantage": "loo_mean"},
            "'loo_mean' is no pre-approved fallback that is left; length_buckets_loo were approved",
        ),
        ({"decision_rule.criteria.0.margin": -0.5}, "changes more than the treatment's advantage"),
        ({"rollonce.fallbacks": ["length_buckets_loo", "loo_mean"]}, "changes more than the treatment's advantage"),
        ({"rollonce.revision": {"of": "0" * 64, "reason": "because I like it"}}, "but the specification in force"),
    ],
)
def test_a_revision_may_change_nothing_else(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    loaded, _ = failed_gate(tmp_path)
    with pytest.raises(InputError, match=said):
        open_run(revised(loaded, tmp_path, **changes), tmp_path / "run")
    assert Chain(tmp_path / "run").records[-1].stage == "gate_offline"


def test_no_revision_without_a_failed_gate(tmp_path: Path) -> None:
    loaded = write_spec(tmp_path, small_spec(**{"rollonce.fallbacks": ["length_buckets_loo"]}))
    go(loaded, tmp_path / "run")
    with pytest.raises(InputError, match="only a failed offline gate"):
        open_run(revised(loaded, tmp_path), tmp_path / "run")


def test_no_revision_after_training_has_begun(tmp_path: Path) -> None:
    loaded, _ = failed_gate(tmp_path)
    (tmp_path / "run/pilot").mkdir()
    with pytest.raises(InputError, match="training has begun"):
        open_run(revised(loaded, tmp_path), tmp_path / "run")


def test_a_revision_does_not_start_a_run(tmp_path: Path) -> None:
    loaded, _ = failed_gate(tmp_path)
    with pytest.raises(InputError, match="goes on in the directory of the run that it revises"):
        open_run(revised(loaded, tmp_path), tmp_path / "elsewhere")


def test_nothing_starts_while_a_field_is_unresolved(tmp_path: Path) -> None:
    loaded = write_spec(tmp_path, small_spec(**{"dataset.split": "UNRESOLVED: pin it"}))
    with pytest.raises(InputError, match=r"dataset\.split"):
        go(loaded, tmp_path / "run")
    assert [r.stage for r in Chain(tmp_path / "run").records] == ["start"]


# ---- stages that must fail


def outcome_of(tmp_path: Path, changes: dict[str, Any], **engine: Any) -> RunOutcome:
    return go(write_spec(tmp_path, small_spec(**changes)), tmp_path / "run", **engine)[0]


def test_clients_that_start_differently_stop_the_run(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, {}, drift={"gs1_tfidf_g1": 2e-4}).stage == "restoration"
    fine = outcome_of(
        tmp_path / "fine" if (tmp_path / "fine").mkdir() is None else tmp_path, {}, drift={"gs1_tfidf_g1": 0.9e-4}
    )
    assert fine.code == 0


def test_an_optimizer_that_was_sent_other_numbers_stops_the_run(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, {}, optimizer_change={"beta2": 0.999})
    assert (found.code, found.stage) == (1, "probe")
    assert "beta2 [0.999] instead of 0.95" in found.sentence


def test_equal_rewards_stop_at_the_gate(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, {}, easy=0.0, hard=0.0)
    assert (found.code, found.stage) == (1, "gate_offline")
    assert "all rewards are equal" in found.sentence


def test_overlapping_data_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeEngine.load_experiment_tasks

    def leaky(self: FakeEngine):
        t = real(self)
        return t._replace(calibration=type(t.test)([*t.calibration[:31], t.test[0]], "leaky"))

    monkeypatch.setattr(FakeEngine, "load_experiment_tasks", leaky)
    found = outcome_of(tmp_path, {})
    assert (found.code, found.stage) == (1, "data_audit")
    assert "1 prompts are in calibration and test; 0 are allowed" in found.sentence


def test_wrong_labels_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeEngine.load_experiment_tasks
    monkeypatch.setattr(
        FakeEngine,
        "load_experiment_tasks",
        lambda self: (t := real(self))._replace(labels=[(t.train[0], "no"), *t.labels[1:]]),
    )
    found = outcome_of(tmp_path, {})
    assert found.stage == "data_audit"
    assert "rejects 1 of 40 known solutions ('train0' first)" in found.sentence


def test_the_pilots_checks_have_no_fallback(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, {"activation_gate.checks.6.min": 1.1, "rollonce.fallbacks": ["length_buckets_loo"]})
    assert (found.code, found.stage) == (1, "gate_online")
    assert "there is no fallback for this part" in found.sentence
    assert not (tmp_path / "run/arms").exists()


def test_a_run_over_budget_stops_before_the_arms(tmp_path: Path) -> None:
    found = outcome_of(tmp_path, {"budget.max_wall_minutes": 5.0}, step_seconds=200.0)
    assert (found.code, found.stage) == (1, "feasibility")
    assert not (tmp_path / "run/arms").exists()


def test_what_was_executed_must_be_what_was_specified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeEngine.train_or_resume_arm

    def sloppy(self: FakeEngine, arm: ArmSpec, steps: int, directory: Path, **more: Any):
        found = real(self, arm, steps, directory, **more)
        return (
            found._replace(steps=[s._replace(learning_rate=1.0) for s in found.steps])
            if "arms" in str(directory)
            else found
        )

    monkeypatch.setattr(FakeEngine, "train_or_resume_arm", sloppy)
    found = outcome_of(tmp_path, {})
    assert (found.code, found.stage) == (1, "arm:grpo_g8")
    assert "learning rates [1.0] instead of [0.0002]" in found.sentence


def test_executed_steps_groups_and_weights_are_compared(spec: LoadedSpec, tmp_path: Path) -> None:
    run, engine = open_run(spec, tmp_path / "run")
    arm = spec.spec.arms[1]
    at = run.directory / "t"
    trained = engine.train_or_resume_arm(
        arm, 3, at, progress=lambda *a: None, ledger=run.ledger, start=StartPolicy([], [], 1e-4)
    )
    done = trained.steps
    assert training.executed_config(trained, arm, run)["problems"] == []
    for spoilt, said in (
        (done[:2], "instead of 1..3"),
        ([*done, done[-1]], "instead of 1..3"),
        ([done[0]._replace(self_weight_max=0.1), *done[1:]], "own reward had weight 0.1"),
        (
            [done[0]._replace(task_ids=["cal0", *done[0].task_ids[1:]]), *done[1:]],
            "1 tasks outside the registered shuffle (cal0",
        ),
        (
            [done[0]._replace(task_ids=[done[0].task_ids[1], *done[0].task_ids[1:]]), *done[1:]],
            "group sizes [1, 2] instead of [1]",
        ),
        ([done[0]._replace(rewards=done[0].rewards[:7]), *done[1:]], "rollouts per step [7, 8] instead of [8]"),
    ):
        assert said in "; ".join(training.executed_config(trained._replace(steps=spoilt), arm, run)["problems"])


# ---- bad days


def test_kill_9_at_every_few_events_then_resume(tmp_path: Path) -> None:
    here = Path(__file__).parent
    found = subprocess.run(
        [sys.executable, str(here / "killing.py"), str(tmp_path), "2", "11"],
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=here,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    results = json.loads(found.stdout.strip().splitlines()[-1])
    assert results["code"] == 0
    assert results["events"] > 40
    assert results["bad"] == []


def test_an_item_that_is_never_answered_is_not_marked_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "ROWS", 8)
    loaded = write_spec(tmp_path, small_spec(**{"rollonce.item_seconds": 0.3, "rollonce.item_tries": 2}))
    run, engine = open_run(loaded, tmp_path / "run")
    engine.skill = dict.fromkeys(engine.skill, 1.0)

    def slow_later(what: str) -> None:
        if what.startswith("train") and "arms" in {p.name for p in (tmp_path / "run").iterdir()}:
            engine.slow_items = {"test3"}

    engine.tick = slow_later
    outcome = run_experiment(run)
    assert outcome.code == 0
    record = Chain(tmp_path / "run").latest_of_stage("evaluation:grpo_g8")
    assert record is not None
    assert record.data["unanswered"] == ["test3"]
    assert record.data["accuracy"] == 1.0  # of the 23 that were answered; its seven neighbours are not punished either
    assert any("were not answered in 2 tries of 0.3 s each (test3 first)" in d for d in run.collect_deviations())
    assert run.chain.records[-1].data["criteria"][0]["unanswered"] == 1


def test_an_item_that_was_lost_once_is_asked_again_and_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that stalls twice, on a chunk and on an item of it asked alone, and then answers."""
    monkeypatch.setattr(evaluate, "ROWS", 8)
    loaded = write_spec(tmp_path, small_spec(**{"rollonce.item_seconds": 0.5, "rollonce.item_tries": 2}))
    run, engine = open_run(loaded, tmp_path / "run")
    engine.skill, real, stalls = dict.fromkeys(engine.skill, 1.0), engine.answer_greedily, [0]

    def stalling(checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        if (tmp_path / "run/evaluation").exists() and any(t.id == "test3" for t in tasks) and stalls[0] < 2:
            stalls[0] += 1
            time.sleep(3)
        return real(checkpoint, tasks)

    engine.answer_greedily = stalling  # type: ignore[method-assign]
    assert run_experiment(run).code == 0
    record = Chain(tmp_path / "run").latest_of_stage("evaluation:grpo_g8")
    assert record is not None
    assert stalls == [2]
    assert (record.data["unanswered"], record.data["items"], record.data["accuracy"]) == ([], 24, 1.0)


def test_a_full_disk_in_the_evaluation_then_the_run_goes_on(
    spec: LoadedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, reference = go(spec, tmp_path / "whole")
    real, calls = ledger.append_json_line, [0]

    def full(path: Path, value: Any) -> None:
        calls[0] += path.parent.name == "evaluation"
        if calls[0] == 10:
            calls[0] += 1
            raise make_write_error(path, OSError(errno.ENOSPC, "No space left on device"))
        real(path, value)

    monkeypatch.setattr(ledger, "append_json_line", full)
    with pytest.raises(InputError, match="the disk is full"):
        go(spec, tmp_path / "run")
    assert len(list(read_finished_lines(tmp_path / "run/evaluation/grpo_g8.jsonl"))) == 9
    monkeypatch.setattr(ledger, "append_json_line", real)
    again, chain = go(spec, tmp_path / "run")
    assert again == whole
    assert (
        len(list(read_finished_lines(tmp_path / "run/evaluation/grpo_g8.jsonl"))) == 24
    )  # the nine were not graded again
    verdicts = [{k: v for k, v in c.records[-1].data.items() if k != "used"} for c in (chain, reference)]
    assert verdicts[0] == verdicts[1]


def test_a_clock_that_jumps_does_not_change_a_duration(
    spec: LoadedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollonce.experiments import records

    hours = iter(range(10_000))
    monkeypatch.setattr(
        records.time, "gmtime", lambda: time.struct_time((2000 + next(hours) % 3, 1, 1, 0, 0, 0, 0, 1, 0))
    )
    outcome, chain = go(spec, tmp_path / "run")
    assert outcome.code == 0
    assert all(0 <= r.seconds < 86_400 for r in chain.records)


def test_a_changed_result_file_is_noticed(spec: LoadedSpec, tmp_path: Path) -> None:
    go(spec, tmp_path / "run")
    file = tmp_path / "run/evaluation/gs1_tfidf_g1.jsonl"
    file.write_text(file.read_text().replace('"reward":0.0', '"reward":1.0'))
    with pytest.raises(InputError, match="was changed or removed after stage 'evaluation:gs1_tfidf_g1' recorded it"):
        go(spec, tmp_path / "run")


def test_changed_data_after_training_is_refused_before_it_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = failed_gate(tmp_path)
    real = FakeEngine.load_experiment_tasks
    other_test = colour_tasks(24, 5000, "test")
    monkeypatch.setattr(FakeEngine, "load_experiment_tasks", lambda self: real(self)._replace(test=other_test))
    outcome, chain = go(loaded, tmp_path / "run")
    assert [r.stage for r in chain.records].count("data_audit") == 2  # before training: once more
    assert outcome.stage == "gate_offline"
    monkeypatch.setattr(FakeEngine, "load_experiment_tasks", real)
    other = tmp_path / "other"
    other.mkdir()
    good = write_spec(other, small_spec())
    run, _ = open_run(good, other / "run")
    run_experiment(run)
    monkeypatch.setattr(FakeEngine, "load_experiment_tasks", lambda self: real(self)._replace(test=other_test))
    with pytest.raises(
        InputError,
        match="stage 'data_audit' rests on tasks, which changed since it was recorded, and training has begun",
    ):
        go(good, other / "run")


def test_the_calibration_cap_counts_all_sittings(spec: LoadedSpec, tmp_path: Path) -> None:
    run, engine = open_run(spec, tmp_path / "run")
    samples = [0]

    def killed(what: str) -> None:
        samples[0] += what == "sample"
        if samples[0] == 2:
            raise KeyboardInterrupt

    engine.tick = killed
    with pytest.raises(KeyboardInterrupt):
        run_experiment(run)
    run.ledger._by_stage["calibration"] = 601.0  # what the killed sitting took
    run.ledger.count_elapsed_time("calibration", write=True)
    found, chain = go(spec, tmp_path / "run")
    assert (found.code, found.stage) == (1, "calibration")
    assert "the cap of 10 minutes came after 8 of 32 calibration tasks" in found.sentence
    assert chain.records[-1].status == "failed"


def test_the_calibration_cap_holds_within_a_request(tmp_path: Path) -> None:
    """0.3 s is the cap, and the first request takes for ever: it is given up, not waited for."""
    spec = write_spec(tmp_path, small_spec(**{"rollonce.calibration_minutes": 0.005}))
    run, engine = open_run(spec, tmp_path / "run")
    engine.tick = lambda what: time.sleep(60) if what == "sample" else None
    began = time.monotonic()
    outcome = run_experiment(run)
    assert (outcome.code, outcome.stage) == (1, "calibration")
    assert "after 0 of 32 calibration tasks" in outcome.sentence
    assert time.monotonic() - began < 30


def test_the_budget_ends_an_arm_in_the_middle(tmp_path: Path) -> None:
    run, engine = open_run(write_spec(tmp_path, small_spec(**{"budget.max_wall_minutes": 1.0})), tmp_path / "run")

    def slow(what: str) -> None:
        if what == "train grpo_g8 2" and (run.directory / "arms").exists():
            run.ledger.seconds += 61.0

    engine.tick = slow
    outcome = run_experiment(run)
    assert (outcome.code, outcome.stage) == (1, "arm:grpo_g8")
    assert "the budget was used up at grpo_g8, steps 2 of 3: 1." in outcome.sentence
    assert not (run.directory / "arms/gs1_tfidf_g1").exists()


def test_time_of_killed_sittings_and_tokens_are_reported(spec: LoadedSpec, tmp_path: Path) -> None:
    run, engine = open_run(spec, tmp_path / "run")

    def killed(what: str) -> None:
        if what == "train grpo_g8 3":
            run.ledger.seconds += 100.0
            run.ledger.count_elapsed_time("pilot", write=True)
            raise KeyboardInterrupt

    engine.tick = killed
    with pytest.raises(KeyboardInterrupt):
        run_experiment(run)
    _, chain = go(spec, tmp_path / "run")
    used = chain.records[-1].data["used"]
    assert used["seconds"] > 100.0
    # 32 x 6 calibration; 2 arms x (2 pilot + 3) steps x 8 at 3 tokens each; 2 x 24 items at 4
    assert used["response_tokens"] == 32 * 6 * 3 + 2 * 5 * 8 * 3 + 2 * 24 * 4
    assert used["trained_tokens"] == 2 * 5 * 8 * (3 + 7)


def test_time_is_on_disk_while_one_call_lasts(
    spec: LoadedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill -9 in the middle of a long request leaves: the time so far, not that of the last line written."""
    monkeypatch.setattr(ledger, "_EVERY_S", 0.05)
    run, engine = open_run(spec, tmp_path / "run")
    seen: list[float] = []

    def long_request(what: str) -> None:
        if what == "sample" and not seen:
            time.sleep(1.0)
            on_disk = json.loads(ledger.make_ledger_path(tmp_path / "run").read_text())
            seen.append(on_disk["by_stage"]["calibration"])

    engine.tick = long_request
    run_experiment(run)
    assert 0.5 < seen[0] < 60


# ---- feasibility by hand


def test_projection_counts_the_first_step_once() -> None:
    arm = ArmSpec(name="a", advantage="none", group_size=1, groups_per_batch=8, lr=0.1, seed=0, steps=60)
    arm_phase, evaluation = project_phase_seconds([arm], {"a": [20.0, 2.0, 4.0]}, 10.0, 100, 1319)
    assert arm_phase.expected == pytest.approx(20 + 59 * 3)
    assert (arm_phase.low, arm_phase.high) == (20 + 59 * 2, 20 + 59 * 4)
    assert evaluation.expected == pytest.approx(131.9)


def test_the_budget_is_wall_time_times_declared_gpus() -> None:
    arm = ArmSpec(name="a", advantage="none", group_size=1, groups_per_batch=8, lr=0.1, seed=0, steps=2)
    phases = project_phase_seconds([arm], {"a": [1800.0, 1800.0]}, 0.0, 1, 1)
    fits = compare_with_budget(phases, 0.0, 2.0, Budget(gpu_hours=2.0, max_wall_minutes=60.0))
    assert fits["passed"]
    assert fits["gpu_hours"] == 2.0
    assert not compare_with_budget(phases, 1.0, 2.0, Budget(gpu_hours=2.0, max_wall_minutes=None))["passed"]
    assert not compare_with_budget(phases, 1.0, 0.0, Budget(gpu_hours=2.0, max_wall_minutes=60.0))["passed"]
    slow = project_phase_seconds([arm], {"a": [1000.0, 100.0, 3000.0]}, 0.0, 1, 1)
    warned = compare_with_budget(slow, 0.0, 1.0, Budget(max_wall_minutes=50.0))
    assert warned["passed"]
    assert "slowest step" in warned["warnings"][0]


def test_digest_knows_types() -> None:
    assert compute_json_digest({"a": 1, "b": 2}) == compute_json_digest({"b": 2, "a": 1})
    assert compute_json_digest({"a": 1}) != compute_json_digest({"a": "1"})
