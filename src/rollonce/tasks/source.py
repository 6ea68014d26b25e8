"""What a source of tasks is, and what may be asked of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollonce.errors import InputError
from rollonce.tasks.base import SPLITS, TaskSet, TaskSplits


@dataclass(frozen=True)
class TaskRequest:
    """What is asked of a source beside its place.

    Attributes:
        train, holdout, test: How many tasks; None is the source's own number (all there are, where it is a finite set).
        seed: Which tasks are drawn, and their order.
        grader: For sources that take one (``jsonl``): the grader's name.
        columns: For the same sources: keys declared as columns.
    """

    train: int | None = None
    holdout: int | None = None
    test: int | None = None
    seed: int = 0
    grader: str = "exact"
    columns: Sequence[str] = ()

    def numbers_with_defaults(self, *, train: int, holdout: int, test: int) -> dict[str, int]:
        """How many tasks of each split: what is asked for, and these numbers where nothing is."""
        own = {"train": train, "holdout": holdout, "test": test}
        return {split: own[split] if getattr(self, split) is None else getattr(self, split) for split in SPLITS}


@dataclass(frozen=True)
class Source:
    """A source of tasks, as the registry knows it.

    Attributes:
        name: What stands before the colon: ``gsm8k`` in ``gsm8k:DIR``.
        load: ``load(place, request)`` gives the splits; ``place`` is what stands behind the colon.
        place: What belongs there, for help and messages (``DIR``); empty where nothing does.
        is_endless: It makes as many tasks as are asked for; other sources have a number of their own.
        takes_grader: It needs a grader and may be given columns; other sources bring theirs.
        holdout_is_set_apart: Its hold-out tasks are taken out of the training tasks, as many as are asked for.
        usual_place: The place that is meant where only the name is given (in a specification); None: there is none.
        solutions: ``solutions(place)`` gives worked solutions by prompt, where the source has any.
    """

    name: str
    load: Callable[[str, TaskRequest], TaskSplits]
    place: str = ""
    is_endless: bool = False
    takes_grader: bool = False
    holdout_is_set_apart: bool = False
    usual_place: str | None = None
    solutions: Callable[[str], Mapping[str, str]] | None = None

    @property
    def usage(self) -> str:
        """How it is written: ``gsm8k:DIR``."""
        return f"{self.name}:{self.place}" if self.place else self.name

    def numbers_for_one_split(self, split: str, n: int) -> dict[str, int | None]:
        """The numbers of a `TaskRequest` from which ``n`` tasks of one split can be chosen, and little else is made."""
        if self.is_endless:
            return {name: n if name == split else 0 for name in SPLITS}
        set_apart = split == "holdout" and self.holdout_is_set_apart
        return {name: n if name == split and set_apart else None for name in SPLITS}


def choose_tasks(tasks: TaskSet, n: int | None, seed: int) -> TaskSet:
    """``n`` tasks drawn by the seed, in a drawn order; all of them, in theirs, if n is None. One order of the whole set
    is cut off, so a larger number holds every task of a smaller one.

    Raises:
        InputError: there are fewer.
    """
    if n is None:
        return tasks
    if n > len(tasks):
        raise InputError(f"{n} tasks of {tasks.name} asked for, but there are only {len(tasks)}")
    return tasks.take(np.random.default_rng([seed, len(tasks)]).permutation(len(tasks))[:n].tolist())


def choose_all(splits: TaskSplits, request: TaskRequest) -> TaskSplits:
    """`choose_tasks` in each split, as many as the request says."""
    return TaskSplits(
        *(choose_tasks(getattr(splits, split), getattr(request, split), request.seed) for split in SPLITS)
    )
