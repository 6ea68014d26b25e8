"""SkyRL: ``trainer.algorithm.advantage_estimator=gs1`` with `use_baseline`, or ``=batch_loo`` with `register` alone.

    register()          # in the driver, before SkyRL looks at its settings and starts Ray

    class Experiment(BasePPOExp):
        def get_trainer(self, *args, **kwargs):
            return use_baseline(super().get_trainer(*args, **kwargs), "baseline.json")

Shapes: ``_N`` rows that the estimator is given (the last turn of each trajectory with ``step_wise_trajectories``);
tensors (N, T).
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from rollonce.baselines import Baseline, LeaveOneOut
from rollonce.errors import InputError, MissingExtraError
from rollonce.integrations.hook import AdvantageHook
from rollonce.integrations.notices import AdvantageWarning
from rollonce.integrations.tokens import outcome_rewards, rows_with_tokens, spread_over_tokens, summed_log_probs
from rollonce.rollouts import FloatArray
from rollonce.setting_rules import Rule, refuse

STATE_FILE = "rollonce.json"
_ALGORITHM = "trainer.algorithm"
RULES = [
    Rule(
        f"{_ALGORITHM}.advantage_estimator",
        lambda v: v != "gs1",
        "would not ask the baseline",
        f"set {_ALGORITHM}.advantage_estimator=gs1",
    ),
    Rule(
        f"{_ALGORITHM}.advantage_batch_normalize",
        True,
        "whitens the advantages afterwards",
        f"set {_ALGORITHM}.advantage_batch_normalize=false",
    ),
    Rule(
        f"{_ALGORITHM}.zero_variance_filter",
        True,
        "drops rows by the rewards of their group, the own one included (at group size 1: all of them)",
        f"set {_ALGORITHM}.zero_variance_filter=false",
    ),
    Rule(
        "trainer.critic.model.path", True, "trains a critic that nothing reads", "leave trainer.critic.model.path unset"
    ),
]
GROUP_OF_ONE_RULES = [
    Rule(
        f"{_ALGORITHM}.dynamic_sampling.type",
        True,
        "samples again until groups have spread, and a group of one rollout never has any",
        f"leave {_ALGORITHM}.dynamic_sampling.type unset",
    ),
]


class SkyRlStep(NamedTuple):
    """What the trainer knows and the estimator is not told."""

    hook: AdvantageHook
    prompts_N: Sequence[Any]
    keep_N: Sequence[bool]
    log_probs_N: Sequence[float] | None
    metrics: dict[str, Any]


_step: ContextVar[SkyRlStep | None] = ContextVar("rollonce_skyrl_step", default=None)


def compute_batch_loo_advantages(
    token_level_rewards: Any, response_mask: Any, index: Sequence[Any], **_: Any
) -> tuple[Any, Any]:
    """SkyRL estimator: reward minus the mean of all other rewards of the step, whichever task they are of. Returns (N,
    T) twice.

    Padding rows (uid ``pad0``, ``pad1`` ...), which repeat row 0 with its reward, neither count nor get an advantage.
    """
    keep_N = [
        seen and not re.fullmatch(r"pad\d+", str(uid))
        for seen, uid in zip(rows_with_tokens(response_mask), index, strict=True)
    ]
    result = AdvantageHook(LeaveOneOut(), group_size=None, warn=False).advantages(
        None, outcome_rewards(token_level_rewards), keep=keep_N
    )
    return spread_over_tokens(result, token_level_rewards, response_mask)


def compute_gs1_advantages(
    token_level_rewards: Any, response_mask: Any, index: Sequence[Any], **_: Any
) -> tuple[Any, Any]:
    """SkyRL estimator: reward minus the baseline that `use_baseline` gave the trainer. Returns (N, T) twice.

    Raises:
        InputError: in any other trainer: SkyRL's estimators are not given the prompts.
    """
    step = _step.get()
    if step is None:
        raise InputError(
            "advantage_estimator=gs1 needs the prompts: pass the trainer to rollonce.integrations.skyrl.use_baseline, "
            "or use batch_loo"
        )
    result = step.hook.advantages(
        step.prompts_N, outcome_rewards(token_level_rewards), keep=step.keep_N, log_probs=step.log_probs_N
    )
    step.metrics.update({f"rollonce/{name}": value for name, value in result.metrics.items()})
    return spread_over_tokens(result, token_level_rewards, response_mask)


def _sum_row_log_probs(data: Any) -> FloatArray:
    """Of what was sampled in each row (N,): the engine's where SkyRL asked for them, else the policy's own under the
    same weights; NaN where it has neither."""
    for name in ("rollout_logprobs", "action_log_probs"):
        if data.get(name) is not None:
            return summed_log_probs(data[name], data["loss_mask"])
    return np.full(len(data["loss_mask"]), np.nan)


def register() -> None:
    """Put ``gs1`` and ``batch_loo`` into SkyRL's registry. Doing it twice is harmless.

    Raises:
        MissingExtraError: if SkyRL's trainer is not installed.
    """
    try:
        from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry
    except ImportError as e:
        raise MissingExtraError(f"rollonce.integrations.skyrl ({e})", "skyrl[skyrl-train]", "skyrl") from None
    for name, estimator in {"gs1": compute_gs1_advantages, "batch_loo": compute_batch_loo_advantages}.items():
        if name not in AdvantageEstimatorRegistry.list_available():
            AdvantageEstimatorRegistry.register(name, estimator)


class WithPrompts:
    """Mixed into a SkyRL trainer: shows ``gs1`` the prompts and keeps the history in the checkpoints."""

    gs1: AdvantageHook
    cfg: Any
    tokenizer: Any
    all_metrics: dict[str, Any]
    _messages: dict[str, Any]

    async def generate(self, input_batch: Any) -> Any:
        """Remember what each uid was asked: afterwards there are only tokens."""
        ids = input_batch.get("trajectory_ids") or []
        self._messages.update({t.instance_id: p for t, p in zip(ids, input_batch["prompts"], strict=False)})
        return await super().generate(input_batch)  # type: ignore[misc]

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """SkyRL's own, with the prompts where ``gs1`` finds them. One row a trajectory: its first turn's prompt."""
        uids, turns = data.metadata["uids"], len(data.metadata["uids"])
        ends = data.metadata["is_last_step"] if self.cfg.generator.step_wise_trajectories else [True] * turns
        starts = [i for i in range(turns) if i == 0 or ends[i - 1]]
        real, trained = turns - data.metadata.get("pad_size", 0), rows_with_tokens(data["loss_mask"])
        keep_N = [a < real and any(trained[a:b]) for a, b in zip(starts, [*starts[1:], turns], strict=True)]
        prompts_N = [
            self._messages[uids[i]] if uids[i] in self._messages else self._decode_prompt_of_row(data, i)
            for i in starts
        ]
        log_probs_N = None
        if self.gs1.uses_log_probs:
            by_turn = _sum_row_log_probs(data)
            log_probs_N = [float(by_turn[a:b].sum()) for a, b in zip(starts, [*starts[1:], turns], strict=True)]
        token = _step.set(SkyRlStep(self.gs1, prompts_N, keep_N, log_probs_N, self.all_metrics))
        try:
            return super().compute_advantages_and_returns(data)  # type: ignore[misc]
        finally:
            _step.reset(token)
            self._messages = {}

    def _decode_prompt_of_row(self, data: Any, i: int) -> str:
        tokens = data["sequences"][i][data["attention_mask"][i].bool()]
        return self.tokenizer.decode(
            tokens[: len(tokens) - int(data["response_mask"][i].sum())], skip_special_tokens=True
        )

    def save_checkpoints(self) -> str:
        """History first: SkyRL's own writes last of all that this checkpoint is complete."""
        from skyrl.backends.skyrl_train.utils.io import io

        folder = os.path.join(self.cfg.trainer.ckpt_path, f"global_step_{self.global_step}")  # type: ignore[attr-defined]
        io.makedirs(folder, exist_ok=True)
        with io.open_file(os.path.join(folder, STATE_FILE), "w") as f:
            json.dump(self.gs1.state_dict(), f, allow_nan=False)
        return super().save_checkpoints()  # type: ignore[misc]

    def load_checkpoints(self) -> tuple[int, Any]:
        """SkyRL's own, then the history that lies beside."""
        from skyrl.backends.skyrl_train.utils.io import io

        step, folder = super().load_checkpoints()  # type: ignore[misc]
        if folder is not None:
            path = os.path.join(str(folder), STATE_FILE)
            if io.exists(path):
                with io.open_file(path, "r") as f:
                    self.gs1.load_state_dict(json.load(f))
            else:
                warnings.warn(
                    f"{path}: no history in this checkpoint; the baseline starts without any",
                    AdvantageWarning,
                    stacklevel=2,
                )
        return step, folder


def use_baseline(trainer: Any, baseline: Baseline | str | os.PathLike[str]) -> Any:
    """Let a trainer take its advantages from a baseline from now on. Returns the same trainer.

    Args:
        trainer: SkyRL's `RayPPOTrainer`, or one of a subclass.
        baseline: A fitted baseline, or the file that ``rollonce tune`` wrote.

    Raises:
        InputError: naming the settings with which the advantages would be wrong.
        MissingExtraError: if SkyRL's trainer is not installed.
    """
    samples = int(trainer.cfg.generator.n_samples_per_prompt)
    refuse(trainer.cfg, RULES + (GROUP_OF_ONE_RULES if samples == 1 else []), "SkyRL")
    register()
    trainer.gs1, trainer._messages = AdvantageHook(baseline, group_size=samples), {}
    trainer.__class__ = type(f"GS1{type(trainer).__name__}", (WithPrompts, type(trainer)), {"__module__": __name__})
    return trainer
