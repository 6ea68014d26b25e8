"""Kriging (Gaussian-process regression, BLUP): the best linear guess at a task's mean reward from the others' rewards.

Task means have covariance ``sum_k v_k K_k + nugget I`` and rewards add noise of variance 1 (all in units of the
within-task variance ``s2``; the weights depend on these ratios alone, so rewards of any scale will do). With an unknown
constant mean the best linear unbiased predictor that leaves out the own reward is a linear smoother whose rows sum to 1
(`rollonce.baselines.kriging_solver`); weights may be negative. Where features carry nothing (all ``v_k`` are 0) it is
the LOO mean.

Source: Krige 1951; Rasmussen and Williams 2006, sections 2.7 and 5.4.2 (leave-one-out in closed form);
docs/mathematics.md, "Relatives of GS1".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rollonce.baselines.base import LinearSmoother
from rollonce.baselines.kriging_solver import add_noise_to_variances, solve_kriging_weights, table_is_worth_it
from rollonce.baselines.tags import Cost, Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.kernels import Cosine, Kernel, Rbf
from rollonce.kernels.base import BoolArray, look_up_pair_blocks
from rollonce.rollouts import FloatArray, IntArray, Tasks


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

    def describe(self) -> str:
        return self.describe_with_settings("Kriging")

    def reward_covariance(self, tasks: Tasks, columns_KM: IntArray, ages_M: IntArray | None = None) -> FloatArray:
        """C (K, M, M): covariance of the visible rewards in units of the within-task variance, noise included."""
        ages_M = np.zeros(columns_KM.shape[1], np.int64) if ages_M is None else ages_M
        return add_noise_to_variances(self._covariance_of_means(tasks, columns_KM), self.noise_of_columns(ages_M))

    def _covariance_of_means(self, tasks: Tasks, columns_KM: IntArray) -> FloatArray:
        n_blocks, n_columns = columns_KM.shape
        c = np.zeros((n_blocks, n_columns, n_columns))
        for kernel, v in zip(self.kernels, self.variances, strict=True):
            if v > 0:
                c += v * kernel.compute_covariance(tasks, columns_KM, columns_KM)
        return c

    def covariance_of_all(self, tasks: Tasks) -> FloatArray:
        """Covariance of the task means (N, N), in units of the within-task variance."""
        return self._covariance_of_means(tasks, np.arange(len(tasks))[None])[0]

    def noise_of_columns(self, ages_M: IntArray) -> FloatArray:
        """What a reward of each age adds to its own variance (M,)."""
        # A row with a million times the noise counts for next to nothing; more would only cost digits.
        return self.nugget + np.exp(np.minimum(-np.log(self.decay) * ages_M, np.log(1e6)))

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """(K, B, M), see `LinearSmoother.compute_weight_blocks`."""
        table = self.covariance_of_all(tasks) if table_is_worth_it(tasks, columns_KM) else None

        def covariance_of_columns(columns_KM: IntArray) -> FloatArray:
            if table is None:
                return self._covariance_of_means(tasks, columns_KM)
            return look_up_pair_blocks(table, columns_KM, columns_KM)

        return solve_kriging_weights(
            covariance_of_columns, self.noise_of_columns(ages_M), columns_KM, n_rows, visible_KBM
        )
