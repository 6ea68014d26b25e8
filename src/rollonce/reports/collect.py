"""What a collection of rollouts came to, in the terminal."""

from __future__ import annotations

import math

from rich.console import Console

from rollonce.collecting.run import Collected
from rollonce.collecting.settings import CollectSettings
from rollonce.collecting.summary import Cost, Summary
from rollonce.reports.words import format_number, format_significant, format_with_interval
from rollonce.rollouts import Rollouts


def print_collection(
    console: Console,
    settings: CollectSettings,
    collected: Collected,
    rollouts: Rollouts,
    *,
    summary: Summary,
    cost: Cost,
    next_command: str,
) -> None:
    """Moments, the LOO mean's B_eff, what a reader must know, what it cost, and the command that scores the file."""
    moments = summary.moments
    lines = [
        f"{collected.path}: {rollouts.n_tasks} tasks x {settings.n_rollouts} rollouts of {settings.policy} "
        f"({collected.added} new)",
        "",
        f"mean reward  {format_significant(moments.mean)}",
    ]
    if math.isfinite(moments.s2.value):
        lines += [
            f"s2           {format_significant(moments.s2)}    within a task",
            f"tau2         {format_significant(moments.tau2)}    between tasks",
            f"SNR          {format_significant(moments.snr)}    tau2 / s2",
        ]
    else:
        lines.append(
            "s2, tau2     not to be told apart with one rollout per task; --rollouts 2 or more adds to this file"
        )
    if math.isfinite(summary.b_eff.value):
        lines.append(
            f"B_eff        {format_with_interval(summary.b_eff, 1)} of {summary.batch_size}    "
            "in-batch leave-one-out mean, 95% over tasks"
        )
    lines += ["", *collection_sentences(settings, collected, summary, cost), "", f"Next: {next_command}"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def collection_sentences(settings: CollectSettings, collected: Collected, summary: Summary, cost: Cost) -> list[str]:
    """What a reader must know of the rollouts: how many more are worth having, what was cut off, what it cost."""
    counts, sentences = collected.counts, []
    if summary.more_tasks is not None:
        n_tasks = summary.moments.n_tasks + summary.more_tasks
        text = (
            f"About {summary.more_tasks} more tasks ({n_tasks} in all) would halve that interval: it shrinks as "
            "1/sqrt(tasks)."
        )
        if math.isfinite(summary.halves):
            text += f" On halves of these tasks it is {summary.halves:.2f} times as wide (1.41 by that rule)."
        sentences.append(text)
    elif summary.moments.s2.value == 0:
        sentences.append(
            "The rewards of a task never differ, so there is no noise to hold a baseline against and no interval."
        )
    if counts.truncated:
        share = counts.truncated / max(counts.rollouts, 1)
        sentences.append(
            f"{counts.truncated} rollouts ({share:.0%}) met the limit of {settings.max_tokens} tokens and have "
            "reward 0."
        )
    if counts.failures:
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(counts.failures.items()))
        sentences.append(f"{sum(counts.failures.values())} could not be graded and have reward 0: {kinds}.")
    repeated = summary.moments.n_repeated
    if repeated and summary.same_text == repeated:
        sentences.append(
            "In every task all rollouts are the same text: the server seems to decode greedily (transformers serve "
            "does unless the model's generation_config.json has do_sample) or to ignore --temperature. These are no "
            "samples."
        )
    money = "" if cost.money is None else f", {cost.money:.4g} at the prices given"
    again = f", {counts.retries} requests sent again" if counts.retries else ""
    sentences.append(
        f"{format_number(cost.prompt_tokens, 0)} prompt and {format_number(cost.response_tokens, 0)} response tokens, "
        f"{cost.seconds:.0f} s{money}{again}."
    )
    if cost.unknown:
        sentences.append(f"The server did not report the tokens of {cost.unknown} rollouts; they are not in that sum.")
    if "refused" in str(collected.server.get("seed", "")):
        sentences.append("The server takes no seeds, so sampling again would give other rollouts.")
    return sentences
