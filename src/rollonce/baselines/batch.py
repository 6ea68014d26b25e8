"""What a baseline is given and what it answers: `Batch`, `History` and `Prediction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollonce.arrays import as_float64_array
from rollonce.errors import InputError
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray, Tasks


@dataclass(frozen=True, eq=False)
class Batch:
    """One training step's rollouts, one row each.

    Attributes:
        tasks: What was known before them (B,). Rows with equal ``task_ids`` are rollouts of one task (a group).
        rewards_B: Their rewards, float64 (B,).
        response_lengths_B: Tokens of the responses, float64 (B,); NaN where unknown, None where the trainer has none.
            Known only after the rollout: no feature or kernel sees them, only baselines with the tag ``uses_lengths``
            read them, and row i's own must not move ``b_i`` (self-inclusive ones apart).
        log_probs_B: Natural logarithm of each response's probability under the policy that sampled it, summed over its
            tokens, float64 (B,); NaN where unknown, None where the trainer has none. Known only after the rollout: no
            feature or kernel sees them, and row i's own must never move ``b_i``.
    """

    tasks: Tasks
    rewards_B: FloatArray
    response_lengths_B: FloatArray | None = None
    log_probs_B: FloatArray | None = None

    @classmethod
    def of(
        cls,
        prompts: Sequence[str],
        rewards: Sequence[float] | FloatArray,
        *,
        task_ids: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        log_probs: Sequence[float] | FloatArray | None = None,
        response_lengths: Sequence[float] | FloatArray | None = None,
    ) -> Batch:
        """A batch from B prompts and B rewards.

        Args:
            prompts: As text.
            rewards: Finite numbers: a list, an array or a tensor of any dtype.
            task_ids: Equal for rollouts of one task; the rows' numbers by default.
            columns: Declared columns, known before the rollouts.
            log_probs: See `Batch.log_probs_B`; NaN where unknown.
            response_lengths: See `Batch.response_lengths_B`; NaN where unknown.

        Raises:
            InputError: if the numbers of prompts, rewards, log-probabilities and lengths differ, a reward is not
                finite, a log-probability is above 0 or infinite, or a length is below 0 or infinite.
        """
        rewards_B = as_float64_array(rewards)
        if rewards_B.shape != (len(prompts),):
            raise InputError(
                f"a batch needs one reward per prompt: {len(prompts)} prompts, rewards of shape {rewards_B.shape}"
            )
        if not np.isfinite(rewards_B).all():
            bad = int(np.flatnonzero(~np.isfinite(rewards_B))[0])
            raise InputError(
                f"reward {bad} of the batch is {rewards_B[bad]}; drop or grade that rollout before asking for "
                "advantages"
            )
        log_probs_B = None if log_probs is None else _checked_log_probs(log_probs, len(prompts))
        lengths_B = None if response_lengths is None else _checked_lengths(response_lengths, len(prompts))
        return cls(Tasks(list(prompts), task_ids, columns), rewards_B, lengths_B, log_probs_B)

    @staticmethod
    def concatenate_batches(batches: Sequence[Batch]) -> Batch:
        """The rows of one or more batches, in order."""
        tasks = batches[0].tasks
        for batch in batches[1:]:
            tasks = Tasks.concat(tasks, batch.tasks)
        log_probs = _join_optional_arrays([(len(b), b.log_probs_B) for b in batches])
        lengths = _join_optional_arrays([(len(b), b.response_lengths_B) for b in batches])
        return Batch(tasks, np.concatenate([b.rewards_B for b in batches]), lengths, log_probs)

    def __len__(self) -> int:
        return len(self.rewards_B)

    def __repr__(self) -> str:
        return f"Batch({len(self)} rollouts, mean reward {self.rewards_B.mean() if len(self) else 0.0:.3g})"


@dataclass(frozen=True, eq=False)
class History:
    """Rows of earlier steps: what was known before them, their rewards, and how many steps ago they were sampled.

    Attributes:
        tasks: (H,).
        rewards_H: (H,) float64.
        ages_H: 1 for the step before, 2 for the one before that ... (H,) int64. Newest rows last.
        log_probs_H: As `Batch.log_probs_B` (H,): NaN for rows that came without, None where no row has one.
    """

    tasks: Tasks
    rewards_H: FloatArray
    ages_H: IntArray
    log_probs_H: FloatArray | None = None

    @classmethod
    def before_first_step(cls) -> History:
        """The history before the first step."""
        return cls(Tasks([]), np.zeros(0), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.rewards_H)

    def with_batch_appended(self, batch: Batch, keep: int | None = None) -> History:
        """This history one step older, with the batch as its newest rows; the oldest beyond ``keep`` rows are
        dropped."""
        tasks = Tasks.concat(self.tasks, batch.tasks) if len(self) else batch.tasks
        rewards = np.concatenate([self.rewards_H, batch.rewards_B])
        ages = np.concatenate([self.ages_H + 1, np.ones(len(batch), np.int64)])
        log_probs = _join_optional_arrays([(len(self), self.log_probs_H), (len(batch), batch.log_probs_B)])
        return History(tasks, rewards, ages, log_probs).keep_newest_rows(keep)

    def keep_newest_rows(self, n: int | None) -> History:
        """The newest n rows; all of them for None."""
        if n is None or len(self) <= n:
            return self
        return self.rows_at_positions(np.arange(len(self) - n, len(self)))

    def rows_at_positions(self, at: Sequence[int] | IntArray) -> History:
        """The rows at these positions, in this order, as tasks of their own."""
        log_probs = None if self.log_probs_H is None else self.log_probs_H[at]
        return History(self.tasks.take(at).detached(), self.rewards_H[at], self.ages_H[at], log_probs)

    def rebuild_batch_of_age(self, age: int) -> Batch:
        """The rows of one age as the batch that they once were."""
        rows = self.rows_at_positions(np.flatnonzero(self.ages_H == age))
        return Batch(rows.tasks, rows.rewards_H, log_probs_B=rows.log_probs_H)

    def to_json_state(self) -> dict[str, Any]:
        """As plain JSON; an unknown log-probability is null."""
        columns = {c: self.tasks.column(c).tolist() for c in self.tasks.column_names}
        state = {
            "prompts": self.tasks.prompts,
            "task_ids": [str(t) for t in self.tasks.task_ids],
            "columns": columns,
            "rewards": self.rewards_H.tolist(),
            "ages": self.ages_H.tolist(),
        }
        if self.log_probs_H is not None:
            state["log_probs"] = log_probs_to_state(self.log_probs_H)
        return state

    @classmethod
    def from_json_state(cls, state: dict[str, Any]) -> History:
        """From `to_json_state`, also of versions that knew no log-probabilities.

        Raises:
            InputError: if its parts are not of one length, or a number is not finite.
        """
        tasks = Tasks(state["prompts"], state["task_ids"], state.get("columns"))
        rewards, ages = np.asarray(state["rewards"], np.float64), np.asarray(state["ages"], np.int64)
        if rewards.shape != (len(tasks),) or ages.shape != rewards.shape or not np.isfinite(rewards).all():
            raise InputError(f"a history of {len(tasks)} prompts needs as many finite rewards and ages")
        return cls(tasks, rewards, ages, log_probs_from_state(state.get("log_probs"), len(tasks)))


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a baseline says about one batch.

    Attributes:
        baseline_B: ``b`` of each rollout, float64 (B,).
        only_prior_B: True where the row had nothing to go by, so that its b is nothing but the declared prior (B,).
        advantages_B: What a policy is trained with, float64 (B,): ``r - b``, times the baseline's own scaling where it
            has one (REINFORCE++, GRPO divided by the deviation).
    """

    baseline_B: FloatArray
    only_prior_B: BoolArray
    advantages_B: FloatArray

    @classmethod
    def of(cls, batch: Batch, baseline_B: FloatArray, only_prior_B: BoolArray | None = None) -> Prediction:
        """With ``r - b`` as advantages; without ``only_prior_B`` every row had something to go by."""
        none_B = np.zeros(len(batch), dtype=bool)
        return cls(baseline_B, none_B if only_prior_B is None else only_prior_B, batch.rewards_B - baseline_B)


def log_probs_to_state(log_probs: FloatArray | None) -> list[float | None] | None:
    """As plain JSON, which has no NaN."""
    return None if log_probs is None else [None if np.isnan(x) else float(x) for x in log_probs]


def log_probs_from_state(state: Sequence[float | None] | None, n: int) -> FloatArray | None:
    """From `log_probs_to_state`.

    Raises:
        InputError: unless there are n of them, each a finite number of at most 0 or null.
    """
    return None if state is None else _checked_log_probs([np.nan if x is None else x for x in state], n)


def _checked_log_probs(log_probs: Sequence[float] | FloatArray, n: int) -> FloatArray:
    array = as_float64_array(log_probs)
    if array.shape != (n,):
        raise InputError(f"{n} rollouts need one log-probability each, not an array of shape {array.shape}")
    bad = np.flatnonzero((array > 1e-3) | np.isinf(array))
    if len(bad):
        raise InputError(
            f"the log-probability of rollout {bad[0]} is {array[bad[0]]:g}; pass the sum over the response's tokens of "
            "log p, which is finite and at most 0 (not -log p), or NaN where it is unknown"
        )
    return array


def _checked_lengths(lengths: Sequence[float] | FloatArray, n: int) -> FloatArray:
    array = np.asarray(lengths, dtype=np.float64)
    if array.shape != (n,):
        raise InputError(f"{n} rollouts need one response length each, not an array of shape {array.shape}")
    bad = np.flatnonzero((array < 0) | np.isinf(array))
    if len(bad):
        raise InputError(
            f"the response length of rollout {bad[0]} is {array[bad[0]]:g}; pass its number of tokens, or NaN where it "
            "is unknown"
        )
    return array


def _join_optional_arrays(parts: Sequence[tuple[int, FloatArray | None]]) -> FloatArray | None:
    """Log-probabilities or lengths of several pieces end to end, NaN for those without; None if no piece has any."""
    if all(array is None for _, array in parts):
        return None
    return np.concatenate([np.full(n, np.nan) if array is None else array for n, array in parts])


__all__ = ["Batch", "History", "Prediction"]
