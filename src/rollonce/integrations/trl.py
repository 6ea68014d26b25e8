"""TRL: GRPO and RLOO with one rollout per task and any fitted baseline (written against TRL 1.16).

    from rollonce.integrations.trl import SingleRolloutGRPOConfig, SingleRolloutGRPOTrainer

    args = SingleRolloutGRPOConfig("out", per_device_train_batch_size=32)      # GRPOConfig with num_generations=1
    trainer = SingleRolloutGRPOTrainer(model, reward, args, train_dataset=data, baseline="baseline.json")
    trainer.train()

Two of TRL's methods are overridden, and both call TRL's own first: `_calculate_rewards`, after which the rewards of all
ranks are at hand and are kept, and `_generate_and_score_completions`, whose advantages are replaced. The batch that a
baseline sees is TRL's generation batch, over all ranks. Sampling, loss, KL, clipping and logging are TRL's.

For a trainer class that something else has patched (Unsloth), make the classes from it:
`single_rollout_config(GRPOConfig)` and `single_rollout_trainer(GRPOTrainer)`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollonce.baselines import Baseline
from rollonce.errors import InputError, MissingExtraError
from rollonce.integrations.hook import AdvantageHook, AdvantageResult
from rollonce.integrations.notices import AdvantageWarning
from rollonce.integrations.tokens import summed_log_probs
from rollonce.rounding import rewards_are_equal
from rollonce.setting_rules import Rule, refuse

STATE_FILE = "rollonce.json"
FIT_ON = 10_000
FORWARD_FIELDS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""What TRL's forward pass takes besides tokens, where a batch has images."""

RULES = [
    Rule(
        "scale_rewards",
        lambda v: v not in ("none", False),
        "divides GRPO's own advantages, which are replaced",
        "set scale_rewards='none'; where you do want advantages over the batch's deviation, pass scale_by_std=True to "
        "the trainer",
    ),
    Rule(
        "multi_objective_aggregation",
        lambda v: v != "sum_then_normalize",
        "scales each reward function by its group",
        "set multi_objective_aggregation='sum_then_normalize'",
    ),
    Rule(
        "normalize_advantages",
        True,
        "whitens advantages that are replaced",
        "set it to False, and pass whiten=True to the trainer",
    ),
]
RLOO_RULES = [
    Rule(
        "beta",
        lambda v: v != 0,
        "puts a KL penalty into RLOO's reward after the point where a baseline can see it",
        "set beta=0.0, or take SingleRolloutGRPOTrainer, whose KL is in the loss",
    ),
]


def single_rollout_config(base: type) -> type:
    """A configuration class like ``base`` (GRPOConfig, RLOOConfig) that allows, and defaults to, one generation
    per prompt.

    Other defaults that differ: ``scale_rewards="none"`` (GRPO), ``beta=0.0`` (RLOO). The generation batch must be even,
    because TRL's own checks run as if there were two generations.
    """

    def allow_single_generation(self: Any) -> None:
        asked = self.num_generations
        if asked == 1:
            self.num_generations = 2  # TRL refuses one generation per prompt, whose GRPO advantage is always zero
            self.num_generations_eval = self.num_generations_eval or 1
        base.__post_init__(self)  # type: ignore[attr-defined]
        self.num_generations = asked

    names = {f.name for f in dataclasses.fields(base)}
    defaults: dict[str, tuple[Any, Any]] = {"num_generations": (int, 1)}
    if "scale_rewards" in names:
        defaults["scale_rewards"] = (str, "none")
    if "normalize_advantages" in names:  # RLOO
        defaults["beta"] = (float, 0.0)
    body = {k: dataclasses.field(default=v) for k, (_, v) in defaults.items()}
    body |= {
        "__annotations__": {k: t for k, (t, _) in defaults.items()},
        "__post_init__": allow_single_generation,
        "__doc__": base.__doc__,
    }
    return dataclasses.dataclass(type(f"SingleRollout{base.__name__}", (base,), body))


class _SingleRollout:
    """What is put before a TRL trainer class.

    Args:
        model, reward_funcs, args: As TRL's.
        baseline: A baseline, or the file that ``rollonce tune`` wrote. One that was never fitted is fitted on the
            training prompts.
        whiten, scale_by_std, warn_after: See `AdvantageHook`.
        *more, **settings: As TRL's (``train_dataset``, ``processing_class``, ``peft_config`` ...).

    Raises:
        InputError: for settings of TRL that would spoil the advantages, naming each and its fix.
    """

    hook: AdvantageHook
    last: AdvantageResult | None

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        *more: Any,
        baseline: Baseline | str | os.PathLike[str],
        whiten: bool = False,
        scale_by_std: bool = False,
        warn_after: int = 20,
        **settings: Any,
    ) -> None:
        name = type(self).__name__
        if args is None:
            raise InputError(
                f"{name} needs its settings: args={name.replace('Trainer', 'Config')}('output directory', ...)"
            )
        groups = [
            Rule(
                "num_generations",
                lambda n: n != 1,
                "samples groups",
                f"use {name.replace('Trainer', 'Config')}, which has 1",
            )
        ]
        if type(args).__name__.startswith("SingleRollout"):
            groups = []  # asked for in so many words
        refuse(args, [*groups, *RULES, *(RLOO_RULES if hasattr(args, "normalize_advantages") else [])], "TRL")
        group_size = int(args.num_generations)
        self.hook = AdvantageHook(
            baseline, whiten=whiten, scale_by_std=scale_by_std, warn_after=warn_after, group_size=group_size
        )
        self.last = None
        self._kept: Any = None  # prompts, rewards of each function, columns: of all ranks
        super().__init__(model, reward_funcs, args, *more, **settings)  # pyright: ignore[reportCallIssue]
        self.hook.notices.enabled = self.accelerator.is_main_process  # type: ignore[attr-defined]
        self._check_data_and_fit_baseline()

    def _check_data_and_fit_baseline(self) -> None:
        trainer: Any = self
        data, needed = trainer.train_dataset, self.hook.columns_needed
        known = getattr(data, "column_names", None)
        missing = [c for c in needed if known is not None and c not in known]
        if missing:
            raise InputError(
                f"the baseline reads the column {missing[0]!r}, which the training set lacks; it has "
                f"{', '.join(known or [])}"
            )
        if needed and trainer.args.remove_unused_columns:
            raise InputError(
                f"remove_unused_columns=True takes away {needed[0]!r}, which the baseline reads: set it to False"
            )
        size: int | None = len(data) if hasattr(data, "__len__") else None  # a stream has none
        wanted = trainer.args.generation_batch_size // trainer.num_generations
        if size is not None and size < wanted:
            raise InputError(
                f"a generation batch takes {wanted} different tasks and the training set has {size}, "
                "so TRL's sampler would give no batch at all: "
                "lower per_device_train_batch_size, gradient_accumulation_steps or steps_per_generation"
            )
        if size is None:
            some = list(itertools.islice(iter(data), FIT_ON))
        else:
            some = [data[int(i)] for i in np.unique(np.linspace(0, size - 1, min(size, FIT_ON)).astype(int))]
        prompts, columns = [row["prompt"] for row in some], {c: [row[c] for row in some] for c in needed}
        self.hook.fit(prompts, columns)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], prompts: list[Any], *more: Any, **settings: Any) -> Any:
        """TRL's rewards of all ranks; kept, with the prompts and columns of all ranks, for the baseline."""
        from accelerate.utils import gather_object

        rewards_per_func = super()._calculate_rewards(inputs, prompts, *more, **settings)  # type: ignore[misc]
        begin = time.perf_counter()
        columns = {c: gather_object([row[c] for row in inputs]) for c in self.hook.columns_needed}
        self._kept = (gather_object(list(prompts)), rewards_per_func, columns)
        self._seconds = time.perf_counter() - begin
        return rewards_per_func

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch with the baseline's advantages in place of its own, in the loss and in the log."""
        import torch

        trainer: Any = self
        self._kept = missing = object()
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if self._kept is missing:
            raise InputError("this TRL did not call _calculate_rewards: the adapter was written for TRL 1.16")
        begin = time.perf_counter()
        prompts, rewards_per_func, columns = self._kept
        mode = "train" if trainer.model.training else "eval"
        rewards = self._sum_weighted_rewards(rewards_per_func)
        log_probs = self._completion_log_probs(output) if self.hook.uses_log_probs else None
        self.last = self.hook.advantages(
            prompts, rewards, columns=columns, log_probs=log_probs, ungraded="drop", training=mode == "train"
        )
        advantages = self.last.advantages_N
        n, rank = len(output["advantages"]), trainer.accelerator.process_index
        own = torch.as_tensor(advantages[rank * n : (rank + 1) * n]).to(output["advantages"])
        output["advantages"] = own

        log = trainer._logs["advantages"]
        for _ in range(min(len(advantages), len(log))):
            log.pop()
        log.extend(advantages.tolist())
        metrics = trainer._metrics[mode]
        if (trainer.num_generations if mode == "train" else trainer.num_generations_eval) == 1:
            graded = rewards[np.isfinite(rewards)]
            # TRL's share of groups without any spread. At one rollout per task the batch is the group.
            metrics["frac_reward_zero_std"][-1] = float(rewards_are_equal(graded))
        for key in (
            "baseline",
            "baseline_std",
            "squared_advantage",
            "squared_advantage_loo",
            "prior_share",
            "rows_dropped",
        ):
            if key in self.last.metrics:
                metrics[f"rollonce/{key}"].append(self.last.metrics[key])
        self._seconds += time.perf_counter() - begin
        metrics["rollonce/seconds"].append(self._seconds)
        return output

    def _completion_log_probs(self, output: dict[str, Any]) -> list[float]:
        """Log-probability of each completion of all ranks: of the tokens that the policy wrote and trains on.

        vLLM's own where it sampled; TRL's under the same weights where it has computed them; else computed here, which
        takes a forward pass.
        """
        import torch
        from accelerate.utils import gather_object

        trainer: Any = self
        mask = output["completion_mask"]
        if "tool_mask" in output:
            mask = mask * output["tool_mask"]
        by_token = output.get("sampling_per_token_logps", output.get("old_per_token_logps"))
        if by_token is None and "old_logps" in output:  # RLOO has summed them
            by_token = output["old_logps"][:, None]
            mask = mask.any(-1, keepdim=True)
        if by_token is None:
            with torch.no_grad():
                by_token, _, _ = trainer._get_per_token_logps_and_entropies(
                    trainer.model,
                    torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
                    torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                    output["completion_ids"].size(1),
                    batch_size=trainer.args.per_device_train_batch_size,
                    **{name: output[name] for name in FORWARD_FIELDS if name in output},
                )
        return gather_object(summed_log_probs(by_token, mask).tolist())

    def _sum_weighted_rewards(self, rewards_per_func: Any) -> np.ndarray:
        """The weighted sum over reward functions (N,) float64, NaN where none of them graded the completion; clipped as
        RLOO does."""
        trainer: Any = self
        each_NF = rewards_per_func.detach().double().cpu().numpy()
        weights_F = trainer.reward_weights.detach().double().cpu().numpy()
        total = np.nansum(each_NF * weights_F, axis=1)
        clip = getattr(trainer.args, "reward_clip_range", None)
        if clip:
            total = np.clip(total, *clip)
        total[np.isnan(each_NF).all(axis=1)] = np.nan
        return total

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """TRL's checkpoint, with the baseline's history in ``rollonce.json`` beside the weights."""
        trainer: Any = self
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        if trainer.args.should_save:
            self.hook.save(
                Path(trainer._get_output_dir(trial=trial)) / f"checkpoint-{trainer.state.global_step}" / STATE_FILE
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """TRL's, and the baseline's history with it."""
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is None:
            return
        path = Path(checkpoint) / STATE_FILE
        if path.exists():
            self.hook.load(path)
        elif self.hook.notices.enabled:
            warnings.warn(
                f"{checkpoint} has no {STATE_FILE}: the baseline starts without history", AdvantageWarning, stacklevel=2
            )


def single_rollout_trainer(base: type) -> type:
    """A trainer class like ``base`` (TRL's GRPOTrainer or RLOOTrainer, or a patched one) that takes ``baseline=``."""
    body = {
        "__doc__": f"{base.__name__} with a baseline of one's own.\n{_SingleRollout.__doc__}",
        "_tag_names": ["trl", "rollonce"],
    }
    return type(f"SingleRollout{base.__name__}", (_SingleRollout, base), body)


_MADE_FROM = {
    "SingleRolloutGRPOConfig": ("GRPOConfig", single_rollout_config),
    "SingleRolloutGRPOTrainer": ("GRPOTrainer", single_rollout_trainer),
    "SingleRolloutRLOOConfig": ("RLOOConfig", single_rollout_config),
    "SingleRolloutRLOOTrainer": ("RLOOTrainer", single_rollout_trainer),
}
__all__: Sequence[str] = [
    "STATE_FILE",
    "SingleRolloutGRPOConfig",
    "SingleRolloutGRPOTrainer",
    "SingleRolloutRLOOConfig",
    "SingleRolloutRLOOTrainer",
    "single_rollout_config",
    "single_rollout_trainer",
]

if TYPE_CHECKING:
    SingleRolloutGRPOConfig: Any
    SingleRolloutGRPOTrainer: Any
    SingleRolloutRLOOConfig: Any
    SingleRolloutRLOOTrainer: Any


@functools.cache
def _make_exported_class(name: str) -> type:
    try:
        import trl
    except ModuleNotFoundError as e:
        if e.name != "trl":
            raise
        raise MissingExtraError(name, "trl", "trl") from None
    base, make = _MADE_FROM[name]
    made = make(getattr(trl, base))
    made.__module__, made.__qualname__ = __name__, name
    return made


def __getattr__(name: str) -> Any:
    if name in _MADE_FROM:
        return _make_exported_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
