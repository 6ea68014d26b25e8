"""A Ray cluster as everything here meets it: how to be connected with it, and what a node has to be before it may work.

What a node does is written as a function inside a function, so that it travels whole, and a node without the package
can say so.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollonce.errors import InputError, MissingExtraError

_VERSION = importlib.metadata.version("rollonce")
_SECONDS_TO_ANSWER = 5.0
_TOKEN_FILE = ".seen-by-every-node"


def connect_to_ray_cluster(address: str | None) -> Any:
    """The module ``ray``, connected to a cluster.

    Args:
        address: ``HOST:PORT`` or ``ray://HOST:PORT``; None: ``RAY_ADDRESS``, or the cluster that runs on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: nobody answers there, or the cluster has no CPU for a task.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("--ray", "ray", "ray") from error
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    if address != "auto":  # Ray itself would try for minutes
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
        except (OSError, ValueError, OverflowError) as error:
            raise InputError(
                f"no Ray cluster can be reached at {address!r} ({error}); give HOST:PORT as `ray start` says"
            ) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray has many kinds of them
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            "no Ray cluster runs on this machine; start one with `ray start --head`, or give --ray HOST:PORT"
            if address == "auto"
            else f"the Ray cluster at {address!r} cannot be used: {reason}"
        ) from None
    if ray.cluster_resources().get("CPU", 0) < 1:
        ray.shutdown()
        raise InputError("each task asks for a CPU, but no node of the Ray cluster has one")
    return ray


@contextlib.contextmanager
def write_shared_token(directory: Path) -> Iterator[str]:
    """Something that only those read who see this very directory, while inside."""
    token = secrets.token_hex(8)
    (directory / _TOKEN_FILE).write_text(token, encoding="utf-8")
    try:
        yield token
    finally:
        with contextlib.suppress(OSError):
            (directory / _TOKEN_FILE).unlink()


def make_node_check(directory: Path | None = None, token: str = "") -> Callable[[], str | None]:
    """A function for a node: why it cannot work, in a sentence that names it; None if it can."""
    version, token_file = _VERSION, None if directory is None else str(directory / _TOKEN_FILE)

    def find_refusal_reason() -> str | None:
        import importlib.metadata
        import socket
        from pathlib import Path

        node = socket.gethostname()
        try:
            version_here = importlib.metadata.version("rollonce")
        except ImportError:
            return f"node {node} has no rollonce; install version {version} there"
        if version_here != version:
            return f"node {node} has rollonce {version_here} and this machine {version}; install the same on both"
        if token_file is None:
            return None
        seen = Path(token_file)
        if not seen.exists() or seen.read_text(encoding="utf-8") != token:
            return (
                f"node {node} does not see {seen.parent} as this machine does; choose a directory that all nodes share"
            )
        return None

    return find_refusal_reason


def describe_ray_error(error: Exception) -> str:
    """What Ray says of a task that it gave up, in a few words."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
