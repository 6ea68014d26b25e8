"""Tasks from JSON lines, plain or gzipped: anyone's own prompts and references."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.prompts import normalise_prompt, render_messages
from rollonce.tasks.base import SPLITS, Grader, Task, TaskSet, TaskSplits, split_of
from rollonce.tasks.grading import find_grader_by_name
from rollonce.tasks.source import Source, TaskRequest, choose_all

PROMPT_KEYS = ("prompt", "question", "problem", "input", "messages")
REFERENCE_KEYS = ("reference", "answer", "solution", "target", "expected", "output")


def read_json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, record) of a ``.jsonl`` or ``.jsonl.gz``, blank lines passed over.

    Raises:
        InputError: no such file, no gzip, no UTF-8, or a line that is no JSON object.
    """
    path = Path(path).expanduser()
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        stream = opener(path, "rt", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror or error}", file=path) from error
    number = 0
    with stream:
        try:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise InputError(f"this is no JSON ({error})", file=path, line=number) from error
                if not isinstance(record, dict):
                    raise InputError(f"a task is a JSON object, not {type(record).__name__}", file=path, line=number)
                yield number, record
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"cannot be read after this line: {error}", file=path, line=number) from error


def _find_record_key(record: dict[str, Any], keys: Sequence[str], what: str, path: str | Path, line: int) -> str:
    for key in keys:
        if key in record:
            return key
    raise InputError(
        f"no {what}: none of the keys {', '.join(keys)} among {', '.join(record) or 'none'}", file=path, line=line
    )


def load_jsonl_tasks(
    path: str | Path,
    *,
    grader: str | Grader = "exact",
    columns: Sequence[str] = (),
    prompt_key: str | None = None,
    reference_key: str | None = None,
) -> TaskSet:
    """One task a line; a prompt that occurs again (after `normalise_prompt`) is refused.

    Args:
        path: A ``.jsonl`` or ``.jsonl.gz``.
        grader: A name for `rollonce.tasks.find_grader_by_name`, or a grader. A line's own ``grader`` (a name) comes
            first.
        columns: Keys to declare as columns known before the rollout; a key that a line lacks is None there, one no line
            has is refused.
        prompt_key: Default the first there is of ``prompt, question, problem, input, messages``. A list is taken for
            chat messages.
        reference_key: Default the first there is of ``reference, answer, solution, target, expected, output``.

    Raises:
        InputError: naming file and line.
    """
    default = find_grader_by_name(grader) if isinstance(grader, str) else grader
    tasks: list[Task] = []
    lines: dict[str, int] = {}
    columns_seen: set[str] = set()
    for line, record in read_json_lines(path):
        prompt = record[_find_record_key(record, (prompt_key,) if prompt_key else PROMPT_KEYS, "prompt", path, line)]
        reference = record[
            _find_record_key(record, (reference_key,) if reference_key else REFERENCE_KEYS, "reference", path, line)
        ]
        if isinstance(prompt, list):
            prompt = render_messages(prompt)
        if not isinstance(prompt, str) or not prompt.strip():
            raise InputError("the prompt is no text, or empty", file=path, line=line)
        if reference is None or isinstance(reference, list | dict):
            raise InputError(
                f"the reference must be text, a number or a truth value, not {str(reference)[:40]}",
                file=path,
                line=line,
            )
        first = lines.setdefault(normalise_prompt(prompt), line)
        if first != line:
            raise InputError(f"the same prompt as line {first}; one task is one line", file=path, line=line)
        own = record.get("grader")
        try:
            chosen = find_grader_by_name(own) if isinstance(own, str) else default
        except InputError as error:
            raise InputError(error.message, file=path, line=line) from error
        columns_seen |= record.keys() & set(columns)
        tasks.append(
            Task(str(record.get("id", line)), prompt, str(reference), chosen, {c: record.get(c) for c in columns})
        )
    if not tasks:
        raise InputError("holds no tasks", file=path)
    missing = [c for c in columns if c not in columns_seen]
    if missing:
        raise InputError(f"no line has the column {missing[0]!r}", file=path)
    try:
        return TaskSet(tasks, Path(path).name.partition(".")[0])
    except InputError as error:
        raise InputError(error.message, file=path) from error


def _load_jsonl_splits(place: str, request: TaskRequest) -> TaskSplits:
    tasks = load_jsonl_tasks(place, grader=request.grader, columns=request.columns)
    parts = {
        split: TaskSet([t for t in tasks if split_of(t.prompt) == split], f"{tasks.name}/{split}") for split in SPLITS
    }
    return choose_all(TaskSplits(**parts), request)


JSONL = Source("jsonl", _load_jsonl_splits, place="FILE", takes_grader=True)
