"""How many batches and resamples a baseline is scored on: fewer where a batch is expensive."""

from __future__ import annotations

from typing import NamedTuple

from rollonce.baselines import Baseline, LinearSmoother, NormWeighted
from rollonce.baselines.tags import Cost
from rollonce.scoring.crossfit import CrossFitted

# Solves over this many rows and fewer are cheap.
_CHEAP_SOLVE = 128


class Effort(NamedTuple):
    """Numbers that a score rests on.

    Attributes:
        n_batches: Common batches, at most.
        resamples: Of the tasks.
        batches_per_resample: Drawn in each.
    """

    n_batches: int
    resamples: int
    batches_per_resample: int

    def elementwise_least(self, other: Effort) -> Effort:
        """The smaller number of each."""
        return Effort(*map(min, self, other))


def affordable_effort(
    baseline: Baseline | CrossFitted,
    window: int,
    batch_size: int,
    n_tasks: int,
    asked: Effort,
    n_batches_expensive: int,
) -> Effort:
    """What can be afforded of ``asked``.

    Args:
        baseline: What is scored.
        window: Rows of other tasks that it really sees.
        batch_size: B.
        n_tasks: N.
        asked: Where every batch is cheap.
        n_batches_expensive: Common batches where each needs a solve over many rows.
    """
    parts = baseline.parts if isinstance(baseline, CrossFitted) else (baseline,)
    parts = [part.smoother if isinstance(part, NormWeighted) else part for part in parts]
    cost = max(part.tags.cost for part in parts)
    if cost == Cost.MODEL_FIT:
        return asked.elementwise_least(Effort(48, 8, 3))
    if not all(isinstance(part, LinearSmoother) for part in parts):
        return asked.elementwise_least(Effort(2000, 50, 20))
    solves = window > 0 and cost == Cost.SOLVE
    everything = batch_size + window == n_tasks and all(part.type == "kriging" for part in parts)
    n_batches = asked.n_batches
    if solves and window > _CHEAP_SOLVE and not everything:
        n_batches = min(n_batches, n_batches_expensive)
    # A resample holds copies, so that no single solve serves all its batches.
    if solves and (window > _CHEAP_SOLVE or isinstance(baseline, CrossFitted) or parts[0].type == "kriging"):
        few = 12 if isinstance(baseline, CrossFitted) else 20
        return asked.elementwise_least(Effort(n_batches, 40, 4 if batch_size + window > _CHEAP_SOLVE else few))
    return asked._replace(n_batches=n_batches)
