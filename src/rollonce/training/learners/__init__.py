"""What samples and learns: a policy on this machine, or one on a Tinker-compatible service. Loads torch."""

from __future__ import annotations

from rollonce.training.config import RunConfig
from rollonce.training.learners.base import Learner, Update, generator_from_seed

__all__ = ["Learner", "Update", "generator_from_seed", "make_configured_learner"]


def make_configured_learner(config: RunConfig) -> Learner:
    """The learner that the configuration asks for.

    Raises:
        InputError: what cannot be loaded, or what a service cannot carry out.
    """
    if config.policy.engine != "tinker":
        from rollonce.training.learners.local import LocalLearner

        return LocalLearner(config)
    from rollonce.training.learners.tinker import TinkerLearner

    return TinkerLearner(config)
