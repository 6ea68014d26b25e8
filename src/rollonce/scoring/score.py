"""What a board says about one baseline."""

from __future__ import annotations

from typing import NamedTuple

from rollonce.scoring.moments import Estimate


class Score(NamedTuple):
    """How one baseline does on one table.

    Attributes:
        label: What it is called in tables.
        b_eff: Effective batch size, in rollouts; NaN where no task has two rollouts.
        ratio: Its ratio to the in-batch leave-one-out mean (paired interval).
        mse: ``E[(b - mu)^2]``; may be below 0 by noise.
        advantage_variance: ``E[A^2] = s2 + MSE`` of the leave-one-out form.
        explained: Share of the difficulty variance it explains, ``1 - MSE / tau2``; NaN where tau2 is not above 0.
        dead: Fraction of advantages that are zero (below 1e-6 of the rewards' spread).
        window: Rows of other tasks used beside the batch; ``window_asked`` what was asked for.
        method: ``closed form``, ``recipe`` (sampled) or ``analytic``.
        scored_as: Label of the leave-one-out twin that stood in, or "".
        n_batches: Batches behind the value.
        needs: "" if it can be used at one rollout per task, else ``repeats``, ``groups`` or ``extra rollouts``.
        progress: Of a training step over LOO's, as predicted from log-probabilities; None where there are none.
        equivalent_batch: The batch with which LOO would make that progress.
    """

    label: str
    b_eff: Estimate
    ratio: Estimate
    mse: float
    advantage_variance: float
    explained: float
    dead: float
    window: int
    window_asked: int
    method: str
    scored_as: str
    n_batches: int
    needs: str
    progress: Estimate | None = None
    equivalent_batch: Estimate | None = None
