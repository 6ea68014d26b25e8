"""Which tasks: N of a split of a source in the registry."""

from __future__ import annotations

import numpy as np

from rollonce.collecting.settings import ALL, Settings, check_columns
from rollonce.errors import InputError
from rollonce.tasks import Task, TaskRequest, load_tasks

_ENDLESS = ("embedded", "reasoning-gym")


def find_tasks(s: Settings) -> list[Task]:
    """N tasks, drawn by the seed.

    Raises:
        InputError: no such source, or fewer tasks in it than asked for.
    """
    name = s.tasks_from.partition(":")[0]
    if name in _ENDLESS:
        if s.split == ALL:
            raise InputError(
                f"--split all is for finite sets; {name} makes as many tasks as are asked for: leave it out"
            )
        counts: dict[str, int | None] = {"train": 0, "calibration": 0, "test": 0, s.split: s.n_tasks}
    else:
        counts = {"train": None, "calibration": None, "test": None}
        if name in ("gsm8k", "math500") and s.split == "calibration":
            # These keep as many apart as are asked for.
            counts["calibration"] = s.n_tasks
    splits = load_tasks(s.tasks_from, TaskRequest(**counts, seed=s.seed, grader=s.grader, columns=s.columns))
    found: list[Task] = [t for part in splits for t in part] if s.split == ALL else list(getattr(splits, s.split))
    if len(found) < s.n_tasks:
        whole = sum(map(len, splits))
        more = (
            f"; --split all takes all {whole} of it"
            if s.split != ALL and whole > len(found) and name not in _ENDLESS
            else ""
        )
        where = "" if s.split == ALL else f" in the split {s.split!r}"
        raise InputError(
            f"{s.n_tasks} tasks asked for, but {s.tasks_from} has only {len(found)}{where}: ask for --tasks "
            f"{len(found)}{more}"
        )
    if len(found) > s.n_tasks:
        # One order of the whole set, cut off: a larger number holds every task of a smaller one.
        order = np.random.default_rng([s.seed, len(found)]).permutation(len(found))
        found = [found[i] for i in order[: s.n_tasks].tolist()]
    for task in found:
        check_columns(task)
    return found
