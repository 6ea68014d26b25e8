"""A first look at a file: what kind of file it is, and its first record. Formats recognise their files by this."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.jsonl import (
    Reject,
    Tell,
    open_unpacked_file,
    parse_json_line,
    read_file_chunks,
    read_json_blocks,
    read_json_document,
)
from rollonce.readers.tabular import parse_csv_header, read_csv_blocks, read_parquet_blocks

_HEAD = 1 << 16
_FIRST_LINE = 256 << 20
_REFUSED = (
    "it is refused because loading one runs whatever code is in it; write the prompts and rewards as JSON Lines instead"
)
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")


@dataclass
class Probe:
    """What a first look at a file shows.

    Attributes:
        path: The file.
        kind: ``jsonl``, ``json`` (one document), ``csv``, ``parquet``, ``zip``.
        record: The first record of a jsonl or json file (a document's first element if it is a list), a parquet file's
            columns as ``{name: type}``, a CSV file's header as ``{name: ""}``; None where there is none.
        problem: Why the file cannot be read as anything, if so.
        names: A zip file's members.
    """

    path: Path
    kind: str = ""
    record: Any = None
    problem: str | None = None
    names: list[str] = field(default_factory=list)
    _document: Any = field(default=None, repr=False)

    @property
    def parsed_document(self) -> Any:
        """A json file's whole document, parsed once."""
        if self._document is None:
            self._document = read_json_document(self.path)
        return self._document

    @property
    def is_json_document(self) -> bool:
        """Whether the file is one JSON document, on one line or on many."""
        return self.kind == "json" or self._document is not None

    def forget_document(self) -> None:
        """Free the memory of a document that has been read."""
        if self.record is self._document:
            self.record = None
        self._document = None

    def has_all_keys(self, *keys: str) -> bool:
        """Whether the first record is an object with all these keys."""
        return isinstance(self.record, dict) and all(k in self.record for k in keys)

    def has_none_of_keys(self, *keys: str) -> bool:
        """Whether the first record has none of these keys."""
        return isinstance(self.record, dict) and not any(k in self.record for k in keys)


def probe_file_content(path: Path) -> Probe:
    """Look at a file. Never raises for what is in it: `Probe.problem` says what is wrong, in a sentence."""
    probe = Probe(path)
    try:
        _detect_file_kind(probe)
    except InputError as error:
        probe.problem = error.message
    return probe


def _detect_file_kind(probe: Probe) -> None:
    path = probe.path
    with open(path, "rb") as f:
        head = f.read(_HEAD)
    if not head:
        probe.problem = "the file is empty"
        return
    if head.startswith(b"\x1f\x8b"):
        head = next(iter(read_file_chunks(path, _HEAD)), b"")
        if not head:
            probe.problem = "the file is empty (once unpacked)"
            return
    if head.startswith(b"PAR1"):
        _probe_parquet_schema(probe)
    elif head.startswith(b"PK\x03\x04"):
        _probe_zip_members(probe)
    elif (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05") or path.suffix.lower() in _PICKLES:
        probe.problem = f"a pickle (.pkl, .pt); {_REFUSED}"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")):
        probe.problem = "UTF-16 text, not UTF-8; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        probe.problem = "a zstd file; unpack it first (zstd -d), or use gzip"
    elif b"\x00" in head:
        probe.problem = (
            "a binary file, not text; rollouts are read from JSON Lines (.gz too), CSV, parquet and the log formats in "
            "docs/formats.md"
        )
    else:
        _probe_json_or_csv(probe, head.removeprefix(b"\xef\xbb\xbf"))


def _probe_parquet_schema(probe: Probe) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    probe.kind = "parquet"
    try:
        schema = pq.read_schema(probe.path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"a damaged parquet file ({str(error).splitlines()[0][:160]})") from None
    probe.record = {
        name: str(schema.field(name).type) if schema.names.count(name) == 1 else "?" for name in schema.names
    }


def _probe_zip_members(probe: Probe) -> None:
    try:
        with zipfile.ZipFile(probe.path) as z:
            probe.names = z.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        raise InputError(f"a damaged zip file ({error})") from None
    if any(n.endswith("data.pkl") for n in probe.names):
        raise InputError(f"a PyTorch file (.pt), which holds a pickle; {_REFUSED}")
    probe.kind = "zip"


def _probe_json_or_csv(probe: Probe, head: bytes) -> None:
    start = head.lstrip()[:1]
    if not head.strip():
        probe.problem = (
            "the file is empty (only white space)" if len(head) < _HEAD else "it starts with 64 KiB of white space"
        )
        return
    if start == b"[" or (start == b"{" and not _find_first_record(probe)):
        try:
            document = probe.parsed_document
        except InputError as error:
            # Neither JSON Lines nor a document. Its rows are tried as JSON Lines, which says what is wrong at which
            # line.
            probe.kind, probe.problem = "jsonl", None
            if start == b"[":
                raise InputError(error.message) from None
            return
        probe.kind = "json"
        probe.record = document[0] if isinstance(document, list) and document else document
    elif start != b"{":
        _probe_csv_header(probe, head)


def _find_first_record(probe: Probe) -> bool:
    """Whether one of the first lines is a whole JSON value; it becomes the record."""
    with open_unpacked_file(probe.path) as stream:
        try:
            for line in islice(iter(lambda: stream.readline(_FIRST_LINE), b""), 100):
                text = line.removeprefix(b"\xef\xbb\xbf").strip()
                if not text:
                    continue
                try:
                    value = parse_json_line(text)
                except InputError:
                    continue
                if isinstance(value, dict):
                    probe.kind, probe.record = "jsonl", value
                    if not stream.read(_HEAD).strip():  # a document on one line
                        probe._document = value
                    return True
        except (EOFError, OSError, ValueError):
            pass
    return False


def _probe_csv_header(probe: Probe, head: bytes) -> None:
    line = head.split(b"\n", 1)[0]
    probe.kind = "csv"
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(line) < _HEAD or error.start < _HEAD - 4:
            raise InputError(
                f"not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}; save it as UTF-8 (iconv -f LATIN1 -t "
                "UTF-8)"
            ) from None
        text = line.decode("utf-8", "ignore")
    names = parse_csv_header(text)
    if len(names) < 2:
        # Not a table either. Taken as JSON Lines, so that the message is about the first line.
        probe.kind = "jsonl"
        _find_first_record(probe)
    else:
        probe.record = dict.fromkeys(names, "")


def read_row_blocks(
    probe: Probe, reject: Reject, tell: Tell | None = None
) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Blocks of (line numbers, records) of a file of rows: JSON Lines, one JSON list, CSV or parquet."""
    if probe.kind == "parquet":
        return read_parquet_blocks(probe.path)
    if probe.kind == "csv":
        return read_csv_blocks(probe.path, reject)
    if probe.kind == "json":
        rows = probe.parsed_document if isinstance(probe.parsed_document, list) else [probe.parsed_document]
        return iter([(range(1, len(rows) + 1), rows)])
    return read_json_blocks(probe.path, reject, tell)
