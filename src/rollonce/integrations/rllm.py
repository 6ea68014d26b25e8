"""rLLM: an advantage estimator for its registry (untested against the real trainer).

    from rollonce.integrations.rllm import register
    register("rollonce", "baseline.json", state="out/rollonce.json")
    AgentTrainer(..., traj_group_adv_estimator_map={"solver": "rollonce"})     # by role: other names become OTHER
    elsewhere

Written from the source of August 2026 (rLLM 9beb6e0): the estimator is called once a step and role with the rewards of
every trajectory group and, as ``traj_groups``, the groups themselves.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.baselines import Baseline
from rollonce.errors import InputError
from rollonce.integrations.hook import AdvantageHook
from rollonce.integrations.rows import prompt_text
from rollonce.rollouts import FloatArray
from rollonce.setting_rules import Rule, refuse

RULES = [
    Rule(
        "use_precomputed_advantage",
        True,
        "takes advantages from the workflow",
        "set use_precomputed_advantage to false",
    ),
    Rule(
        "stepwise_advantage_mode",
        lambda v: str(getattr(v, "value", v)) == "per_step",
        "gives each step a reward and a group of its own",
        "set stepwise_advantage.mode to broadcast",
    ),
]
_PROMPT_KEYS = ("prompt", "question", "problem", "instruction")
Groups = tuple[list[FloatArray], list[FloatArray]]


def prompt_of(group: Any) -> str:
    """The task of a trajectory group as text: its first trajectory's ``task``, or the messages before the policy's
    first word.

    Raises:
        InputError: if neither is there.
    """
    trajectory = group.trajectories[0]
    task = getattr(trajectory, "task", None)
    if isinstance(task, Mapping):
        task = next((task[k] for k in _PROMPT_KEYS if task.get(k)), None)
    if task:
        return prompt_text(task)
    messages = list(getattr(trajectory.steps[0], "chat_completions", None) or []) if trajectory.steps else []
    before = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        before.append(message)
    if not before:
        raise InputError(
            f"group {group.group_id!r} has neither a task nor messages to read a prompt from; pass prompt_of to "
            "register"
        )
    return prompt_text(before)


def make_estimator(
    baseline: Baseline | str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    prompt_of: Callable[[Any], str] = prompt_of,
    group_size: int | None = 1,
    **options: Any,
) -> Callable[..., Groups]:
    """An estimator ``fn(rewards, algorithm_config, traj_groups=)`` in rLLM's form.

    Args:
        baseline: A baseline or its file. Each role has a copy with a history of its own.
        state: A file (per role: ``.role`` is added to its stem) that keeps history between runs, since rLLM's
            checkpoint has no place.
        prompt_of: Takes a trajectory group, gives the task's text.
        group_size: Trajectories a task, None where it varies.
        **options: Of `AdvantageHook`.
    """
    hooks: dict[str, AdvantageHook] = {}

    def file(role: str) -> Path | None:
        return None if state is None else Path(state).with_stem(f"{Path(state).stem}.{role}")

    def estimator(
        rewards: Sequence[FloatArray],
        algorithm_config: Any = None,
        *,
        traj_groups: Sequence[Any] | None = None,
        **_: Any,
    ) -> Groups:
        if not len(rewards):
            return [], []
        if traj_groups is None:
            raise InputError(
                "this rLLM does not hand its estimators traj_groups, so they cannot see the tasks: upgrade rLLM"
            )
        refuse(algorithm_config, RULES, "rLLM")
        role = str(getattr(traj_groups[0], "group_role", "all"))
        path = file(role)
        if role not in hooks:
            hooks[role] = AdvantageHook(baseline, group_size=group_size, **options)
            if path is not None and path.exists():
                hooks[role].load(path)
        sizes = [len(r) for r in rewards]
        result = hooks[role].advantages(
            [prompt_of(g) for g, n in zip(traj_groups, sizes, strict=True) for _ in range(n)],
            np.concatenate([np.asarray(r, np.float64) for r in rewards]),
            task_ids=[g.task_id for g, n in zip(traj_groups, sizes, strict=True) for _ in range(n)],
        )
        if path is not None:
            hooks[role].save(path)
        by_group = np.split(result.advantages_N, np.cumsum(sizes)[:-1])
        return by_group, by_group

    return estimator


def register(name: str, baseline: Baseline | str | os.PathLike[str], **options: Any) -> None:
    """Put `make_estimator`'s result into rLLM's registry under a name.

    Raises:
        InputError: rLLM is not installed.
    """
    for home in ("rllm.trainer.algorithms.advantage", "rllm.experimental.common.advantage"):
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError:
            continue
        module.register_rllm_adv_estimator(name)(make_estimator(baseline, **options))
        return
    raise InputError("rLLM is not installed here: it comes from its repository, not from PyPI")
