"""Kriging (Gaussian-process regression, BLUP): the best linear guess at a task's mean reward from the others' rewards.

Task means have covariance ``sum_k v_k K_k + nugget I`` and rewards add noise of variance 1 (all in units of the
within-task variance ``s2``; the weights depend on these ratios alone, so rewards of any scale will do). With an unknown
constant mean,

    P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1),   b_i = r_i - [P r]_i / P_ii = -sum_{j != i} P_ij r_j / P_ii,

a linear smoother that leaves out the own reward exactly and whose rows sum to 1, since P 1 = 0; weights may be
negative. Where features carry nothing (all ``v_k`` are 0) it is the LOO mean.

Source: Krige 1951; Rasmussen and Williams 2006, sections 2.7 and 5.4.2 (leave-one-out in closed form); Dubrule 1983
    (groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import Cost, LinearSmoother, Tags
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
        kernels: Covariances ``K_k`` between tasks (pairwise kernels); word TF-IDF cosine and an RBF on log prompt
            length by default.
        variances: ``v_k >= 0``, each in units of the within-task reward variance.
        nugget: Variance of task means that no kernel explains, in the same unit.
        window, decay: See `LinearSmoother`; a row of age a has its noise divided by ``decay ** a``.

    Exact up to 2,048 visible rows; of a longer window the newest rows that fit are used. The settings come from past
    steps or other tasks (see `rollonce.baselines.self_tuning`): fitted on the batch being judged they would leak
    ``r_i``.
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
            raise InputError(
                f"kriging with {len(self.kernels)} kernels needs as many variances, not {len(self.variances)}"
            )
        if min(*self.variances, self.nugget, 0.0) < 0 or not np.isfinite([*self.variances, self.nugget]).all():
            raise InputError(
                f"kriging variances and nugget must be finite and >= 0, not {list(self.variances)} and {self.nugget}"
            )

    @property
    def tags(self) -> Tags:
        """As every smoother; a solve for each set of visible rows."""
        return replace(super().tags, cost=Cost.SOLVE)

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
        # A row with a million times the noise counts for next to nothing; more would only cost digits.
        noise = 1.0 if ages_M is None else np.exp(np.minimum(-np.log(self.decay) * ages_M, np.log(1e6)))
        diagonal = np.arange(n_columns)
        c[:, diagonal, diagonal] += self.nugget + noise
        return c

    def weight_blocks(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """(K, B, M), see `LinearSmoother.weight_blocks`."""
        n_blocks, n_columns = columns_KM.shape
        if n_columns > max(EXACT_UP_TO, n_rows):
            keep = np.concatenate([np.arange(n_rows), np.arange(n_columns - (EXACT_UP_TO - n_rows), n_columns)])
            out = np.zeros((n_blocks, n_rows, n_columns))
            out[:, :, keep] = self.weight_blocks(
                tasks, columns_KM[:, keep], n_rows, visible_KBM[:, :, keep], ages_M[keep]
            )
            return out
        shared = self._shared_precision(tasks, columns_KM, ages_M)
        only_self = (~visible_KBM).sum(axis=2).max(initial=0) <= 1
        if shared is None and only_self and n_columns > 4 * n_rows:
            return self._own_rows(tasks, columns_KM, n_rows, ages_M)
        out = np.empty((n_blocks, n_rows, n_columns))
        chunk = max(1, 4_000_000 // n_columns**2)
        for start in range(0, n_blocks, chunk):
            columns, visible = columns_KM[start : start + chunk], visible_KBM[start : start + chunk]
            if shared is not None:
                p = shared[columns[:, :, None], columns[:, None, :]]
            else:
                p = residual_precision(self.covariance(tasks, columns, ages_M))
            out[start : start + chunk] = leave_out(p, n_rows, visible)
        return out

    def _own_rows(self, tasks: Tasks, columns_KM: IntArray, n_rows: int, ages_M: IntArray) -> FloatArray:
        """Leave-one-out weights where only the own column is hidden: solves for B rows of P rather than for all M."""
        n_blocks, n_columns = columns_KM.shape
        out = np.empty((n_blocks, n_rows, n_columns))
        right = np.zeros((n_columns, n_rows + 1))
        right[np.arange(n_rows), np.arange(n_rows)] = 1.0
        right[:, n_rows] = 1.0
        for k in range(n_blocks):
            solved = np.linalg.solve(self.covariance(tasks, columns_KM[k : k + 1], ages_M)[0], right)
            s = solved[:, n_rows]
            p_BM = solved[:, :n_rows].T - np.outer(s[:n_rows], s) / s.sum()
            own = np.arange(n_rows)
            w = -p_BM / p_BM[own, own][:, None]
            w[own, own] = 0.0
            out[k] = w
        return out

    def _shared_precision(self, tasks: Tasks, columns_KM: IntArray, ages_M: IntArray) -> FloatArray | None:
        """P over all tasks, when every block sees each of them once and age makes no difference: one solve for all
        blocks."""
        n = len(tasks)
        everywhere = (
            columns_KM.shape[1] == n
            and len(columns_KM) > 1
            and (self.decay == 1 or not ages_M.any())
            and n <= FULL_MATRIX_UP_TO
        )
        if not everywhere or (np.sort(columns_KM, axis=1) != np.arange(n)).any():
            return None
        return residual_precision(self.covariance(tasks, np.arange(n)[None]))[0]


def residual_precision(c_KMM: FloatArray) -> FloatArray:
    """``P = C^-1 - C^-1 1 1' C^-1 / (1' C^-1 1)`` (K, M, M), symmetric, with ``P 1 = 0``."""
    inverse = np.linalg.inv(c_KMM)
    inverse = (inverse + inverse.swapaxes(1, 2)) / 2
    s = inverse.sum(axis=2)
    return inverse - s[:, :, None] * s[:, None, :] / s.sum(axis=1)[:, None, None]


def leave_out(p_KMM: FloatArray, n_rows: int, visible_KBM: BoolArray) -> FloatArray:
    """Weights (K, B, M) that predict each row's reward from the columns it may see, from the residual precision P.

    Leaving out a set S of columns that includes i: ``b_i = r_i - [P_SS^-1 (P r)_S]_i``, so the weights on the others
    are ``-[P_SS^-1 P_S,rest]_i``; for S = {i} that is the usual leave-one-out. A row that sees nothing gets no weights.
    """
    own = np.arange(n_rows)
    hidden_KBM = ~visible_KBM
    n_hidden_KB = hidden_KBM.sum(axis=2)
    diagonal = p_KMM[:, own, own][:, :, None]
    # A batch of one row and no history has P = 0: nothing to divide by, and nothing to see.
    out = np.divide(
        -p_KMM[:, :n_rows], diagonal, out=np.zeros((len(p_KMM), n_rows, p_KMM.shape[2])), where=diagonal > 0
    )
    k_two, i_two = np.nonzero(n_hidden_KB == 2)
    if len(k_two):  # one copy beside itself, the usual case in a bootstrap resample: 2 x 2 in closed form
        hidden = hidden_KBM[k_two, i_two].copy()
        hidden[np.arange(len(k_two)), i_two] = False
        other = hidden.argmax(axis=1)
        p_i, p_c = p_KMM[k_two, i_two], p_KMM[k_two, other]
        ii, cc, ic = (
            p_i[np.arange(len(other)), i_two],
            p_c[np.arange(len(other)), other],
            p_i[np.arange(len(other)), other],
        )
        determinant = ii * cc - ic**2
        safe = np.where(determinant > 1e-12 * ii * cc, determinant, 1.0)
        out[k_two, i_two] = -(cc[:, None] * p_i - ic[:, None] * p_c) / safe[:, None]
    for k, i in zip(*np.nonzero(n_hidden_KB > 2), strict=True):
        s = np.flatnonzero(hidden_KBM[k, i])
        if len(s) < p_KMM.shape[2]:
            out[k, i] = -np.linalg.solve(p_KMM[k][np.ix_(s, s)], (s == i).astype(np.float64)) @ p_KMM[k][s]
    out[hidden_KBM] = 0.0
    return out
