"""CSV (and tab- or semicolon-separated) files and parquet files, as blocks of (row numbers, rows as objects)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.jsonl import Reject, read_file_chunks

_BATCH = 16_384


def parse_csv_header(line: str) -> list[str]:
    """The names in the first line of a CSV (or tab-separated) file."""
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=guess_csv_delimiter(line)), [])
    except csv.Error:
        return []


def guess_csv_delimiter(line: str) -> str:
    """Tab if the header has tabs and no commas, then semicolon likewise, else comma."""
    if "," in line:
        return ","
    return "\t" if "\t" in line else ";" if ";" in line else ","


def read_csv_blocks(path: Path, reject: Reject) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Blocks of (line numbers, rows as objects) of a CSV file with a header."""
    csv.field_size_limit(1 << 30)
    text = _read_decoded_text(path)
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=guess_csv_delimiter(text.partition("\n")[0]), strict=True)
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


def _read_decoded_text(path: Path) -> str:
    data = b"".join(read_file_chunks(path)).removeprefix(b"\xef\xbb\xbf")
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


def read_parquet_blocks(path: Path) -> Iterator[tuple[Sequence[int], list[Any]]]:
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
