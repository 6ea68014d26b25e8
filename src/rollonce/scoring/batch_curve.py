"""How progress grows with the batch: a smooth curve through a few sizes, read in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollonce.rollouts import FloatArray

SIZES = (0.5, 0.75, 1.5, 2.0)
"""Sizes, relative to B, at which the curve is measured."""
_FLAT = 0.05


class BatchCurve:
    """log progress against log batch size, both relative to B: a parabola through the origin, by least squares; beyond
    the sizes measured it goes on straight.

    Args:
        sizes_C: Batch sizes over B, B itself left out.
        log_progress_C: Logarithm of the progress at each over that at B.
    """

    def __init__(self, sizes_C: Sequence[float] | FloatArray, log_progress_C: FloatArray) -> None:
        x_C = np.log(np.asarray(sizes_C, dtype=np.float64))
        powers_CP = np.stack([x_C, x_C**2], axis=1)[:, : 2 if len(x_C) > 2 else 1]
        self._hat_PC = np.linalg.pinv(powers_CP) if len(x_C) else np.zeros((1, 0))
        self._coefficients_P = self._hat_PC @ log_progress_C if len(x_C) else np.zeros(1)
        self.low, self.high = (min(x_C.min(), 0.0), max(x_C.max(), 0.0)) if len(x_C) else (0.0, 0.0)

    def slope_at_log_size(self, x: float) -> float:
        """Of log progress at a log size."""
        return float(self._power_derivatives_at(x) @ self._coefficients_P)

    def measurement_weights_at(self, x: float) -> FloatArray:
        """How much the curve's value at a log size depends on each measured point (C,)."""
        inside = min(max(x, self.low), self.high)
        powers = np.array([inside, inside**2])[: len(self._coefficients_P)]
        return (powers + (x - inside) * self._power_derivatives_at(x)) @ self._hat_PC

    def log_size_for_progress(self, log_progress: float) -> float:
        """The log size with that progress; NaN where the curve is too flat to be read."""
        ends = [self._log_progress_at(x) for x in (self.low, self.high)]
        if (
            not np.isfinite(log_progress)
            or min(self.slope_at_log_size(self.low), self.slope_at_log_size(self.high)) < _FLAT
        ):
            return float("nan")
        if log_progress <= ends[0]:
            return self.low + (log_progress - ends[0]) / self.slope_at_log_size(self.low)
        if log_progress >= ends[1]:
            return self.high + (log_progress - ends[1]) / self.slope_at_log_size(self.high)
        low, high = self.low, self.high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._log_progress_at(middle) < log_progress else (low, middle)
        return (low + high) / 2

    def is_measured_size(self, x: float) -> bool:
        """Whether a log size lies within the sizes that were measured."""
        return bool(self.low <= x <= self.high)

    def _power_derivatives_at(self, x: float) -> FloatArray:
        inside = min(max(x, self.low), self.high)
        return np.array([1.0, 2 * inside])[: len(self._coefficients_P)]

    def _log_progress_at(self, x: float) -> float:
        return float(np.array([x, x**2])[: len(self._coefficients_P)] @ self._coefficients_P)


__all__ = ["SIZES", "BatchCurve"]
