"""OpenRLHF: its own command line, with the baseline in the place of its estimator.

    python -m rollonce.integrations.openrlhf baseline.json --algo.advantage.estimator flash_reinforce ...   # all other
    flags as ever

OpenRLHF has no registry and its command line takes no new names, so ``flash_reinforce`` (its estimator for one rollout
a prompt: no critic, no whitening) is what has to be asked for; its batch mean is then replaced by the baseline.
Synchronous training only.

Shapes: ``_N`` all samples of the step in the order in which they were generated.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from rollonce.baselines import Baseline
from rollonce.errors import InputError, MissingExtraError
from rollonce.integrations.hook import AdvantageHook
from rollonce.integrations.notices import AdvantageWarning
from rollonce.integrations.tokens import rows_with_tokens, summed_log_probs
from rollonce.setting_rules import Rule, refuse

STATE_KEY = "rollonce"
_ADVANTAGE = "algo.advantage"
RULES = [
    Rule(
        f"{_ADVANTAGE}.estimator",
        lambda v: v != "flash_reinforce",
        "would whiten, group, or train a critic",
        f"--{_ADVANTAGE}.estimator flash_reinforce, whose batch mean the baseline replaces",
    ),
    Rule(
        f"{_ADVANTAGE}.gamma",
        lambda v: v != 1.0,
        "discounts one reward for the whole response",
        f"--{_ADVANTAGE}.gamma 1",
    ),
    Rule(
        "train.async_enable",
        True,
        "trains in a process that this adapter does not reach",
        "train without --train.async_enable",
    ),
]
GROUP_OF_ONE_RULES = [
    Rule(
        "algo.dynamic_filtering_enable",
        True,
        "drops prompts by the mean reward of their group, which at one rollout is the own reward",
        "train without --algo.dynamic_filtering_enable",
    ),
]


class WithBaseline:
    """Mixed into OpenRLHF's `RemoteExperienceMaker`; ``gs1`` is the hook."""

    gs1: AdvantageHook

    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Length penalties, then ``r - b``, then OpenRLHF's own KL, clipping and returns: its order, with another
        baseline.

        Args:
            experiences: Micro-batches, in whatever order balancing left them; ``index`` says where each sample belongs.
        """
        from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

        args: Any = self.strategy.args  # type: ignore[attr-defined]
        for e in experiences:
            e.rewards = (
                e.rewards.float() if e.rewards.element_size() < 4 or not e.rewards.is_floating_point() else e.rewards
            )
        apply_length_penalties(experiences, args)
        order = list(itertools.chain.from_iterable(e.index for e in experiences))
        uses_log_probs = self.gs1.uses_log_probs
        rows = dict(zip(order, (r for e in experiences for r in _read_sample_rows(e, uses_log_probs)), strict=True))
        if sorted(rows) != list(range(len(order))):
            raise InputError(f"OpenRLHF's index is no permutation of {len(order)} samples: {order[:20]}")
        prompts_N, rewards_N, keep_N, log_probs_N = zip(*(rows[i] for i in range(len(order))), strict=True)
        result = self.gs1.advantages(prompts_N, rewards_N, keep=keep_N, log_probs=log_probs_N)

        kept = [(e.rewards, e.info.get("reward")) for e in experiences]
        for e in experiences:
            e.rewards = e.rewards.new_tensor(result.advantages_N[list(e.index)].tolist())
        # Inside, an estimator that OpenRLHF does not know subtracts nothing and whitens nothing; "rloo" only picks how
        # returns are summed.
        with (
            _temporarily_set_attributes(args.algo.advantage, estimator="gs1"),
            _temporarily_set_attributes(args.reward, overlong_buffer_len=None, stop_properly_penalty_coef=None),
            _temporarily_set_attributes(args.rollout, n_samples_per_prompt=1),
            _temporarily_set_attributes(self, advantage_estimator="rloo"),
        ):
            experiences = super().compute_advantages_and_returns(experiences)  # type: ignore[misc]
        for e, (rewards, logged) in zip(experiences, kept, strict=True):
            e.rewards = rewards
            if logged is not None:
                e.info["reward"] = logged
            e.info["baseline"] = rewards.new_tensor(result.baseline_N[list(e.index)].tolist())
        return experiences


def _read_sample_rows(e: Any, with_log_probs: bool) -> Iterator[tuple[Any, float, bool, float | None]]:
    """Prompt, reward, whether it counts, and log-probability of each sample of a micro-batch.

    A sample without a single action token (an empty response) trains nothing, so it shifts nobody either. Its
    log-probability is vLLM's where that was asked for, else what OpenRLHF's actor has just computed.
    """
    log_probs = [None] * len(e.prompts)
    if with_log_probs:
        sampled = e.rollout_log_probs if e.rollout_log_probs is not None else e.action_log_probs
        log_probs = summed_log_probs(sampled, e.action_mask).tolist()
    return zip(e.prompts, e.rewards.double().tolist(), rows_with_tokens(e.action_mask), log_probs, strict=True)


@contextlib.contextmanager
def _temporarily_set_attributes(where: Any, **values: Any) -> Iterator[None]:
    absent = object()
    before = {name: getattr(where, name, absent) for name in values}
    for name, value in values.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            delattr(where, name) if value is absent else setattr(where, name, value)


def use_baseline(maker: Any, baseline: Baseline | str | os.PathLike[str]) -> AdvantageHook:
    """Let a `RemoteExperienceMaker` take its advantages from a baseline from now on. Returns the hook, for its state.

    Raises:
        InputError: naming the settings with which the advantages would be wrong.
    """
    args = maker.strategy.args
    samples = int(args.rollout.n_samples_per_prompt)
    refuse(args, RULES + (GROUP_OF_ONE_RULES if samples == 1 else []), "OpenRLHF")
    maker.gs1 = AdvantageHook(baseline, group_size=samples)
    maker.__class__ = type("GS1ExperienceMaker", (WithBaseline, type(maker)), {"__module__": __name__})
    return maker.gs1


def make_baseline_trainer(trainer: type, baseline: Baseline | str | os.PathLike[str]) -> type:
    """OpenRLHF's trainer class (not Ray's wrapper of it), with `use_baseline` on what it builds and the history in its
    checkpoints."""

    class GS1PPOTrainer(trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.gs1 = use_baseline(self.experience_maker, baseline)

        def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any = None, client_states: Any = None) -> None:
            super().save_logs_and_checkpoints(
                global_step, logs_dict, {**(client_states or {}), STATE_KEY: self.gs1.state_dict()}
            )

        def save_best_checkpoint(self, eval_metrics: Any, global_step: int, client_states: Any = None) -> None:
            super().save_best_checkpoint(
                eval_metrics, global_step, {**(client_states or {}), STATE_KEY: self.gs1.state_dict()}
            )

        def init_checkpoint_states(self) -> dict[str, Any]:
            states = super().init_checkpoint_states()
            if STATE_KEY in states:
                self.gs1.load_state_dict(states[STATE_KEY])
            elif states.get("global_step"):
                warnings.warn(
                    "no history in this checkpoint; the baseline starts without any", AdvantageWarning, stacklevel=2
                )
            return states

    return GS1PPOTrainer


def install_baseline_trainer(baseline: Baseline | str | os.PathLike[str]) -> None:
    """Put `make_baseline_trainer` in the place of OpenRLHF's trainer, for its command line to find.

    Raises:
        MissingExtraError: if OpenRLHF is not installed.
    """
    try:
        import ray
        from openrlhf.trainer import ppo_trainer
    except ImportError as e:
        raise MissingExtraError(f"rollonce.integrations.openrlhf ({e})", "openrlhf", "openrlhf") from None
    AdvantageHook(baseline, group_size=None)  # a wrong file stops here, before Ray and the models start
    stock = ppo_trainer.PPOTrainer.__ray_metadata__.modified_class
    ppo_trainer.PPOTrainer = ray.remote(
        make_baseline_trainer(stock, os.path.abspath(baseline) if not isinstance(baseline, Baseline) else baseline)
    )


def main() -> None:
    """``python -m rollonce.integrations.openrlhf baseline.json FLAGS OF OPENRLHF``."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(main.__doc__)
    baseline = sys.argv.pop(1)
    try:
        install_baseline_trainer(baseline)
    except InputError as e:
        print(e, file=sys.stderr)
        raise SystemExit(2) from None
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from rollonce.integrations.openrlhf import (
        main as run,
    )  # under its own name, so that Ray's workers find what it defines

    run()
