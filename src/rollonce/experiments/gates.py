"""The activation gate: does the treatment differ from a plain batch mean, and predict better? Measured, compared, never
relaxed.

Offline, from calibration rollouts: the ratio of two effective batch sizes by the post's recipe (`rollonce.reference`,
which decides, as registered) and by the scoring package's closed form, which must agree. Online, from the pilot's own
logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollonce import reference
from rollonce.baselines import Baseline, LeaveOneOut
from rollonce.errors import InputError
from rollonce.experiments.engine import StepLog
from rollonce.experiments.reference_paths import reference_on_tasks
from rollonce.experiments.spec import GATE_METRICS, GateCheck, format_gate_limits
from rollonce.rollouts import Rollouts
from rollonce.scoring import Scorer, moments

N_BATCHES, RESAMPLES = 10_000, 200
NONZERO = 1e-6


class GateResult(NamedTuple):
    """One predicate. ``values`` are what was measured: one number, or one an arm where it must hold in each."""

    metric: str
    values: list[float | None]
    min: float | None
    max: float | None
    passed: bool
    measures: str

    @property
    def sentence(self) -> str:
        found = ", ".join("not measurable" if v is None else f"{v:.6g}" for v in self.values) or "nothing measured"
        return (
            f"{self.metric} = {found} "
            f"({'passed' if self.passed else 'failed'}: {format_gate_limits(self.min, self.max)} was registered)"
        )


def check_activation_gate(
    checks: Sequence[GateCheck], when: str, measured: dict[str, list[float | None]]
) -> list[GateResult]:
    """The predicates of one part of the gate (``offline`` or ``pilot``), in their order. What was not measured
    fails."""
    out = []
    for c in checks:
        if GATE_METRICS[c.metric] != when:
            continue
        values = measured.get(_canonical_metric_name(c.metric), [])
        inside = [
            v is not None and math.isfinite(v) and (c.min is None or v >= c.min) and (c.max is None or v <= c.max)
            for v in values
        ]
        passed = bool(inside) and all(inside)
        out.append(GateResult(metric=c.metric, values=values, min=c.min, max=c.max, passed=passed, measures=c.measures))
    return out


def _canonical_metric_name(metric: str) -> str:
    return metric.replace("_tfidf_vs_", "_vs_").replace("gs1", "treatment").replace("grpo", "baseline")


class OfflineScore(NamedTuple):
    """The kernel against the LOO mean of the batch on one calibration set.

    Attributes:
        ratio: B_eff over LOO's by the post's recipe (decides); None where it is not defined.
        ratio_se: Its Monte-Carlo error over batches (delta method, the two taken as independent: an upper bound).
        closed_form: The same ratio by the scoring package.
        interval: 95% over tasks, of the closed form.
        agree: Whether the two lie within five Monte-Carlo errors.
        b_eff, loo: The two effective batch sizes by the recipe.
        s2, tau2: Mean within-task variance; variance of the tasks' means.
        mean_reward, n_tasks, batch_size: Of the set.
        note: Why there is no ratio, or "".
    """

    s2: float
    tau2: float
    mean_reward: float
    n_tasks: int
    batch_size: int
    ratio: float | None = None
    ratio_se: float | None = None
    closed_form: float | None = None
    interval: tuple[float, float] | None = None
    agree: bool = False
    b_eff: float | None = None
    loo: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def compute_offline_score(
    baseline: Baseline,
    advantage: str,
    prompts: Sequence[str],
    rewards: Sequence[Sequence[float]],
    fitted_on: Sequence[str],
    *,
    batch_size: int,
    n_batches: int | None = None,
    resamples: int | None = None,
    seed: int = 0,
) -> OfflineScore:
    """Score a fitted baseline in batch.

    Args:
        baseline: Fitted on ``fitted_on``.
        advantage: Its name in the specification (for the reference).
        prompts, rewards: N tasks, G rewards each.
        fitted_on: What the vocabulary was fitted on.
        batch_size: B of the registered comparison.

    Raises:
        InputError: fewer tasks than a batch.
    """
    n_batches, resamples = n_batches or N_BATCHES, RESAMPLES if resamples is None else resamples
    n = len(prompts)
    if n < batch_size:
        raise InputError(
            f"the gate is registered at batches of {batch_size} distinct tasks, and the calibration has {n}"
        )
    table = Rollouts.from_groups(list(rewards), list(prompts), task_ids=[str(i) for i in range(n)], name="calibration")
    m = moments(table)
    s2, tau2, mean = float(m.s2.value), float(m.tau2.value), float(np.mean([np.mean(r) for r in rewards]))
    empty = OfflineScore(s2=s2, tau2=tau2, mean_reward=mean, n_tasks=n, batch_size=batch_size)
    # Not s2 == 0: eight times -0.1 have a mean that is off by rounding, and a variance of 1e-34.
    if all(len(set(r)) == 1 for r in rewards):
        same = (
            "all rewards are equal" if len({x for r in rewards for x in r}) == 1 else "rollouts of a task never differ"
        )
        return empty._replace(
            note=f"{same} (s2 = 0, mean reward {mean:g}): there is no effective batch size to compare"
        )
    on_tasks = reference_on_tasks(advantage, prompts, fitted_on)
    if on_tasks is None:
        return empty._replace(
            note=(
                f"no independent reference exists for {advantage!r}, and a gate is not decided by the code that it "
                "checks"
            )
        )
    mine = reference.simulate_effective_batch_size(
        rewards, on_tasks, batch_size=batch_size, batches=n_batches, seed=seed
    )
    loo = reference.simulate_effective_batch_size(
        rewards, reference.make_loo_on_tasks(), batch_size=batch_size, batches=n_batches, seed=seed
    )
    ratio = (loo.s2 + loo.mse) / (mine.s2 + mine.mse)
    se = ratio * math.hypot(mine.mse_se / (mine.s2 + mine.mse), loo.mse_se / (loo.s2 + loo.mse))
    scorer = Scorer(table, batch_size, n_batches=n_batches, resamples=resamples, seed=seed)
    scored = scorer.score_baseline(baseline if baseline.type != "loo" else LeaveOneOut()).ratio
    agree = abs(ratio - scored.value) <= 5 * se + 1e-9
    note = (
        ""
        if agree
        else (
            f"recipe {ratio:.4f} and closed form {scored.value:.4f} disagree beyond their sampling error: the code is "
            "at fault"
        )
    )
    return empty._replace(
        ratio=ratio,
        ratio_se=se,
        closed_form=scored.value,
        interval=(scored.low, scored.high) if math.isfinite(scored.low) else None,
        agree=agree,
        b_eff=mine.b_eff,
        loo=loo.b_eff,
        note=note,
    )


def collect_offline_measures(score: OfflineScore) -> dict[str, list[float | None]]:
    """For `check_activation_gate`. A ratio on which recipe and closed form disagree counts as not measured."""
    return {"offline_beff_ratio_vs_loo_mean": [score.ratio if score.agree else None]}


def collect_pilot_measures(
    treatment: Sequence[StepLog], arms: Mapping[str, Sequence[StepLog]], baseline: str, treated: str
) -> dict[str, list[float | None]]:
    """For `check_activation_gate`, from the logs of the pilot.

    Args:
        treatment: Steps of the treated arm.
        arms: Steps of every arm by name.
        baseline, treated: Which are which.
    """
    distance, nonzero = [], []
    for step in treatment:
        rewards = np.asarray(step.rewards, dtype=np.float64)
        distance += np.abs(np.asarray(step.baselines) - reference.leave_one_out_mean(rewards)).tolist()
        nonzero += (np.abs(step.advantages) > NONZERO).tolist()
    own = [s.self_weight_max for s in treatment]
    heaviest = max((w for w in own if w is not None), default=None) if all(w is not None for w in own) else None
    executed: list[float | None] = []
    for steps in arms.values():
        executed += sorted({float(len(s.rewards)) for s in steps})
    return {
        "pilot_mean_abs_treatment_minus_batchmean_baseline": [float(np.mean(distance)) if distance else None],
        "self_weight_max": [heaviest],
        "executed_rollouts_per_step": executed,
        "executed_group_size_treatment": _executed_group_sizes(arms[treated]),
        "executed_group_size_baseline": _executed_group_sizes(arms[baseline]),
        "nonzero_advantage_fraction_treatment": [float(np.mean(nonzero)) if nonzero else None],
    }


def _executed_group_sizes(steps: Sequence[StepLog]) -> list[float | None]:
    """Group sizes as executed: counted from the task ids, not from what the configuration said."""
    sizes: set[float] = set()
    for s in steps:
        sizes |= {float(n) for n in np.unique(s.task_ids, return_counts=True)[1]}
    return list(sorted(sizes))
