"""Shares of variance over covariance kernels by restricted marginal likelihood (REML), numpy only, float64.

Rewards ``y`` (n,), one rollout a task, have covariance ``s^2 (sum_k pi_k K_k + pi_0 I)`` and an unknown constant mean;
``pi`` lies on the simplex, ``pi_0`` is the share of rollout noise and of what no kernel explains (one rollout a task
cannot tell them apart, and a leave-one-out smoother needs their sum only), and ``s^2`` is profiled out. With a
Dirichlet prior on ``pi`` the fit maximises

    log REML(pi) + sum_k a_k log pi_k,     a_k = 0.1 for kernels, 1.5 for the noise,

the pull on the noise share being what keeps sets with a handful of successes at the leave-one-out mean.

Source: Patterson & Thompson 1971 (REML); Rasmussen & Williams 2006, section 5.4.1 (gradient of the marginal
likelihood); Nocedal & Wright 2006, algorithm 6.1 (BFGS).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollonce.baselines.positive_definite import inverse_and_logdet
from rollonce.rollouts import FloatArray

JITTER = 1e-6
_LONGEST_STEP = 3.0


def negative_log_evidence(
    theta_K1: FloatArray, kernels_Knn: FloatArray, y_n: FloatArray, prior_K1: FloatArray
) -> tuple[float, FloatArray]:
    """Minus the penalised REML and its gradient (K + 1,) with respect to ``theta``, where ``pi = softmax(theta)``,
    noise last."""
    e = np.exp(theta_K1 - theta_K1.max())
    pi = e / e.sum()
    n = len(y_n)
    c = np.tensordot(pi[:-1], kernels_Knn, 1)
    c[np.diag_indices(n)] += pi[-1] + JITTER
    inverse, logdet = inverse_and_logdet(c)
    u = inverse.sum(axis=1)
    total = float(u.sum())
    p_y = inverse @ y_n - u * (u @ y_n) / total
    q = max(float(y_n @ p_y), 1e-12)
    value = -0.5 * logdet - 0.5 * np.log(total) - 0.5 * (n - 1) * np.log(q)
    # d value / d C = -1/2 P + (n - 1) / (2 q) (P y) (P y)', times each kernel and the identity.
    factor = 0.5 * (n - 1) / q
    ends_n2 = np.stack([u, p_y], axis=1)
    of_u, of_y = ((kernels_Knn @ ends_n2) * ends_n2).sum(axis=1).T
    of_inverse = kernels_Knn.reshape(len(kernels_Knn), -1) @ inverse.ravel()
    g = np.append(
        -0.5 * (of_inverse - of_u / total) + factor * of_y,
        -0.5 * (np.trace(inverse) - float(u @ u) / total) + factor * float(p_y @ p_y),
    )
    log_pi = np.log(np.maximum(pi, 1e-300))
    gradient = pi * (g - pi @ g) + prior_K1 - prior_K1.sum() * pi
    return -(value + float(prior_K1 @ log_pi)), -gradient


def minimise_with_bfgs(
    f: Callable[[FloatArray], tuple[float, FloatArray]], x: FloatArray, iterations: int = 40, tolerance: float = 0.02
) -> FloatArray:
    """BFGS with backtracking, for a handful of parameters.

    Args:
        f: Value and gradient; a value that is not finite is a step too long, and a shorter one is tried.
        x: Where to start.
        iterations: At most this many; it also stops where the gradient's largest entry or the gain falls below
            ``tolerance`` (or a hundredth of it): of a log likelihood, so that is plenty.
    """
    value, g = f(x)
    h: FloatArray = np.eye(len(x)) / max(1.0, float(np.abs(g).max()))
    for _ in range(iterations):
        if np.abs(g).max() < tolerance:
            break
        step = -h @ g
        if step @ g >= 0:
            h = np.eye(len(x)) / max(1.0, float(np.abs(g).max()))
            step = -h @ g
        step *= min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-300))
        for _ in range(20):
            new_value, new_g = f(x + step)
            if np.isfinite(new_value) and new_value <= value + 1e-4 * (step @ g):
                break
            step = step / 3
        else:
            break
        s, d = step, new_g - g
        gain = value - new_value
        x, value, g = x + step, new_value, new_g
        if gain < 1e-2 * tolerance:
            break
        sd = float(s @ d)
        if sd > 1e-12:
            left = np.eye(len(x)) - s[:, None] * d[None, :] / sd
            h = left @ h @ left.T + s[:, None] * s[None, :] / sd
    return x


def fit_variance_shares(
    kernels_Knn: FloatArray, y_n: FloatArray, alpha: float, alpha_noise: float, iterations: int = 40
) -> FloatArray:
    """The shares ``pi`` (K + 1,), noise last, that explain the rewards best.

    Where shares leave so little noise that the covariance is not positive definite any more (kernels are so up to
    rounding only), they explain nothing, and the search turns back.

    Args:
        kernels_Knn: Covariances of the n tasks, each scaled to a mean variance of about 1 over tasks.
        y_n: One reward each, standardised.
        alpha, alpha_noise: Of the Dirichlet prior (its pseudo-counts less one).

    Raises:
        numpy.linalg.LinAlgError: at equal shares the covariance is not positive definite.
    """
    prior = np.append(np.full(len(kernels_Knn), alpha), alpha_noise)

    def evidence_or_infinity(theta_K1: FloatArray) -> tuple[float, FloatArray]:
        try:
            return negative_log_evidence(theta_K1, kernels_Knn, y_n, prior)
        except np.linalg.LinAlgError:
            if not theta_K1.any():  # what is no covariance at equal shares is no kernel
                raise
            return np.inf, np.zeros(len(prior))

    theta = minimise_with_bfgs(evidence_or_infinity, np.zeros(len(prior)), iterations)
    e = np.exp(theta - theta.max())
    return e / e.sum()
