"""The arm that a configuration asks for. A new kind of arm is a file here and a line in `make_configured_arm`."""

from __future__ import annotations

from rollonce.tasks import TaskSet
from rollonce.training.arms import ORACLE, TOKEN_BASELINES
from rollonce.training.arms.base import Arm
from rollonce.training.arms.baseline import BaselineArm
from rollonce.training.arms.critic import CriticArm
from rollonce.training.arms.oracle import OracleArm
from rollonce.training.arms.token_baseline import TokenBaselineArm
from rollonce.training.config import RunConfig
from rollonce.training.learners.base import Learner


def make_configured_arm(config: RunConfig, learner: Learner, train: TaskSet) -> Arm:
    """The run's arm, before its first step.

    Args:
        config: The run.
        learner: Whose rollouts it judges.
        train: The tasks trained on; baselines are fitted to their prompts.

    Raises:
        InputError: a baseline that cannot be had, or a critic that the learner cannot have.
    """
    if config.arm.critic is not None:
        return CriticArm(config, learner, train)
    if config.arm.baseline == ORACLE:
        return OracleArm(config, learner, train)
    if isinstance(config.arm.baseline, str) and config.arm.baseline in TOKEN_BASELINES:
        return TokenBaselineArm(over_groups=TOKEN_BASELINES[config.arm.baseline])
    return BaselineArm(config, learner, train)
