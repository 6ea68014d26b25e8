"""Covariances of several kernels between the rows of a stream, each pair computed once in its life.

A step adds B rows to those kept, so only their covariances with what is visible are new: ``B (H + B)`` pairs instead of
``(H + B)^2``. Features are rounded to multiples of 2**-24 first. Their inner products are then exact, so a pair's
covariance has the same bits whether it was computed step by step or, after a restart, all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rollonce.baselines.base import find_nested_features
from rollonce.features.sparse import SparseRows, round_for_exact_sums
from rollonce.kernels.base import Kernel, expect_one_block
from rollonce.rollouts import FloatArray, Tasks


@dataclass
class _Step:
    """The rows of one step: their covariances with themselves and with the rows before them."""

    covariances_KBM: FloatArray
    _weights_K: FloatArray | None = None
    _weighted_BM: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))

    def weighted_covariance(self, weights_K: FloatArray) -> FloatArray:
        """``sum_k w_k C_k`` (B, M), remembered for as long as the weights are the same."""
        if self._weights_K is None or not np.array_equal(self._weights_K, weights_K):
            total = np.zeros(self.covariances_KBM.shape[1:])
            for weight, covariance_BM in zip(weights_K, self.covariances_KBM, strict=True):
                if weight > 0:
                    total += weight * covariance_BM
            self._weights_K, self._weighted_BM = weights_K.copy(), total
        return self._weighted_BM


class CovarianceStream:
    """Covariances between the newest rows of a stream, by kernel.

    Args:
        kernels: Fitted, pairwise.

    Attributes:
        seen: The tasks of the rows kept as the owner holds them, to tell whether the two are still in step; None
            before the first.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.seen: Tasks | None = None
        self._kernels = kernels
        self._features = {f.matrix_cache_key: f for kernel in kernels for f in find_nested_features(kernel)}
        self._rows: Tasks | None = None
        self._steps: list[_Step] = []
        self._next: tuple[Tasks, Tasks, _Step] | None = None

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def has_unchanged_features(self) -> bool:
        """Whether its features are those that it began with; a hidden state changes when it is read anew."""
        return all(feature.matrix_cache_key == key for key, feature in self._features.items())

    def append_step_rows(self, tasks: Tasks, keep: int) -> None:
        """Add the rows of a step, and forget all but the newest ``keep``."""
        _, self._rows, step = self._prepare_next_step(tasks)
        self._steps.append(step)
        self._next = None
        if len(self._rows) > keep:
            self._rows = self._rows.take(np.arange(len(self._rows) - keep, len(self._rows))).detached()
            behind = np.cumsum([s.covariances_KBM.shape[1] for s in reversed(self._steps)])
            self._steps = self._steps[-(int(np.searchsorted(behind, keep)) + 1) :]

    def covariances_by_kernel(self, n: int) -> FloatArray:
        """Covariances between the newest n rows (K, n, n)."""
        return _assemble_square_table([s.covariances_KBM for s in self._steps], n)

    def visible_covariance(self, tasks: Tasks, window: int, weights_K: FloatArray) -> FloatArray:
        """``sum_k w_k C_k`` (B + H, B + H) of a step's rows, which come first, and the newest ``window`` rows kept."""
        step = self._prepare_next_step(tasks)[2]
        n, size = len(tasks), len(tasks) + window
        c = _assemble_square_table([s.weighted_covariance(weights_K) for s in (*self._steps, step)], size)
        order = np.concatenate([np.arange(size - n, size), np.arange(size - n)])
        return c[np.ix_(order, order)]

    def _prepare_next_step(self, tasks: Tasks) -> tuple[Tasks, Tasks, _Step]:
        """These tasks, all rows once they have joined, and their covariances; computed once for `visible_covariance`
        and `append_step_rows`."""
        if self._next is None or self._next[0] is not tasks:
            own = self._with_rounded_features(tasks)
            rows = own if self._rows is None else Tasks.concat(self._rows, own)
            expect_one_block(rows)
            every, new = np.arange(len(rows))[None], np.arange(len(rows) - len(own), len(rows))[None]
            step = np.empty((len(self._kernels), len(own), len(rows)))
            for k, kernel in enumerate(self._kernels):
                step[k] = kernel.compute_covariance(rows, new, every)[0]
            self._next = tasks, rows, _Step(step)
        return self._next

    def _with_rounded_features(self, tasks: Tasks) -> Tasks:
        columns = {name: tasks.column(name) for name in tasks.column_names}
        own = Tasks(tasks.prompts, tasks.task_ids, columns, ids_tell_apart=tasks.ids_tell_apart)
        for key, feature in self._features.items():
            matrix = feature.transform_tasks(tasks)
            exact = matrix.with_rounded_numbers() if isinstance(matrix, SparseRows) else round_for_exact_sums(matrix)
            own.cached(key, lambda _, exact=exact: exact)
        return own


def _assemble_square_table(steps: Sequence[FloatArray], n: int) -> FloatArray:
    """The symmetric table (..., n, n) of the newest n rows, from each step's rows (..., B, M), whose last columns are
    its own."""
    out = np.empty((*steps[0].shape[:-2], n, n)) if steps else np.empty((0, n, n))
    stop = n
    for step in reversed(steps):
        start = max(0, stop - step.shape[-2])
        out[..., start:stop, :stop] = step[..., step.shape[-2] - (stop - start) :, step.shape[-1] - stop :]
        out[..., :start, start:stop] = out[..., start:stop, :start].swapaxes(-1, -2)
        stop = start
        if stop == 0:
            break
    return out


__all__ = ["CovarianceStream"]
