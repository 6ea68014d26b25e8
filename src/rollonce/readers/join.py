"""Prompts from a second file, for logs that do not hold them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from rollonce.errors import InputError
from rollonce.prompts import render_messages
from rollonce.readers.probe import probe_file_content, read_row_blocks
from rollonce.readers.values import describe_value_kind, look_up_dotted_key

NO_PROMPTS = "none"


class Joined(NamedTuple):
    """What a join file says of one task."""

    prompt: Any
    task: Any


class Join:
    """A join file: rows with ``prompt`` (and maybe ``task_id``) and some of the keys by which the log's rows find
    theirs.

    Args:
        path: JSON Lines (.gz), a JSON list, CSV or parquet.
        keys: The keys that may be used; those that its first row has are.

    Raises:
        InputError: if it cannot be read, has no prompts or none of the keys, or says two things of one key.
    """

    def __init__(self, path: str | os.PathLike[str], keys: tuple[str, ...]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError("no such join file", file=self.path)
        probe = probe_file_content(self.path)
        if probe.problem:
            raise InputError(probe.problem, file=self.path)
        self._table: dict[tuple[str, ...], Joined] = {}
        self.keys: tuple[str, ...] = ()
        for lines, records in read_row_blocks(probe, _raise_input_error):
            for line, record in zip(lines, records, strict=True):
                self._add_join_file_row(line, record, keys)
        if not self._table:
            raise InputError("the join file has no rows", file=self.path)

    def _add_join_file_row(self, line: int, record: Any, keys: tuple[str, ...]) -> None:
        prompt = look_up_dotted_key(record, "prompt") if isinstance(record, dict) else None
        if prompt is None:
            raise InputError(
                f"a row of a join file needs a 'prompt'; this one is {describe_value_kind(record)}",
                file=self.path,
                line=line,
            )
        if isinstance(prompt, list):
            prompt = render_messages(prompt)
        if not self.keys:
            self.keys = tuple(k for k in keys if k in record)
            if not self.keys:
                raise InputError(
                    f"a join file needs one of the keys {', '.join(keys)} beside 'prompt'", file=self.path, line=line
                )
        missing = [k for k in self.keys if k not in record]
        if missing:
            raise InputError(f"no {missing[0]!r} in this row, though the first row has it", file=self.path, line=line)
        key = tuple(_format_join_key(record[k]) for k in self.keys)
        new = Joined(prompt, record.get("task_id"))
        if self._table.setdefault(key, new) != new:
            raise InputError(
                f"two prompts for {', '.join(f'{k}={v}' for k, v in zip(self.keys, key, strict=True))}",
                file=self.path,
                line=line,
            )

    def find_joined_task(self, record: dict[str, Any]) -> Joined:
        """What belongs to a row of the log.

        Raises:
            InputError: if nothing does.
        """
        key = tuple(_format_join_key(record.get(k)) for k in self.keys)
        if key not in self._table:
            what = ", ".join(f"{k}={v}" for k, v in zip(self.keys, key, strict=True))
            raise InputError(f"the join file {self.path} has no prompt for {what}")
        return self._table[key]


def _format_join_key(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _raise_input_error(file: str, line: int | None, message: str) -> None:
    raise InputError(message, file=file, line=line)


__all__ = ["NO_PROMPTS", "Join", "Joined"]
