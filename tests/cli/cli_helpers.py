"""Small logs for the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

QUICK = ["--batches", "10", "--resamples", "4", "--window", "4", "-B", "4"]


class Ran(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str


def rows(n_tasks: int = 8, group: int = 3, **more: Any) -> list[dict[str, Any]]:
    """Rewards of 0 and 1 that differ over tasks and within them."""
    return [
        {
            "task_id": f"t{t}",
            "prompt": f"what is {t} and {t * 7}? " + "word " * t,
            "reward": float((t + g * (1 + t % 2)) % 3 > 0),
        }
        | more
        for t in range(n_tasks)
        for g in range(group)
    ]


def write(path: Path, records: Iterable[Any]) -> Path:
    """JSON Lines; text is written as it is."""
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path
