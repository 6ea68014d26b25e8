"""Weights on a simplex from losses of experts: stacking on a Gram matrix of errors, and exponential weights with a
fixed share."""

from __future__ import annotations

import numpy as np

from rollonce.rollouts import FloatArray


def project_to_simplex(v_M: FloatArray) -> FloatArray:
    """The nearest point of the simplex (Duchi et al. 2008)."""
    ordered = np.sort(v_M)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(v_M) + 1)
    last = int(np.flatnonzero(ordered > excess)[-1])
    return np.maximum(v_M - excess[last], 0.0)


def fit_stacking_weights(gram_MM: FloatArray, pull: float, home: int, iterations: int = 400) -> FloatArray:
    """The mixture ``a`` (M,) on the simplex that minimises ``a' G a + pull |a - e_home|^2``.

    With ``G`` the mean products of experts' errors, ``a' G a`` is the mean squared error of their mixture (Wolpert
    1992; Breiman 1996).

    Args:
        gram_MM: G, positive semi-definite.
        pull: Towards the expert ``home``, in the unit of G.
        home: Its position.
        iterations: Of accelerated projected gradients (FISTA, Beck & Teboulle 2009), which start from ``home``.
    """
    m = len(gram_MM)
    start = np.zeros(m)
    start[home] = 1.0
    if m == 1:
        return start
    h = gram_MM + pull * np.eye(m)
    step = 1.0 / max(float(np.linalg.eigvalsh(h)[-1]), 1e-300)
    a, ahead, t = start, start, 1.0
    for _ in range(iterations):
        new = project_to_simplex(ahead - step * (h @ ahead - pull * start))
        t_new = (1 + np.sqrt(1 + 4 * t * t)) / 2
        ahead = new + (t - 1) / t_new * (new - a)
        if np.abs(new - a).max() < 1e-13:
            return new
        a, t = new, t_new
    return a


def exponential_weights_step(weights_M: FloatArray, losses_M: FloatArray, eta: float, share: float) -> FloatArray:
    """One step of exponential weights, then a fixed share (Herbster & Warmuth 1998): ``(1 - share) w + share / M``.

    With losses ``mean_i (r_i - b_i)^2`` of a batch, errors within ``[-R, R]`` and ``eta = 1 / (2 R^2)`` the batch's
    loss is eta-exp-concave in the mixture, so over T steps the mixture's summed loss exceeds the best expert's by at
    most ``2 R^2 ln M`` (Cesa-Bianchi & Lugosi 2006, theorem 3.2) without a share, and a sequence of experts that
    changes k times by at most ``2 R^2 ((k + 1) ln M + k ln(1 / share) + (T - 1 - k) ln(1 / (1 - share)))`` up to ``(k
    ln(M - 1))`` less (theorem 5.2).
    """
    log_w = np.log(np.maximum(weights_M, 1e-300)) - eta * losses_M
    w = np.exp(log_w - log_w.max())
    return (1 - share) * w / w.sum() + share / len(w)
