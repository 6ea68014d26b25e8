"""A user's plain function as a baseline, so that the audit can run over it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rollonce.baselines.base import Baseline, Tags
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.errors import InputError

_BY_NAME = ("batch", "prompts", "rewards", "task_ids", "response_lengths", "log_probs", "responses", "completions")


@dataclass
class CallableBaseline(Baseline):
    """``fn(batch) -> b``, ``fn(prompts, rewards) -> b``, or one that names more of what a trainer hands to reward
    functions.

    Args:
        fn: A function of one argument (a `Batch`), of two (prompts, a list of B texts, and rewards, (B,) float64), or
            of any of ``prompts``, ``rewards``, ``task_ids``, ``response_lengths`` (B,), ``log_probs`` (B,) or None, and
            ``responses`` (B texts) by name.

    It promises ``leave_one_out`` and nothing else. Raises InputError for a function whose arguments are none of these.
    """

    type: ClassVar[str] = "callable"
    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        self.wrote_input = False
        self._arguments = _arguments_of(self.fn)

    @property
    def tags(self) -> Tags:
        """Leave-one-out; the rest is not asked of a plain function."""
        return Tags(shift_equivariant=False, scale_equivariant=False, neutral=False)

    def describe(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """What the function returns, as float64 (B,).

        Raises:
            InputError: if that is not B numbers.
        """
        rewards = batch.rewards_B.copy()
        lengths = np.full(len(batch), 100.0) if batch.response_lengths_B is None else batch.response_lengths_B.copy()
        log_probs = None if batch.log_probs_B is None else batch.log_probs_B.copy()
        responses = ["word " * int(n) for n in lengths]
        known: dict[str, Any] = {
            "batch": Batch(batch.tasks, rewards, lengths, log_probs),
            "prompts": batch.tasks.prompts,
            "rewards": rewards,
            "task_ids": [str(t) for t in batch.tasks.task_ids],
            "response_lengths": lengths,
            "log_probs": log_probs,
            "responses": responses,
            "completions": responses,
        }
        positional = [known[what] for name, what in self._arguments if not name]
        out = self.fn(*positional, **{name: known[what] for name, what in self._arguments if name})
        self.wrote_input = self.wrote_input or not np.array_equal(rewards, batch.rewards_B)
        try:
            b = np.array(out, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{self.label} returned {type(out).__name__} that is not {len(batch)} numbers") from None
        if b.shape != (len(batch),):
            raise InputError(
                f"{self.label} returned an array of shape {b.shape} for a batch of {len(batch)}; one number a rollout "
                "is needed"
            )
        return Prediction.of(batch, b)


def _arguments_of(fn: Callable[..., Any]) -> list[tuple[str, str]]:
    """(keyword or "" for by position, what to pass) of each argument."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return [("", "prompts"), ("", "rewards")]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    optional = [
        p for p in parameters if p.default is not p.empty and p.name in _BY_NAME and p.kind != p.POSITIONAL_ONLY
    ]
    extra = [(p.name, p.name) for p in optional]
    if all(p.name in _BY_NAME and p.kind != p.POSITIONAL_ONLY for p in required):
        return [(p.name, p.name) for p in required] + extra
    if all(p.kind in by_position for p in required) and 1 <= len(required) <= 2:
        return [("", "batch")] if len(required) == 1 else [("", "prompts"), ("", "rewards"), *extra]
    raise InputError(
        f"{getattr(fn, '__qualname__', fn)} takes {', '.join(p.name for p in required)}; a baseline function takes "
        f"(batch), (prompts, rewards), or any of {', '.join(_BY_NAME[1:])} by name"
    )
