"""What a reading can be asked for: the one list, for `read_rollouts`, `follow` and every format."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

from rollonce.errors import InputError
from rollonce.prompts import check_column_name
from rollonce.readers.values import describe_record_keys, describe_value_kind, look_up_dotted_key


class ColumnSpec(NamedTuple):
    """A declared column: its name, the key it is read from, and a pattern that cuts a piece out of the value."""

    name: str
    key: str
    pattern: re.Pattern[str] | None

    @classmethod
    def from_declaration(cls, text: str) -> ColumnSpec:
        """``name``, ``name=key`` or ``name=key:regex`` (its first group, or the whole match).

        >>> ColumnSpec.from_declaration("family=task_id:^([^/]+)").key
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

    def read_column_value(self, record: Any, *, task: Any, prompt: Any) -> Any:
        """This column's value of one rollout. ``task_id`` and ``prompt`` fall back to what the format found."""
        value = look_up_dotted_key(record, self.key)
        if value is None:
            value = {"task_id": task, "prompt": prompt}.get(self.key)
        if value is None:
            raise InputError(
                f"no value for the column {self.name!r} (key {self.key!r}); {describe_record_keys(record)}"
            )
        if self.pattern is not None:
            match = self.pattern.search(str(value))
            if match is None:
                raise InputError(
                    f"the column {self.name!r}: {self.pattern.pattern!r} matches nothing in {str(value)[:80]!r}"
                )
            return match.group(1) if self.pattern.groups else match.group(0)
        if isinstance(value, Decimal):  # databases give numbers so
            return float(value)
        if not isinstance(value, str | int | float | bool):
            raise InputError(f"the column {self.name!r} must hold text or numbers, not {describe_value_kind(value)}")
        return value


class ReadOptions(TypedDict, total=False):
    """The keywords that `read_rollouts` and `follow` share; `read_rollouts` says what each does."""

    format: str | None
    prompt_key: str | None
    task_key: str | None
    reward_key: str | None
    rollout_key: str | None
    length_key: str | None
    step_key: str | None
    rows_key: str | None
    log_prob_key: str | None
    columns: Sequence[str]
    reward: str | None
    join: str | os.PathLike[str] | None
    split: str | None
    filter: str | None
    skip_bad_rows: bool
    max_prompt_chars: int


@dataclass(frozen=True)
class Options:
    """`ReadOptions` as the formats read them: defaults filled in, columns parsed."""

    format: str | None = None
    prompt_key: str | None = None
    task_key: str | None = None
    reward_key: str | None = None
    rollout_key: str | None = None
    length_key: str | None = None
    step_key: str | None = None
    rows_key: str | None = None
    log_prob_key: str | None = None
    columns: tuple[ColumnSpec, ...] = ()
    reward: str | None = None
    join: str | os.PathLike[str] | None = None
    split: str | None = None
    filter: str | None = None
    skip_bad_rows: bool = False
    max_prompt_chars: int = 1_000_000

    @classmethod
    def from_keywords(cls, keywords: ReadOptions) -> Options:
        """The options of a call.

        Raises:
            InputError: for a column that cannot be parsed.
        """
        columns = tuple(map(ColumnSpec.from_declaration, keywords.get("columns", ())))
        return cls(**(keywords | {"columns": columns}))  # pyright: ignore[reportArgumentType]

    @property
    def forced_format_name(self) -> str | None:
        """The format that the files are read as, whatever they look like: naming the key of the prompt, the
        reward or the rows says that they are the user's own."""
        return self.format or ("generic" if self.prompt_key or self.reward_key or self.rows_key else None)
