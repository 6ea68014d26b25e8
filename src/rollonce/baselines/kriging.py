"""Kriging (Gaussian-process regression, BLUP): the best linear guess at a task's mean reward from the others' rewards.

Task means have covariance ``sum_k v_k K_k + nugget I`` and rewards add noise of variance 1 (all in units of the within-task
variance ``s2``; the weights depend on these ratios alone, so rewards of any scale will do). With an unknown constant mean,

    P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1),   b_i = r_i - [P r]_i / P_ii = -sum_{j != i} P_ij r_j / P_ii,

a linear smoother that leaves out the own reward exactly and whose rows sum to 1, since P 1 = 0; weights may be negative. Where
features carry nothing (all ``v_k`` are 0) it is the LOO mean.

Source: Krige 1951; Rasmussen and Williams 2006, sections 2.7 and 5.4.2 (leave-one-out in closed form); Dubrule 1983 (groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import LinearSmoother
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.kernels import Cosine, Kernel, Rbf
from rollonce.kernels.base import FULL_MATRIX_UP_TO, BoolArray
from rollonce.rollouts import FloatArray, IntArray, Tasks

# A solve with this many rows takes about half a second; beyond it only the newest rows are used.
EXACT_UP_TO = 2048


@register
@dataclass
class Kriging(LinearSmoother):
    """Gaussian-process posterior mean of the task's mean reward, leave-one-out.

    Args:
        kernels: Covariances ``K_k`` between tasks (pairwise kernels); word TF-IDF cosine and an RBF on log prompt length by default.
        variances: ``v_k >= 0``, each in units of the within-task reward variance.
        nugget: Variance of task means that no kernel explains, in the same unit.
        window, decay: See `LinearSmoother`; a row of age a has its noise divided by ``decay ** a``.

    Exact up to 2,048 visible rows; of a longer window the newest rows that fit are used. The settings come from past steps or
    other tasks (see `rollonce.baselines.self_tuning`): fitted on the batch being judged they would leak ``r_i``.
    """

    type: ClassVar[str] = "kriging"
    source: ClassVar[str] = "Rasmussen & Williams 2006, 2.7 and 5.4.2"
    kernels: Sequence[Kernel] = ()
    variances: Sequence[float] = ()
    nugget: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kernels and not self.variances:
            self.kernels, self.variances = [Cosine(), Rbf()], [0.5, 0.25]
        if len(self.kernels) != len(self.variances):
            raise InputError(f"kriging with {len(self.kernels)} kernels needs as many variances, not {len(self.variances)}")
        if min(*self.variances, self.nugget, 0.0) < 0 or not np.isfinite([*self.variances, self.nugget]).all():
            raise InputError(f"kriging variances and nugget must be finite and >= 0, not {list(self.variances)} and {self.nugget}")

    @property
    def label(self) -> str:
        """Kriging and its window."""
        return "Kriging" + (f", window {self.window}" if self.window else "")

    def covariance(self, tasks: Tasks, columns_KM: IntArray, ages_M: IntArray | None = None) -> FloatArray:
        """C (K, M, M): covariance of the visible rewards in units of the within-task variance, noise included."""
        n_blocks, n_columns = columns_KM.shape
        c = np.zeros((n_blocks, n_columns, n_columns))
        for kernel, v in zip(self.kernels, self.variances, strict=True):
            if v > 0:
                c += v * kernel.covariance(tasks, columns_KM, columns_KM)
        noise = 1.0 if ages_M is None else self.decay ** -np.minimum(ages_M.astype(np.float64), 700.0)
        diagonal = np.arange(n_columns)
        c[:, diagonal, diagonal] += self.nugget + noise
        return c

    def weight_blocks(self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray) -> FloatArray:
        """(K, B, M), see `LinearSmoother.weight_blocks`."""
        n_blocks, n_columns = columns_KM.shape
        if n_columns > max(EXACT_UP_TO, n_rows):
            keep = np.concatenate([np.arange(n_rows), np.arange(n_columns - (EXACT_UP_TO - n_rows), n_columns)])
            out = np.zeros((n_blocks, n_rows, n_columns))
            out[:, :, keep] = self.weight_blocks(tasks, columns_KM[:, keep], n_rows, visible_KBM[:, :, keep], ages_M[keep])
            return out
        out = np.empty((n_blocks, n_rows, n_columns))
        shared = self._shared_precision(tasks, columns_KM, ages_M)
        for k in range(n_blocks):
            p = shared[np.ix_(columns_KM[k], columns_KM[k])] if shared is not None else _residual_precision(self._one(tasks, columns_KM[k], ages_M))
            out[k] = leave_out(p, n_rows, visible_KBM[k])
        return out

    def _one(self, tasks: Tasks, columns_M: IntArray, ages_M: IntArray) -> FloatArray:
        return self.covariance(tasks, columns_M[None], ages_M)[0]

    def _shared_precision(self, tasks: Tasks, columns_KM: IntArray, ages_M: IntArray) -> FloatArray | None:
        """P over all tasks, when every block sees each of them once and age makes no difference: one solve for all blocks."""
        n = len(tasks)
        everywhere = columns_KM.shape[1] == n and len(columns_KM) > 1 and (self.decay == 1 or not ages_M.any()) and n <= FULL_MATRIX_UP_TO
        if not everywhere or (np.sort(columns_KM, axis=1) != np.arange(n)).any():
            return None
        return _residual_precision(self.covariance(tasks, np.arange(n)[None])[0])


def _residual_precision(c_MM: FloatArray) -> FloatArray:
    """``P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1)`` (M, M), symmetric, with ``P 1 = 0``."""
    inverse = np.linalg.inv(c_MM)
    inverse = (inverse + inverse.T) / 2
    s = inverse.sum(axis=1)
    return inverse - np.outer(s, s) / s.sum()


def leave_out(p_MM: FloatArray, n_rows: int, visible_BM: BoolArray) -> FloatArray:
    """Weights (B, M) that predict each row's reward from the columns it may see, from the residual precision P.

    Leaving out a set S of columns that includes i: ``b_i = r_i - [P_SS^-1 (P r)_S]_i``. For S = {i} that is the usual
    leave-one-out; a row that sees nothing gets no weights.
    """
    out = np.zeros((n_rows, p_MM.shape[1]))
    hidden_B = (~visible_BM).sum(axis=1)
    for i in range(n_rows):
        if hidden_B[i] == 1 and p_MM.shape[1] > 1:
            out[i] = -p_MM[i] / p_MM[i, i]
        elif visible_BM[i].any():
            s = np.flatnonzero(~visible_BM[i])
            unit = (s == i).astype(np.float64)
            out[i] = -np.linalg.solve(p_MM[np.ix_(s, s)], unit) @ p_MM[s]
        out[i, ~visible_BM[i]] = 0.0
    return out
