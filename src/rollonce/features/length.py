"""Length of the prompt, the cheapest guess at difficulty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce.component import register
from rollonce.features.base import Feature
from rollonce.rollouts import FloatArray, Tasks


@register
@dataclass
class LogLength(Feature):
    """``ln(1 + characters of the prompt)``, (N, 1). Of the *prompt*: a response's length must never reach a
    baseline."""

    type: ClassVar[str] = "log_length"
    title: ClassVar[str] = "log length"

    def compute_feature_matrix(self, tasks: Tasks) -> FloatArray:
        return np.log1p(np.fromiter((len(p) for p in tasks.prompts), dtype=np.float64, count=len(tasks)))[:, None]
