"""An arm that takes a baseline of `rollonce.baselines` off the rewards."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from rollonce.baselines import Baseline, Batch, LinearSmoother, copy_without_history, load_baseline
from rollonce.baselines.base import find_nested_features
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.features import HiddenState
from rollonce.policies import TransformersPolicy
from rollonce.policies.hidden import make_hidden_state_reader
from rollonce.policies.samples import Samples
from rollonce.rollouts import Tasks
from rollonce.tasks import TaskSet
from rollonce.training.arms.base import Arm, StepAdvantages
from rollonce.training.config import ArmConfig, RunConfig
from rollonce.training.learners.base import Learner


class BaselineArm(Arm):
    """``A = r - b``, scaled where the baseline is defined so (REINFORCE++, GRPO with the group's deviation)."""

    def __init__(self, config: RunConfig, learner: Learner, train: TaskSet) -> None:
        policy = getattr(learner, "policy", None)
        policy = policy if isinstance(policy, TransformersPolicy) else None
        self.baseline = make_arm_baseline(config.arm, train.as_feature_tasks(), policy)
        self.hidden = hidden_state_features(self.baseline)
        if self.hidden and policy is None:
            raise InputError(
                f"arm {config.name!r}: a hidden_state feature reads a local policy's hidden states, which engine "
                f"{config.policy.engine!r} does not give"
            )

    def prepare_for_step(self, step: int) -> None:
        """Read hidden states with the policy as it is now, where that is due."""
        for feature in self.hidden:
            if feature.every and step > 1 and (step - 1) % feature.every == 0:
                feature.refresh_policy_reader()

    def advantages_of_step(self, batch: Batch, samples: Samples) -> StepAdvantages:
        prediction = self.baseline.predict(batch)
        return StepAdvantages(prediction.advantages_B, prediction.baseline_B)

    def learn_from_step(self, batch: Batch, samples: Samples, judged: StepAdvantages) -> None:
        """The batch joins the baseline's history."""
        self.baseline.observe(batch)

    def largest_self_weight(self, batch: Batch) -> float | None:
        """See `Arm.largest_self_weight`."""
        if not isinstance(self.baseline, LinearSmoother):
            return None
        return float(np.abs(np.diagonal(self.baseline.weights(batch)[:, : len(batch)])).max())

    def checkpoint_state(self) -> dict[str, Any]:
        """The baseline's history, as JSON."""
        return {"baseline": json.dumps(self.baseline.state_dict())}

    def restore_checkpoint_state(self, state: dict[str, Any]) -> None:
        self.baseline.load_state_dict(json.loads(state["baseline"]))


def make_arm_baseline(arm: ArmConfig, train_tasks: Tasks, policy: TransformersPolicy | None = None) -> Baseline:
    """The arm's baseline, fitted to the prompts that it will train on; hidden states are read with ``policy``.

    A ``baseline.json`` keeps the vocabulary it was tuned with, and starts without the history of its tuning: those
    rewards are another policy's.

    Raises:
        InputError: an unknown name, a bad file, a baseline that needs groups in an arm without, or one that needs
            repeats.
    """
    wanted: Any = arm.baseline
    made = load_baseline(wanted) if isinstance(wanted, str) else from_config(wanted)
    if not isinstance(made, Baseline):
        raise InputError(f"{wanted!r} is no baseline but a part of one")
    from_file = made.provenance is not None
    baseline = copy_without_history(made) if from_file else made
    if policy is not None:
        for feature in hidden_state_features(baseline):
            feature.attach_policy_reader(partial(make_hidden_state_reader, policy))
    if not from_file:
        baseline.fit(train_tasks)
    if baseline.tags.needs_groups and arm.group_size < 2:
        raise InputError(
            f"baseline {baseline.type!r} needs several rollouts of each task: give the arm group_size = 8, say"
        )
    return baseline


def hidden_state_features(baseline: Baseline) -> list[HiddenState]:
    """The features inside it that read hidden states."""
    return [feature for feature in find_nested_features(baseline) if isinstance(feature, HiddenState)]
