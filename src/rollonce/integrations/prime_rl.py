"""prime-rl: advantages from past rollouts (history mode), because its algorithms see one task's group at a time.

    config = cli(OrchestratorConfig)            # as prime-rl's own `orchestrator` command reads it
    install(config, "baseline.json")            # before the orchestrator builds its algorithms
    asyncio.run(run_orchestrator(config))

``examples/prime_rl_gs1.py`` is that command. Every training source whose algorithm is ``grpo`` is then judged by past
rollouts of its own, whatever its group size; the first ones by the running mean.

Written to prime-rl 559b447 of August 2026: ``ALGORITHM_CLASSES`` names the classes, one instance belongs to one
source, ``score_group`` gets the episodes of one group, and ``assign_advantages(trace, value)`` writes the credit into a
trace. prime-rl is not on PyPI; which parts of it were run with this adapter is said in ``docs/integrations.md``.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rollonce.baselines import Baseline
from rollonce.errors import InputError
from rollonce.integrations.hook import AdvantageHook
from rollonce.integrations.rows import render_prompt_text, stable_task_id
from rollonce.setting_rules import Rule, read_dotted_setting, refuse

RULES = [
    Rule(
        "train.filter_zero_advantages",
        True,
        "takes rollouts whose advantage is exactly zero out of the loss and out of the count of tokens that it is "
        "divided by (every failed rollout is one before the first success)",
        "set it to false",
    ),
]
SOURCE_RULES = [
    Rule(
        "algo.length_penalty",
        lambda v: v is not None,
        "is part of GRPO's advantage, which is replaced",
        "remove it, or put it into the reward",
    ),
    Rule(
        "curriculum.gates",
        lambda gates: any(read_dotted_setting(gate, "type") == "advantage_range" for gate in gates.values()),
        "lets a rollout train or not by its own advantage, which biases the gradient",
        "remove the gate of type advantage_range",
    ),
]


def read_trace_prompt(trace: Any) -> str:
    """A trace's task as text, as ``rollonce tune`` reads it from ``traces.jsonl``: the task's prompt with its system
    prompt, or what the policy saw before its first turn.

    Raises:
        InputError: if there is neither.
    """
    data = trace.task.data
    if data.prompt is not None:
        messages = [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else list(data.prompt)
        if data.system_prompt:
            messages.insert(0, {"role": "system", "content": data.system_prompt})
    else:
        messages = [node.message for node in itertools.takewhile(lambda node: not node.sampled, trace.nodes)]
    if not messages:
        raise InputError(
            f"trace {trace.id!r} has neither task.data.prompt nor a message before the policy's first: pass prompt_of"
        )
    return render_prompt_text([m if isinstance(m, Mapping) else m.model_dump(exclude_none=True) for m in messages])


class SourceHistory(NamedTuple):
    """What one training source has learned, and the file that keeps it over a restart."""

    hook: AdvantageHook
    file: Path


def install(
    config: Any,
    baseline: Baseline | str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    prompt_of: Callable[[Any], str] = read_trace_prompt,
    **options: Any,
) -> dict[str, SourceHistory]:
    """Replace the algorithm ``grpo`` by the baseline, in this process.

    Args:
        config: prime-rl's ``OrchestratorConfig``. Its settings are checked here, before anything is started.
        baseline: A baseline or its file; each training source has a copy with a history of its own.
        state: Folder of the files that keep the histories over a restart, which prime-rl's checkpoint does not;
            ``rollonce`` in the output directory by default. Read where ``config.resume`` is set, written whenever a
            step's rollouts have joined.
        prompt_of: Takes a trace, gives its task's text.
        **options: Of `AdvantageHook`. ``step_rows`` is by default the source's share of ``batch_size``.

    Returns:
        The histories by the name of their source.

    Raises:
        InputError: if prime-rl is not installed, no source uses ``grpo``, or a setting would spoil the advantages.
    """
    try:
        algo = importlib.import_module("prime_rl.orchestrator.algo")
    except ModuleNotFoundError as e:
        if not str(e.name).startswith("prime_rl"):
            raise
        raise InputError("prime-rl is not installed here: it comes from its repository, not from PyPI") from None
    sources = [s for s in config.train.source if s.algo.type == "grpo"]
    if not sources:
        raise InputError("no training source of this configuration has the algorithm grpo, which the baseline replaces")
    refuse(config, RULES, "prime-rl")
    folder = Path(state) if state is not None else Path(config.output_dir) / "rollonce"
    total = sum(s.ratio for s in config.train.source)
    histories = {}
    for source in sources:
        refuse(source, SOURCE_RULES, f"prime-rl's training source {source.resolved_name!r}")
        share = (
            {} if config.batch_size is None else {"step_rows": max(1, round(config.batch_size * source.ratio / total))}
        )
        hook = AdvantageHook(baseline, history_mode=True, group_size=None, **{**share, **options})
        file = folder / (re.sub(r"[^\w.-]", "_", source.resolved_name) + ".json")
        if config.resume is not None and file.exists():
            hook.load(file)
        histories[source.resolved_name] = SourceHistory(hook, file)
    algo.ALGORITHM_CLASSES["grpo"] = _make_baseline_algorithm(algo, histories, prompt_of)
    return histories


def _make_baseline_algorithm(
    algo: Any, histories: Mapping[str, SourceHistory], prompt_of: Callable[[Any], str]
) -> type:
    iter_trainable_traces = importlib.import_module("prime_rl.orchestrator.algo.base").iter_trainable_traces

    class BaselineAlgorithm(algo.Algorithm):
        """Advantages from past rollouts of the same source."""

        async def score_group(self, episodes: list[Any]) -> None:
            """Credit for one group, judged before any of it joins the history."""
            pairs = list(iter_trainable_traces(episodes))
            if not pairs:
                return
            traces = [trace for _, trace in pairs]
            name = episodes[0].env.name
            agents = sorted({trace.agent.name for trace in traces})
            if len(agents) > 1:
                raise InputError(
                    f"source {name!r} trains several agents ({', '.join(agents)}), whose rewards one baseline cannot "
                    "judge: give it the algorithm rae"
                )
            hook, file = histories[name]
            prompts = [prompt_of(trace) for trace in traces]
            result = hook.advantages(
                prompts,
                [trace.reward for trace in traces],
                task_ids=[
                    f"{episode.env.id}/{trace.task.key or stable_task_id(prompt)}"
                    for (episode, trace), prompt in zip(pairs, prompts, strict=True)
                ],
                columns={c: [_read_task_column(trace, c) for trace in traces] for c in hook.columns_needed},
                log_probs=[_sum_sampled_log_probs(trace) for trace in traces] if hook.uses_log_probs else None,
                ungraded="drop",
            )
            for trace, advantage in zip(traces, result.advantages_N.tolist(), strict=True):
                algo.assign_advantages(trace, advantage)
            if not hook.rows_waiting:
                hook.save(file)

    return BaselineAlgorithm


def _sum_sampled_log_probs(trace: Any) -> float:
    """Of all tokens that the policy sampled; a node's ``logprobs`` have one number for each True in its ``mask``."""
    sampled = [node for node in trace.nodes if any(node.mask)]
    if any(len(node.logprobs) != sum(node.mask) for node in sampled):
        return math.nan
    return sum(sum(node.logprobs) for node in sampled)


def _read_task_column(trace: Any, column: str) -> Any:
    value = getattr(trace.task.data, column, None)
    if value is None:
        raise InputError(
            f"the baseline reads the column {column!r}, which task {trace.task.key!r} does not have: give the task "
            "set's TaskData a field of that name"
        )
    return value
