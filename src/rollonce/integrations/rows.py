"""A trainer's batch as rows that a baseline can judge, the same way for every trainer.

Shapes: ``_N`` rows as the trainer has them, padding and turns included; ``_R`` rollouts, one row each, in order of
appearance.

What trainers disagree about is settled here once: padding rows go; several rows of one rollout (turns, segments, forks)
count as one; prompts given as chat messages become text; a task has an id that is the same on every rank and after a
restart; rows of several ranks are put in one order; a missing reward is named, not averaged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from rollonce.arrays import as_float64_array
from rollonce.baselines import Baseline, Batch
from rollonce.baselines.base import find_nested_features
from rollonce.component import Component
from rollonce.errors import InputError
from rollonce.features.column import CategoryColumn, NumberColumn
from rollonce.kernels.base import BoolArray
from rollonce.prompts import normalise_prompt, render_messages
from rollonce.rollouts import FloatArray, IntArray

Prompt = str | Sequence[Mapping[str, Any]]
RolloutReward = Literal["same", "first", "last", "sum"]


def render_prompt_text(prompt: Any) -> str:
    """A prompt as text: a string as it is, chat messages as `rollonce.prompts.render_messages` writes them.

    Raises:
        InputError: for anything else, a tensor of tokens above all: decode it first.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, np.ndarray) and prompt.dtype == object:
        prompt = prompt.tolist()
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return render_messages(prompt)
    raise InputError(
        f"a prompt must be text or a list of chat messages, not {type(prompt).__name__}; decode token ids before"
    )


def stable_task_id(prompt: str) -> str:
    """An id that depends on the normalised prompt alone: 16 hexadecimal digits, the same on every rank, in every
    run."""
    return hashlib.blake2b(normalise_prompt(prompt).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def find_needed_columns(baseline: Component) -> list[str]:
    """Names of the declared columns that a baseline's features read; an adapter passes these on and no others."""
    return sorted({f.name for f in find_nested_features(baseline) if isinstance(f, NumberColumn | CategoryColumn)})


def depends_on_prompts(baseline: Baseline) -> bool:
    """Whether its numbers depend on the prompts; if not, a trainer without prompts at its hook can use it."""
    return bool(find_nested_features(baseline)) or baseline.tags.needs_repeats


@dataclass(frozen=True, eq=False)
class Rows:
    """The rollouts of a step, one row each, and where each came from.

    Attributes:
        batch: The R rollouts, in order of first appearance among the rows.
        rollout_N: Position in ``batch`` of each of the trainer's N rows; -1 for a row that was dropped (padding,
            ungraded).
    """

    batch: Batch
    rollout_N: IntArray

    @property
    def kept_N(self) -> BoolArray:
        """False for the rows that were dropped (N,)."""
        return self.rollout_N >= 0

    def spread_over_rows(self, values_R: FloatArray) -> FloatArray:
        """One number per rollout as one per row (N,): every row of a rollout gets its number, a dropped row 0."""
        out = np.zeros(len(self.rollout_N))
        out[self.kept_N] = values_R[self.rollout_N[self.kept_N]]
        return out


def make_rollout_rows(
    prompts: Sequence[Any] | None,
    rewards: Sequence[float | None] | FloatArray,
    *,
    task_ids: Sequence[Any] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    keep: Sequence[bool] | BoolArray | None = None,
    rollout_ids: Sequence[Any] | None = None,
    rollout_reward: RolloutReward = "same",
    log_probs: Sequence[float | None] | FloatArray | None = None,
    ungraded: Literal["refuse", "drop"] = "refuse",
) -> Rows:
    """Rows from what a trainer holds at its hook, N of each; tensors and arrays count by their values.

    Args:
        prompts: Texts or lists of chat messages, as they were *before* the rollout. Of several rows of a rollout the
            first one's is used: a later turn's holds what the policy wrote. None where the trainer has none; each row
            is then a task of its own, unless ``task_ids`` are given.
        rewards: Numbers; None and NaN are ungraded.
        task_ids: Ids of the tasks; rows with equal ids form a group. By default made from the prompt
            (`stable_task_id`).
        columns: Declared columns known before the rollout.
        keep: False for rows that stand for nothing (padding, rejected): they get advantage 0 and shift nobody.
        rollout_ids: Equal for rows of one rollout; None makes every row one.
        rollout_reward: What a rollout of several rows is worth: their common reward (``same``; refused where they
            differ), the ``first`` or ``last`` row's, or their ``sum``.
        log_probs: Log-probability of what the policy wrote in each row, under the policy that sampled it, summed over
            its tokens; those of a rollout's rows add up. None and NaN are unknown, and make their rollout's unknown.
        ungraded: What to do with a rollout without a reward: ``refuse`` it, or ``drop`` it as if it were padding.

    Raises:
        InputError: naming the row, where lengths differ, a reward is missing or infinite, rows of a rollout disagree,
            or a log-probability is above 0.
    """
    n = len(rewards)
    for name, given in {
        "prompts": prompts,
        "task_ids": task_ids,
        "keep": keep,
        "rollout_ids": rollout_ids,
        "log_probs": log_probs,
        **(columns or {}),
    }.items():
        if given is not None and len(given) != n:
            raise InputError(f"{n} rewards but {len(given)} {name}: every row of the trainer's batch needs one of each")
    rewards_N = _convert_to_floats(rewards)
    log_probs_N = None if log_probs is None else _convert_to_floats(log_probs)
    kept = (
        np.ones(n, dtype=bool)
        if keep is None
        else np.array([_read_single_flag(k) for k in _arrays_to_lists(keep)], dtype=bool)
    )
    task_ids, rollout_ids = _arrays_to_lists(task_ids), _arrays_to_lists(rollout_ids)
    columns = {name: _arrays_to_lists(values) for name, values in (columns or {}).items()}
    rollout_of: dict[Any, list[int]] = {}
    for i in np.flatnonzero(kept).tolist():
        rollout_of.setdefault(i if rollout_ids is None else _lists_to_tuples(rollout_ids[i]), []).append(i)
    first_R, rewards_R, log_probs_R, rollout_N = [], [], [], np.full(n, -1, dtype=np.int64)
    for rollout, rows in rollout_of.items():
        reward = _combine_row_rewards(rewards_N[rows], rows, rollout, rollout_reward)
        if np.isnan(reward) and ungraded == "drop":
            continue
        if not np.isfinite(reward):
            raise InputError(
                f"row {rows[0]} has reward {reward} "
                f"({'no reward function graded it' if np.isnan(reward) else 'not finite'}); "
                "grade it, or leave it out (keep=False): a baseline can neither use nor judge it"
            )
        rollout_N[rows] = len(first_R)
        first_R.append(rows[0])
        rewards_R.append(reward)
        if log_probs_N is not None:
            log_probs_R.append(float(log_probs_N[rows].sum()))
    texts = ["" if prompts is None else render_prompt_text(prompts[i]) for i in first_R]
    if task_ids is not None:
        ids = [str(task_ids[i]) for i in first_R]
    else:
        ids = [f"row {i}" for i in first_R] if prompts is None else [stable_task_id(t) for t in texts]
    chosen = {name: [values[i] for i in first_R] for name, values in columns.items()}
    given_R = None if log_probs_N is None else log_probs_R
    return Rows(Batch.of(texts, rewards_R, task_ids=ids, columns=chosen, log_probs=given_R), rollout_N)


def _convert_to_floats(values: Sequence[float | None] | FloatArray) -> FloatArray:
    return as_float64_array(values)


def _arrays_to_lists(value: Any) -> Any:
    """Tensors and arrays as lists, those of no dimension as numbers, within lists too.

    A 0-d tensor is hashed by identity: as a key it would make each turn a rollout of its own, whose sisters show it its
    own reward.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    return type(value)(map(_arrays_to_lists, value)) if type(value) in (list, tuple) else value


def _lists_to_tuples(value: Any) -> Any:
    return tuple(map(_lists_to_tuples, value)) if isinstance(value, list) else value


def _read_single_flag(value: Any) -> bool:
    if not isinstance(value, list):
        return bool(value)
    if len(value) != 1:
        raise InputError(
            f"keep must hold one value for each row, not {len(value)}; a mask over tokens is something else"
        )
    return _read_single_flag(value[0])


def _combine_row_rewards(rewards: FloatArray, rows: list[int], rollout: Any, rule: RolloutReward) -> float:
    if len(rewards) == 1:
        return float(rewards[0])
    if rule == "same":
        if not (np.isnan(rewards).all() or (rewards == rewards[0]).all()):
            raise InputError(
                f"rows {rows} belong to one rollout ({rollout!r}) but have rewards {rewards.tolist()}; "
                "say which counts: rollout_reward='last', 'first' or 'sum'"
            )
        return float(rewards[0])
    if rule in ("first", "last"):
        return float(rewards[0 if rule == "first" else -1])
    if rule == "sum":
        return float(rewards.sum())
    raise InputError(f"rollout_reward must be same, first, last or sum, not {rule!r}")


class World(NamedTuple):
    """The rows of all ranks, rank by rank, and where this rank's own lie among them.

    Attributes:
        fields: Every field that was given, the ranks' lists end to end.
        mine: Slice of this rank's rows.
    """

    fields: dict[str, list[Any] | None]
    mine: slice


def gather_rows(fields: Mapping[str, Sequence[Any] | None], gather: Callable[[Any], Sequence[Any]], rank: int) -> World:
    """The rows of the whole world in one order, so that every rank computes the same numbers and takes its own slice.

    Args:
        fields: This rank's columns by name (prompts, rewards, keep ...), equally long; None for one that it does not
            have.
        gather: Takes an object, gives the objects of all ranks in the order of ranks, as
            ``torch.distributed.all_gather_object`` leaves in its list. Ranks may hold different numbers of rows, none
            included.
        rank: This process's.

    >>> other = {"prompts": ["c"], "rewards": [0.0]}
    >>> world = gather_rows({"prompts": ["a", "b"], "rewards": [1.0, 0.0]}, lambda mine: [other, mine], rank=1)
    >>> world.fields["rewards"], world.mine
    ([0.0, 1.0, 0.0], slice(1, 3, None))
    """
    own = {name: None if values is None else list(values) for name, values in fields.items()}
    everyone = list(gather(own))
    sizes = [max((len(v) for v in other.values() if v is not None), default=0) for other in everyone]
    if not 0 <= rank < len(everyone):
        raise InputError(f"rank {rank} of a world of {len(everyone)}: gather must give one object per rank, in order")
    joined: dict[str, list[Any] | None] = {}
    for name in own:
        parts = [other.get(name) for other in everyone]
        filled = [p for p, size in zip(parts, sizes, strict=True) if size]
        if any(p is None for p in filled) and any(p is not None for p in filled):
            raise InputError(f"some ranks have {name} and some have not; every rank must pass the same fields")
        joined[name] = None if any(p is None for p in filled) else [v for p in filled if p is not None for v in p]
    start = sum(sizes[:rank])
    return World(joined, slice(start, start + sizes[rank]))
