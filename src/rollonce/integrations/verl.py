"""verl: ``algorithm.adv_estimator=gs1`` with the baseline of ``ROLLONCE_BASELINE``, or ``=batch_loo`` with none.

verl loads `rollonce.integrations.verl_plugin` by itself (entry point ``verl.plugins``) in every process, and that calls
`register`. ``batch_loo`` is the leave-one-out mean of the step's rewards. ``gs1`` also needs the prompts, which verl's
estimators are not given: with ``ROLLONCE_BASELINE`` set in the environment, the trainers are replaced by subclasses
that fetch them. Nothing else changes.

Shapes: ``_N`` rows of the step, padding included; tensors are (N, T) with T tokens of the longest response.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from rollonce.baselines import LeaveOneOut
from rollonce.errors import InputError, MissingExtraError
from rollonce.integrations.hook import AdvantageHook
from rollonce.integrations.notices import AdvantageWarning
from rollonce.integrations.tokens import outcome_rewards, rows_with_tokens, spread_over_tokens, summed_log_probs
from rollonce.setting_rules import Rule, refuse

VARIABLE, STATE_FILE = "ROLLONCE_BASELINE", "rollonce.json"

RULES = [
    Rule(
        "algorithm.use_pf_ppo",
        True,
        "reweighs rows by their reward after the baseline",
        "set algorithm.use_pf_ppo=False",
    ),
    Rule("critic.enable", True, "trains a critic that nothing reads", "leave critic.enable unset"),
]
GROUP_OF_ONE_RULES = [
    Rule(
        "algorithm.filter_groups.enable",
        True,
        "drops groups without spread, and a group of one rollout never has any",
        "set algorithm.filter_groups.enable=False",
    ),
]


class VerlStep(NamedTuple):
    """What the trainer knows and the estimator is not told."""

    hook: AdvantageHook
    prompts_N: Sequence[Any]
    keys_N: Sequence[str]
    log_probs_N: Sequence[float] | None
    metrics: dict[str, Any]


_LOG_PROB_FIELDS = ["response_mask", "rollout_log_probs", "old_log_probs"]
_step: ContextVar[VerlStep | None] = ContextVar("rollonce_verl_step", default=None)


def _find_counting_rows(response_mask: Any, index: Sequence[Any]) -> list[bool]:
    """Rows that count: not padding (uid ``pad...``), not rejected by rollout correction (their mask is empty)."""
    return [
        seen and not str(uid).startswith("pad")
        for seen, uid in zip(rows_with_tokens(response_mask), index, strict=True)
    ]


def compute_batch_loo_advantages(
    token_level_rewards: Any, response_mask: Any, index: Sequence[Any], config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """verl estimator: reward minus the mean of all other rewards of the step, whichever task they are of. Returns (N,
    T) twice."""
    hook = AdvantageHook(LeaveOneOut(), group_size=None, warn=False)
    result = hook.advantages(None, outcome_rewards(token_level_rewards), keep=_find_counting_rows(response_mask, index))
    return spread_over_tokens(result, token_level_rewards, response_mask)


def compute_gs1_advantages(
    token_level_rewards: Any, response_mask: Any, index: Sequence[Any], config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """verl estimator: reward minus the baseline of ``ROLLONCE_BASELINE``. Returns (N, T) twice.

    Raises:
        InputError: outside a trainer that was given the prompts.
    """
    step = _step.get()
    if step is None:
        raise InputError(
            f"algorithm.adv_estimator=gs1 needs the prompts: set {VARIABLE}=baseline.json in the environment of verl's "
            "driver (on a Ray cluster in ray_kwargs.ray_init.runtime_env.env_vars) and leave trainer.use_v1=True; "
            "batch_loo needs neither"
        )
    rewards_N = outcome_rewards(token_level_rewards)
    rollout_N = [key.rsplit("_", 1)[0] for key in step.keys_N]
    last = {rollout_N[i]: i for i in sorted(range(len(rewards_N)), key=lambda i: _read_turn_number(step.keys_N[i]))}
    result = step.hook.advantages(
        step.prompts_N,
        [rewards_N[last[r]] for r in rollout_N],
        keep=_find_counting_rows(response_mask, index),
        rollout_ids=rollout_N,
        log_probs=step.log_probs_N,
    )
    step.metrics.update({f"rollonce/{name}": value for name, value in result.metrics.items()})
    return spread_over_tokens(result, token_level_rewards, response_mask)


def _sum_row_log_probs(data: Any) -> list[float] | None:
    """Of each row's response, from the queue's fields, a tensor (T,) per row: the engine's where it gave them, else the
    actor's own under the same weights."""
    for name in _LOG_PROB_FIELDS[1:]:
        if name in data.keys():  # noqa: SIM118  (a TensorDict has no other test)
            pairs = zip(data[name].unbind(), data["response_mask"].unbind(), strict=True)
            return [float(summed_log_probs(row[None], mask[None])[0]) for row, mask in pairs]
    return None


def _read_turn_number(key: str) -> int:
    return int(
        key.rsplit("_", 1)[1]
    )  # keys are uid_session_output, and what a session is worth stands with its last output


class WithPrompts:
    """Mixed into verl's trainers: fetches the prompts for ``gs1`` and keeps the history beside the checkpoints."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self._gs1: AdvantageHook | None = None
        if config.algorithm.adv_estimator == "gs1":
            rollouts = int(config.actor_rollout_ref.rollout.n)
            refuse(config, RULES + (GROUP_OF_ONE_RULES if rollouts == 1 else []), "verl")
            self._gs1 = AdvantageHook(os.environ[VARIABLE], group_size=rollouts)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self._gs1 is None:
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        from verl.trainer.ppo.v1.trainer_base import tq

        fields = ["raw_prompt", *(_LOG_PROB_FIELDS if self._gs1.uses_log_probs else [])]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        log_probs_N = _sum_row_log_probs(data) if self._gs1.uses_log_probs else None
        token = _step.set(VerlStep(self._gs1, list(data["raw_prompt"]), list(batch.keys), log_probs_N, metrics))
        try:
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        finally:
            _step.reset(token)

    def _history_state_path(self) -> str:
        settings: Any = self.config.trainer  # type: ignore[attr-defined]
        step: int = self.global_steps  # type: ignore[attr-defined]
        return os.path.join(settings.default_local_dir, f"global_step_{step}", STATE_FILE)

    def _save_checkpoint(self) -> None:
        if self._gs1 is not None:
            self._gs1.save(
                self._history_state_path()
            )  # before super, which writes the file that makes this checkpoint the latest
        super()._save_checkpoint()  # type: ignore[misc]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        if self._gs1 is None or not self.global_steps:  # type: ignore[attr-defined]
            return
        settings: Any = self.config.trainer  # type: ignore[attr-defined]
        named = settings.resume_from_path if settings.resume_mode == "resume_path" else None
        path = os.path.join(named, STATE_FILE) if named else self._history_state_path()
        if os.path.exists(path):
            self._gs1.load(path)
        else:
            warnings.warn(
                f"{path}: no history in this checkpoint; the baseline starts without any",
                AdvantageWarning,
                stacklevel=2,
            )


def register() -> None:
    """Register the estimators and, with ``ROLLONCE_BASELINE`` set, put `WithPrompts` into the trainers. Doing it twice
    is harmless.

    Raises:
        MissingExtraError: if verl is not installed.
    """
    try:
        from verl.trainer.ppo.core_algos import register_adv_est
    except ImportError as e:
        raise MissingExtraError(f"rollonce.integrations.verl ({e})", "verl", "verl") from None
    register_adv_est("gs1")(compute_gs1_advantages)
    register_adv_est("batch_loo")(compute_batch_loo_advantages)
    if VARIABLE not in os.environ:
        return
    from verl.trainer.ppo.v1 import trainer_base

    for name, trainer in list(trainer_base.TRAINER_REGISTRY.items()):
        if not issubclass(trainer, WithPrompts):
            trainer_base.TRAINER_REGISTRY[name] = type(
                trainer.__name__, (WithPrompts, trainer), {"__module__": trainer.__module__}
            )
