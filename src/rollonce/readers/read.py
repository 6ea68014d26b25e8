"""`read_rollouts`: paths to one table."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Unpack

from rollonce.errors import InputError
from rollonce.readers.base import Format, RowMerger
from rollonce.readers.generic import USUAL
from rollonce.readers.jsonl import Tell, read_json_blocks
from rollonce.readers.options import Options, ReadOptions
from rollonce.readers.paths import PathLike, derive_set_name, expand_to_files
from rollonce.readers.probe import Probe, probe_file_content
from rollonce.readers.registry import find_format_by_name, recognise_format
from rollonce.readers.table import TableBuilder
from rollonce.readers.useful_columns import suggest_useful_columns
from rollonce.readers.values import describe_record_keys
from rollonce.rollouts import Rollouts

# What the code of a format may raise for a file that is not what it takes it for.
_NOT_OF_THE_FORMAT = (KeyError, TypeError, AttributeError, IndexError, ValueError)


class RolloutFile(NamedTuple):
    """A file that was looked at, and the format that it is read as."""

    probe: Probe
    format: type[Format]

    @property
    def sampling_policy(self) -> str | None:
        """The policy that the file's rollouts were sampled from, where that can be known."""
        try:
            return self.format.find_policy_name(self.probe)
        except (InputError, *_NOT_OF_THE_FORMAT):
            return None  # what is wrong with the file is said when it is read


def read_rollouts(
    paths: PathLike | Iterable[PathLike],
    *,
    name: str | None = None,
    progress: Callable[[int, int], Any] | None = None,
    **options: Unpack[ReadOptions],
) -> Rollouts:
    """Read rollouts from files, directories or globs into one table.

    Each file's format is recognised by looking at it (docs/formats.md); all files must be of one format.

    Args:
        paths: One path or several. A directory is searched for files of a known format, a glob is expanded, both in
            natural order (``2.jsonl`` before ``10.jsonl``), which is the order of the stream.
        format: Read the files as this format whatever they look like.
        prompt_key, reward_key: Naming one of them reads the file as the user's own (format ``generic``). Dots go
            inwards: ``info.question``.
        task_key, rollout_key, length_key, step_key, log_prob_key: Read these from other keys than the format's own;
            ``""`` says that there is none. Without a task id, rollouts with the same prompt text are one task. The
            log-probability is a number (the sum over the response's tokens, in nats) or a list with one per token.
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
    wanted = Options.from_keywords(options)
    files = find_rollout_files(given, wanted.forced_format_name)
    source = ", ".join(str(p) for p in given)
    return read_rollout_files(files, wanted, name=name or derive_set_name(given[0]), source=source, progress=progress)


def read_rollout_files(
    files: Sequence[RolloutFile],
    options: Options,
    *,
    name: str,
    source: str,
    progress: Callable[[int, int], Any] | None = None,
) -> Rollouts:
    """The table of files that `find_rollout_files` found: `read_rollouts` without looking for them.

    Raises:
        InputError: if the files are of different formats, or for anything that cannot be read.
    """
    by_name = {file.format.name: file.probe.path for file in files}
    if len(by_name) > 1:
        listed = ", ".join(f"{path} is {name}" for name, path in by_name.items())
        raise InputError(
            f"files of different formats make no one table: {listed}; read them apart, or name one with format= "
            "(--format)"
        )
    reader = files[0].format(options)
    builder = TableBuilder(
        skip_bad_rows=options.skip_bad_rows,
        max_prompt_chars=options.max_prompt_chars,
        text_numbers=any(file.probe.kind == "csv" for file in files),
    )
    if len(files) > 1:
        _check_one_policy(files)
    sizes = [file.probe.path.stat().st_size if progress else 0 for file in files]
    total, done = sum(sizes), 0
    with _no_garbage_collection():
        for (probe, _), size in zip(files, sizes, strict=True):
            tell = None if progress is None else lambda position, before=done: progress(before + position, total)
            _read_file_into_table(probe, reader, builder, tell)
            done += size
            if progress is not None:
                progress(done, total)
    if not builder.n_rows and reader.n_filtered and not builder.n_skipped:
        splits = f"; the file has {', '.join(sorted(reader.splits))}" if reader.splits else ""
        raise InputError(f"all {reader.n_filtered:,} rows were left out by split or filter{splits}", file=source)
    return builder.build_rollout_table(name, source, reader.name, reader.unused_columns)


def _check_one_policy(files: Sequence[RolloutFile]) -> None:
    """Rollouts of two policies make no calibration set: what is between the policies would count as noise."""
    policies: dict[str, Path] = {}
    for file in files:
        policy = file.sampling_policy
        if policy is not None:
            policies.setdefault(policy, file.probe.path)
    if len(policies) > 1:
        listed = ", ".join(f"{path} is of {policy}" for policy, path in list(policies.items())[:4])
        raise InputError(
            f"rollouts of {len(policies)} policies make no one table: {listed}; give the files of one policy (rollonce "
            "score makes a board for each)"
        )


def _read_file_into_table(probe: Probe, reader: Format, builder: TableBuilder, tell: Tell | None) -> None:
    file = str(probe.path)
    try:
        merger = RowMerger(reader)
        for lines, records in _read_file_records(probe, reader, builder, tell):
            if not builder.n_rows:
                reader.unused_columns = suggest_useful_columns(records, reader.options)
            builder.add_rollout_block(
                reader.build_rollout_block(file, *merger.merge_record_block(lines, records), builder.reject_bad_row)
            )
        builder.add_rollout_block(reader.build_rollout_block(file, *merger.flush_held_record(), builder.reject_bad_row))
    except InputError as error:
        if error.file is None and type(error) is InputError:
            raise InputError(error.message, file=file) from None
        raise
    finally:
        probe.forget_document()


def _read_file_records(
    probe: Probe, reader: Format, builder: TableBuilder, tell: Tell | None
) -> Iterator[tuple[Sequence[int], list[Any]]]:
    try:
        reader.prepare_for_file(probe)
        yield from reader.read_record_blocks(probe, builder.reject_bad_row, tell)
    except _NOT_OF_THE_FORMAT as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"not a file of the format {reader.name!r} ({type(error).__name__}: {str(error)[:120]})"
        ) from None


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


def find_rollout_files(paths: Sequence[PathLike], format: str | None = None) -> list[RolloutFile]:
    """The files that these paths stand for, each looked at once, with its format.

    Args:
        paths: Files, directories and globs.
        format: Read them as this format, whatever they look like.

    Raises:
        InputError: if a path is not there, a file cannot be read, or no format fits.
    """
    if not paths:
        raise InputError("no files given")
    forced = None if format is None else find_format_by_name(format)
    chosen: list[RolloutFile] = []
    for path in paths:
        searched, files = expand_to_files(path)
        probed = [(probe, forced or recognise_format(probe)) for probe in map(probe_file_content, files)]
        if searched and not forced:
            probed = _choose_directory_files(path, probed)
        for probe, reader in probed:
            if probe.problem is not None:
                raise InputError(probe.problem, file=probe.path)
            if reader is None:
                raise _make_unrecognised_error(probe)
            chosen.append(RolloutFile(probe, reader))
    return chosen


def _choose_directory_files(
    path: PathLike, probed: list[tuple[Probe, type[Format] | None]]
) -> list[tuple[Probe, type[Format] | None]]:
    """A directory holds other files too (settings, metrics): only recognised ones count, and a trainer's format before
    the generic one."""
    known = [(probe, reader) for probe, reader in probed if reader is not None]
    special = [(probe, reader) for probe, reader in known if reader.name != "generic"]
    if not known:
        reasons = "; ".join(
            f"{probe.path.name}: {probe.problem or _make_unrecognised_error(probe).message}" for probe, _ in probed[:3]
        )
        raise InputError(
            f"nothing readable in this directory ({len(probed)} files looked at). {reasons}", file=os.fspath(path)
        )
    return list(special or known)


def _raise_input_error(file: str, line: int | None, message: str) -> NoReturn:
    raise InputError(message, file=file, line=line)


def _make_unrecognised_error(probe: Probe) -> InputError:
    if probe.kind == "jsonl" and probe.record is None:
        for lines, records in read_json_blocks(probe.path, _raise_input_error):
            for line, record in zip(lines, records, strict=True):
                if not isinstance(record, dict):
                    return InputError("a row must be an object with keys", file=probe.path, line=line)
    listed = describe_record_keys(probe.record) if probe.record is not None else f"a {probe.kind} file"
    return InputError(
        f"no known format: {listed}. For rows of your own name the keys with prompt_key and reward_key (--prompt-key, "
        f"--reward-key; usual are {', '.join(USUAL['prompt'][:4])} and {', '.join(USUAL['reward'][:4])}); force a "
        "known log with format= (--format)",
        file=probe.path,
        line=1 if probe.kind == "jsonl" else None,
    )
