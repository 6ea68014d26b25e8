"""The run's diary: append-only JSON records, each holding the hash of the one before and of the specification; and the
run's lock.

``records.jsonl`` has one line per finished stage::

    {"index", "stage", "status", "inputs", "data", "files", "seconds", "utc", "spec", "previous", "hash"}

``hash`` is the sha256 of the line's other fields, ``previous`` the hash of the line before: a line that was changed,
taken out of the middle or put in breaks the chain. Lines dropped from its end do not; that the `Ledger` beside the
directory notices. ``utc`` is the wall clock's word and nothing depends on it; ``seconds`` comes from a monotonic clock
and counts every sitting.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollonce.errors import InputError
from rollonce.experiments.files import append_json_line, compute_file_digest, compute_json_digest, read_finished_lines
from rollonce.experiments.ledger import TOUCHED, Ledger

Status = Literal["passed", "failed"]
RECORDS = "records.jsonl"
_FIELDS = ("index", "stage", "status", "inputs", "data", "files", "seconds", "utc", "spec", "previous")


@dataclass(frozen=True)
class Record:
    """One finished stage.

    Attributes:
        index: 0, 1, 2 ...
        stage: Its name (``gate_offline``, ``arm:grpo_g8`` ...).
        status: ``passed`` or ``failed``.
        inputs: What it depended on, by name, each as a hash or a short value.
        data: What it found.
        files: Files that it wrote (relative to the run's directory) and their sha256.
        seconds: How long it took, by a monotonic clock, in this process.
        utc: When it ended, by the wall clock; for readers only.
        spec: sha256 of the specification in force.
        previous: ``hash`` of the record before; "" for the first.
        hash: sha256 of all of this.
    """

    index: int
    stage: str
    status: Status
    inputs: dict[str, Any]
    data: dict[str, Any]
    files: dict[str, str]
    seconds: float
    utc: str
    spec: str
    previous: str
    hash: str


@dataclass
class Chain:
    """The records of one directory, verified when opened.

    Attributes:
        directory: Of the run.
        ledger: Where new records are noted, and the end of the chain is compared with; None to read alone.

    Raises:
        InputError: a record that was changed, dropped, or put in.
    """

    directory: Path
    ledger: Ledger | None = None
    records: list[Record] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        previous = ""
        lines = (
            read_finished_lines(self.path, mend=True) if self.ledger is None else self.ledger.read_noted_lines(RECORDS)
        )
        for number, line in enumerate(lines, 1):
            record = _read_checked_record(line, self.path, number)
            if record.previous != previous or record.index != number - 1:
                raise InputError(
                    f"this record does not follow the one before it: one was changed, dropped or put in. {TOUCHED}",
                    file=self.path,
                    line=number,
                )
            previous = record.hash
            self.records.append(record)

    @property
    def path(self) -> Path:
        """Where the records are."""
        return self.directory / RECORDS

    def latest_of_stage(self, stage: str) -> Record | None:
        """The newest record of a stage."""
        return next((r for r in reversed(self.records) if r.stage == stage), None)

    def append_stage_record(
        self,
        stage: str,
        status: Status,
        *,
        spec: str,
        inputs: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        files: list[str] | None = None,
        seconds: float = 0.0,
    ) -> Record:
        """Write one record, on disk when this returns.

        Raises:
            InputError: the disk is full; the records are then as they were.
        """
        body: dict[str, Any] = {
            "index": len(self.records),
            "stage": stage,
            "status": status,
            "inputs": inputs or {},
            "data": data or {},
            "files": {name: compute_path_digest(self.directory / name) for name in files or []},
            "seconds": round(seconds, 3),
            "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "spec": spec,
            "previous": self.records[-1].hash if self.records else "",
        }
        body = json.loads(json.dumps(body, allow_nan=False))  # as it will be read: tuples are lists, keys are text
        line: dict[str, Any] = body | {"hash": compute_json_digest(body)}
        if self.ledger is None:
            append_json_line(self.path, line)
        else:
            self.ledger.append_noted_line(RECORDS, line)
        record = Record(**line)
        self.records.append(record)
        return record

    def find_damaged_file(self, record: Record) -> str:
        """The first file of a record that is gone or was changed since; "" if all are as they were."""
        return next(
            (name for name, known in record.files.items() if compute_path_digest(self.directory / name) != known), ""
        )

    def verify_record_file(self, record: Record, name: str) -> Path:
        """A file of a record, if it is still what the record says.

        Raises:
            InputError: it was changed or removed, or the record knows no such file.
        """
        path = self.directory / name
        if record.files.get(name, "") == "" or compute_path_digest(path) != record.files[name]:
            raise InputError(f"was changed or removed after stage {record.stage!r} recorded it. {TOUCHED}", file=path)
        return path


def compute_path_digest(path: Path) -> str:
    """sha256 of a file, or of a folder's names and bytes (a checkpoint); "" if neither is there."""
    if not path.is_dir():
        return compute_file_digest(path)
    return compute_json_digest(
        {p.relative_to(path).as_posix(): compute_file_digest(p) for p in sorted(path.rglob("*")) if p.is_file()}
    )


def _read_checked_record(line: Any, path: Path, number: int) -> Record:
    if not isinstance(line, dict) or set(line) != {*_FIELDS, "hash"}:
        raise InputError("is no record of a run", file=path, line=number)
    body = {k: line[k] for k in _FIELDS}
    if compute_json_digest(body) != line["hash"]:
        raise InputError(
            f"the record of stage {line['stage']!r} was changed after it was written (its hash does not fit). "
            f"{TOUCHED}",
            file=path,
            line=number,
        )
    return Record(**line)


@contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold a directory for this process alone. The system lets go of it when the process ends, however it ends.

    Raises:
        InputError: another process holds it (named), or the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"no run can be kept there: {error.strerror or error}", file=directory) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            raise InputError(
                f"a run is at work in this directory ({holder}); wait for it, or name another with --out",
                file=directory,
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
