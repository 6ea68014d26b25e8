"""A log that is still being written, row by row."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from rollonce.errors import InputError
from rollonce.readers.base import Format, RowMerger
from rollonce.readers.jsonl import BLOCK_BYTES, parse_json_line, parse_line_block
from rollonce.readers.options import Options, ReadOptions
from rollonce.readers.paths import PathLike, expand_to_files
from rollonce.readers.probe import Probe, probe_file_content
from rollonce.readers.registry import find_format_by_name, recognise_format
from rollonce.readers.table import TableBuilder

_NOT_YET = ("the file is empty", "no such file", "no file matches", "nothing readable")


class Rows(NamedTuple):
    """Some new rollouts of a log, in the order of the log.

    Attributes:
        prompts: B prompts as text.
        task_ids: B ids.
        rewards_B: Rewards (B,).
        lengths_B: Response lengths, NaN where unknown (B,).
        log_probs_B: Log-probabilities of the responses, summed over their tokens, NaN where unknown (B,).
        steps_B: Training steps, or None where the log has none (B,). A step may go on in the next block.
        order_B: Position in the stream (B,).
        columns: Declared columns, each of B values.
        file: The file that they are from.
    """

    prompts: list[str]
    task_ids: list[str]
    rewards_B: NDArray[np.float64]
    lengths_B: NDArray[np.float64]
    log_probs_B: NDArray[np.float64]
    steps_B: NDArray[np.int64] | None
    order_B: NDArray[np.int64]
    columns: dict[str, list[Any]]
    file: str


def follow(
    path: PathLike, *, poll: float = 1.0, stop: Callable[[], bool] | None = None, **options: Unpack[ReadOptions]
) -> Iterator[Rows]:
    """Read a JSON Lines log from its beginning and then whatever is appended to it.

    A last line without its newline is held back until the newline comes (or until ``stop``, when it is read if it is
    whole). The path may be a file, or a directory or glob in which files keep appearing (verl and prime-rl write one
    per step); it need not exist yet.

    Args:
        path: What to follow.
        poll: Seconds to wait when there is nothing new.
        stop: Asked whenever there is nothing new; True ends the stream after what is there has been read. None: go on
            for ever.
        options: Those of `read_rollouts`; copies of a rollout are not looked for.

    Yields:
        `Rows`, at most a few hundred kilobytes of log at a time.

    Raises:
        InputError: for what `read_rollouts` would raise for, for a format that is no JSON Lines, for gzip, and if a
            file shrinks.
    """
    stream = _Stream(Options.from_keywords(options))
    while True:
        last = stop is not None and stop()
        yield from stream.read_new_rollouts(path, last)
        if last:
            return
        time.sleep(poll)


class _Stream:
    """What has been read so far of which file."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.format = find_format_by_name(options.forced_format_name) if options.forced_format_name else None
        self.reader: Format | None = None
        self.builder = TableBuilder(skip_bad_rows=options.skip_bad_rows, max_prompt_chars=options.max_prompt_chars)
        self.tails: dict[Path, _Tail] = {}
        self.order = 0

    def read_new_rollouts(self, path: PathLike, last: bool) -> Iterator[Rows]:
        try:
            files = expand_to_files(path)[1]
        except InputError as error:
            if not last and any(error.message.startswith(s) for s in _NOT_YET):
                return
            raise
        for i, file in enumerate(files):
            tail = self.tails.get(file)
            if tail is None:
                tail = self._open_followed_file(file, last)
                if tail is None:
                    continue
                self.tails[file] = tail
            # A later file means that this one is finished: trainers write them one after the other.
            finish = last or i + 1 < len(files)
            if not (tail.finished and file.stat().st_size == tail.offset):
                yield from self._read_appended_rows(tail, finish)
            tail.finished = finish

    def _open_followed_file(self, file: Path, last: bool) -> _Tail | None:
        probe = probe_file_content(file)
        known = self.format or recognise_format(probe)
        if probe.problem is not None or known is None or probe.record is None:
            if probe.problem is not None and "empty" not in probe.problem:
                raise InputError(probe.problem, file=file)
            if probe.problem is None and probe.record is not None:
                raise InputError("no known format; force one with format= (--format)", file=file)
            if last and probe.problem is None:
                raise InputError("no whole row of a known format in it", file=file)
            return None  # nothing in it yet, or not yet a whole first line
        if self.reader is None:
            self.reader = known(self.options)
        if known is not type(self.reader):
            raise InputError(f"this file is {known.name}, the ones before are {self.reader.name}", file=file)
        with open(file, "rb") as f:
            if not known.streams or f.read(2) == b"\x1f\x8b" or probe.kind not in ("jsonl", "json"):
                raise InputError(
                    f"only JSON Lines can be followed, not {known.name} as {probe.kind or 'gzip'}; read it when it is "
                    "written",
                    file=file,
                )
        probe.forget_document()
        return _Tail(probe, self.reader)

    def _read_appended_rows(self, tail: _Tail, finish: bool) -> Iterator[Rows]:
        reader, file = tail.reader, str(tail.probe.path)
        reader.prepare_for_file(tail.probe)
        for first_line, n, block in tail.read_new_line_blocks(finish):
            lines, records = tail.merger.merge_record_block(
                *parse_line_block(block, first_line, n, file, self.builder.reject_bad_row)
            )
            yield from self._convert_new_records(reader, file, lines, records)
        if finish:
            yield from self._convert_new_records(reader, file, *tail.merger.flush_held_record())

    def _convert_new_records(
        self, reader: Format, file: str, lines: Sequence[int], records: list[Any]
    ) -> Iterator[Rows]:
        self.builder.add_rollout_block(reader.build_rollout_block(file, lines, records, self.builder.reject_bad_row))
        taken = self.builder.take_added_rows()
        if taken is None:
            return
        codes, rewards, lengths, log_probs, steps = taken
        order = np.arange(self.order, self.order + len(codes))
        self.order += len(codes)
        prompts, ids, columns = self.builder.select_task_fields(codes)
        yield Rows(prompts, ids, rewards, lengths, log_probs, steps, order, columns, file)


class _Tail:
    """A file's new whole lines."""

    def __init__(self, probe: Probe, reader: Format) -> None:
        self.probe, self.reader = probe, reader
        self.offset, self.line, self.finished = 0, 1, False
        self.merger = RowMerger(reader)

    def read_new_line_blocks(self, finish: bool) -> Iterator[tuple[int, int, bytes]]:
        size = os.stat(self.probe.path).st_size
        if size < self.offset:
            raise InputError(
                f"the file shrank from {self.offset:,} to {size:,} bytes while it was followed", file=self.probe.path
            )
        with open(self.probe.path, "rb") as f:
            f.seek(self.offset)
            rest = b""
            while chunk := f.read(BLOCK_BYTES):
                if self.offset == 0:
                    bom = len(chunk) - len(chunk.removeprefix(b"\xef\xbb\xbf"))
                    chunk, self.offset = chunk[bom:], bom
                cut = chunk.rfind(b"\n") + 1
                if not cut:
                    rest += chunk
                    continue
                block, rest = rest + chunk[:cut], chunk[cut:]
                yield self._advance_position(block, block.count(b"\n"))
            if finish and rest.strip():
                try:
                    parse_json_line(rest)
                except InputError:
                    return  # cut off in the middle; if its writer lives, the rest will come
                yield self._advance_position(rest, 1)

    def _advance_position(self, block: bytes, n: int) -> tuple[int, int, bytes]:
        first, self.line = self.line, self.line + n
        self.offset += len(block)
        return first, n, block
