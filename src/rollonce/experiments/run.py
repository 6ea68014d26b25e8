"""A run in its directory: which stages are done, which may be entered, and which specification is in force.

A stage is entered again only if something that it depends on has changed, and never once training has begun. A stage
that failed stays
failed: measuring again until it passes is not offered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import rollonce
from rollonce.errors import InputError
from rollonce.experiments.derive import Settings, derive
from rollonce.experiments.engine import Engine, StageFailed
from rollonce.experiments.files import write_whole
from rollonce.experiments.loading import LoadedSpec
from rollonce.experiments.records import Chain, Record, Status

SPEC_COPY = "spec.json"


class Finding(NamedTuple):
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
class Run:
    """An open run; the directory's lock is the caller's.

    Attributes:
        loaded: The specification in force.
        settings: Derived from it.
        engine: What trains and samples.
        directory: Of the run.
        say: Called with a line at each stage.
        tell: Progress: (name, what, done, total).
    """

    loaded: LoadedSpec
    settings: Settings
    engine: Engine
    directory: Path
    say: Callable[[str], None] = lambda text: None
    tell: Callable[[str, str, int, int], None] = lambda name, what, done, total: None
    chain: Chain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = Chain(self.directory)
        if not self.chain.records:
            self._start()
        else:
            self._check_spec()

    # ---- the specification in force

    def _start(self) -> None:
        spec = self.loaded.spec
        if spec.rollonce.revision is not None:
            raise InputError(
                "rollonce.revision makes this a revised specification; it goes on in the directory of the run that it "
                "revises (--out)",
                file=self.loaded.path,
            )
        write_whole(
            self.directory / SPEC_COPY, json.dumps(self.loaded.raw, indent=2, ensure_ascii=False).encode() + b"\n"
        )
        data = {
            "title": spec.title,
            "rollonce": rollonce.__version__,
            "unknown_fields": self.loaded.unknown,
            "settings": _plain(self.settings),
        }
        self.chain.append("start", "passed", spec=self.loaded.sha256, data=data, files=[SPEC_COPY])

    @property
    def in_force(self) -> Record:
        """The record of the specification in force: the start, or the newest revision."""
        return next(r for r in reversed(self.chain.records) if r.stage in ("start", "revision"))

    def _check_spec(self) -> None:
        force = self.in_force
        if self.loaded.sha256 == force.spec:
            return
        before = json.loads((self.directory / force.data.get("file", SPEC_COPY)).read_text(encoding="utf-8"))
        revision = self.loaded.spec.rollonce.revision
        if revision is not None and revision.of != force.spec:
            raise InputError(
                f"rollonce.revision.of is {revision.of!r}, but the specification in force in {self.directory} has "
                f"sha256 {force.spec} (as --check prints it, of the content and not of the file's bytes)",
                file=self.loaded.path,
            )
        if revision is None:
            changed = "; ".join(_differences(before, self.loaded.raw)) or "nothing but its hash"
            raise InputError(
                f"this is not the specification that the run in {self.directory} started with ({changed}). It cannot "
                "be changed any more: go on with the file as it was, or start another run with --out",
                file=self.loaded.path,
            )
        self._revise(force, before, revision.reason)

    def _revise(self, force: Record, before: dict[str, Any], reason: str) -> None:
        """Adopt the pre-approved fallback: after a failed offline gate, before any training, and nothing else."""
        refuse = lambda why: InputError(f"the revision is refused: {why}", file=self.loaded.path)  # noqa: E731
        gate = self.chain.latest("gate_offline")
        if gate is None or gate.status != "failed" or gate.spec != force.spec:
            raise refuse("only a failed offline gate may be answered with the pre-approved fallback")
        if self.training_begun:
            raise refuse("training has begun")
        allowed = derive_raw(before).fallbacks
        treatment = self.settings.treatment
        at = next(i for i, a in enumerate(before["arms"]) if a["name"] == treatment)
        now = self.loaded.spec.arm(treatment).advantage
        tried = {r.data.get("advantage") for r in self.chain.records if r.stage == "revision"}
        if now not in allowed or now in tried:
            raise refuse(
                f"{now!r} is no pre-approved fallback that is left; {', '.join(allowed) or 'none'} were approved"
            )
        expected = json.loads(json.dumps(before))
        expected["arms"][at]["advantage"] = now
        for document in (expected, mine := json.loads(json.dumps(self.loaded.raw))):
            (document.get("rollonce") or {}).pop("revision", None)
            if not document.get("rollonce"):
                document.pop("rollonce", None)
        odd = _differences(expected, mine)
        if odd:
            raise refuse(f"it changes more than the treatment's advantage ({'; '.join(odd)})")
        name = f"spec.revision-{len(tried) + 1}.json"
        write_whole(self.directory / name, json.dumps(self.loaded.raw, indent=2, ensure_ascii=False).encode() + b"\n")
        data = {
            "of": force.spec,
            "reason": reason,
            "advantage": now,
            "was": before["arms"][at]["advantage"],
            "file": name,
        }
        data["deviations"] = [f"the pre-approved fallback {now} replaced {data['was']} after the failed gate: {reason}"]
        self.chain.append("revision", "passed", spec=self.loaded.sha256, data=data, files=[name])
        self.say(f"revision: {now} replaces {data['was']} ({reason})")

    # ---- stages

    @property
    def training_begun(self) -> bool:
        """Whether anything was trained, be it in the pilot."""
        trained = any(r.stage.startswith(("pilot", "arm:")) for r in self.chain.records)
        return trained or any((self.directory / d).exists() for d in ("pilot", "arms"))

    def enter(self, stage: str, inputs: dict[str, Any], body: Callable[[], Finding]) -> Record:
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
        old = self.chain.latest(stage)
        if old is not None and old.inputs == inputs:
            bad = self.chain.damaged_file(old)
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
            if self.training_begun:
                raise InputError(
                    f"stage {stage!r} rests on {changed}, which changed since it was recorded, and training has begun. "
                    "Put back what changed, or start another run with --out",
                    file=self.directory,
                )
            self.say(f"{stage}: once more, since {changed} changed")
        began = time.monotonic()
        try:
            found = body()
        except StageFailed as error:
            found = Finding(False, {}, [], str(error))
        status: Status = "passed" if found.passed else "failed"
        data = found.data | ({"sentence": found.sentence} if found.sentence else {})
        seconds = time.monotonic() - began
        record = self.chain.append(
            stage, status, spec=self.loaded.sha256, inputs=inputs, data=data, files=found.files, seconds=seconds
        )
        if status == "failed":
            raise Stopped(record)
        self.say(f"{stage}: passed ({seconds:.1f} s)")
        return record

    def remarks(self) -> list[str]:
        """Every deviation on record, in order, once each."""
        return list(dict.fromkeys(d for r in self.chain.records for d in r.data.get("deviations", [])))


def derive_raw(raw: dict[str, Any]) -> Settings:
    """The settings of a document that was valid once."""
    from rollonce.experiments.spec import Spec

    return derive(Spec.model_validate(raw))


def _plain(settings: Settings) -> dict[str, Any]:
    return {k: getattr(settings, k) for k in settings.__dataclass_fields__}


def _differences(before: Any, now: Any, at: str = "") -> list[str]:
    """Paths where two documents differ, at most five, with what stands there."""
    return list(_walk(before, now, at))[:5]


def _walk(before: Any, now: Any, at: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(k for k in now if k not in before)]:
            path = f"{at}.{key}" if at else key
            if key not in now:
                yield f"{path} is gone"
            elif key not in before:
                yield f"{path} is new"
            else:
                yield from _walk(before[key], now[key], path)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from _walk(a, b, f"{at}[{i}]")
    elif before != now or type(before) is not type(now):
        yield f"{at}: {_short(before)} became {_short(now)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
