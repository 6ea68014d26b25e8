"""Files of a run that are whole or not there: appended lines, hashes (whole files: `rollonce.files`).

A line counts once its newline is on disk. What follows the last newline was being written when the process died, and is
cut off the next time the file is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.files import make_write_error


def canonical_json_bytes(value: Any) -> bytes:
    """JSON bytes that are equal for equal values: sorted keys, no spaces. NaN is refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def compute_json_digest(value: Any) -> str:
    """sha256 of `canonical_json_bytes`."""
    return hashlib.sha256(canonical_json_bytes(value)).hexdigest()


def compute_file_digest(path: Path) -> str:
    """sha256 of a file's bytes; "" if it is not there."""
    if not path.is_file():
        return ""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


GOES_ON = "nothing of it was kept, and the run goes on from here when started again"


def append_json_line(path: Path, value: Any) -> None:
    """Append one JSON line and wait until it is on disk; if that fails, leave the file as it was.

    Raises:
        InputError: the disk is full, or the file cannot be written.
    """
    line = canonical_json_bytes(value) + b"\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise make_write_error(path, error, GOES_ON) from None
    try:
        size = os.fstat(handle).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        except OSError as error:
            os.ftruncate(handle, size)
            raise make_write_error(path, error, GOES_ON) from None
    finally:
        os.close(handle)


def read_finished_lines(path: Path, *, mend: bool = False) -> Iterator[Any]:
    """The JSON lines of a file, in order; an unfinished last line is passed over, and with ``mend`` cut off.

    Raises:
        InputError: a finished line that is no JSON.
    """
    if not path.is_file():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if mend and end < len(data):
        os.truncate(path, end)
    for number, line in enumerate(data[:end].splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError:
            raise InputError(
                "is no JSON, though the line is finished: the file was changed by hand", file=path, line=number
            ) from None
