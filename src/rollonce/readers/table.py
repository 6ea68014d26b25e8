"""From blocks of rows to the table: every value is checked here, once, whatever format it came from.

A block is checked column by column; only when something in it is wrong is it gone through row by row to say what and
where. Memory per rollout is a few machine words (task, reward, length, step, line), prompts are kept once a task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import ne
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollonce.errors import InputError
from rollonce.prompts import normalise_prompt
from rollonce.readers.base import Block
from rollonce.readers.log_probs import sum_block_log_probs, sum_token_log_probs
from rollonce.readers.row_values import RowValues
from rollonce.readers.values import (
    NUMBERS,
    CloserLook,
    convert_id_to_text,
    describe_value_kind,
    make_column_array,
    make_float_array,
    make_id_from_prompt,
    make_integer_arrays,
)
from rollonce.rollouts import Rollouts, Tasks, should_ids_tell_apart

MAX_MESSAGES = 100


class TableBuilder:
    """Collects blocks and gives a `Rollouts`.

    Args:
        skip_bad_rows: Note bad rows (`reject_bad_row`) rather than raise.
        max_prompt_chars: Longer prompts are bad rows.
        text_numbers: Numbers may come as text, as in CSV.
    """

    def __init__(
        self, *, skip_bad_rows: bool = False, max_prompt_chars: int = 1_000_000, text_numbers: bool = False
    ) -> None:
        self.skip_bad_rows = skip_bad_rows
        self.max_prompt_chars = max_prompt_chars
        self._values = RowValues(max_prompt_chars, text_numbers)
        self.n_skipped = 0
        self.messages: list[str] = []
        self._code_of: dict[str, int] = {}
        self._prompts: list[str] = []
        self._ids: list[str] = []
        self._columns: dict[str, list[Any]] = {}
        self._first_seen: list[tuple[str, int]] = []
        self._files: list[str] = []
        self._rollout_code: dict[Any, int] = {}
        self._parts: list[tuple[NDArray[Any], ...]] = []
        self._any = {"lengths": False, "steps": False, "rollouts": False, "log_probs": False}
        self.n_rows = 0

    # What is wrong with a row
    # -------------------------------------------------------------------------------------------------

    def reject_bad_row(self, file: str, line: int | None, message: str) -> None:
        """Raise what is wrong with a row, or note it and go on."""
        error = InputError(message, file=file, line=line)
        if not self.skip_bad_rows:
            raise error
        self.n_skipped += 1
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(str(error))

    def list_skip_messages(self) -> tuple[str, ...]:
        """A message a bad row, the first hundred of them, and then how many more there were."""
        more = self.n_skipped - len(self.messages)
        return (*self.messages, f"... and {more:,} more bad rows") if more else tuple(self.messages)

    # Adding rows
    # --------------------------------------------------------------------------------------------------------------

    def add_rollout_block(self, block: Block) -> NDArray[np.int64]:
        """Check and keep the rows of a block; the task position of each kept row."""
        if not block.prompts:
            return np.empty(0, dtype=np.int64)
        try:
            return self._add_whole_block(block)
        except (CloserLook, TypeError, ValueError, OverflowError):
            pass
        codes = [np.empty(0, dtype=np.int64)]
        for i in range(len(block.prompts)):
            try:
                if self._is_row_acceptable(block, i):
                    codes.append(self._add_whole_block(self._build_single_row_block(block, i)))
            except InputError:
                raise
            except (CloserLook, TypeError, ValueError, OverflowError) as error:
                self.reject_bad_row(
                    block.file, block.lines[i], f"this row cannot be read ({type(error).__name__}: {str(error)[:120]})"
                )
        return np.concatenate(codes)

    def _build_single_row_block(self, block: Block, i: int) -> Block:
        pick = lambda values: None if values is None else [values[i]]  # noqa: E731
        length = math.nan if block.lengths is None else self._values.parse_number_value(block.lengths[i], "length")
        log_prob = None if block.log_probs is None else self._values.parse_log_prob_value(block.log_probs[i])
        log_prob, length = sum_token_log_probs(log_prob, length)
        return Block(
            block.file,
            [block.lines[i]],
            [self._values.render_prompt_text(block.prompts[i])],
            [self._values.parse_reward_value(block.rewards[i])],
            None if block.tasks is None or block.tasks[i] is None else [convert_id_to_text(block.tasks[i])],
            pick(block.rollouts),
            [length],
            None if block.steps is None else [self._values.parse_step_number(block.steps[i])],
            None if math.isnan(log_prob) else [log_prob],
            {name: [values[i]] for name, values in block.columns.items()},
        )

    def _is_row_acceptable(self, block: Block, i: int) -> bool:
        try:
            row = self._build_single_row_block(block, i)
            prompt = row.prompts[0]
            key = prompt if row.tasks is None else row.tasks[0]
            code = self._code_of.get(_make_task_key(row.tasks is None, key), -1)
            if row.rollouts and not isinstance(row.rollouts[0], str | int | float | None):
                raise InputError(
                    f"the rollout id is {describe_value_kind(row.rollouts[0])}; it must be text or a number"
                )
            if code < 0:
                self._values.check_prompt_length(prompt)
                return True
            if self._prompts[code] != prompt and normalise_prompt(self._prompts[code]) != normalise_prompt(prompt):
                file, line = self._first_seen[code]
                raise InputError(
                    f"task {key!r} has another prompt here than at {file}, line {line}: "
                    f"{prompt[:60]!r} and {self._prompts[code][:60]!r}; "
                    "give each prompt its own task id (or leave the task key out to group by prompt)"
                )
            for name, values in row.columns.items():
                if self._columns[name][code] != values[0]:
                    raise InputError(
                        f"the column {name!r} is {values[0]!r} here and {self._columns[name][code]!r} in "
                        f"another rollout of task {self._ids[code]!r}; "
                        "a declared column must be known before the rollout, so one value a task"
                    )
        except InputError as error:
            self.reject_bad_row(block.file, block.lines[i], error.message)
            return False
        return True

    def _add_whole_block(self, block: Block) -> NDArray[np.int64]:
        prompts, rewards = block.prompts, block.rewards
        n = len(prompts)
        if set(map(type, rewards)) - NUMBERS or set(map(type, prompts)) != {str}:
            raise CloserLook
        rewards_R = np.array(rewards, dtype=np.float64)
        if not np.isfinite(rewards_R).all():
            raise CloserLook
        by_prompt = block.tasks is None or not any(t is not None for t in block.tasks)
        if by_prompt:
            keys: list[Any] = prompts
        else:
            assert block.tasks is not None
            kinds = set(map(type, block.tasks))
            if type(None) in kinds:
                raise CloserLook
            keys = block.tasks if kinds == {str} else [convert_id_to_text(t) for t in block.tasks]
        # Task ids and prompts used as ids live in one table under keys that cannot collide.
        names = keys if not by_prompt else list(map("\x00".__add__, keys))
        lengths_R = None if block.lengths is None else make_float_array(block.lengths)
        log_probs_R = None
        if block.log_probs is not None and any(v is not None for v in block.log_probs):
            try:
                log_probs_R, lengths_R = sum_block_log_probs(block.log_probs, lengths_R)
            except InputError:
                raise CloserLook from None
        steps_R, has_step = (None, None) if block.steps is None else make_integer_arrays(block.steps)
        rollouts = block.rollouts
        if rollouts is not None and set(map(type, rollouts)) - {str, int, float, bool, type(None)}:
            raise CloserLook
        added = len(self._prompts)
        self._register_new_tasks(block, names, by_prompt)
        codes = list(map(self._code_of.__getitem__, names))
        stored = self._prompts
        if not by_prompt and any(map(ne, map(stored.__getitem__, codes), prompts)):
            self._check_prompts_agree(codes, prompts, added)
        for name, values in block.columns.items():
            if any(map(ne, map(self._columns[name].__getitem__, codes), values)):
                self._forget_tasks_from(added)
                raise CloserLook
        self._store_block_rows(block, n, codes, rewards_R, lengths_R, steps_R, has_step, log_probs_R)
        return self._parts[-1][0]

    def _register_new_tasks(self, block: Block, names: Sequence[str], by_prompt: bool) -> None:
        known, added = self._code_of, len(self._prompts)
        n = len(names)
        # Backwards, so that each name keeps the position where it comes first: one dictionary built in C, then a loop
        # over tasks, not rows.
        first_at = dict(zip(reversed(names), range(n - 1, -1, -1), strict=True))
        for i, name in sorted((i, name) for name, i in first_at.items() if name not in known):
            prompt = block.prompts[i]
            if len(prompt) > self.max_prompt_chars:
                self._forget_tasks_from(added)
                raise CloserLook
            known[name] = len(self._prompts)
            self._prompts.append(prompt)
            self._ids.append(make_id_from_prompt(prompt) if by_prompt else name)
            self._first_seen.append((block.file, block.lines[i]))
            for column, values in block.columns.items():
                self._columns.setdefault(column, []).append(values[i])

    def _check_prompts_agree(self, codes: list[int], prompts: list[str], added: int) -> None:
        for code, prompt in zip(codes, prompts, strict=True):
            if self._prompts[code] != prompt and normalise_prompt(self._prompts[code]) != normalise_prompt(prompt):
                self._forget_tasks_from(added)
                raise CloserLook

    def _forget_tasks_from(self, first: int) -> None:
        """Take back the tasks from position ``first`` on: their block is gone through again, row by row."""
        del self._prompts[first:], self._ids[first:], self._first_seen[first:]
        for values in self._columns.values():
            del values[first:]
        for name in [k for k, v in self._code_of.items() if v >= first]:
            del self._code_of[name]

    def _store_block_rows(
        self,
        block: Block,
        n: int,
        codes: list[int],
        rewards_R: NDArray[np.float64],
        lengths_R: NDArray[np.float64] | None,
        steps_R: NDArray[np.int64] | None,
        has_step: NDArray[np.bool_] | None,
        log_probs_R: NDArray[np.float64] | None,
    ) -> None:
        if not self._files or self._files[-1] != block.file:
            self._files.append(block.file)
        nothing = np.full(n, np.nan)
        rollout_R = np.full(n, -1, dtype=np.int64)
        if block.rollouts is not None:
            rollout_R = self._encode_rollout_ids(block.rollouts)
            self._any["rollouts"] |= bool((rollout_R >= 0).any())
        self._any["log_probs"] |= log_probs_R is not None and bool(np.isfinite(log_probs_R).any())
        self._any["lengths"] |= lengths_R is not None and bool(np.isfinite(lengths_R).any())
        if has_step is None:
            steps_R, has_step = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
        self._any["steps"] |= bool(has_step.any())
        self._parts.append(
            (
                np.array(codes, dtype=np.int64),
                rewards_R,
                nothing if lengths_R is None else lengths_R,
                steps_R if steps_R is not None else np.zeros(n, dtype=np.int64),
                has_step,
                rollout_R,
                np.full(n, len(self._files) - 1, dtype=np.int32),
                np.asarray(block.lines, dtype=np.int64),
                nothing if log_probs_R is None else log_probs_R,
            )
        )
        self.n_rows += n

    def _encode_rollout_ids(self, rollouts: list[Any]) -> NDArray[np.int64]:
        """A number for each rollout id, the same for 1, "1" and 1.0; -1 where there is none (R,)."""
        seen = self._rollout_code
        codes = list(map(seen.get, rollouts))
        if None in codes:
            for i, code in enumerate(codes):
                if code is None:
                    value = rollouts[i]
                    if value is None:
                        codes[i] = -1
                    else:
                        name = convert_id_to_text(value)
                        codes[i] = seen[value] = seen.setdefault(name, len(seen))
        return np.array(codes, dtype=np.int64)

    # The table
    # ----------------------------------------------------------------------------------------------------------------

    def build_rollout_table(self, name: str, source: str, read: str, unused_columns: tuple[str, ...] = ()) -> Rollouts:
        """The table of what was added.

        Raises:
            InputError: if no row was good, a (task, rollout) is there twice, or only some rows have a step.
        """
        if not self.n_rows:
            why = f"; all {self.n_skipped:,} rows were bad, the first: {self.messages[0]}" if self.n_skipped else ""
            raise InputError(f"no rollouts in it{why}", file=source)
        code_R, rewards_R, lengths_R, steps_R, has_step_R, rollout_R, file_R, line_R, log_probs_R = (
            np.concatenate(parts) for parts in zip(*self._parts, strict=True)
        )
        self._parts.clear()
        if self._any["steps"] and not has_step_R.all():
            i = int(np.flatnonzero(~has_step_R)[0])
            raise InputError(
                "this row has no step though others have one; name the right step key, or step_key='' for none",
                file=self._files[file_R[i]],
                line=int(line_R[i]),
            )
        keep_R = self._drop_duplicate_rows(code_R, steps_R, rollout_R, file_R, line_R)
        order = np.argsort(code_R[keep_R], kind="stable")
        rows = keep_R[order]
        codes, sizes = np.unique(code_R[rows], return_counts=True)
        tasks = self._build_task_table(codes, sizes)
        return Rollouts(
            name,
            tasks,
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            rewards_R[rows],
            lengths_R[rows] if self._any["lengths"] else None,
            steps_R[rows] if self._any["steps"] else None,
            np.argsort(np.argsort(rows, kind="stable"), kind="stable").astype(np.int64),
            source,
            self.list_skip_messages(),
            n_skipped=self.n_skipped,
            format=read,
            log_probs_R=log_probs_R[rows] if self._any["log_probs"] else None,
            unused_columns=unused_columns,
        )

    def take_added_rows(
        self,
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.int64] | None] | None:
        """What was added since the last call, taken out: task positions, rewards, lengths, log-probabilities, steps
        (None if some row has none). For streams."""
        if not self._parts:
            return None
        code_R, rewards_R, lengths_R, steps_R, has_step_R, *_, log_probs_R = (
            np.concatenate(parts) for parts in zip(*self._parts, strict=True)
        )
        self._parts.clear()
        self._rollout_code.clear()
        return code_R, rewards_R, lengths_R, log_probs_R, steps_R if has_step_R.all() else None

    def select_task_fields(self, codes: NDArray[np.int64]) -> tuple[list[str], list[str], dict[str, list[Any]]]:
        """The prompts, ids and columns of tasks by position."""
        at = codes.tolist()
        columns = {name: [values[c] for c in at] for name, values in self._columns.items()}
        return [self._prompts[c] for c in at], [self._ids[c] for c in at], columns

    def _drop_duplicate_rows(self, *arrays: NDArray[Any]) -> NDArray[np.int64]:
        code_R, steps_R, rollout_R, file_R, line_R = arrays
        everything = np.arange(len(code_R))
        if not self._any["rollouts"]:
            return everything
        order = np.lexsort((everything, rollout_R, steps_R, code_R))
        same = np.ones(len(order) - 1, dtype=bool)
        for values in (code_R, steps_R, rollout_R):
            same &= values[order][1:] == values[order][:-1]
        same &= rollout_R[order][1:] >= 0
        if not same.any():
            return everything
        names = {code: name for name, code in self._rollout_code.items() if isinstance(name, str)}
        first = everything.copy()  # the first row of each run of equal ones, for the message
        drop = order[1:][same]
        for previous, current in zip(order[:-1][same], drop, strict=True):
            first[current] = first[previous]
        for i in np.sort(drop):
            j = first[i]
            at = f" and step {steps_R[i]}" if self._any["steps"] else ""
            self.reject_bad_row(
                self._files[file_R[i]],
                int(line_R[i]),
                f"task {self._ids[code_R[i]]!r} already has a rollout {names[int(rollout_R[i])]!r}{at}, at "
                f"{self._files[file_R[j]]}, line {line_R[j]}; drop the copy, or say rollout_key='' if these are "
                "different rollouts",
            )
        return np.setdiff1d(everything, drop)

    def _build_task_table(self, codes: NDArray[np.int64], sizes: NDArray[np.int64]) -> Tasks:
        ids, prompts = self._ids, self._prompts
        if len(codes) != len(prompts):  # tasks whose only rows were dropped as copies
            ids, prompts = [ids[c] for c in codes], [prompts[c] for c in codes]
        columns = {name: make_column_array([values[c] for c in codes]) for name, values in self._columns.items()}
        by_id = not all(key.startswith("\x00") for key in self._code_of)
        return Tasks(
            prompts,
            np.array(ids, dtype=object),
            columns,
            ids_tell_apart=by_id and should_ids_tell_apart(prompts, sizes),
        )


def _make_task_key(by_prompt: bool, key: str) -> str:
    return "\x00" + key if by_prompt else key
