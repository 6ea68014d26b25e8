"""Files of a run: checkpoints written whole or not at all, JSON lines that a kill cannot garble, and a lock on the
directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from rollonce.errors import InputError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a resumed run, sees the old one or the new one and nothing between.

    Raises:
        InputError: the disk is full or not writable; what was there stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        unwritable(path, error)


def write_directory(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a new directory, and put it in the place of ``path`` when it is whole.

    Raises:
        InputError: the disk is full or not writable; what was there stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        write(temporary)
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
        shutil.rmtree(old, ignore_errors=True)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            unwritable(path, error)
        if type(error).__name__ == "SafetensorError":  # the system's error comes as its text alone
            known = re.search(r"os error (\d+)", str(error))
            unwritable(path, OSError(int(known[1]) if known else errno.EIO, str(error)))
        raise


def unwritable(path: Path, error: OSError) -> NoReturn:
    """Say in a sentence why a file could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise InputError(
            "the disk is full; free some space and give the same command again: it goes on from the last checkpoint",
            file=path,
        ) from error
    raise InputError(f"cannot be written: {error.strerror}", file=path) from error


def write_json(path: Path, value: Any) -> None:
    """`write_whole` of indented JSON; NaN becomes null."""
    write_whole(path, (json.dumps(finite(value), indent=1, ensure_ascii=False) + "\n").encode())


def finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


class JsonLines:
    """A log, a JSON object a line. Opened again after a kill, a broken last line and all after ``keep`` are cut off.

    Args:
        path: The file.
        keep: Of the lines there, keep those for which it is true, up to the first for which it is not.
    """

    def __init__(self, path: Path, keep: Any) -> None:
        self.path = path
        kept = 0
        self.records: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    record = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n") or not keep(record):
                    break
                self.records.append(record)
                kept += len(line)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab")  # noqa: SIM115
            self._file.truncate(kept)
        except OSError as error:
            unwritable(path, error)

    def write(self, record: dict[str, Any]) -> None:
        """Add a line, whole."""
        line = (json.dumps(finite(record), ensure_ascii=False) + "\n").encode()
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            unwritable(self.path, error)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Only one process may write to a run's directory. The lock goes with the process, however it ends.

    Raises:
        InputError: another one holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = open(directory / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        unwritable(directory, error)
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "another process is writing to this run; wait for it, or stop it", file=directory
            ) from None
        yield


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint: one file, written whole."""
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(directory / "checkpoint.pt", buffer.getvalue())


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """What `save_checkpoint` wrote, or None. Only tensors and plain values are read (no code runs).

    Raises:
        InputError: the file is damaged.
    """
    import torch

    path = directory / "checkpoint.pt"
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"the checkpoint cannot be read ({type(error).__name__}); move the run's directory away to start it anew",
            file=path,
        ) from error


def clear(directory: Path) -> None:
    """Remove a run to start it anew."""
    if directory.exists():
        shutil.rmtree(directory)


def same_config(config: Any, directory: Path) -> None:
    """Write ``config.json`` (a pydantic model's), or see that what is there is the same.

    Raises:
        InputError: the directory holds a run of another configuration: naming what differs.
    """
    path = directory / "config.json"
    mine = json.loads(config.model_dump_json())
    if path.exists():
        try:
            theirs = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError("not JSON; move the directory away to start the run anew", file=path) from None
        if theirs != mine:
            odd = "; ".join(_differences(theirs, mine)) or "its keys"
            raise InputError(
                f"holds a run of another configuration ({odd}); choose another directory, or remove this one",
                file=directory,
            )
    else:
        write_json(path, mine)


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            d
            for k in sorted(old.keys() | new.keys())
            for d in _differences(old.get(k), new.get(k), f"{path}.{k}" if path else k)
        ]
    return [] if old == new else [f"{path} was {old!r} and is {new!r}"]


def finished(directory: Path) -> dict[str, Any] | None:
    """``result.json`` of a run that has ended, or None."""
    path = directory / "result.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error}); remove it to let the run end again", file=path) from None


@contextlib.contextmanager
def stopping(event: threading.Event | None) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, while inside, in the main thread; elsewhere the given one alone."""
    flag = event or threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {s: signal.signal(s, lambda *_: flag.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
