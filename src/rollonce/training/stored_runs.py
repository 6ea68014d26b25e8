"""A comparison whose results lie in an object store, while each of its runs works in a scratch directory.

Nothing can be added to an object, but an object is there whole or not at all. A run's files are put in an order of
which every beginning is a state to go on from: logs before the checkpoint that they lead up to, the result when all
else is there. Who may put them: `rollonce.training.run_owner`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rollonce.errors import InputError
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
from rollonce.training.object_store import ObjectStore, is_store_url
from rollonce.training.run_owner import own_stored_run

_FILES_OF_PROGRESS = (PLAN_FILE, COST_FILE, CONFIG_FILE, RESULT_FILE)
_FILES_OF_REPORT = (PLAN_FILE, CONFIG_FILE, METRICS_FILE, RESULT_FILE)
_TOKEN_FOLDER = ".seen-by-every-node"


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
        with _make_scratch() as scratch, own_stored_run(store, stop, patience) as owner:
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
