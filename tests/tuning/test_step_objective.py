"""The training step as what is climbed: worked values, against enumeration of every batch, and the refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rollonce.baselines import KernelBaseline, LeaveOneOut
from rollonce.errors import InputError
from rollonce.features import CategoryColumn
from rollonce.kernels import Same
from rollonce.rollouts import Rollouts
from rollonce.tuning.planning import plan_from_rollouts
from rollonce.tuning.step_objective import StepObjective
from rollonce.tuning.transfer import measure_kernel_transfer
from rollonce.tuning.tune import tune

REWARDS = [0.0, 1.0, 1.0, 0.0, 0.5, 0.25]
LOG_PROBS = [-3.0, -0.5, -2.0, -1.0, -8.0, -1.5]
KINDS = ["a", "a", "a", "b", "b", "b"]


def small(log_probs=LOG_PROBS) -> Rollouts:
    return Rollouts.from_groups(
        [[r] for r in REWARDS],
        [f"task {i}" for i in range(6)],
        columns={"kind": KINDS},
        log_probs=None if log_probs is None else [[p] for p in log_probs],
    )


def of_own_kind(table: Rollouts, window: int = 0) -> KernelBaseline:
    baseline = KernelBaseline(Same(CategoryColumn("kind")), window=window)
    baseline.fit(table.tasks)
    return baseline


def inverse_norm(rows: tuple[int, ...], exponent: float, by_kind: bool) -> float:
    """Of one batch, by the definition: each row less the mean of the others, or of the others of its kind if any."""
    total = 0.0
    for i in rows:
        others = [j for j in rows if j != i]
        alike = [j for j in others if KINDS[j] == KINDS[i]]
        b = np.mean([REWARDS[j] for j in (alike if by_kind and alike else others)])
        total += (REWARDS[i] - b) ** 2 * (-LOG_PROBS[i]) ** exponent
    return total**-0.5 if total > 1e-18 else 0.0


@pytest.mark.parametrize("exponents", [(1.0,), (2.4,), (1.0, 2.0)])
def test_the_value_is_the_ratio_of_mean_inverse_norms_over_all_batches(exponents):
    table = small()
    objective = StepObjective(table, batch_size=4, n_batches=6000, exponents=exponents)
    batches = list(itertools.combinations(range(6), 4))
    ratios = [
        np.mean([inverse_norm(b, a, True) for b in batches]) / np.mean([inverse_norm(b, a, False) for b in batches])
        for a in exponents
    ]
    assert objective.value_of_baseline(of_own_kind(table)) == pytest.approx(np.exp(np.mean(np.log(ratios))), rel=0.02)
    assert objective.value_of_baseline(LeaveOneOut()) == pytest.approx(1.0)


def test_a_window_holds_the_other_tasks():
    """Four in the batch and the other two as window: every row sees all five others, whatever the batch."""
    table = small()
    objective = StepObjective(table, batch_size=4, n_batches=3000, exponents=(1.0,))
    assert (np.sort(objective.columns_with_window(2), axis=1) == np.arange(6)).all()
    terms = [(r - (sum(REWARDS) - r) / 5) ** 2 * -p for r, p in zip(REWARDS, LOG_PROBS, strict=True)]
    batches = list(itertools.combinations(range(6), 4))
    with_window = np.mean([sum(terms[i] for i in b) ** -0.5 for b in batches])
    alone = np.mean([inverse_norm(b, 1.0, False) for b in batches])
    assert objective.value_of_baseline(LeaveOneOut(window=2)) == pytest.approx(with_window / alone, rel=0.02)


def test_batches_hold_targets_alone():
    table = planted()
    targets = np.arange(0, 120, 2)
    objective = StepObjective(table, batch_size=32, n_batches=50, targets=targets, exponents=(1.0,))
    assert np.isin(objective.columns_with_window(0), targets).all()
    window = objective.columns_with_window(40)[:, 32:]
    assert (window % 2 == 1).any()  # whatever else may be seen stands in the window
    assert all(len(set(row)) == 72 for row in objective.columns_with_window(40))
    assert StepObjective(table, 32, 50, targets=np.arange(12)).batch_size == 8


def planted(n: int = 120, with_log_probs: bool = True) -> Rollouts:
    """Half of the tasks are always right and sure of it, half wrong and unsure; a column says which."""
    rng = np.random.default_rng(0)
    easy = rng.random(n) < 0.5
    rewards = (rng.random((n, 4)) < np.where(easy, 0.9, 0.1)[:, None]).astype(float)
    surprisal = np.where(rewards > 0, 0.5, 5.0) * np.exp(0.3 * rng.normal(size=rewards.shape))
    prompts = [f"{'easy' if e else 'hard'} question number {i}" for i, e in enumerate(easy)]
    columns = {"kind": ["easy" if e else "hard" for e in easy]}
    return Rollouts.from_groups(
        rewards, prompts, columns=columns, log_probs=-surprisal if with_log_probs else None, name="planted"
    )


def test_compare_counts_standard_errors_over_tasks_not_over_batches():
    """More batches of the same tasks tell no more about other tasks."""
    table = planted(90)
    few, many = (StepObjective(table, 16, n, exponents=(2.0,)) for n in (1000, 8000))
    z = [o.compare_with_plain(of_own_kind(table), LeaveOneOut()).z for o in (few, many)]
    assert z[0] > 2
    assert z[1] == pytest.approx(z[0], rel=0.3)
    same = few.compare_with_plain(LeaveOneOut(), LeaveOneOut())
    assert (same.over_loo, same.over_plain, same.z) == (pytest.approx(1.0), pytest.approx(1.0), 0.0)


def test_tune_climbs_the_step_and_reports_it():
    result = tune(
        planted(160), budget="12", objective="step", exponent=2.0, batch_size=16, n_batches=40, resamples=0,
        report_batches=100,
    )  # fmt: skip
    assert result.tuned > 1.02
    progress = result.judged.score.progress
    assert progress is not None
    assert result.reported == progress
    assert result.optimism == pytest.approx(result.tuned - progress.value)
    assert result.judged.loo.progress is not None
    assert result.judged.loo.progress.value == pytest.approx(1.0)
    assert result.settings["objective"] == "step"
    assert result.settings["exponents"] == [2.0]


def test_transfer_and_plan_use_the_step():
    tables = [planted(60), planted(64)]
    tables[1] = Rollouts(**{**tables[1].__dict__, "name": "other"} | {"_memo": {}})
    result = measure_kernel_transfer(
        tables, n_candidates=4, batch_size=16, n_batches=30, report_batches=60, resamples=0, self_tuning=False,
        objective="step",
    )  # fmt: skip
    assert [c.ratio.value for c in result.rows["LOO mean"]] == pytest.approx([1.0, 1.0])
    assert "predicted for 1 and for 2" in result.sentences[-1]
    table = planted(100)
    step = plan_from_rollouts(table, 16, baseline=of_own_kind(table), objective="step", exponent=2.0)
    loo = plan_from_rollouts(table, 16, baseline=LeaveOneOut(), objective="step", exponent=2.0)
    assert loo.b_eff == pytest.approx(loo.loo_b_eff)
    assert step.b_eff > loo.b_eff


@pytest.mark.parametrize("run", [tune, lambda t, **k: measure_kernel_transfer([t, t.select(range(60), "b")], **k)])
def test_without_log_probabilities_a_step_is_refused(run):
    with pytest.raises(InputError, match=r"--objective step predicts .* these rollouts have none; log"):
        run(planted(with_log_probs=False), objective="step")
    with pytest.raises(InputError, match="--exponent is for --objective step"):
        run(planted(), exponent=1.5)
    with pytest.raises(InputError, match="b_eff, step, not 'luck'"):
        run(planted(), objective="luck")
