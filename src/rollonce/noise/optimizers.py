"""What an optimizer makes of a stream of batch gradients, and how far each of its steps points along a direction.

Adam (Kingma and Ba 2015, with bias correction) acts on every parameter by itself, so a random subset of the parameters
shows its step without bias; a sketch that adds parameters up would not. Clipping is by the norm of the whole gradient,
as trainers do it, before Adam sees it.

Shapes: ``_A`` contenders, ``_D`` chosen parameters, ``_S`` stretches of them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numba import njit

from rollonce.errors import InputError
from rollonce.rollouts import FloatArray

STRETCHES = 10
OptimizerKind = Literal["adam", "sgd", "normalised-sgd"]


class OptimizerSettings(NamedTuple):
    """The optimizer whose step is measured; the defaults are those of `rollonce.training.config.TrainConfig`.

    Attributes:
        kind: ``adam``; ``sgd``, whose step is the gradient; ``normalised-sgd``, a step of length one.
        beta1, beta2, epsilon: Of Adam.
        max_grad_norm: The gradient's norm is clipped to this before the optimizer sees it; None for no clipping.
    """

    kind: OptimizerKind = "adam"
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def checked_settings(self) -> OptimizerSettings:
        """Itself.

        Raises:
            InputError: for an unknown kind, betas outside [0, 1), or bounds that are not positive.
        """
        if self.kind not in ("adam", "sgd", "normalised-sgd"):
            raise InputError(f"optimizer must be adam, sgd or normalised-sgd, not {self.kind!r}")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise InputError(f"beta1 and beta2 must lie in [0, 1), not {self.beta1:g} and {self.beta2:g}")
        if not self.epsilon > 0:
            raise InputError(f"epsilon must be above 0, not {self.epsilon:g}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise InputError(f"max_grad_norm must be above 0, not {self.max_grad_norm:g}; leave it out for no clipping")
        return self

    @property
    def burn_in_steps(self) -> int:
        """Steps until what Adam remembers of the start has faded to a third."""
        return int(np.ceil(1.1 / (1 - max(self.beta1, self.beta2)))) if self.kind == "adam" else 0

    def describe_in_words(self) -> str:
        """In words: ``Adam(0.9, 0.95), gradient norm clipped at 1``."""
        name = {"adam": f"Adam({self.beta1:g}, {self.beta2:g})", "sgd": "SGD", "normalised-sgd": "normalised SGD"}
        clip = (
            f", gradient norm clipped at {self.max_grad_norm:g}" if self.max_grad_norm is not None else ", no clipping"
        )
        return name[self.kind] + ("" if self.kind == "normalised-sgd" else clip)


class StepDirections:
    """One optimizer each for A contenders, fed with their batch gradients on D parameters.

    Args:
        settings: The optimizer.
        n_contenders: A.
        direction_D: The true gradient on the chosen parameters, from other tasks than the batches'.
    """

    def __init__(self, settings: OptimizerSettings, n_contenders: int, direction_D: FloatArray) -> None:
        self.settings = settings
        self.direction_D = np.ascontiguousarray(direction_D, dtype=np.float32)
        self.edges_S = np.linspace(0, len(direction_D), STRETCHES + 1).astype(np.int64)
        shape = (n_contenders, len(direction_D)) if settings.kind == "adam" else (0, 0)
        self._first_AD, self._second_AD = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._steps = 0

    def step_along_direction(self, gradients_AD: np.ndarray, norms_A: FloatArray) -> FloatArray:
        """``<direction, step>`` of each contender (A, S), by stretches of the parameters.

        Args:
            gradients_AD: Batch gradients on the chosen parameters, float32; scaled in place by the clipping.
            norms_A: Norm of each whole gradient, for clipping and normalising.
        """
        s = self.settings
        if s.kind == "normalised-sgd":
            gradients_AD *= np.divide(1.0, norms_A, out=np.zeros_like(norms_A), where=norms_A > 0)[:, None]
        elif s.max_grad_norm is not None:
            gradients_AD *= np.minimum(1.0, s.max_grad_norm / np.maximum(norms_A, 1e-300))[:, None]
        if s.kind != "adam":
            products_AD = gradients_AD.astype(np.float64) * self.direction_D
            return np.add.reduceat(products_AD, self.edges_S[:-1], axis=1)
        self._steps += 1
        out_AS = np.empty((len(gradients_AD), STRETCHES))
        _adam_step_products(
            gradients_AD,
            self._first_AD,
            self._second_AD,
            self.direction_D,
            self.edges_S,
            np.float32(s.beta1),
            np.float32(s.beta2),
            np.float32(1 - s.beta1**self._steps),
            np.float32(1 - s.beta2**self._steps),
            np.float32(s.epsilon),
            out_AS,
        )
        return out_AS


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _adam_step_products(
    gradients_AD: np.ndarray,
    first_AD: np.ndarray,
    second_AD: np.ndarray,
    direction_D: np.ndarray,
    edges_S: np.ndarray,
    beta1: np.float32,
    beta2: np.float32,
    correction1: np.float32,
    correction2: np.float32,
    epsilon: np.float32,
    out_AS: np.ndarray,
) -> None:
    """Adam's moments moved on by one step, and the products of its step with the direction."""
    one = np.float32(1)
    for a in range(gradients_AD.shape[0]):
        for s in range(len(edges_S) - 1):
            total = np.float32(0)
            for d in range(edges_S[s], edges_S[s + 1]):
                g = gradients_AD[a, d]
                m = beta1 * first_AD[a, d] + (one - beta1) * g
                v = beta2 * second_AD[a, d] + (one - beta2) * g * g
                first_AD[a, d] = m
                second_AD[a, d] = v
                total += direction_D[d] * (m / correction1) / (np.sqrt(v / correction2) + epsilon)
            out_AS[a, s] = total


__all__ = ["STRETCHES", "OptimizerKind", "OptimizerSettings", "StepDirections"]
