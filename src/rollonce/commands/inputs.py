"""FILES of a command to tables: files, directories, globs and the names of sets that come with rollonce."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from tyro.conf import UseAppendAction, arg

from rollonce import datasets
from rollonce.commands.terminal import Bars, Flag, print_remark
from rollonce.errors import InputError
from rollonce.readers.options import Options, ReadOptions
from rollonce.readers.paths import derive_set_name
from rollonce.readers.read import RolloutFile, find_rollout_files, read_rollout_files, read_rollouts
from rollonce.rollouts import Rollouts

_STEP_FOLDER = re.compile(r"^(?:global_)?(?:step|iteration|iter|epoch)[_-]?\d+", re.IGNORECASE)
_SHARD = re.compile(
    r"^(?:(?:.*[_.-])?(?:part|shard|chunk|step|iter|iteration|rank|worker|batch)[_-]?)?\d+(?:[_-]of[_-]\d+)?$",
    re.IGNORECASE,
)

_Key = arg(metavar="KEY", help_behavior_hint="")
_Name = arg(metavar="NAME", help_behavior_hint="")


@dataclass
class ReaderOptions:
    """How the files are read. Without any of these the format and its keys are found by looking at the file."""

    format: Annotated[str | None, _Name] = None
    """Read the files as this format, whatever they look like (docs/formats.md lists them)."""
    prompt_key: Annotated[str | None, _Key] = None
    """Where the prompt is, in rows of your own; dots go inwards: info.question."""
    reward_key: Annotated[str | None, _Key] = None
    """Where the reward is."""
    task_key: Annotated[str | None, _Key] = None
    """Where the task's id is. Without one, rollouts with the same prompt are one task."""
    rollout_key: Annotated[str | None, _Key] = None
    """Where the rollout's id within its task is; '' says that there is none."""
    length_key: Annotated[str | None, _Key] = None
    """Where the length of the response is."""
    step_key: Annotated[str | None, _Key] = None
    """Where the training step is."""
    rows_key: Annotated[str | None, _Key] = None
    """Where the rows are, inside a document or inside each line: results, or data.rollouts; a list, or a map by
    task."""
    log_prob_key: Annotated[str | None, _Key] = None
    """Where the response's log-probability is: a sum, or a list with one number per token."""
    columns: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="COLUMN")] = ()
    """A column known before the rollout: level, level=info.level or family=task_id:^([^/]+); each gets a "same column"
    baseline."""
    reward: Annotated[str | None, _Name] = None
    """Which reward, where a log has several."""
    join: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """A file with the prompts, for logs that hold none; "none" lets each task's id stand for its prompt."""
    split: Annotated[str | None, _Name] = None
    """Only rows of this split, where a format has splits."""
    filter: Annotated[str | None, _Name] = None
    """Only rows of this filter, agent or (in rows of your own) model, where a format has such."""
    skip_bad_rows: Flag = False
    """Go on after a bad row; how many and which is said at the end."""
    max_prompt_chars: Annotated[int, arg(metavar="N")] = 1_000_000
    """Longer prompts are refused: most often the wrong key was read."""

    def as_read_options(self) -> ReadOptions:
        """For `read_rollouts` and `follow`."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        # "a,b" is two columns, unless the comma belongs to a pattern.
        plain["columns"] = [piece.strip() for c in self.columns for piece in (c.split(",") if ":" not in c else [c])]
        return ReadOptions(**plain)


class Source(NamedTuple):
    """One set to be read: files of one format, or the name of a shipped set (then no files)."""

    name: str
    found: tuple[RolloutFile, ...]

    @property
    def file_paths(self) -> tuple[str, ...]:
        return tuple(str(file.probe.path) for file in self.found)


def find_rollout_sources(
    words: Sequence[str],
    options: ReaderOptions,
    *,
    all_datasets: bool = False,
    together: bool = False,
    separate: bool = False,
) -> list[Source]:
    """What FILES stand for, one `Source` for each board.

    Files that are a table of their own stay apart (the user's own files, evaluations); the files of one training run,
    the shards of one table and lm-eval's runs over several seeds belong together.

    Args:
        words: Paths, globs, directories, names of shipped sets.
        options: For the forced format.
        all_datasets: All shipped sets too.
        together: Everything that is no shipped set is one table.
        separate: Every file is a table of its own.

    Raises:
        InputError: if there is nothing to read, or something is not there.
    """
    if together and separate:
        raise InputError("--together and --separate exclude each other")
    sources = [Source(name, ()) for name in datasets.list_dataset_names(with_log_probs=False)] if all_datasets else []
    groups: dict[Any, dict[str, RolloutFile]] = {}
    format = Options.from_keywords(options.as_read_options()).forced_format_name
    for word in words:
        shipped = _match_shipped_set(word)
        if shipped:
            sources += [] if any(s.name == shipped and not s.found for s in sources) else [Source(shipped, ())]
            continue
        for file in find_rollout_files([word], format):
            path = str(file.probe.path)
            key = "all" if together else path if separate else _table_key_of_file(file)
            groups.setdefault(key, {}).setdefault(path, file)
    if not sources and not groups:
        raise InputError(
            "no FILES given; name files, directories, or a set that comes with rollonce: "
            + ", ".join(datasets.list_dataset_names())
        )
    return _add_named_sources(sources, [tuple(files.values()) for files in groups.values()])


def _match_shipped_set(word: str) -> str:
    if os.path.exists(os.path.expanduser(word)) or glob.has_magic(word) or not word:
        return ""
    try:
        return datasets.describe_dataset(word).name
    except InputError as error:
        if not re.fullmatch(r"[\w.-]+", word) or re.search(r"\.(jsonl?|csv|tsv|parquet|gz|eval)$", word):
            return ""  # meant as a path: the reader says that there is no such file
        raise InputError(f"no such file or directory, and {error.message}", file=word) from None


def _table_key_of_file(file: RolloutFile) -> Any:
    """Files with the same key make one table."""
    path, format = file.probe.path, file.format
    if format.whole_file:
        return str(path)
    return (file.sampling_policy, *_run_key_of_file(file))


def _run_key_of_file(file: RolloutFile) -> tuple[str, ...]:
    path, format = file.probe.path, file.format
    stem = re.sub(r"(\.\w+)?(\.gz)?$", "", path.name)
    folder = "/".join("#" if _STEP_FOLDER.match(part) else part for part in path.parent.parts)
    if format.name == "generic" and not _SHARD.match(stem):
        return (str(path),)
    if format.name == "automationbench":  # an export is one rollout of each task
        return format.name, folder
    if format.name == "lm-eval":  # one run per seed, in folders and under dates of their own
        return format.name, re.sub(r"\d+", "#", str(path))
    return format.name, folder, re.sub(r"\d+", "#", path.name)


def _add_named_sources(sources: list[Source], groups: list[tuple[RolloutFile, ...]]) -> list[Source]:
    taken = {s.name for s in sources}
    for files in groups:
        first = files[0].probe.path
        stem = derive_set_name(first)
        folders = [p for p in first.resolve().parent.parts[1:] if not _STEP_FOLDER.match(p)]
        name = stem if len(files) == 1 or not folders else folders[-1]
        if not files[0].format.whole_file and (policy := files[0].sampling_policy):
            name = policy
        candidates = [name, *("/".join([*folders[-k:], stem]) for k in range(1, len(folders) + 1)), str(first)]
        name = next((c for c in candidates if c not in taken), f"{name} ({len(taken)})")
        taken.add(name)
        sources.append(Source(name, files))
    return sources


def read_source_table(source: Source, options: ReaderOptions, bars: Bars | None = None) -> Rollouts:
    """The table of one source; on stderr the fields that it could have used as columns."""
    table = _read_without_remarks(source, options, bars)
    if table.unused_columns:
        names = ", ".join(column.partition("=")[0] for column in table.unused_columns)
        flags = " ".join(f"--columns {column}" for column in table.unused_columns[:3])
        print_remark(f"{table.name}: not used: {names} ({flags})")
    return table


def _read_without_remarks(source: Source, options: ReaderOptions, bars: Bars | None) -> Rollouts:
    tell = (lambda done, total: bars.report_progress(f"reading {source.name}", "", done, total)) if bars else None
    if source.found:
        return read_rollout_files(
            source.found,
            Options.from_keywords(options.as_read_options()),
            name=source.name,
            source=", ".join(source.file_paths),
            progress=tell,
        )
    if options == ReaderOptions():
        return datasets.load(source.name)
    return read_rollouts(
        datasets.locate_dataset_file(source.name), name=source.name, progress=tell, **options.as_read_options()
    )
