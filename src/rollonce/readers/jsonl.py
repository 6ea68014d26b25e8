"""JSON Lines, fast: a few megabytes of whole lines are parsed at once, and only a block that fails is gone through line
by line.

A raw newline cannot stand inside a JSON string, so replacing newlines by commas turns a block of lines into one JSON
array: one call of orjson instead of one a line. Whatever is odd (blank lines, a bad line, NaN, wrong encoding) makes
that call fail, and the slow path then says what and where.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from rollonce.errors import InputError

Reject = Callable[[str, int | None, str], None]
"""``reject(file, line, message)``: raises `InputError`, or notes the row and returns when bad rows are skipped."""

Tell = Callable[[int], None]
"""``tell(position)``: how many bytes of the file have been read, for a progress bar."""

# Small enough for the records of a block to stay in the processor's cache: twice as fast as 4 MiB.
BLOCK_BYTES = 1 << 18


def open_unpacked_file(path: Path) -> BinaryIO:
    """The file's bytes, unpacked where its first bytes say gzip (whatever its name)."""
    try:
        with open(path, "rb") as f:
            packed = f.read(2) == b"\x1f\x8b"
        return cast("BinaryIO", gzip.open(path, "rb")) if packed else open(path, "rb")
    except OSError as error:
        raise InputError(f"cannot be opened ({error.strerror or error})", file=path) from None


def read_file_chunks(path: Path, size: int = BLOCK_BYTES, tell: Tell | None = None) -> Iterator[bytes]:
    """The file's bytes in pieces; a broken gzip becomes an `InputError` that says how far it read. ``tell`` hears the
    position on disk."""
    done = 0
    with open_unpacked_file(path) as stream:
        while True:
            try:
                chunk = stream.read(size)
            except EOFError:
                raise InputError(
                    f"the gzip file is cut off after {done:,} unpacked bytes; copy or write it again", file=path
                ) from None
            except (gzip.BadGzipFile, zlib.error) as error:
                raise InputError(
                    f"the gzip file is damaged after {done:,} unpacked bytes ({error})", file=path
                ) from None
            except OSError as error:
                raise InputError(f"cannot be read ({error.strerror or error})", file=path) from None
            if not chunk:
                return
            done += len(chunk)
            yield chunk
            if tell is not None:
                packed = getattr(stream, "fileobj", None)  # gzip's file on disk
                tell(done if packed is None else packed.tell())


def read_line_blocks(path: Path, tell: Tell | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Blocks of whole lines with the 1-based number of their first line and how many they are."""
    rest: list[bytes] = []  # the pieces of a line that is not yet whole; lines may be far longer than a chunk
    line, first = 1, True
    for chunk in read_file_chunks(path, tell=tell):
        if first:
            chunk, first = (
                chunk.removeprefix(b"\xef\xbb\xbf"),
                False,
            )  # the byte-order mark that some Windows tools write
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest.append(chunk)
            continue
        block = b"".join((*rest, chunk[:cut]))
        rest = [chunk[cut:]] if cut < len(chunk) else []
        n = block.count(b"\n")
        yield line, n, block
        line += n
    if rest:
        yield line, 1, b"".join(rest)


def read_json_blocks(path: Path, reject: Reject, tell: Tell | None = None) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Blocks of (line numbers, records) of a JSON Lines file; lines that are no JSON go to ``reject``."""
    for first_line, n, block in read_line_blocks(path, tell):
        yield parse_line_block(block, first_line, n, str(path), reject)


def parse_line_block(
    block: bytes, first_line: int, n: int, file: str, reject: Reject
) -> tuple[Sequence[int], list[Any]]:
    """The records of a block of ``n`` whole lines, with their line numbers."""
    body = block[:-1] if block.endswith(b"\n") else block
    try:
        records = orjson.loads(b"[" + body.replace(b"\n", b",") + b"]")
        if len(records) == n:
            return range(first_line, first_line + n), records
    except orjson.JSONDecodeError:
        pass
    lines: list[int] = []
    records = []
    for i, text in enumerate(body.split(b"\n")):
        if not text.strip():
            continue
        try:
            records.append(parse_json_line(text))
            lines.append(first_line + i)
        except InputError as error:
            reject(file, first_line + i, error.message)
    return lines, records


def parse_json_line(text: bytes) -> Any:
    """One line's record.

    Python's own json writes NaN, Infinity and lone surrogates, none of which is JSON; such a line is read all the same,
    so that the message can be about the value (a reward of NaN) and a NaN in some other field costs nothing.

    Raises:
        InputError: if it is no JSON, or no UTF-8, saying at which byte or column.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as bad:
            raise InputError(
                f"not UTF-8: byte {bad.start + 1} of the line is 0x{text[bad.start]:02x}; save the file as UTF-8 "
                "(iconv -f LATIN1 -t UTF-8)"
            ) from None
        try:
            return _without_lone_surrogates(json.loads(decoded))
        except (ValueError, RecursionError):
            shown = decoded.strip()
            shown = shown if len(shown) <= 60 else shown[:60] + "..."
            raise InputError(f"not JSON ({error.msg}): {shown!r}") from None


def _without_lone_surrogates(value: Any) -> Any:
    """Half of a surrogate pair, which no encoder accepts, becomes U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_lone_surrogates(v) for v in value]
    if isinstance(value, dict):
        return {_without_lone_surrogates(k): _without_lone_surrogates(v) for k, v in value.items()}
    return value


def read_json_document(path: Path) -> Any:
    """A file that is one JSON document."""
    data = b"".join(read_file_chunks(path)).removeprefix(b"\xef\xbb\xbf")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            return parse_json_line(data)
        except InputError as bad:
            line = getattr(error, "lineno", 1)
            raise InputError(
                bad.message if "UTF-8" in bad.message else f"not JSON ({error.msg})", file=path, line=line
            ) from None
