"""Anyone's own rollouts: JSON Lines, one JSON list, CSV or parquet, one rollout a row, under keys that can be named.

Keys that are not named are looked for under the usual names below; what is found in the first file holds for all of
them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Block, Format, Options, Reject, Row, keys_of, kind_of, lookup
from rollonce.readers.jsonl import json_blocks, read_chunks
from rollonce.readers.probe import Probe, probe

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
    ),
    "step": ("step", "training_step", "train_step", "global_step", "iteration"),
}
_FLAGS = {"prompt": "--prompt-key", "reward": "--reward-key"}
_BATCH = 16_384


class Generic(Format):
    """JSON Lines, a JSON list, CSV or parquet with one rollout a row."""

    name = "generic"
    what = "JSON Lines (.gz), one JSON list, CSV or parquet: one rollout a row, keys named or guessed"

    def sniff(self, probe: Probe) -> bool:
        """A row with something like a prompt and something like a reward."""
        return isinstance(probe.record, dict) and all(
            any(k in probe.record for k in USUAL[w]) for w in ("prompt", "reward")
        )

    def records(self, path: Path, options: Options, reject: Reject) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Blocks of rows of the file, whichever of the four kinds it is."""
        look = options.state.get("probe") or probe(path)
        if look.kind == "parquet":
            return parquet_blocks(path)
        if look.kind == "csv":
            return csv_blocks(path, reject)
        if look.kind == "json":
            rows = look.document if isinstance(look.document, list) else [look.document]
            return iter([(range(1, len(rows) + 1), rows)])
        return json_blocks(path, reject, options.state.get("tell"))

    def rows(self, record: Any, options: Options) -> Iterable[Row]:
        """One record's rollout."""
        keys = self.keys(record, options)
        values: dict[str, Any] = {}
        for what, key in keys.items():
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
        yield Row(
            values["prompt"],
            values["reward"],
            values.get("task"),
            values.get("rollout"),
            values.get("length"),
            values.get("step"),
        )

    def keys(self, record: Any, options: Options) -> dict[str, str]:
        """Which key holds what: named by the user, else guessed once from the first row.

        Raises:
            InputError: if there is no usual name for the prompt or the reward, saying which keys there are.
        """
        if "keys" in options.state:
            return options.state["keys"]
        if not isinstance(record, dict):
            raise InputError(f"a row must be an object with keys, not {kind_of(record)}")
        keys: dict[str, str] = {}
        for what, usual in USUAL.items():
            named = getattr(options, f"{what}_key")
            if named is None and what == "reward":
                named = options.reward
            if named is None:
                named = next((k for k in usual if k in record), None)
            if named is None and what in _FLAGS:
                raise InputError(
                    f"no key for the {what}: none of the usual names ({', '.join(usual)}); {keys_of(record)}. "
                    f"Name it with {what}_key ({_FLAGS[what]})"
                )
            if named:  # '' says: this log has none
                keys[what] = named
        options.state["keys"] = keys
        return keys

    def block(self, file: str, lines: Sequence[int], records: list[Any], options: Options, reject: Reject) -> Block:
        """Many rows at once where their keys are plain; row by row where one lacks a key."""
        dotted = any("." in k for k in options.state.get("keys", {}).values())
        if dotted or any(c.pattern or c.key in ("task_id", "prompt") for c in options.columns):
            return super().block(file, lines, records, options, reject)
        try:
            keys = self.keys(next(r for r in records if isinstance(r, dict)), options)
        except (InputError, StopIteration):
            return super().block(file, lines, records, options, reject)
        need = {w: k for w, k in keys.items() if w in ("prompt", "reward", "task")}
        try:
            got = {w: list(map(itemgetter(k), records)) for w, k in need.items()}
            columns = {c.name: list(map(itemgetter(c.key), records)) for c in options.columns}
        except (KeyError, TypeError, IndexError):
            return super().block(file, lines, records, options, reject)
        if any({type(v) for v in values} - {str, int, float, bool} for values in columns.values()) or None in got.get(
            "task", ()
        ):
            return super().block(file, lines, records, options, reject)
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
            columns,
        )


def _each(records: list[Any], key: str) -> list[Any]:
    try:
        return list(map(itemgetter(key), records))
    except KeyError:
        return [r.get(key) for r in records]


def csv_header(line: str) -> list[str]:
    """The names in the first line of a CSV (or tab-separated) file."""
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter_of(line)), [])
    except csv.Error:
        return []


def delimiter_of(line: str) -> str:
    """Tab if the header has tabs and no commas, then semicolon likewise, else comma."""
    if "," in line:
        return ","
    return "\t" if "\t" in line else ";" if ";" in line else ","


def csv_blocks(path: Path, reject: Reject) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Blocks of (line numbers, rows as objects) of a CSV file with a header."""
    csv.field_size_limit(1 << 30)
    text = _decoded(path)
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter_of(text.partition("\n")[0]), strict=True)
    try:
        header = next(reader)
    except (StopIteration, csv.Error) as error:
        raise InputError(f"not CSV ({error})", file=path, line=1) from None
    numbers: list[int] = []
    rows: list[Any] = []
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            reject(str(path), line, f"not CSV ({error})")
            continue
        if not values:
            continue
        if len(values) != len(header):
            reject(str(path), line, f"{len(values)} fields where the header has {len(header)}")
            continue
        numbers.append(line)
        rows.append(dict(zip(header, values, strict=True)))
        if len(rows) == _BATCH:
            yield numbers, rows
            numbers, rows = [], []
    yield numbers, rows


def _decoded(path: Path) -> str:
    data = b"".join(read_chunks(path)).removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"not UTF-8: byte {error.start + 1} of the file is 0x{data[error.start]:02x}; save it as UTF-8 (iconv -f "
            "LATIN1 -t UTF-8)",
            file=path,
            line=line,
        ) from None


def parquet_blocks(path: Path) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Blocks of (row numbers from 1, rows as objects) of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 1
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                records = batch.to_pylist()
                yield range(row, row + len(records)), records
                row += len(records)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"a damaged parquet file ({str(error).splitlines()[0][:160]})", file=path, line=row) from None
