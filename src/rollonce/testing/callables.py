"""A user's plain function under audit: it may ask for more than any training step tells it, so that a leak can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.own import OF_RESPONSES, FunctionBaseline


@dataclass
class CallableBaseline(FunctionBaseline):
    """A `FunctionBaseline` whose function may also name ``response_lengths`` (B,) and ``responses`` or ``completions``
    (B texts)."""

    type: ClassVar[str] = "callable"
    argument_names: ClassVar[tuple[str, ...]] = (
        *FunctionBaseline.argument_names,
        *OF_RESPONSES,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wrote_input = False

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """See `FunctionBaseline.predict`; notes whether the function wrote into what it was given."""
        self._given: dict[str, Any] = {}
        prediction = super().predict(batch, history)
        self.wrote_input = self.wrote_input or not np.array_equal(self._given["rewards"], batch.rewards_B)
        return prediction

    def _arguments_by_name(self, batch: Batch) -> dict[str, Any]:
        known = super()._arguments_by_name(batch)
        lengths = np.full(len(batch), 100.0) if batch.response_lengths_B is None else batch.response_lengths_B.copy()
        responses = ["word " * int(n) for n in lengths]
        known["batch"] = Batch(batch.tasks, known["rewards"], lengths, known["log_probs"])
        self._given = known | {"response_lengths": lengths, "responses": responses, "completions": responses}
        return self._given
