"""A comparison whose results lie in an object store (S3, GCS, Azure: whatever fsspec has a URL for), while each of its
runs works in a scratch directory.

A store has no locks and nothing can be added to an object, but an object is there whole or not at all. A run's files
are put in an order of which every beginning is a state to go on from: logs before the checkpoint that they lead up to,
the result when all else is there.

Who may write to a run: the computer whose record in it has the highest number. Records are made only where none of that
number is, which of several computers one alone achieves, and renewed like the lock in a shared directory; whoever finds
one that is not renewed for `LEASE_SECONDS` makes the next. A run looks at the records before each file that it puts.
What no store can rule out: that a computer stands still between that look and the file, and puts it after another one
has taken the run over. That file is equal but for its times, or of an earlier step.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rollonce.errors import InputError, MissingExtraError
from rollonce.run_directory import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    COST_FILE,
    EVALUATIONS_FOLDER,
    METRICS_FILE,
    PLAN_FILE,
    POLICY_FOLDER,
    RESULT_FILE,
)
from rollonce.training import files

_FILES_OF_PROGRESS = (PLAN_FILE, COST_FILE, CONFIG_FILE, RESULT_FILE)
_FILES_OF_REPORT = (PLAN_FILE, CONFIG_FILE, METRICS_FILE, RESULT_FILE)
_OWNER_FOLDER, _TOKEN_FOLDER = ".owner", ".seen-by-every-node"


def is_store_url(place: str | os.PathLike[str]) -> bool:
    """Whether results that lie there are in an object store, and not in a directory."""
    return "://" in str(place)


class ObjectStore:
    """What lies under a URL, by names relative to it.

    Raises:
        MissingExtraError: fsspec is not installed.
        InputError: from every method: the store cannot be used, and why.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if url.partition("://")[0] in ("file", "local"):
            raise InputError("is a directory; give its path, without file://", file=url)
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingExtraError(f"results at {url}", "fsspec", "ray") from error
        with self._say_what_failed("used"):
            self.files, root = url_to_fs(self.url, use_listings_cache=False)
        self.root = root.rstrip("/")

    @contextlib.contextmanager
    def _say_what_failed(self, doing: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # every kind of store has kinds of its own
            why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            here = socket.gethostname()
            raise InputError(f"cannot be {doing} from computer {here!r}: {why}", file=self.url) from error

    def list_files(self, folder: str = "") -> list[str]:
        """Names of all objects under the URL, or in a folder there."""
        with self._say_what_failed("read"):
            self.files.invalidate_cache()
            paths = self.files.find(self._full_path(folder))
        names = [path.removeprefix(self.root + "/") for path in paths]
        return sorted(name for name in names if not name.endswith("/") and ".." not in PurePosixPath(name).parts)

    def read_file(self, name: str) -> bytes | None:
        """An object's content; None where there is none."""
        with self._say_what_failed("read"), contextlib.suppress(FileNotFoundError):
            return self.files.cat_file(self._full_path(name))

    def write_file(self, name: str, content: bytes) -> None:
        """Put an object in the place of what is there."""
        with self._say_what_failed("written to"):
            self.files.pipe_file(self._full_path(name), content)

    def write_new_file(self, name: str, content: bytes) -> bool:
        """Put an object where none is; False where there is one. Of several computers that try, one succeeds, on
        stores that can tell (S3, GCS and Azure can)."""
        with self._say_what_failed("written to"):
            try:
                self.files.pipe_file(self._full_path(name), content, mode="create")
            except FileExistsError:
                return False
        return True

    def fetch_files(self, names: list[str], directory: Path) -> None:
        """Copies into a directory, under the same names."""
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
        with self._say_what_failed("read"):
            if names:
                self.files.get([self._full_path(name) for name in names], [str(directory / name) for name in names])

    def put_file(self, path: Path, name: str) -> None:
        """A copy of a file of this machine, in the place of what is there."""
        with self._say_what_failed("written to"):
            self.files.put_file(str(path), self._full_path(name))

    def remove_file(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._say_what_failed("written to"), contextlib.suppress(FileNotFoundError):
            self.files.rm_file(self._full_path(name))

    def _full_path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root


class _Mirror:
    """A directory with some of a store's files, and the way back for those that change."""

    def __init__(self, store: ObjectStore, directory: Path) -> None:
        self.store, self.directory = store, directory
        self.in_store: dict[str, tuple[int, int]] = {}

    def fetch_wanted_files(self, is_wanted: Callable[[PurePosixPath], bool]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        names = [PurePosixPath(name) for name in self.store.list_files()]
        wanted = [str(name) for name in names if not _is_hidden(name) and is_wanted(name)]
        self.store.fetch_files(wanted, self.directory)
        self.in_store = self._list_files_here()

    def put_changed_files(self, before_each: Callable[[], None] = lambda: None) -> None:
        """Bring the store to what is here; ``before_each`` may say no, by an exception."""
        here = self._list_files_here()
        for name in sorted(here, key=_order_to_put_in):
            if self.in_store.get(name) != here[name]:
                before_each()
                self.store.put_file(self.directory / name, name)
                self.in_store[name] = here[name]
        for name in self.in_store.keys() - here.keys():
            before_each()
            self.store.remove_file(name)
            del self.in_store[name]

    def _list_files_here(self) -> dict[str, tuple[int, int]]:
        """Size and time of change by name."""
        found: dict[str, tuple[int, int]] = {}
        for path in self.directory.rglob("*"):
            name = PurePosixPath(path.relative_to(self.directory))
            if path.is_file() and not path.is_symlink() and not _is_hidden(name):
                status = path.stat()
                found[str(name)] = (status.st_size, status.st_mtime_ns)
        return found


def _is_hidden(name: PurePosixPath) -> bool:
    """Locks, records of owners, files half written."""
    return any(part.startswith(".") for part in name.parts)


def _is_of_run(name: PurePosixPath, names: Sequence[str]) -> bool:
    """Whether it is one of these files of a comparison or a run, and not one of a policy's."""
    return name.name in names and name.parent.name != POLICY_FOLDER


def _order_to_put_in(name: str) -> tuple[int, str]:
    last = PurePosixPath(name).name
    return (1 if last == CHECKPOINT_FILE else 2 if last == RESULT_FILE else 0), name


@contextlib.contextmanager
def _make_scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rollonce-") as scratch:
        yield Path(scratch)


@contextlib.contextmanager
def _open_mirror(place: str, is_wanted: Callable[[PurePosixPath], bool]) -> Iterator[_Mirror]:
    """A copy in scratch; errors that name a file of it name its URL."""
    store = ObjectStore(place)
    with _make_scratch() as scratch:
        mirror = _Mirror(store, scratch)
        mirror.fetch_wanted_files(is_wanted)
        try:
            yield mirror
        except InputError as error:
            raise InputError(str(error).replace(str(scratch), store.url)) from error


@contextlib.contextmanager
def open_comparison_directory(place: str | os.PathLike[str]) -> Iterator[Path]:
    """A comparison's directory; of one in a store, a copy of what says how far it is, which goes back when it is left.

    Raises:
        InputError: the store cannot be used.
    """
    if not is_store_url(place):
        yield Path(place)
        return
    with _open_mirror(str(place), lambda name: _is_of_run(name, _FILES_OF_PROGRESS)) as mirror:
        yield mirror.directory
        mirror.put_changed_files()


@contextlib.contextmanager
def open_finished_runs(place: str | os.PathLike[str]) -> Iterator[Path]:
    """A comparison's directory; of one in a store, a copy of what a report reads: no checkpoints, no policies.

    Raises:
        InputError: the store cannot be used, or holds nothing there.
    """
    if not is_store_url(place):
        yield Path(place)
        return
    with _open_mirror(
        str(place), lambda name: _is_of_run(name, _FILES_OF_REPORT) or name.parent.name == EVALUATIONS_FOLDER
    ) as mirror:
        if not mirror.in_store:
            raise InputError("nothing is there; name the URL that `rollonce compare` wrote to", file=place)
        yield mirror.directory


@contextlib.contextmanager
def open_output_file(place: str | os.PathLike[str]) -> Iterator[Path]:
    """Where a file is to be written that belongs there: in a store it is put when the file is left."""
    if not is_store_url(place):
        yield Path(place)
        return
    folder, _, name = str(place).rpartition("/")
    with _make_scratch() as scratch:
        yield scratch / name
        ObjectStore(folder).put_file(scratch / name, name)


@contextlib.contextmanager
def write_store_token(url: str) -> Iterator[str]:
    """The name of an object that only those find who see this very place, while inside."""
    store, name = ObjectStore(url), f"{_TOKEN_FOLDER}/{secrets.token_hex(8)}"
    store.write_file(name, b"")
    try:
        yield name
    finally:
        with contextlib.suppress(InputError):
            store.remove_file(name)


def train_in_object_store(
    url: str,
    run_folder: str,
    token: str,
    job: Callable[[Path, Callable[[Path], None]], dict[str, Any]],
    stop: threading.Event,
    *,
    patience: float,
) -> dict[str, Any]:
    """Make a run in a scratch directory, from what the store has of it, and bring what changes there.

    Args:
        url, run_folder: The comparison's, and the run's in it.
        token: What `write_store_token` wrote.
        job: Makes the run in the directory it is given, calls the function it is given after each checkpoint, and says
            how it ended, as `rollonce.training.worker.Runner.run_training_job` does.
        stop: Set if another computer has taken the run over.
        patience: Seconds to wait for another to be done.

    Returns:
        What ``job`` said, or ``{"event": "error", "message": ...}``.
    """
    try:
        if ObjectStore(url).read_file(token) is None:
            raise InputError(
                f"node {socket.gethostname()} does not see {url} as this machine does; let both reach the same store"
            )
        store = ObjectStore(f"{url.rstrip('/')}/{run_folder}")
        with _make_scratch() as scratch, _own_stored_run(store, stop, patience) as owner:
            mirror = _Mirror(store, scratch / "run")
            mirror.fetch_wanted_files(lambda name: name.parts[0] != POLICY_FOLDER)

            def put_what_changed(_: Path | None = None) -> None:
                mirror.put_changed_files(owner.ensure_still_owner)

            event = job(mirror.directory, put_what_changed)
            if event["event"] == "error":
                return {**event, "message": event["message"].replace(str(mirror.directory), store.url)}
            put_what_changed()
            return event
    except InputError as error:
        return {"event": "error", "message": str(error)}


@contextlib.contextmanager
def _own_stored_run(store: ObjectStore, stop: threading.Event, patience: float) -> Iterator[_Owner]:
    owner, over = _Owner(store), threading.Event()
    owner.become_owner(patience)
    renewing = threading.Thread(target=owner.keep_record_renewed, args=(over, stop), daemon=True)
    renewing.start()
    try:
        yield owner
    finally:
        over.set()
        renewing.join(files.LEASE_SECONDS / 6)
        owner.give_run_free()


class _Owner:
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
            seen = (self.store.read_file(_record_name(number)) if number else None) or b""
            if seen != content:
                content, since = seen, time.monotonic()
            silent = time.monotonic() - since
            owner = _read_record(content)
            if not owner or silent >= files.LEASE_SECONDS or _has_ended_here(owner):
                if self.store.write_new_file(_record_name(number + 1), self._write_record()):
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
        for name in self.store.list_files(_OWNER_FOLDER):
            if name < _record_name(self.number):
                self.store.remove_file(name)

    def keep_record_renewed(self, over: threading.Event, stop: threading.Event) -> None:
        """Show signs of life, until ``over``; set ``stop`` where another computer has taken the run over."""
        while not over.wait(files.LEASE_SECONDS / 6):
            with contextlib.suppress(InputError):  # the store is away for a while: the next time
                if self._find_newest_record() != self.number:
                    stop.set()
                    return
                self.renewals += 1
                self.store.write_file(_record_name(self.number), self._write_record())

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
            self.store.write_file(_record_name(self.number), b"{}")

    def _find_newest_record(self) -> int:
        numbers = [PurePosixPath(name).name for name in self.store.list_files(_OWNER_FOLDER)]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def _write_record(self) -> bytes:
        return json.dumps({**self.identity, "renewals": self.renewals}).encode()


def _record_name(number: int) -> str:
    return f"{_OWNER_FOLDER}/{number:08d}"


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
