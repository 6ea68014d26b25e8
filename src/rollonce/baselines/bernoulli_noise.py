"""The noise of rewards of 0 and 1: in proportion to ``p (1 - p)``, with p predicted from past rewards alone."""

from __future__ import annotations

import numpy as np

from rollonce.rollouts import FloatArray


def bernoulli_noise_factors(c_MM: FloatArray, noise_M: FloatArray, past_rewards_H: FloatArray) -> FloatArray:
    """What each row's noise is multiplied by (M,), in proportion to ``p (1 - p)``.

    p is the row's mean reward as Kriging predicts it from the *window's* rewards alone (of a row of the window, from
    the others), pulled halfway to their mean; no reward of the batch is read.

    Args:
        c_MM: Covariance of task means, the batch first.
        noise_M: What a reward adds to it by itself.
        past_rewards_H: Of the window.
    """
    n, h, y = len(c_MM) - len(past_rewards_H), len(past_rewards_H), past_rewards_H
    inverse = np.linalg.inv(c_MM[n:, n:] + np.diag(noise_M[n:]))
    s = inverse.sum(axis=1)
    p = inverse - np.outer(s, s) / s.sum()
    mean = float(s @ y / s.sum())
    own = y - (p @ y) / np.maximum(np.diag(p), 1e-12) if h > 1 else np.full(h, mean)
    guess = np.concatenate([mean + c_MM[:n, n:] @ (inverse @ (y - mean)), own])
    level = float(np.clip(y.mean(), 0.02, 0.98))
    guess = np.clip(0.5 * guess + 0.5 * level, 0.02, 0.98)
    return guess * (1 - guess) / (level * (1 - level))
