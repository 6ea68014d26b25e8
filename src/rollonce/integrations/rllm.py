"""rLLM: an advantage estimator for its registry.

    name = register(config, "baseline.json", state="out/rollonce.json")
    AgentTrainer(config=config, ..., traj_group_adv_estimator_map={"solver": name})     # by role

Written to rLLM 9beb6e0 of August 2026: the estimator is called once per step and role with the rewards of every
trajectory group and, as ``traj_groups``, the groups themselves; rLLM's asynchronous trainer calls it for one task at a
time, which takes history mode. rLLM drops groups of fewer than ``min_trajs_per_group`` trajectories, 2 by default,
before that: at one rollout per task nothing would be trained, and nothing would be said.

rLLM is not on PyPI; which parts of it were run with this adapter is said in ``docs/integrations.md``.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.baselines import Baseline
from rollonce.errors import InputError
from rollonce.integrations.hook import AdvantageHook
from rollonce.integrations.rows import render_prompt_text
from rollonce.rollouts import FloatArray
from rollonce.setting_rules import Rule, read_dotted_setting, refuse

RULES = [
    Rule(
        "rllm.algorithm.use_precomputed_advantage",
        True,
        "takes advantages from the workflow",
        "set it to false",
    ),
    Rule(
        "rllm.stepwise_advantage.mode",
        lambda v: v != "broadcast",
        "gives each step a reward of its own",
        "set it to broadcast",
    ),
]
ONE_ROLLOUT_RULES = [
    Rule(
        "rllm.rejection_sample.min_trajs_per_group",
        lambda v: v > 1,
        "drops every group of one rollout, so that nothing is trained",
        "set it to 1",
    ),
    Rule(
        "rllm.rejection_sample.enable",
        True,
        "skips batches until some task is solved in part, which a single rollout never is",
        "set it to false",
    ),
    Rule(
        "rllm.rejection_sample.filter_uniform_groups",
        True,
        "lets a rollout train or not by its own advantage",
        "set it to false",
    ),
]
_PROMPT_KEYS = ("prompt", "question", "problem", "instruction")
Groups = tuple[list[FloatArray], list[FloatArray]]


def read_group_prompt(group: Any) -> str:
    """The task of a trajectory group as text: its first trajectory's ``task`` (rLLM's ``Task``, a row of the data set,
    text or messages), or the messages before the policy's first word.

    Raises:
        InputError: if neither is there.
    """
    trajectory = group.trajectories[0]
    task = trajectory.task
    instruction = getattr(task, "instruction", None)
    if isinstance(instruction, list):  # content blocks of one user message
        return render_prompt_text([{"role": "user", "content": instruction}])
    text = instruction or (task if isinstance(task, str | list) else None)
    row = _find_dataset_row(task)
    text = text or next((row[k] for k in _PROMPT_KEYS if row.get(k)), None)
    if text:
        return render_prompt_text(text)
    before = []
    for message in trajectory.steps[0].chat_completions if trajectory.steps else []:
        if message.get("role") == "assistant":
            break
        before.append(message)
    if not before:
        raise InputError(
            f"group {group.group_id!r} has neither a task nor messages to read a prompt from; pass prompt_of to "
            "register"
        )
    return render_prompt_text(before)


def _find_dataset_row(task: Any) -> Mapping[str, Any]:
    """The row of the data set that a task stands for: itself, or what rLLM's ``Task`` keeps of it."""
    row = task if isinstance(task, Mapping) else getattr(task, "metadata", None)
    return row if isinstance(row, Mapping) else {}


def make_advantage_estimator(
    baseline: Baseline | str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    prompt_of: Callable[[Any], str] = read_group_prompt,
    group_size: int | None = 1,
    **options: Any,
) -> Callable[..., Groups]:
    """An estimator ``fn(rewards, algorithm_config, traj_groups=)`` in rLLM's form.

    Args:
        baseline: A baseline or its file. Each role has a copy with a history of its own.
        state: A file (per role: ``.role`` is added to its stem) that keeps history between runs, since rLLM's
            checkpoint has no place.
        prompt_of: Takes a trajectory group, gives the task's text.
        group_size: Trajectories of a task in a batch, None where it varies.
        **options: Of `AdvantageHook`.
    """
    hooks: dict[str, AdvantageHook] = {}

    def history_file_of_role(role: str) -> Path | None:
        return None if state is None else Path(state).with_stem(f"{Path(state).stem}.{role}")

    def estimate_advantages(
        rewards: Sequence[FloatArray], algorithm_config: Any, *, traj_groups: Sequence[Any], **_: Any
    ) -> Groups:
        role = traj_groups[0].group_role
        path = history_file_of_role(role)
        if role not in hooks:
            hooks[role] = AdvantageHook(baseline, group_size=group_size, **options)
            if path is not None and path.exists():
                hooks[role].load(path)
        hook, sizes = hooks[role], [len(r) for r in rewards]
        rows = [group for group, n in zip(traj_groups, sizes, strict=True) for _ in range(n)]
        result = hook.advantages(
            [prompt_of(group) for group in rows],
            np.concatenate([np.asarray(r, np.float64) for r in rewards]),
            task_ids=None if group_size == 1 else [group.task_id for group in rows],
            columns={c: [_read_task_column(group, c) for group in rows] for c in hook.columns_needed},
            log_probs=[_sum_trajectory_log_probs(t) for g in traj_groups for t in g.trajectories]
            if hook.uses_log_probs
            else None,
        )
        if path is not None and not hook.rows_waiting:
            hook.save(path)
        by_group = np.split(result.advantages_N, np.cumsum(sizes)[:-1])
        return by_group, by_group

    return estimate_advantages


def _sum_trajectory_log_probs(trajectory: Any) -> float:
    """Over all steps; a step's ``logprobs`` have one number for each of its ``response_ids``, or are empty."""
    if not all(len(step.logprobs) == len(step.response_ids) > 0 for step in trajectory.steps):
        return math.nan
    return sum(sum(step.logprobs) for step in trajectory.steps)


def _read_task_column(group: Any, column: str) -> Any:
    row = _find_dataset_row(group.trajectories[0].task)
    if column not in row:
        raise InputError(f"the baseline reads the column {column!r}, which the row of task {group.task_id!r} lacks")
    return row[column]


def register(
    config: Any, baseline: Baseline | str | os.PathLike[str], *, name: str = "rollonce", **options: Any
) -> str:
    """Put the baseline into rLLM's registry under a name.

    Args:
        config: What ``AgentTrainer`` gets as ``config``: its settings are checked here, and say the group size and
            whether training is asynchronous (history mode, the mini-batch's rollouts joining together).
        baseline: As for `make_advantage_estimator`.
        name: The name in the registry.
        **options: Of `make_advantage_estimator`.

    Returns:
        The name, for ``traj_group_adv_estimator_map``: as ``adv_estimator`` rLLM does not know it.

    Raises:
        InputError: if rLLM is not installed, or a setting would spoil the advantages.
    """
    try:
        module = importlib.import_module("rllm.trainer.algorithms.advantage")
    except ModuleNotFoundError as e:
        if not str(e.name).startswith("rllm"):
            raise
        raise InputError("rLLM is not installed here: it comes from its repository, not from PyPI") from None
    size = options.setdefault("group_size", read_dotted_setting(config, "rllm.rollout.n", 1))
    refuse(config, [*RULES, *(ONE_ROLLOUT_RULES if size == 1 else [])], "rLLM")
    if read_dotted_setting(config, "rllm.async_training.enable", False):
        batch = read_dotted_setting(config, "rllm.async_training.mini_batch_size", 1) * (size or 1)
        options = {"history_mode": True, "step_rows": batch, **options}
    module.register_rllm_adv_estimator(name)(make_advantage_estimator(baseline, **options))
    return name
