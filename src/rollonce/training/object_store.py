"""What an object store (S3, GCS, Azure: whatever fsspec has a URL for) has under a URL, and what is put there."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from rollonce.errors import InputError, MissingExtraError


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
