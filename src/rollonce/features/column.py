"""A declared pre-rollout column of the table: a number as it is, anything else as a category."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature, tasks_from_prompts
from rollonce.prompts import check_column_name
from rollonce.rollouts import FloatArray, Tasks


@register
@dataclass
class NumberColumn(Feature):
    """A numeric declared column, standardised by the mean and deviation seen in `fit` (N, 1)."""

    type: ClassVar[str] = "number_column"
    name: str = ""
    center_: float = field(default=0.0, init=False)
    scale_: float = field(default=1.0, init=False)

    def describe(self) -> str:
        return self.name or self.type

    def __post_init__(self) -> None:
        check_column_name(self.name)

    def _read_column_values(self, tasks: Tasks) -> FloatArray:
        try:
            values = tasks.column(self.name).astype(np.float64)
        except ValueError as e:
            raise InputError(f"column {self.name!r} is not numeric ({e}); use it as a category instead") from None
        if not np.isfinite(values).all():
            raise InputError(f"column {self.name!r} holds values that are not finite")
        return values

    def fit(self, tasks: Sequence[str] | Tasks) -> Self:
        """Learn mean and standard deviation."""
        values = self._read_column_values(tasks_from_prompts(tasks))
        self.center_ = float(values.mean())
        self.scale_ = float(values.std()) or 1.0
        return super().fit(tasks)

    def compute_feature_matrix(self, tasks: Tasks) -> FloatArray:
        return ((self._read_column_values(tasks) - self.center_) / self.scale_)[:, None]

    def own_state(self) -> dict[str, Any]:
        return {"center": self.center_, "scale": self.scale_}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.center_, self.scale_ = float(state["center"]), float(state["scale"])


@register
@dataclass
class CategoryColumn(Feature):
    """A declared column as a category: an integer code per distinct value (N, 1); equal values, equal codes.

    Codes come from a hash of the value, so that batch and history agree without a fitted list of categories.
    """

    type: ClassVar[str] = "category_column"
    name: str = "family"

    def describe(self) -> str:
        return self.name or self.type

    def __post_init__(self) -> None:
        check_column_name(self.name)

    def compute_feature_matrix(self, tasks: Tasks) -> FloatArray:
        """(N, 1) float64 codes below 2**52, exact in float64."""
        codes: dict[str, float] = {}
        out = np.empty(len(tasks))
        for i, v in enumerate(tasks.column(self.name)):
            text = str(v)
            if text not in codes:
                codes[text] = float(
                    int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
                    >> 12
                )
            out[i] = codes[text]
        return out[:, None]
