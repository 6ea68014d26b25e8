"""What every reader shares: a row, a block of rows, and the class that a format is.

A *format* is one file with one class that knows one writer: `Format.is_file_of_format` recognises its files by looking
at them, `Format.parse_rollout_rows` turns one record into rollouts. Reading lines, checking values, skipping bad rows
and grouping into tasks happen once, outside the formats (``jsonl.py``, ``table.py``, ``read.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from rollonce.errors import InputError
from rollonce.readers.jsonl import Reject, Tell, read_json_blocks
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe
from rollonce.readers.values import describe_record_keys, look_up_dotted_key


class Row(NamedTuple):
    """One rollout as a format gives it, unchecked. ``task=None`` groups by the prompt's text; ``log_prob`` is a number
    (the sum over the response's tokens) or a list with one number per token, ``length`` the number of tokens."""

    prompt: Any
    reward: Any
    task: Any = None
    rollout: Any = None
    length: Any = None
    step: Any = None
    log_prob: Any = None


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
    log_probs: list[Any] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)


class Format(ABC):
    """One writer's files. The class knows how to recognise them; an instance reads the files of one reading, and keeps
    between rows and files what it needs to know (guessed keys, a join table, the header of a run).

    Attributes:
        name: What ``format=`` takes.
        uses: Which of the options ``reward``, ``join``, ``split``, ``filter`` and ``rows_key`` it heeds; the others are
            refused.
        streams: Whether the file is JSON Lines that grow row by row, so that `follow` can read it.
        whole_file: Whether each file is a whole evaluation, a table of its own; the files of the others are written by
            one training run (one per step) or are shards of one table.
        options: What the reading was asked for.
        n_filtered: Rows left out by ``split`` or ``filter`` so far.
        splits: The splits that those rows were of.
        unused_columns: Fields that look like columns and were not declared.
    """

    name: ClassVar[str] = ""
    uses: ClassVar[frozenset[str]] = frozenset()
    streams: ClassVar[bool] = True
    whole_file: ClassVar[bool] = False

    def __init__(self, options: Options) -> None:
        self.options = options
        self.n_filtered = 0
        self.splits: set[str] = set()
        self.unused_columns: tuple[str, ...] = ()
        for option in ("reward", "join", "split", "filter", "rows_key"):
            if getattr(options, option) is not None and option not in self.uses:
                flag = f"--{option.replace('_', '-')}"
                raise InputError(
                    f"{option}={str(getattr(options, option))!r} ({flag}) does nothing for files of the format "
                    f"{self.name!r}; leave it out"
                )

    @classmethod
    @abstractmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """Whether this file is one of ours, by what is in it."""

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        """The name of the policy that a file's rollouts were sampled from, if the file or its place says it."""
        return None

    def prepare_for_file(self, probe: Probe) -> None:  # noqa: B027 - optional: most formats need nothing
        """Called before the rows of each file, for what a format needs to know of the file as a whole."""

    def read_record_blocks(
        self, probe: Probe, reject: Reject, tell: Tell | None = None
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Blocks of (line numbers, records) of a file; JSON Lines unless overridden."""
        return read_json_blocks(probe.path, reject, tell)

    def find_shared_rollout_key(self, record: Any) -> str | None:
        """For logs that write one rollout as several rows in a row: what its rows have in common. None: each row stands
        for itself."""
        return None

    def merge_rollout_rows(self, first: Any, last: Any) -> Any:
        """One record out of a rollout's first and last row."""
        return last

    def read_named_reward(self, record: Any, own_key: str) -> Any:
        """The reward under the key that ``reward=`` names, or else under the format's own."""
        key = self.options.reward or own_key
        value = look_up_dotted_key(record, key)
        if value is None and not (isinstance(record, dict) and key in record):
            raise InputError(f"no reward {key!r} (--reward) in this row; {describe_record_keys(record)}")
        return value

    @abstractmethod
    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        """The rollouts of one record (none, if it is no rollout, or filtered out).

        Raises:
            InputError: if the record is not what this format writes.
        """

    def build_rollout_block(self, file: str, lines: Sequence[int], records: list[Any], reject: Reject) -> Block:
        """The rollouts of many records, each through `rows`; bad ones go to ``reject``."""
        options = self.options
        out = Block(file, [], [], [], [], [], [], [], [], {c.name: [] for c in options.columns})
        fields = (out.prompts, out.rewards, out.tasks, out.rollouts, out.lengths, out.steps, out.log_probs)
        named_keys = any(getattr(options, key) is not None for key in _NAMED_KEYS.values())
        assert isinstance(out.lines, list)
        for line, record in zip(lines, records, strict=True):
            try:
                for row in self.parse_rollout_rows(record):
                    if named_keys:
                        row = _replace_named_fields(row, record, options)
                    values = [c.read_column_value(record, task=row.task, prompt=row.prompt) for c in options.columns]
                    out.lines.append(line)
                    for target, value in zip(fields, row, strict=True):
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
                    f"{describe_record_keys(record)}",
                )
        return out


class RowMerger:
    """Makes one record of the rows that are one rollout; it holds the last one back, as the next block may go on with
    it."""

    def __init__(self, reader: Format) -> None:
        self._reader = reader
        self._held: tuple[int, Any, str] | None = None
        self._needed = type(reader).find_shared_rollout_key is not Format.find_shared_rollout_key

    def merge_record_block(self, lines: Sequence[int], records: list[Any]) -> tuple[Sequence[int], list[Any]]:
        """A block in, the records that are whole out."""
        if not self._needed:
            return lines, records
        out_lines: list[int] = []
        out: list[Any] = []
        for line, record in zip(lines, records, strict=True):
            key = self._reader.find_shared_rollout_key(record)
            if self._held is not None:
                if key == self._held[2]:
                    self._held = (self._held[0], self._reader.merge_rollout_rows(self._held[1], record), self._held[2])
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

    def flush_held_record(self) -> tuple[Sequence[int], list[Any]]:
        held, self._held = self._held, None
        return ([], []) if held is None else ([held[0]], [held[1]])


_NAMED_KEYS = {
    "task": "task_key",
    "rollout": "rollout_key",
    "length": "length_key",
    "step": "step_key",
    "log_prob": "log_prob_key",
}


def _replace_named_fields(row: Row, record: Any, options: Options) -> Row:
    """A format's row with the keys that the user named put in place of the format's own."""
    for name, option in _NAMED_KEYS.items():
        key = getattr(options, option)
        if key is None:
            continue
        if key == "":  # an empty key says: this log has none
            row = row._replace(**{name: None})
            continue
        value = look_up_dotted_key(record, key)
        if value is None and name not in ("length", "log_prob"):
            raise InputError(f"no key {key!r} in this row; {describe_record_keys(record)}")
        row = row._replace(**{name: value})
    return row
