"""prime-rl: history mode, because its scoring sees one task's group at a time (untested against the real trainer).

    from rollonce.integrations.prime_rl import install
    install("baseline.json", state="out/rollonce.json")     # before the orchestrator builds its algorithms

Every environment whose algorithm is ``grpo`` then gets its advantages from past rollouts: group size 1 works, and the
first rollouts are judged by the running mean. Written from the source of August 2026 (prime-rl 559b447): an algorithm
is a class with ``async score_group(group)`` that calls ``rollout.assign_advantages``, one instance an environment.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollonce.baselines import Baseline
from rollonce.errors import InputError
from rollonce.integrations.hook import AdvantageHook
from rollonce.integrations.rows import prompt_text
from rollonce.setting_rules import Rule, refuse

RULES = [
    Rule(
        "filter_zero_advantages",
        True,
        "drops rollouts whose advantage is exactly zero, which then shift nobody's baseline either",
        "set it to false",
    ),
    Rule(
        "length_penalty",
        lambda v: v is not None,
        "is part of GRPO's advantage, which is replaced",
        "remove it, or put it into the reward",
    ),
]


def prompt_of(rollout: Any) -> str:
    """A rollout's task as text: ``task.data.prompt`` of verifiers 0.4, or the legacy ``raw['prompt']`` / ``prompt``.

    Raises:
        InputError: if there is none.
    """
    for path in ("task.data.prompt", "task.prompt", "raw.prompt", "prompt"):
        value: Any = rollout
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        if value:
            return prompt_text(value)
    raise InputError(
        "this rollout has no prompt where one is looked for (task.data.prompt, raw['prompt'], prompt); pass prompt_of"
    )


def baseline_algorithm(
    base: type,
    baseline: Baseline | str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    prompt_of: Callable[[Any], str] = prompt_of,
    **options: Any,
) -> type:
    """A class like ``base`` (prime-rl's GRPOAlgorithm) that scores by a baseline in history mode.

    Args:
        base: The algorithm class whose configuration is used.
        baseline: A baseline or its file; each environment has a copy with a history of its own.
        state: A file that keeps history over a restart, which prime-rl's checkpoint does not; written whenever a step's
            rollouts join. Each environment has its own: its number in the order of the configuration is added to the
            stem.
        prompt_of: Takes a rollout, gives the task's text.
        **options: Of `AdvantageHook`: ``step_rows``, the rollouts of one training step, above all.
    """

    counter = itertools.count()

    class BaselineAlgorithm(base):
        """Advantages from past rollouts."""

        def __init__(self, config: Any, *more: Any, **settings: Any) -> None:
            refuse(config, RULES, "prime-rl")
            super().__init__(config, *more, **settings)
            self.hook = AdvantageHook(baseline, history_mode=True, group_size=None, **options)
            number = next(counter)  # environments are built in the order of the configuration
            self._state = None if state is None else Path(state).with_stem(f"{Path(state).stem}.{number}")
            if self._state is not None and self._state.exists():
                self.hook.load(self._state)

        async def score_group(self, group: list[Any]) -> None:
            """Each rollout's advantage, judged before any of the group joins the history."""
            result = self.hook.advantages([prompt_of(r) for r in group], [r.reward for r in group], ungraded="drop")
            for rollout, advantage in zip(group, result.advantages_N.tolist(), strict=True):
                rollout.assign_advantages(advantage)
            if self._state is not None and not self.hook.rows_waiting:
                self.hook.save(self._state)

    return BaselineAlgorithm


def install(baseline: Baseline | str | os.PathLike[str], *, name: str = "grpo", **options: Any) -> None:
    """Replace the algorithm of that name by one that uses the baseline.

    Raises:
        InputError: prime-rl is not installed.
    """
    try:
        algo = importlib.import_module("prime_rl.orchestrator.algo")
    except ModuleNotFoundError:
        raise InputError("prime-rl is not installed here: it comes from its repository, not from PyPI") from None
    algo.ALGORITHM_CLASSES[name] = baseline_algorithm(algo.ALGORITHM_CLASSES[name], baseline, **options)
