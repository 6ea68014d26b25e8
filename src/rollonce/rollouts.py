"""The table that every command reads: tasks x rollouts, ragged groups allowed.

Shapes: ``_N`` tasks, ``_R`` rollouts (all tasks' groups end to end, in task order), ``_B`` batch, ``_G`` rollouts of a
    task.

A task is what can be known *before* a rollout (its prompt and declared columns): `Tasks`. Features and kernels are
handed that view and nothing else, so they cannot read a reward, a response or its length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollonce.arrays import as_float64_array
from rollonce.errors import InputError
from rollonce.prompts import check_column_name, normalise_prompt
from rollonce.rounding import COARSEST, rewards_are_equal

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _is_feature_key(key: Any) -> bool:
    return isinstance(key, tuple) and key[0] == "feature"


class Tasks:
    """What is known before any rollout: prompts, ids and declared columns. No rewards, responses or lengths.

    Args:
        prompts: N prompts as text.
        task_ids: N ids, default ``"0" .. "N-1"``.
        columns: Declared pre-rollout columns, each of N values (text or numbers).
        ids_tell_apart: Tasks with the same prompt are different tasks if their ids differ: games with hidden words,
            agents whose prompt is empty. Otherwise one prompt is one task, whatever its ids.

    `take` gives a view that shares the parent's cache, so a feature of N tasks is computed once however many batches
    are drawn.
    """

    def __init__(
        self,
        prompts: Sequence[str],
        task_ids: Sequence[str] | NDArray[Any] | None = None,
        columns: Mapping[str, Sequence[Any] | NDArray[Any]] | None = None,
        *,
        ids_tell_apart: bool = False,
    ) -> None:
        self.ids_tell_apart = ids_tell_apart
        self._root: Tasks = self
        self.index_N: IntArray | None = None
        self._prompts: Sequence[str] = prompts
        n = len(prompts)
        self._task_ids = (
            np.array([str(i) for i in range(n)], dtype=object)
            if task_ids is None
            else np.asarray(task_ids, dtype=object)
        )
        if len(self._task_ids) != n:
            raise InputError(f"{n} prompts but {len(self._task_ids)} task ids")
        self._columns: dict[str, NDArray[Any]] = {}
        for name, values in (columns or {}).items():
            array = np.asarray(values)
            if len(array) != n:
                raise InputError(f"column {name!r} has {len(array)} values for {n} tasks")
            self._columns[check_column_name(name)] = array
        self._cache: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._prompts) if self.index_N is None else len(self.index_N)

    def __repr__(self) -> str:
        columns = f", columns {', '.join(self.column_names)}" if self.column_names else ""
        return f"Tasks({len(self)} prompts{columns})"

    def take(self, index_N: Sequence[int] | IntArray) -> Tasks:
        """The tasks at these positions, sharing this one's cache of features."""
        view = Tasks.__new__(Tasks)
        view.ids_tell_apart = self.ids_tell_apart
        view._root = self._root
        index = np.asarray(index_N, dtype=np.int64)
        view.index_N = index if self.index_N is None else self.index_N[index]
        view._prompts, view._task_ids, view._columns, view._cache = (), self._task_ids, {}, {}
        return view

    def detached(self) -> Tasks:
        """The same tasks as their own root, so that the parent can be forgotten; cached feature rows come along."""
        if self.index_N is None:
            return self
        columns = {c: self.column(c) for c in self.column_names}
        own = Tasks(self.prompts, self.task_ids, columns, ids_tell_apart=self.ids_tell_apart)
        for key, value in self._root._cache.items():
            if _is_feature_key(key):
                own._cache[key] = value[self.index_N]
        return own

    @staticmethod
    def concat(first: Tasks, second: Tasks) -> Tasks:
        """The tasks of both, first ones first; columns and cached feature rows that both have are kept."""
        first, second = first.detached(), second.detached()
        shared = [c for c in first.column_names if c in second.column_names]
        columns = {c: np.concatenate([first.column(c), second.column(c)]) for c in shared}
        both = Tasks(
            [*first.prompts, *second.prompts],
            np.concatenate([first.task_ids, second.task_ids]),
            columns,
            ids_tell_apart=(first.ids_tell_apart or not len(first)) and (second.ids_tell_apart or not len(second)),
        )
        for key, value in first._cache.items():
            if _is_feature_key(key) and key in second._cache:
                other = second._cache[key]
                both._cache[key] = (
                    np.concatenate([value, other])
                    if isinstance(value, np.ndarray)
                    else type(value).stack_vertically([value, other])
                )
        return both

    @property
    def root(self) -> Tasks:
        """The tasks that this view was taken from (itself, if it is no view)."""
        return self._root

    @property
    def prompts(self) -> list[str]:
        """The prompts as text, N of them."""
        if self.index_N is None:
            return list(self._root._prompts)
        prompts: Sequence[str] = self._root._prompts
        return [str(prompts[i]) for i in self.index_N]

    @property
    def task_ids(self) -> NDArray[Any]:
        ids = self._root._task_ids
        return ids if self.index_N is None else ids[self.index_N]

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the declared pre-rollout columns."""
        return tuple(self._root._columns)

    def column(self, name: str) -> NDArray[Any]:
        """One declared column, N values.

        Raises:
            InputError: if the name is like one known only after the rollout, or was not declared.
        """
        check_column_name(name)
        columns = self._root._columns
        if name not in columns:
            known = ", ".join(columns) or "none"
            raise InputError(
                f"no column {name!r} among the declared ones ({known}); declare it when reading, as in --columns {name}"
            )
        return columns[name] if self.index_N is None else columns[name][self.index_N]

    def cached(self, key: Any, compute: Callable[[Tasks], Any]) -> Any:
        """``compute(root)`` once per key for all tasks, then the rows of this view. What it returns must index by
        row."""
        cache = self._root._cache
        if key not in cache:
            cache[key] = compute(self._root)
        value = cache[key]
        return value if self.index_N is None else value[self.index_N]

    @property
    def identities(self) -> list[str]:
        """What two rows of one task have in common, N texts: the normalised prompt, or the id where ids tell apart."""
        if self.ids_tell_apart:
            return [str(i) for i in self.task_ids]
        return [normalise_prompt(p) for p in self.prompts]

    @property
    def prompt_keys(self) -> IntArray:
        """An integer per task, equal where the `identities` are equal (N,)."""

        def number_identities(root: Tasks) -> IntArray:
            codes: dict[str, int] = {}
            return np.fromiter(
                (codes.setdefault(identity, len(codes)) for identity in root.identities),
                dtype=np.int64,
                count=len(root),
            )

        return self.cached("prompt_keys", number_identities)


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Tasks x rollouts of one policy.

    Attributes:
        name: What the set is called (a file's stem).
        tasks: The N tasks, without anything known only after a rollout.
        offsets_N1: Task n's rollouts are ``rewards_R[offsets_N1[n]:offsets_N1[n + 1]]`` (N + 1,).
        rewards_R: Rewards, any finite real numbers (R,). A task's rewards that differ by rounding alone
            (`rollonce.rounding`) are kept as one number.
        lengths_R: Response lengths in the unit of the log (tokens wherever it counts them), NaN where unknown, or None
            (R,).
        steps_R: The training step (or iteration, epoch) of each rollout, or None (R,).
        order_R: Position of each rollout in the file(s), for logs that are read as a stream (R,).
        source: The file or files that it came from.
        skipped: What ``skip_bad_rows`` passed over, a message each (at most a hundred, then a line that says how many
            more).
        n_skipped: How many rows it passed over in all.
        format: The log format that it was read from (``generic``, ``verl``, ...), if it was read.
        log_probs_R: Log-probability of each response under the policy that sampled it, summed over its tokens, in nats:
            at most 0, NaN where unknown; None if no rollout has one (R,). Known only after the rollout, so `Tasks`
            never holds it.
        unused_columns: Fields of the log that look known before the rollout and were not declared, as ``columns=``
            takes them.
    """

    name: str
    tasks: Tasks
    offsets_N1: IntArray
    rewards_R: FloatArray
    lengths_R: FloatArray | None = None
    steps_R: IntArray | None = None
    order_R: IntArray | None = None
    source: str = ""
    skipped: tuple[str, ...] = ()
    n_skipped: int = field(default=0, kw_only=True)
    format: str = field(default="", kw_only=True)
    log_probs_R: FloatArray | None = field(default=None, kw_only=True)
    unused_columns: tuple[str, ...] = field(default=(), kw_only=True)
    _memo: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards_R", _without_rounding(self.rewards_R, self.offsets_N1))
        if self.log_probs_R is not None:
            if self.log_probs_R.shape != self.rewards_R.shape:
                raise InputError(f"{self.n_rollouts} rewards but {len(self.log_probs_R)} log-probabilities")
            wrong = self.log_probs_R[(self.log_probs_R > 0) | np.isinf(self.log_probs_R)]
            if len(wrong):
                raise InputError(
                    f"a summed log-probability of {wrong[0]:g}: it must be finite and at most 0 (NaN where it is not "
                    "known)"
                )

    @classmethod
    def from_groups(
        cls,
        rewards: Sequence[Sequence[float] | FloatArray] | FloatArray,
        prompts: Sequence[str],
        *,
        task_ids: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        name: str = "rollouts",
        lengths: Sequence[Sequence[float] | FloatArray] | FloatArray | None = None,
        log_probs: Sequence[Sequence[float] | FloatArray] | FloatArray | None = None,
    ) -> Rollouts:
        """A table from a list of groups (or an (N, G) array) of rewards and N prompts.

        ``lengths`` (response tokens) and ``log_probs`` (summed over them) are grouped like the rewards, NaN where
        unknown.

        >>> table = Rollouts.from_groups([[1, 0], [1, 1]], ["2+2?", "3+3?"])
        >>> table.n_tasks, table.n_rollouts
        (2, 4)
        """
        groups = [as_float64_array(g) for g in rewards]
        if len(groups) != len(prompts):
            raise InputError(f"{len(groups)} groups of rewards but {len(prompts)} prompts")
        for i, g in enumerate(groups):
            if g.ndim != 1 or len(g) == 0 or not np.isfinite(g).all():
                raise InputError(f"group {i} of rewards must be a non-empty list of finite numbers")
        offsets = np.concatenate([[0], np.cumsum([len(g) for g in groups])]).astype(np.int64)
        return cls(
            name,
            Tasks(
                prompts,
                task_ids,
                columns,
                ids_tell_apart=task_ids is not None and should_ids_tell_apart(prompts, [len(g) for g in groups]),
            ),
            offsets,
            np.concatenate(groups),
            lengths_R=_flatten_grouped_values(groups, lengths, "lengths"),
            log_probs_R=_flatten_grouped_values(groups, log_probs, "log_probs"),
        )

    def __repr__(self) -> str:
        columns = f", columns {', '.join(self.tasks.column_names)}" if self.tasks.column_names else ""
        mean = f"mean reward {self.rewards_R.mean():.3g}" if self.n_rollouts else "empty"
        return f"Rollouts({self.name!r}, {self.n_tasks} tasks, {self.n_rollouts} rollouts, {mean}{columns})"

    @property
    def n_tasks(self) -> int:
        return len(self.tasks)

    @property
    def n_rollouts(self) -> int:
        return len(self.rewards_R)

    @property
    def group_sizes_N(self) -> IntArray:
        return np.diff(self.offsets_N1)

    @property
    def task_of_R(self) -> IntArray:
        """The task position of each rollout (R,)."""
        return np.repeat(np.arange(self.n_tasks), self.group_sizes_N)

    @property
    def means_N(self) -> FloatArray:
        """Mean reward of each task's group (N,); between its least and its largest, which rounding alone may leave."""
        if "means" not in self._memo:
            first, rewards = self.offsets_N1[:-1], self.rewards_R
            means = np.add.reduceat(rewards, first) / self.group_sizes_N
            low, high = np.minimum.reduceat(rewards, first), np.maximum.reduceat(rewards, first)
            self._memo["means"] = np.clip(means, low, high)
        return self._memo["means"]

    @property
    def biased_variances_N(self) -> FloatArray:
        """Variance of each task's group with ddof=0: that of a rollout drawn from the group (N,)."""
        if "v" not in self._memo:
            squares = (self.rewards_R - self.means_N[self.task_of_R]) ** 2
            self._memo["v"] = np.add.reduceat(squares, self.offsets_N1[:-1]) / self.group_sizes_N
        return self._memo["v"]

    @property
    def variances_N(self) -> FloatArray:
        """Unbiased within-task variance s2_x (ddof=1), NaN for groups of one (N,)."""
        g = self.group_sizes_N
        return np.where(g > 1, self.biased_variances_N * g / np.maximum(g - 1, 1), np.nan)

    def group(self, n: int) -> FloatArray:
        """The rewards of task n (G_n,)."""
        return self.rewards_R[self.offsets_N1[n] : self.offsets_N1[n + 1]]

    def select(self, index_N: Sequence[int] | IntArray, name: str | None = None) -> Rollouts:
        """The table of these tasks only; it shares the cache of features with this one."""
        index = np.asarray(index_N, dtype=np.int64)
        sizes = self.group_sizes_N[index]
        starts = self.offsets_N1[:-1][index]
        rows = np.repeat(starts - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(sizes.sum())
        pick = lambda a: None if a is None else a[rows]  # noqa: E731
        return Rollouts(
            name or self.name,
            self.tasks.take(index),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            self.rewards_R[rows],
            pick(self.lengths_R),
            pick(self.steps_R),
            pick(self.order_R),
            self.source,
            self.skipped,
            n_skipped=self.n_skipped,
            format=self.format,
            log_probs_R=pick(self.log_probs_R),
            unused_columns=self.unused_columns,
        )


def should_ids_tell_apart(prompts: Sequence[str], group_sizes: Sequence[int] | IntArray) -> bool:
    """Whether N tasks with ids of their own are to be told apart by these and not by their prompts: if all prompts are
    one, or if there are at least two tasks per prompt and the ids are those of groups, not of single rollouts."""
    n_prompts = len(set(map(normalise_prompt, prompts)))
    return (n_prompts == 1 < len(prompts)) or (2 * n_prompts <= len(prompts) and bool(np.median(group_sizes) >= 2))


def _flatten_grouped_values(
    groups: list[FloatArray], values: Sequence[Sequence[float] | FloatArray] | FloatArray | None, what: str
) -> FloatArray | None:
    if values is None:
        return None
    sizes = [len(g) for g in values]
    if sizes != [len(g) for g in groups]:
        raise InputError(f"{what} must be grouped like the rewards, {len(groups)} groups of the same sizes")
    return np.concatenate([as_float64_array(g) for g in values])


def _without_rounding(rewards_R: FloatArray, offsets_N1: IntArray) -> FloatArray:
    """The rewards, those of a task (or of all tasks) as one number where they are equal but for rounding."""
    if not len(rewards_R) or (np.diff(offsets_N1) <= 0).any():
        return rewards_R
    low_N = np.minimum.reduceat(rewards_R, offsets_N1[:-1])
    high_N = np.maximum.reduceat(rewards_R, offsets_N1[:-1])
    spread_N, size_N = high_N - low_N, np.maximum(np.abs(low_N), np.abs(high_N))
    out_R = rewards_R
    for n in np.flatnonzero((spread_N > 0) & (spread_N <= COARSEST * size_N + 1e-6)):
        group = slice(offsets_N1[n], offsets_N1[n + 1])
        if rewards_are_equal(rewards_R[group]):
            out_R = rewards_R.copy() if out_R is rewards_R else out_R
            out_R[group] = rewards_R[group][0]
    if np.ptp(out_R) > 0 and rewards_are_equal(out_R):
        out_R = np.full_like(out_R, out_R[0])
    return out_R
