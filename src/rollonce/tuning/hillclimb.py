"""The plain greedy hill-climb: start at the published kernel, change one thing at a time, keep what helps.

"Anyone can hill-climb to a kernel" (post "You Only Rollout Once"): this is that sentence as code, kept short as the
readable reference for the Optuna search. It restarts from a random point after ``patience`` steps without gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rollonce.tuning.space import Answers, list_starting_points


class ClimbStep(NamedTuple):
    """One trial: the answers that made it, its configuration and its value."""

    params: dict[str, Any]
    config: dict[str, Any]
    value: float


def generate_climb_steps(
    space: Any, bank: Any, value: Callable[[Any], float], *, seed: int = 0, patience: int = 40
) -> Iterator[ClimbStep]:
    """Trials without end; the caller stops when its budget is spent.

    Args:
        space, bank: See `rollonce.tuning.space`.
        value: What a baseline is worth; larger is better, NaN is worthless.
        seed: Of the moves.
        patience: Moves without gain before a restart from a random point.
    """
    rng = np.random.default_rng([seed, 11])
    beginnings = [dict(s) for s in list_starting_points(space)]
    here, best, stuck = Answers(rng, beginnings.pop(0) if beginnings else {}), -np.inf, 0
    moved = here
    while True:
        baseline = space.build_baseline(moved, bank)
        used = {k: moved.values[k] for k in moved.kinds}
        v = value(baseline)
        yield ClimbStep(used, baseline.config(), v)
        if v > best:
            here, best, stuck = moved, v, 0
        else:
            stuck += 1
        if stuck > patience:
            here, best, stuck = Answers(rng, beginnings.pop(0) if beginnings else {}), -np.inf, 0
            moved = here
            continue
        moved = change_one_answer(here, rng)


def change_one_answer(here: Answers, rng: np.random.Generator) -> Answers:
    """These answers with one of those that were used changed: another option, or a step of a third of the range's
    size."""
    name = list(here.kinds)[int(rng.integers(len(here.kinds)))]
    kind, *rest = here.kinds[name]
    values = dict(here.values)
    if kind == "choice":
        others = [o for o in rest[0] if o != values[name]]
        values[name] = others[int(rng.integers(len(others)))] if others else values[name]
    elif kind == "integer":
        low, high = rest
        moved = round(values[name] * np.exp(0.5 * rng.standard_normal()))
        values[name] = int(np.clip(moved if moved != values[name] else moved + rng.choice([-1, 1]), low, high))
    else:
        low, high, log = rest
        if log:
            values[name] = float(
                np.clip(values[name] * np.exp(np.log(high / low) / 6 * rng.standard_normal()), low, high)
            )
        else:
            values[name] = float(np.clip(values[name] + (high - low) / 6 * rng.standard_normal(), low, high))
    return Answers(rng, values)
