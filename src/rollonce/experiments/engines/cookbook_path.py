"""tinker-cookbook's advantage path for the correctness preflight: its own types and assembly of datums, with and
without our patch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollonce.baselines import Baseline
from rollonce.errors import InputError, MissingExtraError
from rollonce.experiments.datums import Datum, FixedBatch


class CookbookPath:
    """Stock: ``compute_advantages`` and ``assemble_training_data`` as installed. Ours: the same with the patch's
    advantages."""

    token_mean = False
    sent_scaled = False
    against = "tinker-cookbook's own compute_advantages and assemble_training_data, as installed"

    def make_our_datums(self, baseline: Baseline, batch: FixedBatch) -> list[Datum]:
        """See `rollonce.experiments.preflight.AdvantagePath`."""
        from rollonce.integrations.tinker_cookbook import CookbookRun

        groups, prompts = _make_trajectory_groups(batch)
        run = CookbookRun(baseline, "", prompts=lambda group, builder, tokenizer: builder)
        run.compute_step_advantages(None, groups, prompts, None)
        return _assemble_datums(groups, run.look_up_advantages(groups))

    def make_stock_datums(self, batch: FixedBatch) -> list[Datum]:
        """See `rollonce.experiments.preflight.AdvantagePath`."""
        groups, _ = _make_trajectory_groups(batch)
        return _assemble_datums(groups, _import_cookbook_module("rl.data_processing").compute_advantages(groups))


def _import_cookbook_module(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"tinker_cookbook.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a specification on tinker-cookbook", error.name or "tinker-cookbook", "tinker"
        ) from error


def _make_trajectory_groups(batch: FixedBatch) -> tuple[list[Any], list[str]]:
    """The batch as the cookbook's trajectory groups, and one prompt per group."""
    types, completers = _import_cookbook_module("rl.types"), _import_cookbook_module("completers")
    import tinker  # type: ignore[import-not-found]

    groups, prompts = [], []
    order = list(dict.fromkeys(batch.task_ids))
    for task in order:
        rows = [i for i, t in enumerate(batch.task_ids) if t == task]
        trajectories = []
        for i in rows:
            action = completers.TokensWithLogprobs(
                tokens=list(batch.response_tokens[i]), maybe_logprobs=list(batch.old_log_probs[i])
            )
            seen = tinker.ModelInput.from_ints(list(batch.prompt_tokens[i]))
            step = types.Transition(ob=seen, ac=action, reward=float(batch.rewards[i]), episode_done=True)
            trajectories.append(types.Trajectory(transitions=[step], final_ob=tinker.ModelInput.empty()))
        groups.append(types.TrajectoryGroup(trajectories, [0.0] * len(rows), [{} for _ in rows]))
        prompts.append(batch.prompts[rows[0]])
    if [t for t in order for _ in range(batch.task_ids.count(t))] != batch.task_ids:
        raise InputError("a fixed batch must have its groups end to end")
    return groups, prompts


def _assemble_datums(groups: Sequence[Any], advantages: Sequence[Any]) -> list[Datum]:
    assemble = _import_cookbook_module("rl.data_processing").assemble_training_data
    options = {"include_provenance": False} if "include_provenance" in inspect.signature(assemble).parameters else {}
    data, _ = assemble(list(groups), list(advantages), **options)
    return read_tinker_datums(data)


def read_tinker_datums(data: Sequence[Any]) -> list[Datum]:
    """Tinker's datums as plain numbers."""
    out = []
    for d in data:
        inputs = d.loss_fn_inputs
        numbers = {
            k: np.asarray(v.data, dtype=np.float64).tolist()
            for k, v in inputs.items()
            if k in ("logprobs", "advantages", "mask")
        }
        targets = [int(t) for t in inputs["target_tokens"].data]
        mask = numbers.get("mask", [1.0] * len(targets))
        out.append(Datum(d.model_input.to_ints(), targets, numbers["logprobs"], numbers["advantages"], mask))
    return out
