"""Writing files whole, and plain JSON: the one place for both."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.errors import InputError


def write_whole_file(
    path: str | os.PathLike[str], data: bytes | str, *, make_parents: bool = False, if_it_fails: str = ""
) -> None:
    """Write a file so that a reader, or a run that is resumed, sees the old content or the new and nothing between.

    The content goes into a temporary file of the same folder, is flushed to the disk, and takes the name at the end.

    Args:
        path: The file.
        data: Its content; text is written as UTF-8 (half of a surrogate pair as its escape).
        make_parents: Make the folder if it is missing.
        if_it_fails: What the user should know then, added to the sentence ("the run goes on from its checkpoint").

    Raises:
        InputError: the disk is full, the folder is missing or not writable. What was there stays.
    """
    path = Path(path)
    content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    temporary = ""
    try:
        if make_parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, _mode_of_a_new_file())
        os.replace(temporary, path)
    except BaseException as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise make_write_error(path, error, if_it_fails) from None
        raise


def write_json_file(path: str | os.PathLike[str], value: Any, **options: Any) -> None:
    """`write_whole_file` of `convert_to_plain_json`, indented by one space, with a newline at the end."""
    write_whole_file(path, json.dumps(convert_to_plain_json(value), indent=1, ensure_ascii=False) + "\n", **options)


def make_write_error(path: str | os.PathLike[str], error: OSError, if_it_fails: str = "") -> InputError:
    """The sentence for a write that failed, to be raised."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk is full: free some space and give the same command again" if full else error.strerror or str(error)
    return InputError(f"cannot be written: {why}" + (f"; {if_it_fails}" if if_it_fails else ""), file=path)


def check_files_writable(*paths: str | os.PathLike[str] | None) -> None:
    """Refuse an output file in a folder that is not there, or that is one, before an hour is spent on computing it.

    Raises:
        InputError: naming the file.
    """
    for path in filter(None, paths):
        folder = Path(path).expanduser().parent
        if not folder.is_dir():
            raise InputError(f"cannot be written: there is no directory {folder}", file=path)
        if Path(path).is_dir():
            raise InputError("cannot be written: it is a directory; name a file in it", file=path)
        if not os.access(folder, os.W_OK):
            raise InputError(f"cannot be written: no permission in {folder}", file=path)


def convert_to_plain_json(value: Any) -> Any:
    """The same value in what JSON has: NaN and infinities become None, named tuples and dataclasses dicts, arrays and
    tuples lists.

    >>> convert_to_plain_json({"ratio": float("nan"), "counts": (1, 2)})
    {'ratio': None, 'counts': [1, 2]}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()  # type: ignore[attr-defined]
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: convert_to_plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [convert_to_plain_json(inner) for inner in value]
    return value


def _mode_of_a_new_file() -> int:
    # mkstemp makes files that only their owner can read; a file the user asked for gets the usual permissions.
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
