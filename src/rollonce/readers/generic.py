"""Anyone's own rollouts: JSON Lines, one JSON list, CSV or parquet, one rollout per row, under keys that can be named.

Keys that are not named are looked for under the usual names below; what is found in the first file holds for all of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Block, Format, Row
from rollonce.readers.jsonl import Reject, Tell, json_blocks
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe
from rollonce.readers.tabular import csv_blocks, parquet_blocks
from rollonce.readers.values import keys_of, kind_of, lookup

# Where a row of one's own keeps the reply of an OpenAI-compatible server (the last is the batch API's).
_REPLIES = ("", "response.", "completion.", "response.body.")

# The usual names, the likeliest first. `id` and `uid` are left out on purpose: as often as not they number the rows.
USUAL: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "input_prompt", "question", "problem", "query", "instruction", "input", "prompt_text"),
    "reward": ("reward", "score", "total_reward", "correct", "is_correct", "passed", "success", "accuracy", "acc"),
    "task": ("task_id", "problem_id", "question_id", "example_id", "prompt_id", "instance_id"),
    "rollout": ("rollout_id", "rollout_idx", "rollout", "repeat", "attempt", "trial", "sample_idx", "sample_index"),
    "length": (
        "response_length",
        "response_len",
        "completion_length",
        "response_tokens",
        "completion_tokens",
        "output_tokens",
        "num_output_tokens",
        *(f"{reply}usage.completion_tokens" for reply in _REPLIES),
    ),
    "step": ("step", "training_step", "train_step", "global_step", "iteration"),
    "log_prob": (
        "log_prob",
        "log_probs",
        "logprob",
        "logprobs",
        "cumulative_logprob",
        "sum_logprob",
        *(f"{reply}choices.0.logprobs" for reply in _REPLIES),
    ),
}
_FLAGS = {"prompt": "--prompt-key", "reward": "--reward-key"}


class Generic(Format):
    """JSON Lines, a JSON list, CSV or parquet with one rollout per row."""

    name = "generic"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._keys: dict[str, str] | None = None

    @classmethod
    def sniff(cls, probe: Probe) -> bool:
        """A row with something like a prompt and something like a reward."""
        return isinstance(probe.record, dict) and all(
            any(k in probe.record for k in USUAL[w]) for w in ("prompt", "reward")
        )

    def records(
        self, probe: Probe, reject: Reject, tell: Tell | None = None
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Blocks of rows of the file, whichever of the four kinds it is."""
        return row_blocks(probe, reject, tell)

    def rows(self, record: Any) -> Iterable[Row]:
        """One record's rollout."""
        values: dict[str, Any] = {}
        for what, key in self.keys(record).items():
            value = lookup(record, key)
            if (
                value is None
                and what in ("prompt", "reward", "task")
                and not (isinstance(record, dict) and key in record)
            ):
                raise InputError(f"no key {key!r} in this row; {keys_of(record)}")
            if value is None and what == "task":
                raise InputError(f"the task id ({key!r}) is null; it must be text or a number")
            values[what] = value
        yield Row(**values)

    def keys(self, record: Any) -> dict[str, str]:
        """Which key holds which field of a row: named by the user, else guessed once from the first row.

        Raises:
            InputError: if there is no usual name for the prompt or the reward, saying which keys there are.
        """
        if self._keys is not None:
            return self._keys
        if not isinstance(record, dict):
            raise InputError(f"a row must be an object with keys, not {kind_of(record)}")
        keys: dict[str, str] = {}
        for what, usual in USUAL.items():
            named = getattr(self.options, f"{what}_key")
            if named is None and what == "reward":
                named = self.options.reward
            if named is None:
                named = next((k for k in usual if k in record or ("." in k and lookup(record, k) is not None)), None)
            if named is None and what in _FLAGS:
                raise InputError(
                    f"no key for the {what}: none of the usual names ({', '.join(usual)}); {keys_of(record)}. "
                    f"Name it with {what}_key ({_FLAGS[what]})"
                )
            if named:  # '' says: this log has none
                keys[what] = named
        self._keys = keys
        return keys

    def block(self, file: str, lines: Sequence[int], records: list[Any], reject: Reject) -> Block:
        """Many rows at once where their keys are plain; row by row where one lacks a key."""
        columns = self.options.columns
        try:
            keys = self.keys(next(r for r in records if isinstance(r, dict)))
        except (InputError, StopIteration):
            return super().block(file, lines, records, reject)
        dotted = any("." in k for k in (*keys.values(), *(c.key for c in columns)))
        if dotted or any(c.pattern or c.key in ("task_id", "prompt") for c in columns):
            return super().block(file, lines, records, reject)
        need = {w: k for w, k in keys.items() if w in ("prompt", "reward", "task")}
        try:
            got = {w: list(map(itemgetter(k), records)) for w, k in need.items()}
            values = {c.name: list(map(itemgetter(c.key), records)) for c in columns}
        except (KeyError, TypeError, IndexError):
            return super().block(file, lines, records, reject)
        if any({type(v) for v in column} - {str, int, float, bool} for column in values.values()) or None in got.get(
            "task", ()
        ):
            return super().block(file, lines, records, reject)
        maybe = {w: _each(records, k) for w, k in keys.items() if w not in need}
        return Block(
            file,
            lines,
            got["prompt"],
            got["reward"],
            got.get("task"),
            maybe.get("rollout"),
            maybe.get("length"),
            maybe.get("step"),
            maybe.get("log_prob"),
            values,
        )


def row_blocks(probe: Probe, reject: Reject, tell: Tell | None = None) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Blocks of (line numbers, records) of a file of rows: JSON Lines, one JSON list, CSV or parquet."""
    if probe.kind == "parquet":
        return parquet_blocks(probe.path)
    if probe.kind == "csv":
        return csv_blocks(probe.path, reject)
    if probe.kind == "json":
        rows = probe.document if isinstance(probe.document, list) else [probe.document]
        return iter([(range(1, len(rows) + 1), rows)])
    return json_blocks(probe.path, reject, tell)


def _each(records: list[Any], key: str) -> list[Any]:
    try:
        return list(map(itemgetter(key), records))
    except KeyError:
        return [r.get(key) for r in records]
