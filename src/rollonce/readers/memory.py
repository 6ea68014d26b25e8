"""Rows that are in memory already, one rollout per row: data frames, Arrow tables, lists of dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from rollonce.errors import InputError
from rollonce.readers.generic import Generic
from rollonce.readers.options import Options, ReadOptions
from rollonce.readers.probe import Probe
from rollonce.readers.read import RolloutFile, read_rollout_files
from rollonce.rollouts import Rollouts

_CALLED = "the rows given"


def convert_source_to_rows(source: Any) -> list[dict[str, Any]] | None:
    """The rows of a list of dictionaries, a data frame of pandas or polars, an Arrow table, a dataset of the hub, or
    whatever speaks Arrow's C stream; None for anything else."""
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        return [dict(row) for row in source] if all(isinstance(row, Mapping) for row in source) else None
    frame: Any = source
    kind = type(frame).__module__.partition(".")[0]
    if kind == "pandas":
        return frame.astype(object).where(frame.notna(), None).to_dict("records")
    for method in ("to_pylist", "to_dicts", "to_list"):  # Arrow, polars, datasets
        if kind in ("pyarrow", "polars", "datasets") and hasattr(source, method):
            return getattr(source, method)()
    if hasattr(source, "__arrow_c_stream__"):
        import pyarrow as pa

        return pa.table(source).to_pylist()
    return None


def read_rows_in_memory(
    rows: list[dict[str, Any]], *, name: str = "rollouts", **options: Unpack[ReadOptions]
) -> Rollouts:
    """The table of rows under keys of their own (format ``generic``), as `read_rollouts` reads them from a file.

    Raises:
        InputError: naming the row, as for a file's line.
    """
    wanted = Options.from_keywords(options)
    if wanted.forced_format_name not in (None, Generic.name):
        raise InputError(
            f"rows in memory are of the format 'generic', not {wanted.forced_format_name!r}; give the file"
        )
    probe = Probe(Path(_CALLED), kind="json", record=rows[0], _document=rows)
    return read_rollout_files([RolloutFile(probe, Generic)], wanted, name=name, source=_CALLED)
