"""The two lines that commands close with: is one rollout per task enough here, and what to do next.

From rewards alone the question is answered only at its edges. At B rollouts per step, in units of one rollout's noise
over B, one rollout per task has the gradient variance ``rho + B / B_eff`` and groups of G have ``rho G + G / (G - 1)``
(`rollonce.scoring.groups`). So one rollout per task is enough whatever rho is if its B_eff reaches that of the groups;
otherwise it depends on rho, which is measured on a policy's gradients and not in rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from rollonce.reports.bars import replace_unencodable
from rollonce.reports.words import format_interval, format_number
from rollonce.scoring import Board, Estimate, WatchScore
from rollonce.testing.audit import CheckResult
from rollonce.tuning.planning import Plan
from rollonce.tuning.tune import TuneResult

GROUP = 8
"""Groups of eight are what one rollout per task is held against: what GRPO is mostly run with."""
LOO_TRAINER = "SingleRolloutGRPOTrainer(..., baseline=rollonce.baselines.LeaveOneOut())"
B_EFF_SAYS = (
    "B_eff counts errors of the baseline, every rollout alike; what a training step feels also depends on how large "
    "each rollout's gradient is: `rollonce noise` measures that."
)
"""The caveat that stands on the board and on the page."""


class Decision(NamedTuple):
    """An answer to "is one rollout per task enough here?".

    Attributes:
        answer: ``yes``, ``no`` or ``cannot tell``.
        because: The reason, as the rest of a sentence.
        next_step: What to do now, ready to paste.
    """

    answer: Literal["yes", "no", "cannot tell"]
    because: str
    next_step: str


def print_decision(console: Console, decision: Decision, with_next: bool = True) -> None:
    """The answer, and the next step on a line of its own that can be pasted."""
    console.print()
    console.print(
        Text.assemble(
            ("Is one rollout per task enough here? ", "bold"),
            replace_unencodable(console, f"{decision.answer.capitalize()}, because {decision.because}."),
        )
    )
    if with_next:
        console.print(Text.assemble(("Next: ", "bold"), decision.next_step), soft_wrap=True)


def format_trainer_call(file: str) -> str:
    """How a saved baseline gets into training, ready to paste."""
    return f'SingleRolloutGRPOTrainer(..., baseline="{file}")'


def decide_from_b_eff(b_eff: Estimate, batch_size: int, rho: float | None = None) -> tuple[str, str]:
    """The answer and its reason from a baseline's B_eff of B, against groups of eight (of B / 2 where B is below 16).

    Args:
        b_eff: With its interval, where there is one.
        batch_size: B.
        rho: The between-task over the within-task gradient variance, if it was measured.
    """
    size = min(GROUP, batch_size // 2)
    of_groups = batch_size * (size - 1) / size if size > 1 else 0.0
    level = f"B_eff is {format_number(b_eff.value, 1)} {format_interval(b_eff, 1)}".rstrip() + f" of {batch_size}"
    low, high = (v if math.isfinite(v) else b_eff.value for v in (b_eff.low, b_eff.high))
    if low >= of_groups or size < 2:
        return "yes", f"{level}, no less than the {format_number(of_groups, 1)} of groups of {size}, whatever rho is"

    def find_crossing_rho(level: float) -> float:
        return max(0.0, (batch_size / level - size / (size - 1)) / (size - 1)) if level > 0 else math.inf

    if rho is None and b_eff.value >= of_groups:
        return "cannot tell", (
            f"{level}, and the interval holds the {format_number(of_groups, 1)} of groups of {size}: "
            "at rho = 0 (tasks' gradients do not differ) they are about equal, "
            f"from rho = {format_number(find_crossing_rho(low), 3)} on it is enough; "
            "`rollonce noise` measures rho on your policy"
        )
    at = Estimate(find_crossing_rho(b_eff.value), find_crossing_rho(high), find_crossing_rho(low))
    where = format_number(at.value, 3)
    if at.high > at.low:
        where += f" {format_interval(at, 3)}"
    from_there = f"the {where} from which one rollout per task has less noise than groups of {size}"
    if rho is None:
        times = format_number(batch_size / b_eff.value / (size / (size - 1)), 1) if b_eff.value > 0 else "many"
        return "cannot tell", (
            f"{level}: at rho = 0 (tasks' gradients do not differ) it needs {times} times the rollouts of groups of "
            f"{size}, from rho = {where} on fewer; rho is not in rewards, `rollonce noise` measures it on your policy"
        )
    if rho > at.high:
        return "yes", f"{level} and rho is {rho:.3g}, above {from_there}"
    if rho < at.low:
        return "no", f"{level} and rho is {rho:.3g}, below {from_there}"
    return "cannot tell", f"{level} and rho is {rho:.3g}, too near {from_there}: more tasks would tell"


def decide_on_board(board: Board, command: str, *, saved: str | None = None, rho: float | None = None) -> Decision:
    """What a board says.

    Args:
        board: The board.
        command: The command that made it, for the next step.
        saved: The file that its best row was written to, if it was.
        rho: See `decide_from_b_eff`.
    """
    ranked = [s for s in board.scores if math.isfinite(s.ratio.value)]
    if not ranked or (len(set(board.difficulty)) < 2 and board.moments.s2.value == 0):
        return Decision(
            "cannot tell",
            "the rewards leave nothing to compare: see the notes",
            "check the reward, or take harder or easier tasks, and score again",
        )
    best = ranked[0]
    if saved:
        step = f"rollonce check {saved}; then {format_trainer_call(saved)}"
    elif best.ratio.value <= 1.0005:
        step = f"{LOO_TRAINER}: the LOO mean needs no file and no tuning"
    else:
        step = f"{command} --save-best baseline.json; then {format_trainer_call('baseline.json')}"
    if not math.isfinite(best.b_eff.value):
        return Decision(
            "cannot tell", "no task has a second rollout, so B_eff is not known: sample some tasks twice or more", step
        )
    if board.moments.s2.value == 0:
        return Decision(
            "cannot tell",
            "rollouts of a task never differ (s2 = 0), so there is no noise that a baseline could take away",
            "sample at the temperature of your training, and score again",
        )
    answer, because = decide_from_b_eff(best.b_eff, board.batch_size, rho)
    return Decision(answer, f"with {best.label} {because}", step)  # type: ignore[arg-type]


def decide_on_tuning(result: TuneResult, file: str, rho: float | None = None) -> Decision:
    """What a tuning comes to, on the tasks that the search never saw.

    Args:
        result: The tuning.
        file: Where its baseline was saved.
        rho: See `decide_from_b_eff`.
    """
    score = result.judged.score
    step = f"rollonce check {file}; then {format_trainer_call(file)}"
    if not math.isfinite(score.b_eff.value):
        return Decision(
            "cannot tell", "no task has a second rollout, so B_eff is not known: sample some tasks twice or more", step
        )
    answer, because = decide_from_b_eff(score.b_eff, result.batch_size, rho)
    return Decision(answer, f"with {result.baseline.label}, on tasks that the search never saw, {because}", step)  # type: ignore[arg-type]


def decide_on_plan(plan: Plan, files: str, *, rho_known: bool) -> Decision:
    """What a plan says at its rho, or over all of them where rho is not known."""
    b_eff = Estimate(plan.b_eff, math.nan, math.nan)
    answer, because = decide_from_b_eff(b_eff, plan.budget, plan.rho if rho_known else None)
    step = {
        "yes": f"rollonce score {files} --save-best baseline.json; then " + format_trainer_call("baseline.json"),
        "no": f"stay with groups, or look for a better baseline: rollonce tune {files}",
        "cannot tell": "rollonce noise --policy DIR --tasks SOURCE, and then this command with --rho and its value",
    }[answer]
    return Decision(answer, because, step)  # type: ignore[arg-type]


def decide_on_audit(results: Sequence[CheckResult], source: str, provenance: dict[str, Any] | None) -> Decision:
    """What an audit can say: whether the baseline may be used at all, and what its file reports.

    Args:
        results: Of the checks.
        source: The file, or ``module:name``.
        provenance: Of the file; None for ``module:name``.
    """
    failed = [r.name.replace("_", " ") for r in results if not r.passed]
    if failed:
        return Decision(
            "no",
            f"this baseline fails {len(failed)} of {len(results)} checks ({', '.join(failed)})",
            "mend it, and give the same command again",
        )
    reported = [v for v in (provenance or {}).get("reported_ratio_to_loo", []) if v is not None]
    level = ""
    if reported:
        value, *ends = (f"{v:.2f}" for v in reported)
        between = f" [{', '.join(ends)}]" if ends else ""
        level = f"; its file reports {value}{between} times the LOO mean's B_eff"
    step = f"rollonce score FILES --baseline {source}" if provenance is None else format_trainer_call(source)
    return Decision("cannot tell", f"the audit finds no leak, but looks at no rewards of yours{level}", step)


def decide_on_log(scores: Sequence[WatchScore], log: str) -> Decision:
    """What a training log can say: which baseline would have served it better, not how groups compare."""
    best = scores[0]
    better = best.ratio.low > 1
    ahead = (
        f"{best.label} would have been worth {format_number(best.ratio.value)} {format_interval(best.ratio)} times "
        "the LOO mean's rollouts"
        if better
        else "no baseline can be told apart from the LOO mean"
    )
    step = (
        f"rollonce tune {log} --window 512; then {format_trainer_call('baseline.json')}"
        if better
        else f"{LOO_TRAINER}, or wait for more steps"
    )
    return Decision("cannot tell", f"E[A^2] does not say how much of it is noise within a task; {ahead}", step)
