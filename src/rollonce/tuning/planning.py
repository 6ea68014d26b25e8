"""One rollout per task or groups, at a budget of B rollouts a step: predictions from three moments
(docs/mathematics.md, "Effective batch size").

In units of ``g2_within / B``, with ``rho = g2_between / g2_within`` (how much tasks' true gradients differ, against the
noise of one rollout's under a perfect baseline):

    one rollout per task:   rho + B / B_eff              RLOO, GRPO without std:   rho G + G / (G - 1)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollonce.baselines import Baseline
from rollonce.errors import InputError
from rollonce.rollouts import Rollouts
from rollonce.scoring import Scorer, dead_group_fraction, effective_batch_of_loo, moments
from rollonce.scoring.step_prediction import StepPredictor, join_over_exponents
from rollonce.tuning.step_objective import ObjectiveName, exponents_of_objective

GROUP_SIZES = (2, 4, 8, 16)


class Difficulty(NamedTuple):
    """Mean reward, within-task variance and variance of the tasks' means."""

    mean: float
    s2: float
    tau2: float

    @property
    def snr(self) -> float:
        return self.tau2 / self.s2 if self.s2 > 0 else np.inf


class GroupPlan(NamedTuple):
    """Groups of G at the same number of rollouts.

    Attributes:
        group_size, tasks: G and B / G.
        b_eff: ``B (G - 1) / G`` of the baseline alone.
        variance: Predicted gradient variance at rho, in units of ``g2_within / B``.
        crossing: The rho above which one rollout per task has the smaller variance; 0 if it always has.
        dead_beta: Chance that a group's rewards are all equal, if difficulty is Beta distributed (at tau2 = 0: the same
            for all tasks) and rewards are 0/1; NaN if no Beta fits.
        dead_data: The same counted in the data, without that assumption; NaN where not known.
    """

    group_size: int
    tasks: float
    b_eff: float
    variance: float
    crossing: float
    dead_beta: float
    dead_data: float


class Plan(NamedTuple):
    """Attributes: ``b_eff`` and ``variance`` of one rollout per task, the Beta fitted (or None), the groups, and in
    sentences what is assumed."""

    budget: int
    rho: float
    difficulty: Difficulty
    loo_b_eff: float
    b_eff: float
    variance: float
    beta: tuple[float, float] | None
    groups: list[GroupPlan]
    assumed: tuple[str, ...] = ()


def difficulty_from_moments(
    *, s2: float | None = None, tau2: float | None = None, snr: float | None = None, mean: float | None = None
) -> Difficulty:
    """From two of the moments; what is left open is filled in for 0/1 rewards, where ``s2 + tau2 = mean (1 - mean)``.

    Raises:
        InputError: if too little is given, or it contradicts itself.
    """
    given = {"s2": s2, "tau2": tau2, "snr": snr}
    for name, value in given.items():
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise InputError(f"--{name} must be a finite number >= 0, not {value}")
    if mean is not None and not 0 < mean < 1:
        raise InputError(f"--mean must lie between 0 and 1, not {mean:g}")
    if s2 is not None and tau2 is not None and snr is not None:
        raise InputError("give two of --s2, --tau2 and --snr; the third follows")
    if snr is not None and s2 is not None:
        tau2 = snr * s2
    elif snr is not None and tau2 is not None:
        if snr == 0:
            raise InputError("--snr 0 says that tau2 is 0; give --s2 instead")
        s2 = tau2 / snr
    elif snr is not None:
        total = 0.25 if mean is None else mean * (1 - mean)
        s2, tau2 = total / (1 + snr), total * snr / (1 + snr)
    if s2 is None or tau2 is None:
        raise InputError("give a file of rollouts, or --snr, or --s2 and --tau2")
    if s2 == 0:
        raise InputError(
            "s2 is 0: rollouts of a task never differ, so there is no noise for a baseline to be compared with"
        )
    if mean is None:
        rest = 1 - 4 * (s2 + tau2)
        mean = 0.5 * (1 - float(np.sqrt(rest))) if rest > 0 else 0.5
    return Difficulty(mean, s2, tau2)


def fit_beta_by_moments(d: Difficulty) -> tuple[float, float] | None:
    """Beta(a, b) with this mean and variance of success rates, by moments: ``a + b = m (1 - m) / tau2 - 1``; None if
    none fits."""
    if d.tau2 <= 0 or not 0 < d.mean < 1:
        return None
    total = d.mean * (1 - d.mean) / d.tau2 - 1
    return (d.mean * total, (1 - d.mean) * total) if total > 1e-12 else None


def dead_group_chance(d: Difficulty, group_size: int) -> float:
    """`dead_groups` of the Beta that fits these moments, and at its two edges: tasks that are all alike
    (``tau2 = 0``: ``p^G + (1 - p)^G``) and tasks that are always right or always wrong (``tau2 = p (1 - p)``: 1). NaN
    where no 0/1 reward has such moments."""
    if not 0 <= d.mean <= 1:
        return np.nan
    beta = fit_beta_by_moments(d)
    if beta is not None:
        return dead_group_chance_of_beta(*beta, group_size)
    if d.tau2 <= 0:
        return d.mean**group_size + (1 - d.mean) ** group_size
    return 1.0 if d.tau2 <= d.mean * (1 - d.mean) * (1 + 1e-9) else np.nan


def dead_group_chance_of_beta(a: float, b: float, group_size: int) -> float:
    """Chance that all G 0/1 rewards of a task agree, its success rate being Beta(a, b) (beta-binomial, closed form).

    ``E[p^G + (1 - p)^G] = prod_k (a + k) / (a + b + k) + prod_k (b + k) / (a + b + k)``, k below G.

    >>> dead_group_chance_of_beta(1, 1, 2)  # uniform: 2/3
    0.6666666666666666
    """
    k = np.arange(group_size)
    return float(np.prod((a + k) / (a + b + k)) + np.prod((b + k) / (a + b + k)))


def predict_budget_plan(
    budget: int,
    d: Difficulty,
    *,
    ratio: float = 1.0,
    b_eff: float | None = None,
    rho: float = 0.0,
    dead_data: dict[int, float] | None = None,
) -> Plan:
    """The predictions.

    Args:
        budget: B, rollouts a step.
        d: The moments.
        ratio: B_eff of the baseline over the in-batch LOO mean's.
        b_eff: Its B_eff itself, if measured; overrides ``ratio``.
        rho: ``g2_between / g2_within``; 0 is the case that favours groups most.
        dead_data: Degenerate fractions counted in data, by G.

    Raises:
        InputError: for a budget below 4, or numbers out of range.
    """
    if budget < 4:
        raise InputError(f"--budget is the number of rollouts a step, at least 4 (two groups of two), not {budget}")
    if not (np.isfinite(rho) and rho >= 0):
        raise InputError(f"--rho must be a finite number >= 0, not {rho}")
    if not (np.isfinite(ratio) and ratio > 0):
        raise InputError(f"--b-eff-ratio must be above 0, not {ratio}")
    loo = effective_batch_of_loo(d.snr, budget)
    mine = loo * ratio if b_eff is None else b_eff
    if not 0 < mine <= budget * 1.5:
        raise InputError(
            f"a B_eff of {mine:.3g} at {budget} rollouts makes no sense; a perfect baseline gives {budget}"
        )
    beta = fit_beta_by_moments(d)
    groups = []
    for g in GROUP_SIZES:
        if g > budget // 2:
            continue
        crossing = max(0.0, (budget / mine - g / (g - 1)) / (g - 1))
        dead = dead_group_chance(d, g)
        counted = (dead_data or {}).get(g, np.nan)
        groups.append(GroupPlan(g, budget / g, budget * (g - 1) / g, rho * g + g / (g - 1), crossing, dead, counted))
    return Plan(budget, rho, d, loo, mine, rho + budget / mine, beta, groups)


def plan_from_moments(
    budget: int, d: Difficulty, *, ratio: float | None = None, rho: float = 0.0, mean_known: bool = True
) -> Plan:
    """A `plan` from moments that are given, with what it assumes in sentences (arguments as of `plan`)."""
    assumed = ["The moments are as given.", *_standing_assumptions(rho)]
    if not mean_known:
        assumed.append(
            f"Rewards are 0/1, with a mean of {d.mean:.2f} or {1 - d.mean:.2f} (degenerate groups are the same for "
            "both)."
        )
    if ratio is None:
        assumed.append("The baseline is the LOO mean (--b-eff-ratio 1).")
    return predict_budget_plan(budget, d, ratio=ratio or 1.0, rho=rho)._replace(assumed=tuple(assumed))


def plan_from_rollouts(
    rollouts: Rollouts,
    budget: int,
    *,
    baseline: Baseline | None = None,
    ratio: float | None = None,
    rho: float = 0.0,
    objective: ObjectiveName = "b_eff",
    exponent: float | None = None,
) -> Plan:
    """A `plan` with moments, degenerate groups and, where one is given, a baseline's ratio measured on rollouts.

    Args:
        rollouts: Some tasks with two rollouts or more.
        budget: B, rollouts a step.
        baseline: A fitted baseline, scored at ``min(budget, tasks)``; instead of ``ratio``.
        ratio: B_eff of the baseline over the in-batch LOO mean's.
        rho: See `plan`.
        objective: What the baseline's ratio is of: ``b_eff``, or ``step``, the batch with which LOO makes the progress
            that is predicted from log-probabilities, over B.
        exponent: Of the surprisal, for ``step``.

    Raises:
        InputError: for rollouts without repeats or without noise, and as `plan`.
    """
    m = moments(rollouts)
    if not m.n_repeated:
        raise InputError(
            "every task has a single rollout, so s2 and tau2 cannot be told apart; sample some tasks twice or more",
            file=rollouts.source,
        )
    d = Difficulty(m.mean.value, m.s2.value, max(m.tau2.value, 0.0))
    if d.s2 == 0:
        raise InputError(
            "rollouts of a task never differ (s2 = 0): there is no noise to plan for", file=rollouts.source
        )
    assumed = _standing_assumptions(rho)
    exponents, note = exponents_of_objective(objective, exponent, [rollouts])
    if baseline is not None:
        size = min(budget, rollouts.n_tasks)
        scorer = Scorer(rollouts, size, resamples=0)
        if exponents is None:
            ratio, how = scorer.score_baseline(baseline).ratio.value, "measured on this file"
        else:
            equivalent = join_over_exponents(StepPredictor(scorer, tuple(exponents)).predict_step_progress(baseline))[1]
            ratio, how = equivalent.value / size, "predicted of a training step from this file's log-probabilities"
            if not np.isfinite(ratio):
                raise InputError("no LOO batch makes this baseline's progress; plan with --objective b_eff")
        assumed.append(
            f"The baseline's ratio to LOO, {ratio:.3f}, was {how} at B = {size}; if it was tuned on it, that is "
            "optimistic."
        )
        assumed += [note] if note else []
    elif ratio is None:
        assumed.append("The baseline is the LOO mean; --baseline or --b-eff-ratio for a better one.")
    if set(rollouts.rewards_R.tolist()) - {0.0, 1.0}:
        assumed.append(
            "Rewards are not all 0/1, so the Beta column is of a 0/1 reward with these moments; the counted column is "
            "of the data."
        )
    assumed.append(
        f"The moments have intervals of their own: s2 {m.s2:.3g}, tau2 {m.tau2:.3g}, SNR {m.snr:.3g} (95%, over tasks)."
    )
    counted = {g: dead_group_fraction(rollouts, g) for g in GROUP_SIZES}
    made = predict_budget_plan(budget, d, ratio=ratio or 1.0, rho=rho, dead_data=counted)
    return made._replace(assumed=tuple(assumed))


def _standing_assumptions(rho: float) -> list[str]:
    tasks_differ = (
        "rho = 0: tasks' true gradients do not differ, the case that favours groups most"
        if rho == 0
        else f"rho = {rho:g} as given"
    )
    return [
        f"{tasks_differ}. It is not known from rewards; `rollonce noise` measures it on a policy.",
        "A rollout's gradient noise is unrelated to its advantage's size (an approximation); measure gradient noise "
        "beside it.",
    ]
