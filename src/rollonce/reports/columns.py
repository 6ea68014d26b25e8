"""The figures of a board's rows, said once for the table, the page and the CSV.

A new figure with an interval is a field of `rollonce.scoring.Score` and a `Column` here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rollonce.scoring import Estimate, Score


class Column(NamedTuple):
    """A figure with its interval.

    Attributes:
        field: Of `Score`; also the name in CSV, where ``_low`` and ``_high`` follow.
        heading: Above the column in the terminal.
        meaning: Above the column on the page.
        digits: Decimals; None for as many as it takes to tell the ends of the interval apart from each other.
        interval_from_width: The terminal's width from which the interval is shown as well.
    """

    field: str
    heading: str
    meaning: str
    digits: int | None = None
    interval_from_width: int = 0

    def get_score_estimate(self, score: Score) -> Estimate:
        """The figure of a row; NaN where it has none."""
        return getattr(score, self.field) or Estimate(math.nan, math.nan, math.nan)


B_EFF = Column("b_eff", "B_eff", "B_eff", digits=1)
RATIO = Column("ratio", "x LOO", "× LOO")
COLUMNS = (B_EFF, RATIO)
"""In order; the last is what rows are ranked by, and gets the bar in the terminal."""

STEP_COLUMNS = (
    Column("progress", "progress / LOO", "progress / LOO"),
    Column("equivalent_batch", "equivalent batch", "equivalent batch", digits=0),
)
"""Of rollouts with log-probabilities: in a table of their own."""

CSV_FIELDS = (
    "set",
    "batch_size",
    "rank",
    "baseline",
    "needs",
    *(f"{column.field}{end}" for column in (*COLUMNS, *STEP_COLUMNS) for end in ("", "_low", "_high")),
    "mse",
    "advantage_variance",
    "explained",
    "dead",
    "window",
    "window_asked",
    "method",
    "scored_as",
    "n_batches",
    "n_tasks",
    "n_rollouts",
    "snr",
)


def select_known_columns(scores: Sequence[Score]) -> list[Column]:
    """The columns in which any row has a value."""
    return [
        column for column in COLUMNS if any(math.isfinite(column.get_score_estimate(score).value) for score in scores)
    ]
