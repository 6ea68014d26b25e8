"""Which tasks: N of a split of a source in the registry."""

from __future__ import annotations

from rollonce.collecting.settings import ALL, CollectSettings, check_task_columns
from rollonce.errors import InputError
from rollonce.tasks import Task, TaskRequest, TaskSet, choose_tasks, load_tasks, parse_source_spec


def draw_tasks_by_seed(s: CollectSettings) -> list[Task]:
    """N tasks, drawn by the seed.

    Raises:
        InputError: no such source, or fewer tasks in it than asked for.
    """
    source, _ = parse_source_spec(s.tasks_from)
    if source.is_endless and s.split == ALL:
        raise InputError(
            f"--split all is for finite sets; {source.name} makes as many tasks as are asked for: leave it out"
        )
    numbers = source.numbers_for_one_split(s.split, s.n_tasks)
    splits = load_tasks(s.tasks_from, TaskRequest(**numbers, seed=s.seed, grader=s.grader, columns=s.columns))
    whole = TaskSet([task for part in splits for task in part])
    tasks = whole if s.split == ALL else getattr(splits, s.split)
    if len(tasks) < s.n_tasks:
        is_part = len(whole) > len(tasks) and not source.is_endless
        more = f"; --split all takes all {len(whole)} of it" if is_part else ""
        where = "" if s.split == ALL else f" in the split {s.split!r}"
        raise InputError(
            f"{s.n_tasks} tasks asked for, but {s.tasks_from} has only {len(tasks)}{where}: ask for --tasks "
            f"{len(tasks)}{more}"
        )
    if len(tasks) > s.n_tasks:
        tasks = choose_tasks(tasks, s.n_tasks, s.seed)
    for task in tasks:
        check_task_columns(task)
    return list(tasks)
