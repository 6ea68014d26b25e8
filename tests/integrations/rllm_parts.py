"""The parts of rLLM that the adapter touches: the real ones where rLLM is installed, else a stand-in.

The stand-in follows rLLM 9beb6e0 (``types.py``, ``trainer/algorithms/{advantage,rejection_sampling,transform}.py``,
``trainer/config/rllm/base.yaml``) name by name. ``run_real.sh rllm`` runs the same tests against the real ones.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_modules import installed, module, namespace, with_settings

REAL = installed("rllm")
DEFAULTS = {
    "rllm": {
        "rollout": {"n": 1},
        "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True, "use_precomputed_advantage": False},
        "stepwise_advantage": {"mode": "broadcast"},
        "rejection_sample": {"enable": False, "min_trajs_per_group": 1, "filter_uniform_groups": False},
        "async_training": {"enable": False, "mini_batch_size": 64},
    }
}


@dataclass
class _Step:
    chat_completions: list[dict[str, Any]] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantage: Any = None


@dataclass
class _Trajectory:
    name: str
    task: Any
    steps: list[_Step]
    reward: float | None


@dataclass
class _Group:
    trajectories: list[_Trajectory]
    group_id: str

    @property
    def group_role(self) -> str:
        return self.group_id.split(":")[1] if ":" in self.group_id[:-1] else "all_groups"

    @property
    def task_id(self) -> str:
        return self.group_id.split(":")[0]


@dataclass
class _Task:
    id: str
    instruction: Any
    metadata: dict[str, Any] = field(default_factory=dict)


def _grpo(rewards, algorithm_config, **kwargs):
    centre_and_scale = [(r.mean(), r.std()) if len(r) > 1 else (0.0, 1.0) for r in rewards]
    advantages = [(r - c) / (s + 1e-6) for r, (c, s) in zip(rewards, centre_and_scale, strict=True)]
    return advantages, advantages


def _stand_in(monkeypatch: Any) -> SimpleNamespace:
    registry = {"grpo": _grpo}

    def register_rllm_adv_estimator(name):
        return lambda function: registry.setdefault(name, function)

    def collect(groups, algorithm_config):
        by_role = defaultdict(list)
        for group in groups:
            by_role[group.group_role].append(group)
        for role, traj_groups in by_role.items():
            advantages, _ = registry[algorithm_config.estimator_map.get(role, algorithm_config.estimator)](
                rewards=[np.array([t.reward for t in g.trajectories]) for g in traj_groups],
                algorithm_config=algorithm_config,
                traj_groups=traj_groups,
            )
            for group, values in zip(traj_groups, advantages, strict=True):
                for trajectory, value in zip(group.trajectories, values, strict=True):
                    for step in trajectory.steps:
                        step.advantage = float(value)

    def filter_groups(groups, config):
        return [g for g in groups if len(g.trajectories) >= config.rllm.rejection_sample.min_trajs_per_group]

    module(
        monkeypatch,
        "rllm.trainer.algorithms.advantage",
        register_rllm_adv_estimator=register_rllm_adv_estimator,
        RLLM_ADV_ESTIMATOR_REGISTRY=registry,
    )
    return SimpleNamespace(
        step=_Step,
        trajectory=_Trajectory,
        group=_Group,
        task=_Task,
        collect=collect,
        filter_groups=filter_groups,
        config=namespace,
        algorithm=lambda config, roles: SimpleNamespace(estimator="grpo", estimator_map=roles),
    )


def _real(monkeypatch: Any) -> SimpleNamespace:
    from omegaconf import OmegaConf
    from rllm import types
    from rllm.trainer.algorithms import advantage, config, rejection_sampling

    monkeypatch.setattr(advantage, "RLLM_ADV_ESTIMATOR_REGISTRY", dict(advantage.RLLM_ADV_ESTIMATOR_REGISTRY))

    def filter_groups(groups, settings):
        rules = config.RejectionSamplingConfig.from_config(settings.rllm.rejection_sample)
        return rejection_sampling.filter_groups(groups, rules, rejection_sampling.RejectionSamplingMetrics())[0]

    return SimpleNamespace(
        step=types.Step,
        trajectory=types.Trajectory,
        group=types.TrajectoryGroup,
        task=types.Task,
        collect=advantage.collect_reward_and_advantage_from_trajectory_groups,
        filter_groups=filter_groups,
        config=OmegaConf.create,
        algorithm=lambda settings, roles: config.AlgorithmConfig.from_config(
            settings.rllm.algorithm,
            stepwise_advantage_mode=settings.rllm.stepwise_advantage.mode,
            estimator_map=roles,
        ),
    )


class Rllm:
    """Builds what the adapter is handed and runs rLLM's own step over it, with real or stand-in classes."""

    def __init__(self, monkeypatch: Any) -> None:
        self._parts = _real(monkeypatch) if REAL else _stand_in(monkeypatch)
        self.task = self._parts.task

    def config(self, **changes: Any) -> Any:
        """The configuration's parts that matter, at one rollout per task; dotted changes with ``__`` for the dot."""
        return self._parts.config(with_settings(DEFAULTS, {k.replace("__", "."): v for k, v in changes.items()}))

    def group(
        self,
        task: Any,
        *rewards: float,
        role: str = "solver",
        task_id: str = "t",
        messages: list[Any] | None = None,
        log_probs: tuple[tuple[float, ...], ...] = ((-1.0, -0.5),),
    ) -> Any:
        """A group with one trajectory for each reward, each with one step for each tuple of log-probabilities."""
        steps = [
            {"chat_completions": messages or [], "response_ids": list(range(len(p))), "logprobs": list(p)}
            for p in log_probs
        ]
        trajectories = [
            self._parts.trajectory(name=role, task=task, steps=[self._parts.step(**s) for s in steps], reward=r)
            for r in rewards
        ]
        return self._parts.group(trajectories=trajectories, group_id=f"{task_id}:{role}")

    def train_step(self, config: Any, roles: dict[str, str], groups: list[Any]) -> list[list[float]]:
        """What each group's trajectories are given, after rLLM's own filter of groups; [] for a group it dropped."""
        kept = self._parts.filter_groups(groups, config)
        if kept:
            self._parts.collect(kept, self._parts.algorithm(config, roles))
        return [[t.steps[0].advantage for t in g.trajectories] if g in kept else [] for g in groups]
