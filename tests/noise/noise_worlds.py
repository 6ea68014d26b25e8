"""Worlds whose gradient noise is known exactly: a few kinds of tasks, two answers each, a Bernoulli policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollonce.rollouts import FloatArray, Rollouts


@dataclass(frozen=True)
class Bandit:
    """Tasks of M equally frequent kinds. A rollout is right with probability p_m; its score gradient is ``(right - p_m)
    x_m``.

    Being the derivative of a log-probability, the score has mean zero for every kind, and right answers of an easy kind
    have small norms.
    """

    p_M: FloatArray
    x_MD: FloatArray

    def draw(self, rng: np.random.Generator, n: int, g: int) -> tuple[Rollouts, FloatArray]:
        """N tasks x G rollouts and the Gram matrix of their scores."""
        kind = rng.integers(len(self.p_M), size=n)
        right = rng.random((n, g)) < self.p_M[kind][:, None]
        scores = ((right - self.p_M[kind][:, None])[:, :, None] * self.x_MD[kind][:, None, :]).reshape(n * g, -1)
        table = Rollouts.from_groups(
            right.astype(float), [f"task {i} of kind {k}" for i, k in enumerate(kind)], columns={"kind": list(kind)}
        )
        return table, scores @ scores.T

    # Everything below is worked out from E[(1 - p)^2 p + p^2 (1 - p)] and the like; m is the mean reward, v the
    # variance of a reward.

    @property
    def x2_M(self) -> FloatArray:
        return (self.x_MD**2).sum(axis=1)

    @property
    def mean(self) -> float:
        return float(self.p_M.mean())

    @property
    def s2(self) -> float:
        return float((self.p_M * (1 - self.p_M)).mean())

    @property
    def reward_variance(self) -> float:
        return self.mean * (1 - self.mean)

    @property
    def norm2(self) -> float:
        """E|g|^2."""
        return float((self.p_M * (1 - self.p_M) * self.x2_M).mean())

    def weighted(self, b: float | FloatArray) -> FloatArray:
        """E[(r - b)^2 |g|^2] of each kind (M,) for a fixed b."""
        p = self.p_M
        return (p * (1 - b) ** 2 * (1 - p) ** 2 + (1 - p) * np.square(b) * p**2) * self.x2_M

    @property
    def mu_MD(self) -> FloatArray:
        """Each kind's true gradient E[r g]."""
        return (self.p_M * (1 - self.p_M))[:, None] * self.x_MD

    @property
    def mu2(self) -> float:
        return float((self.mu_MD.mean(axis=0) ** 2).sum())

    @property
    def own2(self) -> float:
        return float((self.mu_MD**2).sum(axis=1).mean())

    def constant_noise(self, b: float, batch: int) -> float:
        return (float(self.weighted(b).mean()) - self.mu2) / batch

    def oracle_noise(self, batch: int) -> float:
        return (float(self.weighted(self.p_M).mean()) - self.mu2) / batch

    def loo_noise(self, batch: int) -> float:
        """A_i = rho_i - (mean of the others' rho): the others' mean adds v / (B - 1) to the square; of the cross terms
        only ``mu mu`` and, since each is in the other's mean, ``mu mu / (B - 1)^2`` are left, the scores having mean
        zero."""
        own = float(self.weighted(self.mean).mean()) + self.reward_variance / (batch - 1) * self.norm2
        cross = self.mu2 * (1 + 1 / (batch - 1) ** 2)
        return own / batch + (batch - 1) / batch * cross - self.mu2

    def rloo_noise(self, size: int, batch: int) -> float:
        """The same within a task, over batch / size tasks."""
        v_M = self.p_M * (1 - self.p_M)
        own_M = self.weighted(self.p_M) + v_M / (size - 1) * v_M * self.x2_M
        mu2_M = (self.mu_MD**2).sum(axis=1)
        square_M = own_M / size + (size - 1) / size * mu2_M * (1 + 1 / (size - 1) ** 2)
        return (float(square_M.mean()) - self.mu2) / (batch / size)


BANDIT = Bandit(np.array([0.9, 0.7, 0.2]), np.array([[1.0, 0.5, 0.0], [0.2, 1.0, -0.6], [0.3, 0.1, 1.2]]))


def unrelated(rng: np.random.Generator, n: int, g: int, d: int = 512, right_norm: float = 1.0, wrong_norm: float = 1.0):
    """Directions that know nothing of anything, so that the true gradient is zero; lengths by the reward where they
    differ.

    Difficulty is a coin's (0.2 or 0.8), declared as a column.
    """
    p_N = np.where(np.arange(n) % 2 == 0, 0.2, 0.8)
    right = rng.random((n, g)) < p_N[:, None]
    scores = rng.standard_normal((n * g, d))
    scores *= (np.where(right.reshape(-1), right_norm, wrong_norm) / np.linalg.norm(scores, axis=1))[:, None]
    table = Rollouts.from_groups(
        right.astype(float),
        [f"{'easy' if p > 0.5 else 'hard'} task {i}" for i, p in enumerate(p_N)],
        columns={"kind": list(p_N)},
    )
    return table, scores @ scores.T
