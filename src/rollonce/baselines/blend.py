"""Linear smoothers mixed in fixed shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import LinearSmoother
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, IntArray, Tasks


@register
@dataclass
class Blend(LinearSmoother):
    """``sum_k a_k W_k``: linear smoothers mixed in fixed shares (a simplex); each uses its own window.

    Args:
        smoothers: The experts.
        shares: ``a_k >= 0``, scaled to sum to 1.
    """

    type: ClassVar[str] = "blend"
    smoothers: Sequence[LinearSmoother] = ()
    shares: Sequence[float] = ()

    def __post_init__(self) -> None:
        if (
            not self.smoothers
            or len(self.smoothers) != len(self.shares)
            or min(self.shares) < 0
            or sum(self.shares) <= 0
        ):
            raise InputError(
                f"a blend of {len(self.smoothers)} smoothers needs as many shares >= 0, not all zero; got "
                f"{list(self.shares)}"
            )
        window = max(s.window for s in self.smoothers)
        if self.window not in (0, window) or self.decay != 1:  # they would be ignored
            raise InputError(f"blend takes window and decay from its parts (here a window of {window}); set them there")
        self.window = window
        super().__post_init__()

    @property
    def tags(self) -> Tags:
        """As its parts; neutral only where all see the same rows."""
        same = len({(s.window, s.decay) for s in self.smoothers}) == 1
        return Tags(
            windowed=self.window > 0,
            neutral=same and all(s.tags.neutral for s in self.smoothers),
            needs_history=all(s.tags.needs_history for s in self.smoothers),
            cost=max(s.tags.cost for s in self.smoothers),
        )

    def describe(self) -> str:
        top = sorted(zip(self.shares, self.smoothers, strict=True), key=lambda p: -p[0])[:2]
        return (
            "blend("
            + " + ".join(f"{a / sum(self.shares):.2g} {s.label}" for a, s in top)
            + (", ..." if len(self.shares) > 2 else "")
            + ")"
        )

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        total = np.zeros(visible_KBM.shape)
        present = np.zeros((*visible_KBM.shape[:2], 1))
        n_columns = columns_KM.shape[1]
        for share, smoother in zip(self.shares, self.smoothers, strict=True):
            if share == 0:
                continue
            window = min(smoother.window, n_columns - n_rows)
            keep = np.concatenate([np.arange(n_rows), np.arange(n_columns - window, n_columns)])
            part = smoother.compute_weight_blocks(
                tasks, columns_KM[:, keep], n_rows, visible_KBM[:, :, keep], ages_M[keep]
            )
            total[:, :, keep] += share / sum(self.shares) * part
            present += share / sum(self.shares) * part.any(axis=-1, keepdims=True)
        # A part that sees nothing (no window, and a batch of one) leaves its share to the others.
        return np.divide(total, present, out=total, where=present > 0)
