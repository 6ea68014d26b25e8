"""What every reader shares: a row, a block of rows, the options, and the class that a format is.

A *format* is one file that knows one writer: `sniff` recognises its files by looking at them, `rows` turns one record
into rollouts. Reading lines, checking values, skipping bad rows and grouping into tasks happen once, outside the
formats (``jsonl.py``, ``table.py``, ``read.py``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rollonce.errors import InputError
from rollonce.rollouts import check_column_name

if TYPE_CHECKING:
    from rollonce.readers.probe import Probe

Reject = Callable[[str, int | None, str], None]
"""``reject(file, line, message)``: raises `InputError`, or notes the row and returns when bad rows are skipped."""


Tell = Callable[[int], None]
"""``tell(position)``: how many bytes of the file have been read, for a progress bar."""


class Row(NamedTuple):
    """One rollout as a format gives it, unchecked. ``task=None`` groups by the prompt's text."""

    prompt: Any
    reward: Any
    task: Any = None
    rollout: Any = None
    length: Any = None
    step: Any = None


@dataclass(slots=True)
class Block:
    """Rows of one file, column by column (each list R long, or None where no row has it)."""

    file: str
    lines: Sequence[int]
    prompts: list[Any]
    rewards: list[Any]
    tasks: list[Any] | None = None
    rollouts: list[Any] | None = None
    lengths: list[Any] | None = None
    steps: list[Any] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)


class ColumnSpec(NamedTuple):
    """A declared column: its name, the key it is read from, and a pattern that cuts a piece out of the value."""

    name: str
    key: str
    pattern: re.Pattern[str] | None

    @classmethod
    def parse(cls, text: str) -> ColumnSpec:
        """``name``, ``name=key`` or ``name=key:regex`` (its first group, or the whole match).

        >>> ColumnSpec.parse("family=task_id:^([^/]+)").key
        'task_id'
        """
        name, equals, rest = text.partition("=")
        key, colon, pattern = rest.partition(":")
        name = name.strip()
        key = key.strip() if equals else name
        if not name or not key or (colon and not pattern):
            raise InputError(f"column {text!r} should be NAME, NAME=KEY or NAME=KEY:REGEX")
        try:
            return cls(check_column_name(name), key, re.compile(pattern) if colon else None)
        except re.error as error:
            raise InputError(f"column {text!r}: the pattern is not a regular expression ({error})") from None

    def value(self, record: Any, row: Row) -> Any:
        """This column's value of one rollout. ``task_id`` and ``prompt`` fall back to what the format found."""
        value = lookup(record, self.key)
        if value is None:
            value = {"task_id": row.task, "prompt": row.prompt}.get(self.key)
        if value is None:
            raise InputError(f"no value for the column {self.name!r} (key {self.key!r}); {keys_of(record)}")
        if self.pattern is not None:
            match = self.pattern.search(str(value))
            if match is None:
                raise InputError(
                    f"the column {self.name!r}: {self.pattern.pattern!r} matches nothing in {str(value)[:80]!r}"
                )
            return match.group(1) if self.pattern.groups else match.group(0)
        if not isinstance(value, str | int | float | bool):
            raise InputError(f"the column {self.name!r} must hold text or numbers, not {kind_of(value)}")
        return value


@dataclass
class Options:
    """What `read_rollouts` was asked for; formats read the fields that concern them."""

    prompt_key: str | None = None
    task_key: str | None = None
    reward_key: str | None = None
    rollout_key: str | None = None
    length_key: str | None = None
    step_key: str | None = None
    columns: tuple[ColumnSpec, ...] = ()
    reward: str | None = None
    join: Any = None
    split: str | None = None
    filter: str | None = None
    #: Kept by a format between the rows of one reading (guessed keys, a join table, the header of a run).
    state: dict[str, Any] = field(default_factory=dict)


class Format(ABC):
    """One writer's files.

    Attributes:
        name: What ``format=`` takes.
        what: One line for the table of formats.
        streams: Whether the file is JSON Lines that grow row by row, so that `follow` can read it.
    """

    name: str = ""
    what: str = ""
    streams: bool = True

    @abstractmethod
    def sniff(self, probe: Probe) -> bool:
        """Whether this file is one of ours, by what is in it."""

    def records(self, path: Path, options: Options, reject: Reject) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Blocks of (line numbers, records) of a file; JSON Lines unless overridden."""
        from rollonce.readers.jsonl import json_blocks

        return json_blocks(path, reject, options.state.get("tell"))

    def start(self, path: Path, options: Options) -> None:  # noqa: B027 - optional: most formats need nothing
        """Called before the rows of each file: what a format needs to know of the file as a whole goes into
        ``options.state``."""

    def same_rollout(self, record: Any) -> str | None:
        """For logs that write one rollout as several rows in a row: what its rows have in common. None: each row stands
        for itself."""
        return None

    def merge(self, first: Any, last: Any) -> Any:
        """One record out of a rollout's first and last row."""
        return last

    @abstractmethod
    def rows(self, record: Any, options: Options) -> Iterable[Row]:
        """The rollouts of one record (none, if it is no rollout, or filtered out).

        Raises:
            InputError: if the record is not what this format writes.
        """

    def block(self, file: str, lines: Sequence[int], records: list[Any], options: Options, reject: Reject) -> Block:
        """The rollouts of many records, each through `rows`; bad ones go to ``reject``."""
        out = Block(file, [], [], [], [], [], [], [], {c.name: [] for c in options.columns})
        assert isinstance(out.lines, list)
        for line, record in zip(lines, records, strict=True):
            try:
                for row in self.rows(record, options):
                    if options.task_key or options.rollout_key or options.length_key or options.step_key:
                        row = _override(row, record, options)
                    values = [column.value(record, row) for column in options.columns]
                    out.lines.append(line)
                    for target, value in zip(
                        (out.prompts, out.rewards, out.tasks, out.rollouts, out.lengths, out.steps), row, strict=True
                    ):
                        target.append(value)  # pyright: ignore[reportOptionalMemberAccess]
                    for column, value in zip(options.columns, values, strict=True):
                        out.columns[column.name].append(value)
            except InputError as error:
                reject(file, line, error.message)
            except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
                reject(
                    file,
                    line,
                    f"not a row of the format {self.name!r} ({type(error).__name__}: {str(error)[:120]}); "
                    f"{keys_of(record)}",
                )
        return out


class Merger:
    """Makes one record of the rows that are one rollout; it holds the last one back, as the next block may go on with
    it."""

    def __init__(self, reader: Format) -> None:
        self._reader = reader
        self._held: tuple[int, Any, str] | None = None
        self._needed = type(reader).same_rollout is not Format.same_rollout

    def push(self, lines: Sequence[int], records: list[Any]) -> tuple[Sequence[int], list[Any]]:
        """A block in, the records that are whole out."""
        if not self._needed:
            return lines, records
        out_lines: list[int] = []
        out: list[Any] = []
        for line, record in zip(lines, records, strict=True):
            key = self._reader.same_rollout(record)
            if self._held is not None:
                if key == self._held[2]:
                    self._held = (self._held[0], self._reader.merge(self._held[1], record), self._held[2])
                    continue
                out_lines.append(self._held[0])
                out.append(self._held[1])
                self._held = None
            if key is None:
                out_lines.append(line)
                out.append(record)
            else:
                self._held = (line, record, key)
        return out_lines, out

    def flush(self) -> tuple[Sequence[int], list[Any]]:
        """What was held back."""
        held, self._held = self._held, None
        return ([], []) if held is None else ([held[0]], [held[1]])


def _override(row: Row, record: Any, options: Options) -> Row:
    """A format's row with the keys that the user named put in place of the format's own."""
    for name, key in (
        ("task", options.task_key),
        ("rollout", options.rollout_key),
        ("length", options.length_key),
        ("step", options.step_key),
    ):
        if key is None:
            continue
        if key == "":  # an empty key says: this log has none
            row = row._replace(**{name: None})
            continue
        value = lookup(record, key)
        if value is None and name != "length":
            raise InputError(f"no key {key!r} in this row; {keys_of(record)}")
        row = row._replace(**{name: value})
    return row


def lookup(record: Any, key: str) -> Any:
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


def keys_of(record: Any) -> str:
    """The keys of a record, for an error message."""
    if not isinstance(record, Mapping):
        return f"it is {kind_of(record)}, not an object with keys"
    keys = [str(k)[:40] for k in record]
    return "it has " + (
        ", ".join(keys[:20]) + (f" and {len(keys) - 20} more" if len(keys) > 20 else "") or "no keys at all"
    )


def kind_of(value: Any) -> str:
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
