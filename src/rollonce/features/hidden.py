"""The policy's own hidden state at the end of the prompt: what it knows of a task before it answers.

A feature reads no policy itself: whoever has one attaches it (`HiddenState.attach_policy_reader`); an arm of
`rollonce compare` does, for local policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature, tasks_from_prompts
from rollonce.rollouts import FloatArray, Tasks

ReadPrompts = Callable[[Sequence[str]], FloatArray]
"""From N prompts to their hidden states (N, D)."""
_KEPT_PROMPTS = 256  # that a refresh is standardised on


@register
@dataclass
class HiddenState(Feature):
    """Hidden states at the last prompt token, each coordinate standardised over the prompts fitted, rows of unit length
    (N, D): inner products are cosines, for every kernel and for Kriging.

    Args:
        every: Steps between readings with the policy as it then is; 0 stays with the policy of the first (frozen).
            Between two readings one policy is read, so that a task's features do not depend on when it came.

    Where no policy is attached `fit` waits for one, and prompts cannot be read. A saved baseline keeps the
    standardisation; the policy has to be attached again, and with ``every`` above 0 a resumed run reads the policy that
    it resumes with until the next reading is due.

    Source: POISE (arXiv 2605.07579), the part that reads the prompt.
    """

    type: ClassVar[str] = "hidden_state"
    every: int = 0
    center_: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False)
    scale_: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False)
    _snapshot: Callable[[], ReadPrompts] | None = field(default=None, init=False, repr=False, compare=False)
    _read: ReadPrompts | None = field(default=None, init=False, repr=False, compare=False)
    _prompts: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.every < 0:
            raise InputError(f"hidden_state every must be at least 0 steps, not {self.every}")

    def attach_policy_reader(self, snapshot: Callable[[], ReadPrompts]) -> None:
        """Give it a policy.

        Args:
            snapshot: Called now and at each `refresh_policy_reader`: how to read prompts with the policy as it is at
                that moment, whatever becomes of it later.
        """
        self._snapshot, self._read, self._key = snapshot, snapshot(), None

    def fit(self, tasks: Sequence[str] | Tasks) -> Self:
        """Learn mean and deviation of each coordinate; without a policy nothing yet."""
        prompts = list(dict.fromkeys(tasks_from_prompts(tasks).prompts))
        at = np.linspace(0, len(prompts) - 1, min(len(prompts), _KEPT_PROMPTS)).astype(np.int64)
        self._prompts = [prompts[i] for i in at]
        if self._read is not None and self._prompts:
            states = np.asarray(self._read(self._prompts), np.float64)
            self.center_, self.scale_ = states.mean(axis=0), states.std(axis=0)
        return super().fit(tasks)

    def refresh_policy_reader(self) -> None:
        """Read with the policy as it is now, from here on.

        Raises:
            InputError: no policy is attached.
        """
        if self._snapshot is None:
            raise InputError(_NO_POLICY)
        self._read = self._snapshot()
        self.fit(self._prompts)

    def compute_feature_matrix(self, tasks: Tasks) -> FloatArray:
        """(N, D) float64 rows of unit length; a row at the mean of all stays zero.

        Raises:
            InputError: no policy is attached, it has another width than the one fitted, or `fit` was not called.
        """
        if self._read is None:
            raise InputError(_NO_POLICY)
        if not len(self.scale_):
            raise InputError("this hidden_state feature was not fitted; call fit(prompts) on the baseline first")
        distinct, place_N = np.unique(np.array(tasks.prompts, dtype=object), return_inverse=True)
        states = np.asarray(self._read(list(distinct)), np.float64).reshape(len(distinct), -1)
        if states.shape[1] != len(self.scale_) and len(distinct):
            raise InputError(
                f"the policy's hidden states have {states.shape[1]} numbers, those that this baseline was fitted on "
                f"{len(self.scale_)}: attach the same policy"
            )
        if not len(distinct):
            return np.zeros((0, len(self.scale_)))
        varying = self.scale_ > 1e-9
        z = np.where(varying, (states - self.center_) / np.where(varying, self.scale_, 1.0), 0.0)
        length = np.sqrt((z * z).sum(axis=1, keepdims=True))
        return np.divide(z, length, out=z, where=length > 1e-12)[place_N]

    def own_state(self) -> dict[str, Any]:
        """Mean and deviation of each coordinate, and the prompts that they are taken over."""
        return {"center": self.center_, "scale": self.scale_, "prompts": self._prompts} if len(self.scale_) else {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.center_, self.scale_ = (np.asarray(state.get(k, []), np.float64) for k in ("center", "scale"))
        self._prompts = list(state.get("prompts", []))
        if self.center_.shape != self.scale_.shape or not np.isfinite([*self.center_, *self.scale_]).all():
            raise InputError("a hidden_state needs as many finite means as deviations")


_NO_POLICY = (
    "a hidden_state feature reads prompts with a policy, and none is attached: use it in an arm with a local policy, "
    "or call attach (rollonce.policies.hidden.reader_of makes a reader)"
)

__all__ = ["HiddenState", "ReadPrompts"]
