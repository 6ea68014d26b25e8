"""Baselines scored beside the arm's own, on the same rollouts, without touching the training."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from rollonce.baselines import Baseline, Batch
from rollonce.baselines.catalogue import named_baseline
from rollonce.rollouts import Tasks
from rollonce.scoring.watch import predict_without_siblings


class Shadow:
    """Baselines scored on the arm's own rollouts, by their leave-one-out twins, a task's other rollouts hidden; they
    change nothing.

    ``E[A^2] = s2 + MSE``, so the ratio of two baselines' B_eff is the inverse ratio of these means
    (docs/mathematics.md, "Effective batch size").

    Args:
        names: See `rollonce.baselines.catalogue`.
        tasks: To fit them on.
    """

    def __init__(self, names: Sequence[str], tasks: Tasks) -> None:
        self.baselines: dict[str, Baseline] = {
            name: named_baseline(name).fit(tasks).twin().fit(tasks) for name in names
        }

    def score_and_observe(self, batch: Batch) -> dict[str, dict[str, float]]:
        """Mean squared advantage of each, by name; then the step joins their histories."""
        out = {}
        several = len(np.unique(batch.tasks.prompt_keys)) > 1
        for name, baseline in self.baselines.items():
            if several:
                b = predict_without_siblings(baseline, batch)
                out[name] = {"mean_square_advantage": float(((batch.rewards_B - b) ** 2).mean())}
            baseline.observe(batch)
        return out

    def checkpoint_state(self) -> str:
        return json.dumps({name: b.state_dict() for name, b in self.baselines.items()})

    def restore_checkpoint_state(self, text: str) -> None:
        """Put back what `state` gave."""
        for name, state in json.loads(text).items():
            self.baselines[name].load_state_dict(state)
