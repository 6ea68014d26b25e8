"""Fields of a log that look like columns known before the rollout and were not asked for, to be named to the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollonce.readers.options import Options
from rollonce.readers.values import look_up_dotted_key

_NAMES = (
    *("family", "level", "difficulty", "category", "subcategory", "subject", "topic", "domain", "skill", "tag"),
    *("source", "data_source", "dataset", "dataset_name", "benchmark", "task_type", "problem_type", "question_type"),
    *("type", "kind", "language", "lang", "ability", "env", "environment", "env_class", "game", "tier", "year"),
)
_INSIDE = ("", "metadata.", "info.", "extra_info.", "extra.", "doc.", "task.data.", "env_extras.")


def suggest_useful_columns(records: list[Any], options: Options) -> tuple[str, ...]:
    """What ``columns=`` could be given of these records: ``"level"``, or ``"level=metadata.level"`` for one further
    inside. Fields whose values are texts or numbers and not all the same."""
    declared = {column.key for column in options.columns} | {column.name for column in options.columns}
    return tuple(dict.fromkeys(_find_column_candidates(records, declared)))


def _find_column_candidates(records: list[Any], declared: set[str]) -> Iterator[str]:
    rows = [record for record in records if isinstance(record, Mapping)]
    for inside in _INSIDE:
        if not rows or (inside and look_up_dotted_key(rows[0], inside.rstrip(".")) is None):
            continue
        for name in _NAMES:
            if name in declared or look_up_dotted_key(rows[0], inside + name) is None:
                continue
            values = {
                value if isinstance(value, str | int | float) else None
                for value in _read_field_values(rows, inside + name)
            }
            if None not in values and len(values) > 1:
                yield name if not inside else f"{name}={inside}{name}"


def _read_field_values(rows: list[Any], key: str) -> Iterator[Any]:
    for row in rows:
        yield look_up_dotted_key(row, key)
