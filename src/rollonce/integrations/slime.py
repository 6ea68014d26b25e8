"""slime and miles: `reward_post_process` for ``--custom-reward-post-process-path``.

    export ROLLONCE_BASELINE=baseline.json
    ... --advantage-estimator grpo --n-samples-per-prompt 1 \
        --custom-reward-post-process-path rollonce.integrations.slime.reward_post_process

Both call the function once per step in the rollout manager, with every sample of the step: all that a baseline needs.
Written to the sources of August 2026 (slime 624b824, miles 31f1ca9); the estimators ``grpo``, ``gspo`` and slime's
``cispo`` then hand the numbers on as they are. Neither is on PyPI (its ``slime`` is another package); which parts of
them were run with this adapter is said in ``docs/integrations.md``.

Settings, each an attribute of ``args`` (``--custom-config-path`` sets such) or an environment variable:
``rollonce_baseline`` / ``ROLLONCE_BASELINE``, the file; ``rollonce_state`` / ``ROLLONCE_STATE``, where history is kept
between runs (``rollonce.json`` in the ``--save`` directory by default).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.integrations.hook import AdvantageHook
from rollonce.setting_rules import Rule, read_dotted_setting, refuse

RULES = [
    Rule(
        "normalize_advantages",
        True,
        "whitens the advantages over the data-parallel batch afterwards",
        "leave --normalize-advantages out",
    ),
    Rule(
        "advantage_estimator",
        lambda v: v in ("ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
        "computes its own advantages from the rewards given, or whitens them",
        "set --advantage-estimator grpo, which hands them on unchanged",
    ),
    Rule(
        "custom_advantage_function_path",
        lambda v: v is not None,
        "replaces the advantages on each data-parallel shard",
        "leave --custom-advantage-function-path out",
    ),
]
ONE_ROLLOUT_RULES = [
    Rule(
        "dynamic_sampling_filter_path",
        lambda v: v is not None and str(v).endswith("nonzero_std"),
        "drops every group whose rewards are equal, which a group of one always is",
        "leave --dynamic-sampling-filter-path out at --n-samples-per-prompt 1",
    )
]
_hooks: dict[tuple[str, str], AdvantageHook] = {}


def _read_text_setting(args: Any, name: str) -> str | None:
    value = read_dotted_setting(args, name) or os.environ.get(name.upper())
    return None if value is None else str(value)


def _find_or_make_hook(args: Any) -> tuple[AdvantageHook, Path | None]:
    file = _read_text_setting(args, "rollonce_baseline")
    if file is None:
        raise InputError(
            "which baseline? Set ROLLONCE_BASELINE (or args.rollonce_baseline) to the file that rollonce tune wrote"
        )
    save, state = read_dotted_setting(args, "save"), _read_text_setting(args, "rollonce_state")
    path = Path(state) if state else Path(save) / "rollonce.json" if save else None
    if (file, str(path)) not in _hooks:
        size = int(read_dotted_setting(args, "n_samples_per_prompt", 1))
        refuse(args, [*RULES, *(ONE_ROLLOUT_RULES if size == 1 else [])], "slime")
        hook = AdvantageHook(file, group_size=size)
        if path is not None and path.exists():
            hook.load(path)
        _hooks[file, str(path)] = hook
    return _hooks[file, str(path)], path


def reward_post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards and advantages of a step, one each per sample.

    Args:
        args: slime's own.
        samples: The step's ``Sample``s; those with ``remove_sample`` or aborted count for nobody and get 0. Segments
            with one ``rollout_id`` (where there is none, one ``index``) are one rollout.

    Raises:
        InputError: without a baseline file, with settings that would spoil the advantages, or where a sample has no
            reward.
    """
    hook, path = _find_or_make_hook(args)
    keep = [not s.remove_sample and s.status.value != "aborted" for s in samples]
    raw = [s.get_reward_value(args) if k or s.reward is not None else 0.0 for s, k in zip(samples, keep, strict=True)]
    result = hook.advantages(
        [s.prompt for s in samples],
        raw,
        task_ids=[s.group_index for s in samples] if hook.group_size != 1 else None,
        columns={c: [_read_metadata_column(s, c) for s in samples] for c in hook.columns_needed},
        keep=keep,
        rollout_ids=[_make_rollout_key(s, row) for row, s in enumerate(samples)],
        log_probs=[_sum_trained_log_probs(s) for s in samples] if hook.uses_log_probs else None,
    )
    if path is not None:
        hook.save(path)
    return raw, result.advantages_N.tolist()


def _make_rollout_key(sample: Any, row: int) -> tuple[str, int]:
    if sample.rollout_id is not None:
        return ("rollout_id", sample.rollout_id)
    return ("row", row) if sample.index is None else ("index", sample.index)


def _sum_trained_log_probs(sample: Any) -> float:
    """Of the response's tokens that are trained; ``rollout_log_probs`` and ``loss_mask`` have one number per token."""
    if not sample.rollout_log_probs:
        return math.nan
    mask = sample.loss_mask or [1] * len(sample.rollout_log_probs)
    return sum(p for p, trained in zip(sample.rollout_log_probs, mask, strict=True) if trained)


def _read_metadata_column(sample: Any, column: str) -> Any:
    if column not in (sample.metadata or {}):
        raise InputError(
            f"the baseline reads the column {column!r}: put it into each sample's metadata (slime's --metadata-key)"
        )
    return sample.metadata[column]
