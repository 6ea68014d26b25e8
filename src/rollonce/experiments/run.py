"""A run in its directory: which stages are done, which may be entered, and which specification is in force.

A stage is entered again only if something that it depends on has changed, and never once training has begun. A stage
that failed stays failed: measuring again until it passes is not offered.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import rollonce
from rollonce.errors import InputError
from rollonce.experiments.derive import ExperimentSettings, derive_settings
from rollonce.experiments.engine import Engine, StageFailed
from rollonce.experiments.feasibility import describe_budget_overrun
from rollonce.experiments.files import compute_json_digest
from rollonce.experiments.ledger import Ledger, make_ledger_path
from rollonce.experiments.loading import LoadedSpec
from rollonce.experiments.records import RECORDS, Chain, Record, Status
from rollonce.experiments.safeguards import find_safeguards_switched_off
from rollonce.experiments.spec import Spec
from rollonce.files import write_whole_file

SPEC_COPY = "spec.json"
NOT_SPENDING = ("start", "settings", "pins", "data_audit", "correctness", "revision")
"""Stages before anything is sampled, trained or paid for; until then a setting outside the hash can be mended."""
MAY_MOVE = ("base_url", "tasks", "origins")
"""Settings that a later sitting may give otherwise: an address, a folder. What lies there is compared by its hash."""


class StageResult(NamedTuple):
    """What a stage came to: whether it passed, what it found, which files it wrote, and the sentence if it failed."""

    passed: bool
    data: dict[str, Any]
    files: list[str] = []
    sentence: str = ""


class Stopped(Exception):
    """A stage failed, now or earlier. ``record`` says why."""

    def __init__(self, record: Record) -> None:
        self.record = record
        super().__init__(record.data.get("sentence", f"{record.stage} failed"))


@dataclass
class ExperimentRun:
    """An open run; the directory's lock is the caller's.

    Attributes:
        loaded: The specification in force.
        settings: Derived from it, and what the command line said.
        engine: What trains and samples.
        directory: Of the run.
        say: Called with a line at each stage.
        show_progress: (name, what, done, total).
        ledger: Beside the directory.
        chain: The records.
    """

    loaded: LoadedSpec
    settings: ExperimentSettings
    engine: Engine
    directory: Path
    say: Callable[[str], None] = lambda text: None
    show_progress: Callable[[str, str, int, int], None] = lambda name, what, done, total: None
    ledger: Ledger = field(init=False)
    chain: Chain = field(init=False)
    stage: str = field(default="start", init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.directory)
        if not self.ledger.known and (self.directory / RECORDS).is_file():
            raise InputError(
                "the run's ledger is missing: without it nobody can tell whether lines were dropped. A run is its "
                "directory and this file; put it back beside the directory, or start another run with --out",
                file=make_ledger_path(self.directory),
            )
        self.ledger.count_elapsed_time(
            self.stage, write=True
        )  # before the first record: one without a ledger could not go on
        self.chain = Chain(self.directory, self.ledger)
        if not self.chain.records:
            self._record_run_start()
            return
        self.chain.verify_record_file(self.record_in_force, self.record_in_force.data.get("file", SPEC_COPY))
        self._check_specification()
        self._check_recorded_settings()

    # ---- the specification and the settings in force

    def _record_run_start(self) -> None:
        spec = self.loaded.spec
        if spec.rollonce.revision is not None:
            raise InputError(
                "rollonce.revision makes this a revised specification; it goes on in the directory of the run that it "
                "revises (--out)",
                file=self.loaded.path,
            )
        self._write_spec_copy(SPEC_COPY)
        data = {
            "title": spec.title,
            "rollonce": rollonce.__version__,
            "unknown_fields": self.loaded.unknown,
            "settings": self.settings.to_plain_settings(),
            "deviations": find_safeguards_switched_off(self.loaded, self.settings),
        }
        self.chain.append_stage_record("start", "passed", spec=self.loaded.sha256, data=data, files=[SPEC_COPY])

    def _write_spec_copy(self, name: str) -> None:
        write_whole_file(self.directory / name, json.dumps(self.loaded.raw, indent=2, ensure_ascii=False) + "\n")

    @property
    def record_in_force(self) -> Record:
        """The record of the specification in force: the start, or the newest revision."""
        return next(r for r in reversed(self.chain.records) if r.stage in ("start", "revision"))

    def _check_specification(self) -> None:
        force = self.record_in_force
        if self.loaded.sha256 == force.spec:
            return
        copy_file = self.directory / force.data.get("file", SPEC_COPY)
        before = json.loads(copy_file.read_text(encoding="utf-8"))
        if compute_json_digest(before) != force.spec:
            raise InputError("is not the specification that the records name", file=copy_file)
        revision = self.loaded.spec.rollonce.revision
        if revision is not None and revision.of != force.spec:
            raise InputError(
                f"rollonce.revision.of is {revision.of!r}, but the specification in force in {self.directory} has "
                f"sha256 {force.spec} (as --check prints it, of the content and not of the file's bytes)",
                file=self.loaded.path,
            )
        if revision is None:
            changed = "; ".join(_list_differences(before, self.loaded.raw)) or "nothing but its hash"
            raise InputError(
                f"this is not the specification that the run in {self.directory} started with ({changed}). It cannot "
                "be changed any more: go on with the file as it was, or start another run with --out",
                file=self.loaded.path,
            )
        self._adopt_fallback(force, before, revision.reason)

    def _check_recorded_settings(self) -> None:
        """What was given outside of the specification (a renderer, say) may be mended until something is spent."""
        recorded = next(r for r in reversed(self.chain.records) if "settings" in r.data).data["settings"]
        now = json.loads(json.dumps(self.settings.to_plain_settings()))
        changed = [k for k in now if k not in MAY_MOVE and recorded.get(k) != now[k]]
        if not changed:
            return
        said = ", ".join(f"{k} from {recorded.get(k)!r} to {now[k]!r}" for k in changed)
        if self.has_spending_begun:
            raise InputError(
                f"{said} cannot be changed in this run any more: it has sampled or trained with the first. Give what "
                "was given then, or start another run with --out",
                file=self.directory,
            )
        self.chain.append_stage_record(
            "settings", "passed", spec=self.record_in_force.spec, data={"settings": now, "changed": said}
        )
        self.say(f"settings: {said}; nothing had been spent")

    def _adopt_fallback(self, force: Record, before: dict[str, Any], reason: str) -> None:
        """Adopt the pre-approved fallback: after a failed offline gate, before any training, and nothing else."""
        refuse = lambda why: InputError(f"the revision is refused: {why}", file=self.loaded.path)  # noqa: E731
        gate = self.chain.latest_of_stage("gate_offline")
        if gate is None or gate.status != "failed" or gate.spec != force.spec:
            raise refuse("only a failed offline gate may be answered with the pre-approved fallback")
        if self.has_training_begun:
            raise refuse("training has begun")
        allowed = derive_settings(Spec.model_validate(before)).fallbacks
        treatment = self.settings.treatment
        at = next(i for i, a in enumerate(before["arms"]) if a["name"] == treatment)
        now = self.loaded.spec.find_arm_by_name(treatment).advantage
        tried = {r.data.get("advantage") for r in self.chain.records if r.stage == "revision"}
        if now not in allowed or now in tried:
            raise refuse(
                f"{now!r} is no pre-approved fallback that is left; {', '.join(allowed) or 'none'} were approved"
            )
        expected, mine = copy.deepcopy(before), copy.deepcopy(self.loaded.raw)
        expected["arms"][at]["advantage"] = now
        for document in (expected, mine):
            (document.get("rollonce") or {}).pop("revision", None)
            if not document.get("rollonce"):
                document.pop("rollonce", None)
        odd = _list_differences(expected, mine)
        if odd:
            raise refuse(f"it changes more than the treatment's advantage ({'; '.join(odd)})")
        name = f"spec.revision-{len(tried) + 1}.json"
        self._write_spec_copy(name)
        was = before["arms"][at]["advantage"]
        data = {"of": force.spec, "reason": reason, "advantage": now, "was": was, "file": name}
        data["deviations"] = [
            f"the pre-approved fallback {now} replaced {was} after the failed gate: {reason}",
            *_deviations_from_post(now),
        ]
        self.chain.append_stage_record("revision", "passed", spec=self.loaded.sha256, data=data, files=[name])
        self.say(f"revision: {now} replaces {was} ({reason})")

    # ---- stages

    @property
    def has_training_begun(self) -> bool:
        """Whether an arm was trained, be it in the pilot."""
        trained = any(r.stage.startswith(("pilot", "arm:")) for r in self.chain.records)
        return trained or any((self.directory / d).exists() for d in ("pilot", "arms"))

    @property
    def has_spending_begun(self) -> bool:
        """Whether anything was sampled, trained or paid for."""
        begun = any(r.stage not in NOT_SPENDING for r in self.chain.records)
        return begun or (self.directory / "calibration.jsonl").exists() or self.has_training_begun

    def run_or_reuse_stage(self, stage: str, inputs: dict[str, Any], body: Callable[[], StageResult]) -> Record:
        """The stage's record, made now unless it is there with the same inputs.

        Args:
            stage: Its name.
            inputs: All that it depends on, by name.
            body: Does the work.

        Raises:
            Stopped: the stage failed, now or earlier.
            InputError: its inputs changed although training has begun, or a file of its record was changed.
        """
        inputs = json.loads(json.dumps(inputs))
        old = self.chain.latest_of_stage(stage)
        if old is not None and old.inputs == inputs:
            bad = self.chain.find_damaged_file(old)
            if bad:
                raise InputError(
                    f"was changed or removed after stage {stage!r} recorded it; put it back, or start another run",
                    file=self.directory / bad,
                )
            if old.status == "failed":
                raise Stopped(old)
            return old
        if old is not None:
            changed = ", ".join(k for k in inputs if old.inputs.get(k) != inputs[k]) or "its inputs"
            if self.has_training_begun:
                raise InputError(
                    f"stage {stage!r} rests on {changed}, which changed since it was recorded, and training has begun. "
                    "Put back what changed, or start another run with --out",
                    file=self.directory,
                )
            self.say(f"{stage}: once more, since {changed} changed")
        self.ledger.count_elapsed_time(self.stage)
        self.stage = stage
        before = self.ledger.spent_stage_seconds(stage)
        with self.ledger.counting_stage_time(stage):
            try:
                result = body()
            except StageFailed as error:
                result = StageResult(False, {}, [], str(error))
        # A killed sitting's time is in the ledger; a stage done once more counts its new time alone.
        seconds = self.ledger.spent_stage_seconds(stage) - (before if old is not None else 0.0)
        status: Status = "passed" if result.passed else "failed"
        data = result.data | ({"sentence": result.sentence} if result.sentence else {})
        record = self.chain.append_stage_record(
            stage, status, spec=self.loaded.sha256, inputs=inputs, data=data, files=result.files, seconds=seconds
        )
        if status == "failed":
            raise Stopped(record)
        self.say(f"{stage}: passed ({seconds:.1f} s); head of the records {record.hash[:16]}")
        return record

    def report_progress(self, name: str, what: str, done: int, total: int) -> None:
        """Count the time, show how far it is, and stop a run that has used its budget up.

        Raises:
            StageFailed: it has.
        """
        self.ledger.count_elapsed_time(self.stage)
        self.show_progress(name, what, done, total)
        problem = describe_budget_overrun(self.ledger.seconds, self.settings.declared_gpus, self.loaded.spec.budget)
        if problem:
            raise StageFailed(f"the budget was used up at {name}, {what} {done} of {total}: {problem}")

    def make_progress_reporter(self, name: str) -> Callable[[str, int, int], None]:
        """`progress` with the name filled in."""
        return lambda what, done, total: self.report_progress(name, what, done, total)

    def collect_deviations(self) -> list[str]:
        """Every deviation on record, in order, once each."""
        return list(dict.fromkeys(d for r in self.chain.records for d in r.data.get("deviations", [])))


def _deviations_from_post(advantage: str) -> list[str]:
    """How a fallback differs from the kernel that the post describes."""
    if advantage != "length_buckets_loo":
        return []
    return [
        "length_buckets_loo takes the rollouts of the batch alone, as the registered treatment does; the post's "
        "prompt-length-bucket kernel has a window of 16 batches"
    ]


def _list_differences(before: Any, now: Any, at: str = "") -> list[str]:
    """Paths where two documents differ, at most five, with what stands there."""
    return list(_walk_differences(before, now, at))[:5]


def _walk_differences(before: Any, now: Any, at: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(k for k in now if k not in before)]:
            path = f"{at}.{key}" if at else key
            if key not in now:
                yield f"{path} is gone"
            elif key not in before:
                yield f"{path} is new"
            else:
                yield from _walk_differences(before[key], now[key], path)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from _walk_differences(a, b, f"{at}[{i}]")
    elif before != now or type(before) is not type(now):
        yield f"{at}: {_shorten_json_text(before)} became {_shorten_json_text(now)}"


def _shorten_json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
