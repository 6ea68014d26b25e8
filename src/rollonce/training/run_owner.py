"""Who may write to a run in an object store: the computer whose record in it has the highest number.

A store has no locks. Records are made only where none of that number is, which of several computers one alone achieves,
and renewed like the lock in a shared directory; whoever finds one that is not renewed for `LEASE_SECONDS` makes the
next. A run looks at the records before each file that it puts. What no store can rule out: that a computer stands still
between that look and the file, and puts it after another one has taken the run over. That file is equal but for its
times, or of an earlier step.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rollonce.errors import InputError
from rollonce.training import files
from rollonce.training.object_store import ObjectStore

OWNER_FOLDER = ".owner"


@contextlib.contextmanager
def own_stored_run(store: ObjectStore, stop: threading.Event, patience: float) -> Iterator[RunOwner]:
    """Be the one that writes to a run, while inside.

    Raises:
        InputError: another computer is, for longer than ``patience`` seconds.
    """
    owner, over = RunOwner(store), threading.Event()
    owner.become_owner(patience)
    renewing = threading.Thread(target=owner.keep_record_renewed, args=(over, stop), daemon=True)
    renewing.start()
    try:
        yield owner
    finally:
        over.set()
        renewing.join(files.LEASE_SECONDS / 6)
        owner.give_run_free()


class RunOwner:
    """This process as the one that writes to a run, or that would like to."""

    def __init__(self, store: ObjectStore) -> None:
        self.store, self.number, self.renewals = store, 0, 0
        self.identity = {
            "computer": files.identify_computer(),
            "process": _identify_process(),
            "key": secrets.token_hex(8),
        }

    def become_owner(self, patience: float) -> None:
        """Make the next record as soon as the newest is free, or its owner dead.

        Raises:
            InputError: neither is so within ``patience`` seconds.
        """
        deadline, content, since = time.monotonic() + patience, b"", time.monotonic()
        while True:
            number = self._find_newest_record()
            seen = (self.store.read_file(record_name(number)) if number else None) or b""
            if seen != content:
                content, since = seen, time.monotonic()
            silent = time.monotonic() - since
            owner = _read_record(content)
            if not owner or silent >= files.LEASE_SECONDS or _has_ended_here(owner):
                if self.store.write_new_file(record_name(number + 1), self._write_record()):
                    self.number = number + 1
                    break
            elif time.monotonic() >= deadline:
                raise InputError(
                    f"the computer {owner['computer'].split()[0]!r} is writing to this run, or died less than "
                    f"{files.LEASE_SECONDS:.0f} seconds ago; stop it, or try again later",
                    file=self.store.url,
                )
            else:
                time.sleep(files.LEASE_SECONDS / 30)
        for name in self.store.list_files(OWNER_FOLDER):
            if name < record_name(self.number):
                self.store.remove_file(name)

    def keep_record_renewed(self, over: threading.Event, stop: threading.Event) -> None:
        """Show signs of life, until ``over``; set ``stop`` where another computer has taken the run over."""
        while not over.wait(files.LEASE_SECONDS / 6):
            with contextlib.suppress(InputError):  # the store is away for a while: the next time
                if self._find_newest_record() != self.number:
                    stop.set()
                    return
                self.renewals += 1
                self.store.write_file(record_name(self.number), self._write_record())

    def ensure_still_owner(self) -> None:
        """See that nobody has taken the run over.

        Raises:
            InputError: another computer has.
        """
        if self._find_newest_record() != self.number:
            raise InputError("another computer has taken this run over; this one has ended it", file=self.store.url)

    def give_run_free(self) -> None:
        """Let the next one have it at once."""
        with contextlib.suppress(InputError):
            self.store.write_file(record_name(self.number), b"{}")

    def _find_newest_record(self) -> int:
        numbers = [PurePosixPath(name).name for name in self.store.list_files(OWNER_FOLDER)]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def _write_record(self) -> bytes:
        return json.dumps({**self.identity, "renewals": self.renewals}).encode()


def record_name(number: int) -> str:
    """Where an owner's record lies in the run."""
    return f"{OWNER_FOLDER}/{number:08d}"


def _read_record(content: bytes) -> dict[str, Any]:
    """Whose it is; empty where the run is free."""
    return json.loads(content) if content else {}


def _identify_process() -> list[str | int]:
    """Its number, and where that number counts: containers of one computer have the same numbers."""
    with contextlib.suppress(OSError):
        return [os.readlink("/proc/self/ns/pid"), os.getpid()]
    return ["", os.getpid()]


def _has_ended_here(owner: dict[str, Any]) -> bool:
    """Whether it was a process of this computer that is no more: nobody has to wait for a sign of life of it."""
    space, number = owner["process"]
    if owner["computer"] != files.identify_computer() or space != _identify_process()[0] or number == os.getpid():
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
