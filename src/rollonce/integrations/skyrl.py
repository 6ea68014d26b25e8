"""SkyRL: ``trainer.algorithm.advantage_estimator=gs1`` with `gs1_trainer`, or ``=batch_loo`` with none of it but `register`.

    register()                                          # in the driver before Ray starts: SkyRL checks the names there
    class Experiment(BasePPOExp):
        def get_trainer(self, *args, **kwargs):
            return gs1_trainer("baseline.json")(*args, **kwargs)

Shapes: ``_N`` rows that the estimator is given (the last turn of each trajectory with ``step_wise_trajectories``); tensors (N, T).
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from rollonce.baselines import Baseline, LeaveOneOut
from rollonce.errors import InputError, MissingExtraError
from rollonce.integrations.hook import AdvantageHook, AdvantageWarning
from rollonce.integrations.rows import Rule, refuse
from rollonce.integrations.tokens import outcome_rewards, over_tokens, rows_with_tokens

STATE_FILE = "rollonce.json"
_ALGORITHM = "trainer.algorithm"
RULES = [
    Rule(
        f"{_ALGORITHM}.advantage_estimator", lambda v: v != "gs1", "would not ask the baseline", f"set {_ALGORITHM}.advantage_estimator=gs1"
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
    Rule("trainer.critic.model.path", True, "trains a critic that nothing reads", "leave trainer.critic.model.path unset"),
]
GROUP_OF_ONE_RULES = [
    Rule(
        f"{_ALGORITHM}.dynamic_sampling.type",
        True,
        "samples again until groups have spread, and a group of one rollout never has any",
        f"leave {_ALGORITHM}.dynamic_sampling.type unset",
    ),
]


class Step(NamedTuple):
    """What the trainer knows and the estimator is not told."""

    hook: AdvantageHook
    prompts_N: Sequence[Any]
    keep_N: Sequence[bool]
    metrics: dict[str, Any]


_step: ContextVar[Step | None] = ContextVar("rollonce_skyrl_step", default=None)


def batch_loo(token_level_rewards: Any, response_mask: Any, index: Sequence[Any], **_: Any) -> tuple[Any, Any]:
    """SkyRL estimator: reward minus the mean of all other rewards of the step, whichever task they are of. Returns (N, T) twice.

    Padding rows (uid ``pad0``, ``pad1`` ...), which repeat row 0 with its reward, neither count nor get an advantage.
    """
    keep_N = [seen and not re.fullmatch(r"pad\d+", str(uid)) for seen, uid in zip(rows_with_tokens(response_mask), index, strict=True)]
    result = AdvantageHook(LeaveOneOut(), group_size=None, warn=False).advantages(None, outcome_rewards(token_level_rewards), keep=keep_N)
    return over_tokens(result, token_level_rewards, response_mask)


def gs1(token_level_rewards: Any, response_mask: Any, index: Sequence[Any], **_: Any) -> tuple[Any, Any]:
    """SkyRL estimator: reward minus the baseline that `gs1_trainer` was given. Returns (N, T) twice.

    Raises:
        InputError: in any other trainer: SkyRL's estimators are not given the prompts.
    """
    step = _step.get()
    if step is None:
        raise InputError("advantage_estimator=gs1 needs the prompts: train with rollonce.integrations.skyrl.gs1_trainer, or use batch_loo")
    result = step.hook.advantages(step.prompts_N, outcome_rewards(token_level_rewards), keep=step.keep_N)
    step.metrics.update({f"rollonce/{name}": value for name, value in result.metrics.items()})
    return over_tokens(result, token_level_rewards, response_mask)


def register() -> None:
    """Put ``gs1`` and ``batch_loo`` into SkyRL's registry. Doing it twice is harmless.

    Raises:
        MissingExtraError: if SkyRL's trainer is not installed.
    """
    try:
        from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry
    except ImportError as e:
        raise MissingExtraError(f"rollonce.integrations.skyrl ({e})", "skyrl[skyrl-train]", "skyrl") from None
    for name, estimator in {"gs1": gs1, "batch_loo": batch_loo}.items():
        if name not in AdvantageEstimatorRegistry.list_available():
            AdvantageEstimatorRegistry.register(name, estimator)


class WithPrompts:
    """Mixed into a SkyRL trainer: shows ``gs1`` the prompts and keeps the history in the checkpoints."""

    gs1_baseline: Baseline | str | os.PathLike[str]
    cfg: Any
    tokenizer: Any
    all_metrics: dict[str, Any]

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        samples = int(cfg.generator.n_samples_per_prompt)
        refuse(cfg, RULES + (GROUP_OF_ONE_RULES if samples == 1 else []), "SkyRL")
        register()
        self._gs1 = AdvantageHook(self.gs1_baseline, group_size=samples)
        self._messages: dict[str, Any] = {}
        super().__init__(cfg, *args, **kwargs)  # type: ignore[call-arg]

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
        prompts_N = [self._messages[uids[i]] if uids[i] in self._messages else self._decoded(data, i) for i in starts]
        token = _step.set(Step(self._gs1, prompts_N, keep_N, self.all_metrics))
        try:
            return super().compute_advantages_and_returns(data)  # type: ignore[misc]
        finally:
            _step.reset(token)
            self._messages = {}

    def _decoded(self, data: Any, i: int) -> str:
        tokens = data["sequences"][i][data["attention_mask"][i].bool()]
        return self.tokenizer.decode(tokens[: len(tokens) - int(data["response_mask"][i].sum())], skip_special_tokens=True)

    def save_checkpoints(self) -> str:
        """History first: SkyRL's own writes last of all that this checkpoint is complete."""
        from skyrl.backends.skyrl_train.utils.io import io

        folder = os.path.join(self.cfg.trainer.ckpt_path, f"global_step_{self.global_step}")  # type: ignore[attr-defined]
        io.makedirs(folder, exist_ok=True)
        with io.open_file(os.path.join(folder, STATE_FILE), "w") as f:
            json.dump(self._gs1.state_dict(), f, allow_nan=False)
        return super().save_checkpoints()  # type: ignore[misc]

    def load_checkpoints(self) -> tuple[int, Any]:
        """SkyRL's own, then the history that lies beside."""
        from skyrl.backends.skyrl_train.utils.io import io

        step, folder = super().load_checkpoints()  # type: ignore[misc]
        if folder is not None:
            path = os.path.join(str(folder), STATE_FILE)
            if io.exists(path):
                with io.open_file(path, "r") as f:
                    self._gs1.load_state_dict(json.load(f))
            else:
                warnings.warn(f"{path}: no history in this checkpoint; the baseline starts without any", AdvantageWarning, stacklevel=2)
        return step, folder


def gs1_trainer(baseline: Baseline | str | os.PathLike[str], trainer: type | None = None) -> type:
    """A trainer class that uses a fitted baseline.

    Args:
        baseline: The baseline, or the file that ``rollonce tune`` wrote.
        trainer: SkyRL's trainer to build on; by default `skyrl.train.trainer.RayPPOTrainer`.

    Raises:
        MissingExtraError: if SkyRL's trainer is not installed.
    """
    if trainer is None:
        try:
            from skyrl.train.trainer import RayPPOTrainer
        except ImportError as e:
            raise MissingExtraError(f"rollonce.integrations.skyrl ({e})", "skyrl[skyrl-train]", "skyrl") from None
        trainer = cast(type, RayPPOTrainer)
    return type(f"GS1{trainer.__name__}", (WithPrompts, trainer), {"gs1_baseline": baseline, "__module__": __name__})
