"""A baseline that shows what log-probabilities it was given: the mean surprisal of the other rollouts.

Its numbers are no baseline for anything; by them a test reads off what an adapter passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce import component
from rollonce.baselines import Baseline, Batch, History, Prediction
from rollonce.baselines.tags import Tags


@dataclass
class MeanSurprise(Baseline):
    """``b_i``: mean of ``-log p_j`` over all other rollouts seen, of earlier steps too; 0 where none is known."""

    type: ClassVar[str] = "mean_surprise"

    @property
    def tags(self) -> Tags:
        return Tags(uses_log_probs=True, windowed=True)

    @property
    def keep_rows(self) -> int:
        return 64

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        past = self.history if history is None else history
        own = np.full(len(batch), np.nan) if batch.log_probs_B is None else batch.log_probs_B
        known = np.full(len(past), np.nan) if past.log_probs_H is None else past.log_probs_H
        others = [np.concatenate([np.delete(own, i), known]) for i in range(len(batch))]
        some = np.array([np.isfinite(o).any() for o in others], dtype=bool)
        b = np.array([-np.nanmean(o) if s else 0.0 for o, s in zip(others, some, strict=True)])
        return Prediction.of(batch, b, ~some)


def let_files_name_it(monkeypatch) -> None:
    """For the length of a test, so that it can be saved and loaded; the suite's other tests never see it."""
    monkeypatch.setitem(component._REGISTRY, MeanSurprise.type, MeanSurprise)
