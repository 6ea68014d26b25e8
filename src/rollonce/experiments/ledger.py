"""What is known of a run outside of its directory: hashes of its files line by line as they are written, and the time
spent.

``NAME.ledger.json`` lies beside the directory ``NAME``. A run that goes on compares the two first: a line that was
changed, taken out or put in by hand is named, also in the files of a stage that has not ended. It protects against
whoever edits the directory alone. Whoever rewrites directory and ledger, consistently, is not noticed by either: for
that, keep the head of the chain, which every stage prints, somewhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.experiments.files import append_json_line, canonical_json_bytes, compute_file_digest, read_finished_lines
from rollonce.files import write_json_file

TOUCHED = "A run whose files were touched has no verdict; start again in another directory"
_EVERY_S = 1.0


def make_ledger_path(directory: Path) -> Path:
    """Where the ledger of a directory lies."""
    return directory.parent / f"{directory.name}.ledger.json"


class Ledger:
    """The ledger of one directory.

    Attributes:
        known: Whether there was one when it was opened.
        seconds: Spent so far, in all sittings.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, make_ledger_path(directory)
        self.known = self.path.is_file()
        data: dict[str, Any] = {}
        if self.known:
            try:
                data = json.loads(self.path.read_text(encoding="utf-8"))
            except ValueError:
                raise InputError(f"is no JSON any more. {TOUCHED}", file=self.path) from None
        self.seconds: float = data.get("seconds", 0.0)
        self._by_stage: dict[str, float] = data.get("by_stage", {})
        self._lines: dict[str, tuple[int, str]] = {k: (n, h) for k, (n, h) in data.get("lines", {}).items()}
        self._files: dict[str, str] = data.get("files", {})
        self._seen: dict[str, tuple[int, int]] = {}
        self._last = self._written = time.monotonic()
        self._lock = threading.RLock()

    # ---- lines of ours

    def append_noted_line(self, name: str, value: Any) -> None:
        """Append a line to a file of the directory, and note it."""
        append_json_line(self.directory / name, value)
        with self._lock:
            count, before = self._lines.get(name, (0, ""))
            self._lines[name] = (count + 1, _extend_line_hash(before, canonical_json_bytes(value)))
            self._write_ledger_file()

    def read_noted_lines(self, name: str) -> Iterator[Any]:
        """The lines of such a file. One that the process died over before it was noted is cut off, and done again.

        Raises:
            InputError: a line was changed, taken out, or put in where the ledger knows better.
        """
        path, (count, known) = self.directory / name, self._lines.get(name, (0, ""))
        rows = list(read_finished_lines(path, mend=True))
        if len(rows) < count:
            raise InputError(f"had {count} lines and has {len(rows)}: lines were taken out. {TOUCHED}", file=path)
        total = ""
        for row in rows[:count]:
            total = _extend_line_hash(total, canonical_json_bytes(row))
        if total != known:
            raise InputError(f"was changed after it was written. {TOUCHED}", file=path)
        if len(rows) > count:
            kept = path.read_bytes().splitlines(keepends=True)[:count]
            os.truncate(path, sum(map(len, kept)))
        return iter(rows[:count])

    # ---- files of others (a recipe's logs, a checkpoint)

    def note_file_digest(self, name: str) -> None:
        """Remember a file as it is now; for one that only grows, what is there."""
        path = self.directory / name
        if not path.is_file():
            return
        stat = path.stat()
        if self._seen.get(name) == (stat.st_size, stat.st_mtime_ns):
            return
        self._seen[name] = (stat.st_size, stat.st_mtime_ns)
        known = f"{stat.st_size}:{compute_file_digest(path)}"
        if self._files.get(name) != known:
            with self._lock:
                self._files[name] = known
                self._write_ledger_file()

    def check_noted_file(self, name: str, *, cut: bool = False) -> None:
        """Compare a noted file with what is there; with ``cut`` take off what has grown on a log since.

        Raises:
            InputError: it is gone or another. What was never noted is accepted, and with ``cut`` removed.
        """
        path = self.directory / name
        if (known := self._files.get(name)) is None:
            if cut:
                path.unlink(missing_ok=True)
            return
        size, _, digest = known.partition(":")
        if cut and path.is_file() and path.stat().st_size > int(size):
            os.truncate(path, int(size))
        if compute_file_digest(path) != digest:
            raise InputError(f"was changed or removed since the run left it. {TOUCHED}", file=path)

    def has_noted_file(self, name: str) -> bool:
        """Whether a file was noted."""
        return name in self._files

    def forget_below_folder(self, folder: str) -> None:
        """Forget everything below a folder of the directory, which is made anew."""
        with self._lock:
            for noted in (self._lines, self._files):
                for name in [n for n in noted if n.startswith(f"{folder}/")]:
                    del noted[name]  # type: ignore[attr-defined]
            self._write_ledger_file()

    # ---- time

    def count_elapsed_time(self, stage: str, *, write: bool = False) -> None:
        """Count the time since the last call to a stage; on disk every second or so, so that a kill loses no more."""
        with self._lock:
            now = time.monotonic()
            passed, self._last = now - self._last, now
            self.seconds += passed
            self._by_stage[stage] = self._by_stage.get(stage, 0.0) + passed
            if write or now - self._written >= _EVERY_S:
                self._write_ledger_file()

    @contextmanager
    def counting_stage_time(self, stage: str) -> Iterator[None]:
        """Count the time of the block to a stage, every second, also while one call of it lasts for minutes."""
        over = threading.Event()

        def count_every_second() -> None:
            while not over.wait(_EVERY_S):
                self.count_elapsed_time(stage)

        thread = threading.Thread(target=count_every_second, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.count_elapsed_time(stage)

    def spent_stage_seconds(self, stage: str) -> float:
        """Spent in a stage so far, in all sittings."""
        return self._by_stage.get(stage, 0.0)

    def _write_ledger_file(self) -> None:
        self._written = time.monotonic()
        write_json_file(
            self.path,
            {
                "run": self.directory.name,
                "seconds": round(self.seconds, 3),
                "by_stage": {k: round(v, 3) for k, v in self._by_stage.items()},
                "lines": {k: list(v) for k, v in self._lines.items()},
                "files": self._files,
            },
        )


def _extend_line_hash(before: str, line: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + line).hexdigest()
