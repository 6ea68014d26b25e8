"""Small stand-ins for trainers that cannot be installed here, built to the shapes of their sources (names, arguments,
padding, segments).

What is tested with them is untested against the real trainer, and the test files and docs/integrations.md say so.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np


@dataclass
class SlimeSample:
    """slime's ``Sample`` (slime/utils/types.py), the fields that a reward post-processor may read."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    reward: Any = None
    remove_sample: bool = False
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)
    rollout_id: int | None = None

    def get_reward_value(self, args: Namespace) -> float:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


def slime_args(**changes: Any) -> Namespace:
    """slime's arguments that matter here, at their defaults."""
    defaults = {
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "normalize_advantages": False,
        "n_samples_per_prompt": 1,
        "rollout_batch_size": 4,
        "reward_key": None,
        "custom_advantage_function_path": None,
        "dynamic_sampling_filter_path": None,
        "save": None,
    }
    return Namespace(**{**defaults, **changes})


def slime_stock(rewards: list[float], group: int, batch: int) -> np.ndarray:
    """What slime does without a post-processor (``_post_process_rewards``): group mean, or *one* mean where the counts
    do not fit."""
    r = np.asarray(rewards, float)
    r = r.reshape(-1, group) if len(r) == group * batch else r.reshape(1, -1)
    r = r - r.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):  # torch's std of a single number is NaN
        std = r.std(axis=-1, ddof=1, keepdims=True) if r.shape[-1] > 1 else np.full((len(r), 1), np.nan)
    return (r / (std + 1e-6)).ravel()


def rllm_group(
    task: Any, rewards: list[float], role: str = "solver", task_id: str = "t", messages: list[Any] | None = None
) -> SimpleNamespace:
    """rLLM's ``TrajectoryGroup``: group_id ``task:role``, trajectories with task, reward and steps."""
    steps = [SimpleNamespace(chat_completions=messages)] if messages else []
    trajectories = [SimpleNamespace(task=task, reward=r, steps=steps) for r in rewards]
    return SimpleNamespace(trajectories=trajectories, group_id=f"{task_id}:{role}", group_role=role, task_id=task_id)
