"""From what a user names (files, directories, globs) to files in their natural order."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from rollonce.errors import InputError

PathLike = str | os.PathLike[str]
_ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".eval")


def expand_to_files(path: PathLike) -> tuple[bool, list[Path]]:
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
        files = [p for p in here.rglob("*") if p.is_file() and p.name.lower().removesuffix(".gz").endswith(_ENDINGS)]
        if not files:
            raise InputError(
                f"nothing readable in this directory; looked for files named {', '.join('*' + s for s in _ENDINGS)} "
                "(.gz too)",
                file=here,
            )
        return True, sorted(files, key=natural_sort_key)
    if here.exists():
        raise InputError("neither a file nor a directory", file=here)
    if glob.has_magic(text):
        matches = [Path(p) for p in glob.glob(os.path.expanduser(text), recursive=True)]
        files = sorted((p for p in matches if p.is_file()), key=natural_sort_key)
        if files:
            return False, files
        raise InputError("no file matches this pattern", file=text)
    raise InputError("no such file or directory", file=text)


def natural_sort_key(path: Path) -> list[tuple[int, int, str]]:
    """A sorting key under which ``step_2`` comes before ``step_10``."""
    return [
        (0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in re.split(r"(\d+)", str(path)) if piece
    ]


def derive_set_name(path: PathLike) -> str:
    """What a set read from this path is called: the file's or directory's name without the endings of data files."""
    first = Path(os.fspath(path))
    stem = re.sub(rf"({'|'.join(map(re.escape, _ENDINGS))})?(\.gz)?$", "", first.name, flags=re.IGNORECASE)
    return stem or first.resolve().name or "rollouts"
