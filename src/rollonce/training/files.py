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
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ValidationError

from rollonce.errors import InputError
from rollonce.files import convert_to_plain_json, make_write_error, write_json_file, write_whole_file
from rollonce.run_directory import CHECKPOINT_FILE, CONFIG_FILE, RESULT_FILE, RunResult

LEASE_SECONDS = 60.0
"""How long a run is another computer's after its last sign of life."""
GOES_ON = "it goes on from the last checkpoint"


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
            raise make_write_error(path, error, GOES_ON) from error
        if type(error).__name__ == "SafetensorError":  # the system's error comes as its text alone
            known = re.search(r"os error (\d+)", str(error))
            system_error = OSError(int(known[1]) if known else errno.EIO, str(error))
            raise make_write_error(path, system_error, GOES_ON) from error
        raise


class JsonLines:
    """A log with one JSON object per line. Opened again after a kill, a broken last line is cut off.

    Args:
        path: The file.
        keep: Of the lines that are there, keep those for which it is true, up to the first for which it is not.
    """

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
        self.path = path
        kept = 0
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    record = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n") or not keep(record):
                    break
                kept += len(line)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab")  # noqa: SIM115
            self._file.truncate(kept)
        except OSError as error:
            raise make_write_error(path, error, GOES_ON) from error

    def append_records(self, *records: Mapping[str, Any]) -> None:
        lines = "".join(json.dumps(convert_to_plain_json(record), ensure_ascii=False) + "\n" for record in records)
        try:
            self._file.write(lines.encode("utf-8", "backslashreplace"))
            self._file.flush()
        except OSError as error:
            raise make_write_error(self.path, error, GOES_ON) from error

    def close_log_file(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def lock_run_directory(directory: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Only one process may write to a run's directory. On one computer the lock goes with the process, however it ends.
    Another computer, on a directory that both see, is let in when the lock was not renewed for `LEASE_SECONDS`: file
    systems of a network do not always lock.

    Args:
        directory: The run's.
        patience: Seconds to wait for another to be done.

    Raises:
        InputError: another one holds it.
    """
    path, deadline = directory / ".lock", time.monotonic() + patience
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = open(path, "a+")  # noqa: SIM115
    except OSError as error:
        raise make_write_error(directory, error) from error
    with handle:
        while (refusal := _acquire_lock_or_reason(handle, path)) is not None:
            if time.monotonic() >= deadline:
                raise InputError(refusal, file=directory)
            time.sleep(1.0)
        handle.truncate(0)
        handle.write(identify_computer())
        handle.flush()
        over = threading.Event()
        threading.Thread(target=_keep_lock_renewed, args=(path, over), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            handle.truncate(0)


def _acquire_lock_or_reason(handle: TextIO, lock: Path) -> str | None:
    """Why the lock cannot be had; None, with the lock held, where it can."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return "another process is writing to this run; wait for it, or stop it"
    handle.seek(0)
    owner = handle.read()
    left = LEASE_SECONDS - _seconds_since_renewal(lock)
    if owner in ("", identify_computer()) or left <= 0:
        return None
    fcntl.flock(handle, fcntl.LOCK_UN)
    return (
        f"the computer {owner.split()[0]!r} is writing to this run, or died less than {LEASE_SECONDS:.0f} seconds ago; "
        f"stop it, or try again in {left:.0f} seconds"
    )


def identify_computer() -> str:
    """Its name, and which boot of it where the system says: names are not always different."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text(encoding='utf-8').strip()}"
    return socket.gethostname()


def _keep_lock_renewed(lock: Path, over: threading.Event) -> None:
    """Show signs of life. Where another computer has taken the run over (this one slept, or was cut off), end before
    two write to it."""
    while not over.wait(LEASE_SECONDS / 6):
        with contextlib.suppress(OSError):
            if lock.read_text(encoding="utf-8") not in ("", identify_computer()):
                os.write(2, f"{lock.parent}: another computer has taken this run over; this process ends\n".encode())
                os._exit(1)
            os.utime(lock)


def _seconds_since_renewal(lock: Path) -> float:
    """By the file system's own clock, which is that of all computers that see it."""
    with tempfile.NamedTemporaryFile(dir=lock.parent, prefix=".clock") as now:
        return os.stat(now.name).st_mtime - lock.stat().st_mtime


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint: one file, written whole."""
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole_file(directory / CHECKPOINT_FILE, buffer.getvalue(), make_parents=True, if_it_fails=GOES_ON)


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """What `save_checkpoint` wrote, or None. Only tensors and plain values are read (no code runs).

    Raises:
        InputError: the file is damaged.
    """
    import torch

    path = directory / CHECKPOINT_FILE
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"the checkpoint cannot be read ({type(error).__name__}); move the run's directory away to start it anew",
            file=path,
        ) from error


def ensure_same_config(config: BaseModel, directory: Path) -> None:
    """Write ``config.json``, or see that what is there is the same; settings that a later version added count as left
    at their defaults.

    Raises:
        InputError: the directory holds a run of another configuration: naming what differs.
    """
    path = directory / CONFIG_FILE
    mine = config.model_dump(mode="json")
    if not path.exists():
        write_json_file(path, mine, make_parents=True)
        return
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError("not JSON; move the directory away to start the run anew", file=path) from None
    with contextlib.suppress(ValidationError):
        theirs = type(config).model_validate(theirs).model_dump(mode="json")
    if theirs != mine:
        odd = "; ".join(_list_differences(theirs, mine)) or "its keys"
        raise InputError(
            f"holds a run of another configuration ({odd}); choose another directory, or remove this one",
            file=directory,
        )


def _list_differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            d
            for k in sorted(old.keys() | new.keys())
            for d in _list_differences(old.get(k), new.get(k), f"{path}.{k}" if path else k)
        ]
    return [] if old == new else [f"{path} was {old!r} and is {new!r}"]


def read_run_result(directory: Path) -> RunResult | None:
    """How a run ended; None if it has not."""
    path = directory / RESULT_FILE
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        return RunResult(**{name: written.get(name) for name in RunResult._fields})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"cannot be read ({error}); remove it to let the run end again", file=path) from None


@contextlib.contextmanager
def stop_on_signals(event: threading.Event | None) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, while inside, in the main thread; elsewhere the given one alone. The first
    Ctrl-C says what happens now, the second ends the process at once."""
    flag = event or threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def request_stop(number: int, _: object) -> None:
        flag.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.write(2, b"\nstopping after the step that is running; Ctrl-C again ends it at once\n")

    before = {s: signal.signal(s, request_stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
