"""Keeps what a reader needs of a run of ``rollonce run``: page, records, specification and every item; no weights.

    python studies/experiments/keep.py RUN_DIRECTORY NAME

Longer JSON lines are gzipped; the records hold the hashes of the plain files, and
tests/experiments/test_kept_experiments.py checks them and decides once more from the items.
"""

from __future__ import annotations

import gzip
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent


def keep(run: Path, name: str) -> None:
    """Copy into ``studies/experiments/NAME``."""
    target = HERE / name
    if target.exists():
        shutil.rmtree(target)
    plain = [
        "records.jsonl",
        "spec.json",
        "report.html",
        "report.md",
        *(p.name for p in run.glob("spec.revision-*.json")),
    ]
    lines = [
        "calibration.jsonl",
        *(str(p.relative_to(run)) for d in ("pilot", "arms", "evaluation") for p in sorted((run / d).glob("*.jsonl"))),
    ]
    for file in [*plain, *lines]:
        source, out = run / file, target / file
        if not source.is_file():
            continue
        out.parent.mkdir(parents=True, exist_ok=True)
        if file in lines:
            with gzip.GzipFile(f"{out}.gz", "wb", mtime=0) as f:
                f.write(source.read_bytes())
        else:
            shutil.copyfile(source, out)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2])
