"""`read_rollouts`: paths to one table."""

from __future__ import annotations

import gc
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import ColumnSpec, Format, Merger, Options
from rollonce.readers.probe import Probe, probe
from rollonce.readers.registry import FORMATS, format_named
from rollonce.readers.table import TableBuilder
from rollonce.rollouts import Rollouts

PathLike = str | os.PathLike[str]
_LOOKED_AT = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".eval")


def read_rollouts(
    paths: PathLike | Iterable[PathLike],
    *,
    format: str | None = None,
    prompt_key: str | None = None,
    task_key: str | None = None,
    reward_key: str | None = None,
    rollout_key: str | None = None,
    length_key: str | None = None,
    step_key: str | None = None,
    columns: Sequence[str] = (),
    reward: str | None = None,
    join: PathLike | None = None,
    split: str | None = None,
    filter: str | None = None,
    skip_bad_rows: bool = False,
    max_prompt_chars: int = 1_000_000,
    name: str | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Rollouts:
    """Read rollouts from files, directories or globs into one table.

    Each file's format is recognised by looking at it (docs/formats.md); all files must be of one format.

    Args:
        paths: One path or several. A directory is searched for files of a known format, a glob is expanded, both in
            natural order (``2.jsonl`` before ``10.jsonl``), which is the order of the stream.
        format: Read the files as this format whatever they look like.
        prompt_key, reward_key: Naming one of them reads the file as the user's own (format ``generic``). Dots go
            inwards: ``info.question``.
        task_key, rollout_key, length_key, step_key: Read these from other keys than the format's own; ``""`` says that
            there is none. Without a task id, rollouts with the same prompt text are one task.
        columns: Pre-rollout columns to keep: ``"level"``, ``"level=info.level"`` or ``"family=task_id:^([^/]+)"``. One
            value a task.
        reward: Which reward, where a format has several: TRL's reward function, Inspect's scorer, lm-eval's metric,
            EvalPlus's ``base`` or ``plus``.
        join: A file with the prompts, for formats that log none (tinker-cookbook's training summaries, EvalPlus).
        split: Only rows of this split, where a format has splits.
        filter: Only rows of this lm-eval filter.
        skip_bad_rows: Go on after a bad row; `Rollouts.skipped` says which, `Rollouts.n_skipped` how many.
        max_prompt_chars: Longer prompts are refused: most often the wrong key was read.
        name: What to call the set (default: the file's or directory's stem).
        progress: Called as ``progress(bytes done, bytes in all)`` after each block.

    Returns:
        The table, tasks in the order of first appearance.

    Raises:
        InputError: for anything that cannot be read, naming the file and the line.
        MissingExtraError: if a format needs a package that is not installed.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    options = Options(
        prompt_key,
        task_key,
        reward_key,
        rollout_key,
        length_key,
        step_key,
        tuple(map(ColumnSpec.parse, columns)),
        reward,
        join,
        split,
        filter,
    )
    forced = (
        format_named(format) if format is not None else format_named("generic") if prompt_key or reward_key else None
    )
    files, reader = choose(given, forced)
    builder = TableBuilder(
        skip_bad_rows=skip_bad_rows, max_prompt_chars=max_prompt_chars, text_numbers=any(f.kind == "csv" for f in files)
    )
    source = ", ".join(str(p) for p in given)
    total, done = sum(f.path.stat().st_size for f in files), 0
    with _no_garbage_collection():
        for look in files:
            options.state["probe"] = look
            if progress is not None:
                options.state["tell"] = lambda position, before=done: progress(before + position, total)
            _read_file(look, reader, options, builder)
            done += look.path.stat().st_size
            if progress is not None:
                progress(done, total)
    if not builder.n_rows and options.state.get("filtered"):
        raise InputError(
            f"all {options.state['filtered']:,} rows were left out by split or filter{_other_splits(options)}",
            file=source,
        )
    return builder.build(name or _stem(given), source, reader.name)


def _other_splits(options: Options) -> str:
    splits = options.state.get("splits")
    return f"; the file has {', '.join(sorted(map(str, splits)))}" if splits else ""


def _read_file(look: Probe, reader: Format, options: Options, builder: TableBuilder) -> None:
    file = str(look.path)
    try:
        reader.start(look.path, options)
        merger = Merger(reader)
        for lines, records in reader.records(look.path, options, builder.reject):
            builder.add(reader.block(file, *merger.push(lines, records), options, builder.reject))
        builder.add(reader.block(file, *merger.flush(), options, builder.reject))
    except InputError as error:
        if error.file is None and type(error) is InputError:
            raise InputError(error.message, file=file) from None
        raise


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Records are trees without cycles; walking millions of them again and again for cycles costs more than parsing
    them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Which files, which format
# ----------------------------------------------------------------------------------------------------


def choose(given: Sequence[PathLike], forced: Format | None) -> tuple[list[Probe], Format]:
    """The files that these paths stand for, and the one format they are all read as.

    Raises:
        InputError: if a path is not there, a file cannot be read, no format fits, or the files are of different
            formats.
    """
    if not given:
        raise InputError("no files given")
    chosen: list[tuple[Probe, Format]] = []
    for path in given:
        searched, files = expand(path)
        found = [(look, forced or recognise(look)) for look in map(probe, files)]
        if searched and not forced:
            found = _of_a_directory(path, found)
        for look, reader in found:
            if look.problem is not None:
                raise InputError(look.problem, file=look.path)
            if reader is None:
                raise _unrecognised(look)
            chosen.append((look, reader))
    names = {reader.name: look.path for look, reader in chosen}
    if len(names) > 1:
        listed = ", ".join(f"{path} is {name}" for name, path in names.items())
        raise InputError(
            f"files of different formats make no one table: {listed}; read them apart, or name one with format= "
            "(--format)"
        )
    return [look for look, _ in chosen], chosen[0][1]


def recognise(look: Probe) -> Format | None:
    """The first format that takes the file for its own."""
    if look.problem is not None:
        return None
    for known in FORMATS:
        try:
            if known.sniff(look):
                return known
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            continue
    return None


def expand(path: PathLike) -> tuple[bool, list[Path]]:
    """The files that a path stands for, in natural order, and whether they were searched for (a directory)."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InputError(f"a path must be text, not {text!r:.80}")
    if "\0" in text:
        raise InputError(f"a path cannot hold a zero character: {text!r:.80}")
    here = Path(text).expanduser()
    if here.is_file():
        return False, [here]
    if here.is_dir():
        files = [p for p in here.rglob("*") if p.is_file() and p.name.lower().removesuffix(".gz").endswith(_LOOKED_AT)]
        if not files:
            raise InputError(
                f"nothing readable in this directory; looked for files named {', '.join('*' + s for s in _LOOKED_AT)} "
                "(.gz too)",
                file=here,
            )
        return True, sorted(files, key=natural)
    if here.exists():
        raise InputError("neither a file nor a directory", file=here)
    if glob.has_magic(text):
        matches = [Path(p) for p in glob.glob(os.path.expanduser(text), recursive=True)]
        files = sorted((p for p in matches if p.is_file()), key=natural)
        if files:
            return False, files
        raise InputError("no file matches this pattern", file=text)
    raise InputError("no such file or directory", file=text)


def natural(path: Path) -> list[tuple[int, int, str]]:
    """A sorting key under which ``step_2`` comes before ``step_10``."""
    return [
        (0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in re.split(r"(\d+)", str(path)) if piece
    ]


def _of_a_directory(path: PathLike, found: list[tuple[Probe, Format | None]]) -> list[tuple[Probe, Format | None]]:
    """A directory holds other files too (settings, metrics): only recognised ones count, and a trainer's format before
    the generic one."""
    known = [(look, reader) for look, reader in found if reader is not None]
    special = [(look, reader) for look, reader in known if reader.name != "generic"]
    if not known:
        reasons = "; ".join(f"{look.path.name}: {look.problem or _unrecognised(look).message}" for look, _ in found[:3])
        raise InputError(
            f"nothing readable in this directory ({len(found)} files looked at). {reasons}", file=os.fspath(path)
        )
    return list(special or known)


def _unrecognised(look: Probe) -> InputError:
    if look.kind == "jsonl" and look.record is None:
        from rollonce.readers.jsonl import json_blocks

        def stop(file: str, line: int | None, message: str) -> None:
            raise InputError(message, file=file, line=line)

        for lines, records in json_blocks(look.path, stop):
            for line, record in zip(lines, records, strict=True):
                if not isinstance(record, dict):
                    return InputError("a row must be an object with keys", file=look.path, line=line)
    from rollonce.readers.base import keys_of
    from rollonce.readers.generic import USUAL

    listed = keys_of(look.record) if look.record is not None else f"a {look.kind} file"
    return InputError(
        f"no known format: {listed}. For rows of your own name the keys with prompt_key and reward_key (--prompt-key, "
        f"--reward-key; usual are {', '.join(USUAL['prompt'][:4])} and {', '.join(USUAL['reward'][:4])}); force a "
        "known log with format= (--format)",
        file=look.path,
        line=1 if look.kind == "jsonl" else None,
    )


def _stem(given: Sequence[PathLike]) -> str:
    first = Path(os.fspath(given[0]))
    stem = re.sub(r"(\.(jsonl|ndjson|json|csv|tsv|parquet|eval))?(\.gz)?$", "", first.name, flags=re.IGNORECASE)
    return stem or first.resolve().name or "rollouts"
