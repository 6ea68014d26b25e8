"""Values of rows: found by key, named in messages, and as the table keeps them (ids as text, numbers as arrays)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollonce.errors import InputError

NUMBERS = frozenset({float, int, bool})


class CloserLook(Exception):
    """A block has something in it that wants a closer look."""


def make_column_array(values: Sequence[Any]) -> NDArray[Any]:
    """A column as numbers where all are numbers, else as text."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return np.array(values, dtype=np.float64)
    return np.array([str(v) for v in values], dtype=object)


def convert_id_to_text(value: Any) -> str:
    """A task or rollout id as text: 1, "1" and 1.0 are the same id.

    >>> convert_id_to_text(1), convert_id_to_text("1"), convert_id_to_text(1.0)
    ('1', '1', '1')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float) or (isinstance(value, np.number) and np.isscalar(value)):
        return str(value)
    raise InputError(f"the task id is {describe_value_kind(value)}; it must be text or a number")


def make_id_from_prompt(prompt: str) -> str:
    """The id of a task that has none: the same in every file, made of its prompt's text."""
    return "prompt-" + hashlib.sha1(prompt.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:12]


def make_float_array(values: list[Any]) -> NDArray[np.float64]:
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [math.nan if v is None else v for v in values]
        kinds.discard(type(None))
    if kinds - NUMBERS:
        raise CloserLook
    return np.array(values, dtype=np.float64)


def make_integer_arrays(values: list[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    kinds = set(map(type, values))
    if kinds == {int}:
        return np.array(values, dtype=np.int64), np.ones(len(values), dtype=bool)
    if kinds == {type(None)}:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    if kinds == {int, type(None)}:
        return np.array([v or 0 for v in values], dtype=np.int64), np.array([v is not None for v in values])
    raise CloserLook


def look_up_dotted_key(record: Any, key: str) -> Any:
    """``record[key]``; failing that, a path like ``info.id`` or ``turns.0.content``. None where nothing is there."""
    if isinstance(record, Mapping) and key in record:
        return record[key]
    if "." not in key:
        return None
    for part in key.split("."):
        if isinstance(record, Mapping):
            record = record.get(part)
        elif isinstance(record, list) and part.isdigit() and int(part) < len(record):
            record = record[int(part)]
        else:
            return None
    return record


def describe_record_keys(record: Any) -> str:
    """The keys of a record, for an error message."""
    if not isinstance(record, Mapping):
        return f"it is {describe_value_kind(record)}, not an object with keys"
    keys = [str(k)[:40] for k in record]
    return "it has " + (
        ", ".join(keys[:20]) + (f" and {len(keys) - 20} more" if len(keys) > 20 else "") or "no keys at all"
    )


def describe_value_kind(value: Any) -> str:
    """What a value is, in words for an error message."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value!r:.40}"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"
