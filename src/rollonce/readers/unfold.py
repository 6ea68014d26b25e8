"""Records that hold several rollouts, as one record per rollout: rows inside a document or a line, a list of rewards,
so many right out of so many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.values import describe_record_keys, describe_value_kind, look_up_dotted_key

# How many of a task's rollouts were right, and how many there were.
_COUNTS = (
    ("n_correct", "n"),
    ("n_correct", "n_samples"),
    ("n_correct", "n_total"),
    ("num_correct", "n"),
    ("num_correct", "num_samples"),
    ("num_correct", "num_total"),
    ("num_correct", "total"),
    ("n_pass", "n"),
    ("n_passed", "n"),
    ("correct", "total"),
    ("passed", "total"),
    ("c", "n"),
)
_RESPONSES = ("response", "completion", "output", "answer", "generation", "prediction")
TOP = "."


def extract_nested_rows(record: Any, rows_key: str) -> list[Any]:
    """The rows under a (dotted) key of a record, each with the record's other fields beside its own; ``"."`` is the
    record itself. A map is taken as one from task ids to a row, a list of rows, a reward or a list of rewards.

    Raises:
        InputError: if there is nothing of the kind under that key.
    """
    value = record if rows_key == TOP else look_up_dotted_key(record, rows_key)
    if value is None:
        raise InputError(f"no key {rows_key!r} for the rows (--rows-key); {describe_record_keys(record)}")
    outer = rows_key.partition(".")[0]
    shared = {} if rows_key == TOP or not isinstance(record, Mapping) else {k: record[k] for k in record if k != outer}
    if isinstance(value, Mapping):
        return [row for task, inner in value.items() for row in _unfold_task_entry(shared | {"task_id": task}, inner)]
    if not isinstance(value, list):
        raise InputError(
            f"{rows_key!r} (--rows-key) is {describe_value_kind(value)}; it must be a list of rows, or a map by task"
        )
    wrong = [row for row in value if not isinstance(row, Mapping)]
    if wrong:
        raise InputError(
            f"a row in {rows_key!r} (--rows-key) is {describe_value_kind(wrong[0])}, not an object with keys"
        )
    return [{**shared, **row} for row in value]


def _unfold_task_entry(shared: dict[str, Any], inner: Any) -> Iterable[dict[str, Any]]:
    if isinstance(inner, list) and inner and all(isinstance(row, Mapping) for row in inner):
        return [{**shared, **row} for row in inner]
    return [{**shared, **inner} if isinstance(inner, Mapping) else {**shared, "reward": inner}]


def find_nested_rows_key(record: Any, is_row: Any) -> str | None:
    """The one key of a record under which there are rows, by ``is_row(row)``; None if there is none or several."""
    if not isinstance(record, Mapping):
        return None
    keys = []
    for key, value in record.items():
        if isinstance(value, list | Mapping) and value:
            try:
                rows = extract_nested_rows({**record, key: _keep_first_entry(value)}, str(key))
            except InputError:
                continue
            if rows and is_row(rows[0]):
                keys.append(str(key))
    return keys[0] if len(keys) == 1 else None


def _keep_first_entry(value: Any) -> Any:
    return value[:1] if isinstance(value, list) else dict([next(iter(value.items()))])


def find_counts_key(record: Mapping[str, Any]) -> str | None:
    """``"n_correct/n"`` for a record that says how many of how many rollouts were right; None for any other."""
    for right, of in _COUNTS:
        if (
            _is_rollout_count(record.get(right))
            and _is_rollout_count(record.get(of))
            and record[right] <= record[of] >= 2
        ):
            return f"{right}/{of}"
    return None


def unfold_reward_counts(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A record for each of the ``n`` rollouts of ``"n_correct/n"``, the right ones first.

    Raises:
        InputError: if these are no two counts.
    """
    right_key, _, of_key = key.partition("/")
    right, of = look_up_dotted_key(record, right_key), look_up_dotted_key(record, of_key)
    if not (_is_rollout_count(right) and _is_rollout_count(of) and right <= of):
        raise InputError(
            f"{right_key!r} and {of_key!r} are {describe_value_kind(right)} and {describe_value_kind(of)}; "
            "they must say how many rollouts out of how many were right"
        )
    return [{**record, key: 1.0 if i < right else 0.0} for i in range(int(of))]


def unfold_reward_list(record: Mapping[str, Any], reward_key: str, other_keys: Iterable[str]) -> list[dict[str, Any]]:
    """A record for each reward of a list; fields among ``other_keys`` that are lists of the same length go with them.

    Raises:
        InputError: if there is no list of rewards, or it is one per token of a single response.
    """
    rewards = look_up_dotted_key(record, reward_key)
    if not isinstance(rewards, list) or not rewards:
        raise InputError(
            f"the reward is {describe_value_kind(rewards)}, though the first row has a list of rewards, "
            "one per rollout of the task"
        )
    for key in _RESPONSES:
        if isinstance(record.get(key), str):
            raise InputError(
                f"a list of {len(rewards)} rewards beside one {key}: if these are rewards per token, write their sum; "
                "a list of rewards is taken as one per rollout of the task"
            )
    values = {key: look_up_dotted_key(record, key) for key in other_keys}
    along = {key: value for key, value in values.items() if isinstance(value, list) and len(value) == len(rewards)}
    return [
        {**record, reward_key: reward, **{key: value[i] for key, value in along.items()}}
        for i, reward in enumerate(rewards)
    ]


def _is_rollout_count(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value >= 0 and value == int(value)
