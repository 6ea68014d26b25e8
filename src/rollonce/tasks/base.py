"""A verifiable task, a set of them, and the rule that keeps splits apart.

Shapes: ``_N`` tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollonce.errors import InputError
from rollonce.prompts import check_column_name, normalise_prompt
from rollonce.rollouts import Tasks

Grader = Callable[[str, str], float]
"""``grader(response, reference) -> reward``. It must be picklable (a function or dataclass of an importable module):
graders that could hang run in a child process, see `rollonce.tasks.grade`."""

SPLITS = ("train", "holdout", "test")
# Of 100 prompts, how many belong to each split, in this order of the hash: test, holdout, then train.
_TEST_SHARE, _HOLDOUT_SHARE = 20, 20


@dataclass(frozen=True)
class Task:
    """One verifiable task.

    Attributes:
        id: Unique in its set.
        prompt: The text handed to the policy (before any chat template).
        reference: The reference answer as text; what it must look like is the grader's business.
        grader: `Grader`; call `rollonce.tasks.grade` rather than this, which may hang or raise.
        columns: What is known before the rollout and declared as such: family, level, source ...
    """

    id: str
    prompt: str
    reference: str
    grader: Grader
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.columns:
            check_column_name(name)


class TaskSet(Sequence[Task]):
    """N tasks in order, with a name.

    Args:
        tasks: The tasks; ids must be unique.
        name: What the set is called in logs.

    Raises:
        InputError: if two tasks share an id.
    """

    def __init__(self, tasks: Iterable[Task], name: str = "tasks") -> None:
        self._tasks = list(tasks)
        self.name = name
        seen: set[str] = set()
        for task in self._tasks:
            if task.id in seen:
                raise InputError(
                    f"two tasks of {name!r} have the id {task.id!r}; ids must be unique, since rollouts are matched to "
                    "tasks by them"
                )
            seen.add(task.id)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __getitem__(self, i: Any) -> Any:
        return TaskSet(self._tasks[i], self.name) if isinstance(i, slice) else self._tasks[i]

    def take(self, index: Iterable[int]) -> TaskSet:
        """The tasks at these positions (each at most once: ids stay unique)."""
        return TaskSet([self._tasks[i] for i in index], self.name)

    @property
    def prompts(self) -> list[str]:
        """The prompts, N of them."""
        return [t.prompt for t in self._tasks]

    def as_feature_tasks(self) -> Tasks:
        """The view that features and kernels read: prompts, ids and the declared columns, nothing of the reference or
        the grader.

        A column that some task lacks is ``None`` there.
        """
        names = dict.fromkeys(name for t in self._tasks for name in t.columns)
        columns = {name: [t.columns.get(name) for t in self._tasks] for name in names}
        return Tasks(self.prompts, [t.id for t in self._tasks], columns)


class TaskSplits(NamedTuple):
    """Three sets that share no prompt (after `normalise_prompt`)."""

    train: TaskSet
    holdout: TaskSet
    test: TaskSet


def canonical_split_name(name: str) -> str:
    """The name of a split; ``calibration``, as files and commands of rollonce 0.1 have it, is ``holdout``."""
    return "holdout" if name == "calibration" else name


def split_of(prompt: str) -> str:
    """The split a prompt belongs to, by its content alone: ``train`` (60 of 100), ``holdout`` (20) or ``test`` (20).

    A hash of `normalise_prompt`, so it depends on no seed, size or order: a task that one person trains on is in
    nobody's test set, and the embedded policy, whose supervised examples come from ``train`` prompts, has seen no
    hold-out or test prompt of any seed.

    >>> split_of("What is 2 + 2?") == split_of("  what is 2 + 2? ")
    True
    """
    bucket = int.from_bytes(hashlib.blake2b(normalise_prompt(prompt).encode(), digest_size=8).digest(), "big") % 100
    if bucket < _TEST_SHARE:
        return "test"
    return "holdout" if bucket < _TEST_SHARE + _HOLDOUT_SHARE else "train"


def check_splits_disjoint(splits: TaskSplits) -> TaskSplits:
    """The same splits, once it is sure that no prompt is in two of them.

    Raises:
        InputError: naming the first prompt found in two splits.
    """
    seen: dict[str, str] = {}
    for name, tasks in zip(SPLITS, splits, strict=True):
        for task in tasks:
            key = normalise_prompt(task.prompt)
            if seen.setdefault(key, name) != name:
                raise InputError(
                    f"the prompt {task.prompt[:80]!r} (task {task.id!r}) is in both {seen[key]} and {name}; remove it "
                    "from one of them"
                )
    return splits
