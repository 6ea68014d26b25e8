"""Does the rest fit the budget? Extrapolated from the timing pilot, with its spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollonce.experiments.spec import ArmSpec, Budget


class Projection(NamedTuple):
    """Seconds of one phase: expected, and with every step (or item) as quick, or as slow, as the extreme of the
    pilot."""

    phase: str
    expected: float
    low: float
    high: float


def project_phase_seconds(
    arms: Sequence[ArmSpec],
    step_seconds: Mapping[str, Sequence[float]],
    eval_seconds: float,
    eval_items: int,
    n_items: int,
) -> list[Projection]:
    """One phase per arm and one for the evaluations. The first step compiles and warms up: it is counted once, not
    extrapolated."""
    out = []
    for arm in arms:
        seconds = list(step_seconds[arm.name])
        rest = seconds[1:] or seconds
        n = arm.steps - 1
        mean = sum(rest) / len(rest)
        out.append(
            Projection(f"arm {arm.name}", seconds[0] + n * mean, seconds[0] + n * min(rest), seconds[0] + n * max(rest))
        )
    each = eval_seconds / eval_items * n_items * len(arms)
    out.append(Projection("evaluation", each, each, each))
    return out


def compare_with_budget(phases: Sequence[Projection], spent: float, gpus: float, budget: Budget) -> dict[str, Any]:
    """Sums against the budget; ``problems`` is empty if the expected total fits.

    Args:
        phases: From `project_phase_seconds`.
        spent: Seconds spent so far.
        gpus: Declared.
        budget: Registered.
    """
    total = spent + sum(p.expected for p in phases)
    low, high = spent + sum(p.low for p in phases), spent + sum(p.high for p in phases)
    hours = total / 3600 * gpus
    problems, warnings = [], []
    if budget.gpu_hours is not None and hours > budget.gpu_hours:
        problems.append(f"{hours:.2f} GPU hours expected ({gpus:g} declared), {budget.gpu_hours:g} in the budget")
    if budget.max_wall_minutes is not None and total / 60 > budget.max_wall_minutes:
        problems.append(f"{total / 60:.1f} minutes expected, {budget.max_wall_minutes:g} in the budget")
    over = budget.max_wall_minutes is not None and high / 60 > budget.max_wall_minutes
    over = over or (budget.gpu_hours is not None and high / 3600 * gpus > budget.gpu_hours)
    if over and not problems:
        warnings.append(
            f"at the pilot's slowest step the run would take {high / 60:.1f} minutes, over the budget; the expected "
            "time fits"
        )
    return {
        "phases": [p._asdict() for p in phases],
        "spent_seconds": spent,
        "wall_seconds": total,
        "wall_seconds_low": low,
        "wall_seconds_high": high,
        "gpu_hours": hours,
        "declared_gpus": gpus,
        "problems": problems,
        "warnings": warnings,
        "passed": not problems,
    }


def describe_budget_overrun(seconds: float, gpus: float, budget: Budget) -> str:
    """What of the budget is used up, in words; "" while nothing is."""
    minutes, hours = seconds / 60, seconds / 3600 * gpus
    if budget.max_wall_minutes is not None and minutes > budget.max_wall_minutes:
        return f"{minutes:.1f} minutes spent, {budget.max_wall_minutes:g} in the budget"
    if budget.gpu_hours is not None and hours > budget.gpu_hours:
        return f"{hours:.2f} GPU hours spent ({gpus:g} declared), {budget.gpu_hours:g} in the budget"
    return ""
