"""Anyone's own rollouts: JSON Lines, one JSON list, CSV or parquet, one rollout per row, under keys that can be named.

Keys that are not named are looked for under the usual names below; what is found in the first file holds for all of
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Block, Format, Row
from rollonce.readers.join import NO_PROMPTS, Join
from rollonce.readers.jsonl import Reject, Tell
from rollonce.readers.one_policy import OnePolicy
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe, read_row_blocks
from rollonce.readers.unfold import (
    extract_nested_rows,
    find_counts_key,
    find_nested_rows_key,
    unfold_reward_counts,
    unfold_reward_list,
)
from rollonce.readers.values import convert_id_to_text, describe_record_keys, describe_value_kind, look_up_dotted_key

# Where a row of one's own keeps the reply of an OpenAI-compatible server (the last is the batch API's).
_REPLIES = ("", "response.", "completion.", "response.body.")

# The usual names, the likeliest first. `id` and `uid` are left out on purpose: as often as not they number the rows.
USUAL: dict[str, tuple[str, ...]] = {
    "prompt": (
        "prompt",
        "input_prompt",
        "question",
        "problem",
        "query",
        "instruction",
        "input",
        "prompt_text",
        "messages",
    ),
    "reward": ("reward", "score", "total_reward", "correct", "is_correct", "passed", "success", "accuracy", "acc"),
    "task": ("task_id", "problem_id", "question_id", "example_id", "prompt_id", "instance_id", "_ng_task_index"),
    "rollout": (
        "rollout_id",
        "rollout_idx",
        "rollout",
        "repeat",
        "attempt",
        "trial",
        "sample_idx",
        "sample_index",
        "_ng_rollout_index",
    ),
    "length": (
        "response_length",
        "response_len",
        "completion_length",
        "response_tokens",
        "completion_tokens",
        "output_tokens",
        "num_output_tokens",
        *(f"{reply}usage.completion_tokens" for reply in _REPLIES),
    ),
    "step": ("step", "training_step", "train_step", "global_step", "iteration"),
    "log_prob": (
        "log_prob",
        "log_probs",
        "logprob",
        "logprobs",
        "cumulative_logprob",
        "sum_logprob",
        *(f"{reply}choices.0.logprobs" for reply in _REPLIES),
    ),
}


class Generic(Format):
    """JSON Lines, a JSON document, CSV or parquet with one rollout per row, or one group of rollouts."""

    name = "generic"
    uses = frozenset({"reward", "join", "split", "filter", "rows_key"})

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._keys: dict[str, str] | None = None
        self._rows_key = options.rows_key
        self._rollouts_of: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None
        self._join: Join | None = None
        self._is_document = False
        self._one_policy: OnePolicy | None = None
        if options.reward is not None and options.reward_key is not None:
            raise InputError("reward= (--reward) and reward_key= (--reward-key) name the same thing here; give one")
        if options.join not in (None, NO_PROMPTS):
            self._join = Join(options.join, (*USUAL["task"], "id", "name"))  # pyright: ignore[reportArgumentType]

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """A row with something like a prompt and something like a reward, or such rows inside it."""
        return is_rollout_record(probe.record) or find_nested_rows_key(probe.record, is_rollout_record) is not None

    def prepare_for_file(self, probe: Probe) -> None:
        self._is_document = probe.is_json_document
        if self.options.rows_key is None and not is_rollout_record(probe.record):
            self._rows_key = find_nested_rows_key(probe.record, is_rollout_record)

    def read_record_blocks(
        self, probe: Probe, reject: Reject, tell: Tell | None = None
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Blocks of rows of the file, whichever of the four kinds it is."""
        return read_row_blocks(probe, reject, tell)

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        values: dict[str, Any] = {}
        keys = self.resolve_field_keys(record)
        for what, key in keys.items():
            value = look_up_dotted_key(record, key)
            if (
                value is None
                and what in ("prompt", "reward", "task")
                and not (isinstance(record, dict) and key in record)
            ):
                raise InputError(f"no key {key!r} in this row; {describe_record_keys(record)}")
            if value is None and what == "task":
                raise InputError(f"the task id ({key!r}) is null; it must be text or a number")
            values[what] = value
        if "prompt" not in keys:
            values["prompt"] = self._find_joined_prompt(values["task"])
        elif keys["prompt"] == "messages":
            values["prompt"] = _cut_before_first_answer(values["prompt"])
        yield Row(**values)

    def _find_joined_prompt(self, task: Any) -> Any:
        if self._join is None:
            return convert_id_to_text(task)
        return self._join.find_joined_task(dict.fromkeys(self._join.keys, task)).prompt

    def resolve_field_keys(self, record: Any) -> dict[str, str]:
        """Which key holds which field of a row: named by the user, else guessed once from the first row.

        Raises:
            InputError: if there is no usual name for the prompt or the reward, saying which keys there are.
        """
        if self._keys is not None:
            return self._keys
        if not isinstance(record, dict):
            raise InputError(f"a row must be an object with keys, not {describe_value_kind(record)}")
        keys: dict[str, str] = {}
        for what, usual in USUAL.items():
            named = getattr(self.options, f"{what}_key")
            if what == "reward":
                named = named or self.options.reward or find_counts_key(record)
            if named is None:
                named = next(
                    (k for k in usual if k in record or ("." in k and look_up_dotted_key(record, k) is not None)), None
                )
            if named:  # '' says: this log has none
                keys[what] = named
        if self.options.join is not None:
            self._check_join_applies(keys)
        for what in ("prompt", "reward"):
            if what not in keys and not (what == "prompt" and self.options.join is not None):
                more = " or give a file with the prompts (--join)" if what == "prompt" and "task" in keys else ""
                raise InputError(
                    f"no key for the {what}: none of the usual names ({', '.join(USUAL[what])}); "
                    f"{describe_record_keys(record)}. Name it with {what}_key (--{what}-key){more}"
                )
        self._keys = keys
        self._rollouts_of = _find_unfold_function(record, keys)
        return keys

    def _check_join_applies(self, keys: dict[str, str]) -> None:
        if "prompt" in keys:
            raise InputError(
                f"join= (--join) does nothing for rows that hold their prompt (under {keys['prompt']!r}); "
                "leave it out, or say prompt_key='' (--prompt-key '')"
            )
        if "task" not in keys:
            raise InputError("a join finds prompts by task id, and these rows have none; name it with --task-key")

    def build_rollout_block(self, file: str, lines: Sequence[int], records: list[Any], reject: Reject) -> Block:
        """Many rows at once where their keys are plain; row by row where one lacks a key."""
        columns = self.options.columns
        lines, records = self._unfold_record_block(file, lines, records, reject)
        try:
            keys = self.resolve_field_keys(next(r for r in records if isinstance(r, dict)))
        except (InputError, StopIteration):
            return super().build_rollout_block(file, lines, records, reject)
        dotted = any("." in k for k in (*keys.values(), *(c.key for c in columns)))
        if (
            dotted
            or any(c.pattern or c.key in ("task_id", "prompt") for c in columns)
            or keys.get("prompt") in (None, "messages")
        ):
            return super().build_rollout_block(file, lines, records, reject)
        need = {w: k for w, k in keys.items() if w in ("prompt", "reward", "task")}
        try:
            got = {w: list(map(itemgetter(k), records)) for w, k in need.items()}
            values = {c.name: list(map(itemgetter(c.key), records)) for c in columns}
        except (KeyError, TypeError, IndexError):
            return super().build_rollout_block(file, lines, records, reject)
        if any({type(v) for v in column} - {str, int, float, bool} for column in values.values()) or None in got.get(
            "task", ()
        ):
            return super().build_rollout_block(file, lines, records, reject)
        maybe = {w: _read_optional_values(records, k) for w, k in keys.items() if w not in need}
        return Block(
            file,
            lines,
            got["prompt"],
            got["reward"],
            got.get("task"),
            maybe.get("rollout"),
            maybe.get("length"),
            maybe.get("step"),
            maybe.get("log_prob"),
            values,
        )

    def _unfold_record_block(
        self, file: str, lines: Sequence[int], records: list[Any], reject: Reject
    ) -> tuple[Sequence[int], list[Any]]:
        """One record per rollout, with the line that it came from (in a document: its number)."""
        if self._rows_key is not None:
            lines, records = _unfold_each_record(
                file, lines, records, reject, lambda record: extract_nested_rows(record, self._rows_key or "")
            )
            if self._is_document:
                lines = range(1, len(records) + 1)
        if self.options.split is not None:
            lines, records = self._keep_rows_of_split(file, lines, records, reject)
        lines, records = self._keep_single_policy_rows(lines, records)
        first = next((r for r in records if isinstance(r, dict)), None)
        if first is not None and self._keys is None:
            with contextlib.suppress(InputError):  # said when the row is read
                self.resolve_field_keys(first)
        if self._rollouts_of is not None:
            lines, records = _unfold_each_record(file, lines, records, reject, self._rollouts_of)
        return lines, records

    def _keep_single_policy_rows(self, lines: Sequence[int], records: list[Any]) -> tuple[Sequence[int], list[Any]]:
        if self._one_policy is None:
            first = next((r for r in records if isinstance(r, dict)), {})
            moves = bool(self.options.step_key) or any(key in first for key in USUAL["step"])
            self._one_policy = OnePolicy(self.options, moves)
        lines, records, others = self._one_policy.keep_policy_rows(lines, records)
        self.n_filtered += len(others)
        self.splits.update(others)
        return lines, records

    def _keep_rows_of_split(
        self, file: str, lines: Sequence[int], records: list[Any], reject: Reject
    ) -> tuple[Sequence[int], list[Any]]:
        kept: list[tuple[int, Any]] = []
        for line, record in zip(lines, records, strict=True):
            split = record.get("split") if isinstance(record, dict) else None
            if split is None:
                reject(file, line, f"split= (--split) needs a key 'split' in each row; {describe_record_keys(record)}")
            elif split == self.options.split:
                kept.append((line, record))
            else:
                self.n_filtered += 1
                self.splits.add(str(split))
        return [line for line, _ in kept], [record for _, record in kept]


def is_rollout_record(record: Any) -> bool:
    """Whether a record has something like a prompt and something like a reward."""
    if not isinstance(record, dict) or not any(k in record for k in USUAL["prompt"]):
        return False
    return any(k in record for k in USUAL["reward"]) or find_counts_key(record) is not None


def _find_unfold_function(
    record: dict[str, Any], keys: dict[str, str]
) -> Callable[[dict[str, Any]], list[dict[str, Any]]] | None:
    """How a record becomes one record per rollout, where it holds a whole group."""
    reward = keys["reward"]
    if "/" in reward and reward not in record:
        return lambda record: unfold_reward_counts(record, reward)
    if isinstance(look_up_dotted_key(record, reward), list):
        along = [key for what, key in keys.items() if what in ("rollout", "length", "log_prob", "step")]
        return lambda record: unfold_reward_list(record, reward, along)
    return None


def _unfold_each_record(
    file: str,
    lines: Sequence[int],
    records: list[Any],
    reject: Reject,
    unfold: Callable[[dict[str, Any]], list[dict[str, Any]]],
) -> tuple[list[int], list[Any]]:
    out_lines: list[int] = []
    out: list[Any] = []
    for line, record in zip(lines, records, strict=True):
        try:
            rows = unfold(record) if isinstance(record, dict) else [record]
        except InputError as error:
            reject(file, line, error.message)
            continue
        out_lines += [line] * len(rows)
        out += rows
    return out_lines, out


def _cut_before_first_answer(messages: Any) -> Any:
    """The prompt of a stored conversation: what precedes the first answer, if an answer (or a tool's) ends it."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return messages
    if messages[-1].get("role") in ("user", "system", "developer"):
        return messages
    answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    return messages[: answers[0]] if answers else messages


def _read_optional_values(records: list[Any], key: str) -> list[Any]:
    try:
        return list(map(itemgetter(key), records))
    except KeyError:
        return [r.get(key) for r in records]
