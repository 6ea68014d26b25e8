"""Tuning finds what was planted, falls back to LOO where nothing was, resumes, and looks at the report part once."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rollonce.baselines import Batch, ExpertMixture, KernelBaseline, LeaveOneOut, SelfTuning, published_tfidf
from rollonce.errors import InputError
from rollonce.kernels import Softmax
from rollonce.rollouts import Rollouts
from rollonce.scoring import CrossFitted, Scorer
from rollonce.scoring.batches import draw_one_reward_each
from rollonce.tuning.objective import Objective
from rollonce.tuning.parts import (
    ReportPart,
    divide_tasks_by_shares,
    fold_of_each_prompt,
    split_for_tuning,
    window_that_tasks_allow,
)
from rollonce.tuning.search import Budget, Search, Trial, best_value_curve, trials_until_share_of_gain
from rollonce.tuning.space import Answers, Bank, Space, list_starting_points
from rollonce.tuning.tune import tune

from .planted import planted, useless

QUICK = {"n_batches": 60, "resamples": 20, "report_batches": 150}


@pytest.fixture(scope="module")
def found():
    return tune(planted(), budget="25", **QUICK)


def test_finds_the_planted_feature_and_gains_on_held_out_tasks(found):
    assert not found.is_loo
    assert found.judged.score.ratio.low > 1.5  # SNR is about 4: LOO is near 6 of 32, the topic's mean near 27
    assert found.judged.score.b_eff.value > 2 * found.judged.loo.b_eff.value
    assert found.counts == {"tune": 90, "choose": 45, "report": 45}
    assert found.n_trials == 25
    assert found.trials_for_95 <= 25
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_useless_features_give_loo_and_optimism_is_positive(seed):
    result = tune(useless(seed=seed), budget="20", seed=seed, **QUICK)
    assert result.is_loo
    assert isinstance(result.baseline, LeaveOneOut)
    assert result.judged.score.ratio.value == pytest.approx(1.0)
    assert result.optimism > 0
    assert any("does not show a gain" in n for n in result.notes)


def test_few_tasks_are_cross_fitted():
    result = tune(planted(60), budget="6", **QUICK)
    assert result.cross_fitted
    assert len(result.fold_labels) == 5
    assert result.judged.score.ratio.value > 1.3


def test_same_seed_same_result():
    a, b = (tune(planted(), budget="8", seed=3, **QUICK).to_dict() for _ in range(2))
    for timed in ("curve", "seconds_of_trials"):
        a.pop(timed), b.pop(timed)
    assert a == b


@pytest.mark.parametrize("sampler", ["hillclimb", "cmaes"])
def test_other_samplers_find_it_too(sampler):
    table = planted()
    objective = Objective(table, n_batches=40)
    trials = Search(
        Space.from_rollout_tables(table), objective.bank, objective.value_of_baseline, sampler
    ).run_until_budget_spent(Budget(30, np.inf))
    assert len(trials) == 30
    assert max(t.value for t in trials) > 1.5


def test_report_part_is_looked_at_once():
    table = planted(64)
    part = ReportPart(Scorer(table, 16, 20, 0, targets=np.arange(10)))
    published = published_tfidf().fit(table.tasks)
    part.judge_baselines_once(LeaveOneOut(), published)
    with pytest.raises(RuntimeError, match="already"):
        part.judge_baselines_once(LeaveOneOut(), published)


def test_parts_keep_equal_prompts_together():
    table = Rollouts.from_groups(
        [[0, 1]] * 200, [f"Prompt {i // 2}" if i % 2 else f"prompt  {i // 2}" for i in range(200)]
    )
    parts = split_for_tuning(table, 0)
    assert sorted(np.concatenate(parts)) == list(range(200))
    for part in parts:
        assert (np.bincount(part // 2, minlength=100) % 2 == 0).all()
    with pytest.raises(InputError, match="different prompts"):
        divide_tasks_by_shares(table.select([0, 1]), [1, 1], 0)


def test_per_target_scores_each_fold_with_its_own_baseline():
    table = planted(64)
    scorer = Scorer(table, 16, 30, 0)
    fold = np.arange(64) % 2
    a, b = LeaveOneOut(), published_tfidf().fit(table.tasks)
    both = scorer.unbiased_squared_errors(
        CrossFitted([a, b], fold_of_each_prompt(table, fold)), scorer.draw_common_batches(0), 0
    )
    rows = scorer.draw_common_batches(0)
    expected = np.where(
        fold[rows] == 0, scorer.unbiased_squared_errors(a, rows, 0), scorer.unbiased_squared_errors(b, rows, 0)
    )
    np.testing.assert_allclose(both, expected)
    assert scorer.score_baseline(CrossFitted([a, a], fold_of_each_prompt(table, fold))).ratio.value == pytest.approx(
        1.0
    )


def test_objective_agrees_with_the_scorer():
    """The mean over targets is weighted by task here and by draw there; with every task in every batch they are the
    same."""
    table = planted(40)
    objective = Objective(table, batch_size=40, n_batches=5)
    baseline = published_tfidf().fit(table.tasks)
    assert objective.value_of_baseline(baseline) == pytest.approx(
        Scorer(table, 40, 5, 0).score_baseline(baseline).ratio.value
    )


def test_with_a_window_the_fallback_is_the_windowed_mean():
    result = tune(useless(), budget="10", window=64, **QUICK)
    assert result.is_loo
    assert result.baseline.window == 64


def test_curve_and_trials_for_95():
    trials = [Trial(i, v, 1.0, {}, {}) for i, v in enumerate([0.9, 1.1, float("nan"), 1.05, 1.195, 1.2])]
    assert best_value_curve(trials) == [(1, 1.0, 0.9), (2, 2.0, 1.1), (5, 5.0, 1.195), (6, 6.0, 1.2)]
    assert trials_until_share_of_gain(best_value_curve(trials)) == 5  # 1 + 0.95 x 0.2 = 1.19
    assert trials_until_share_of_gain([(1, 1.0, 0.9)]) is None


def test_every_answer_makes_a_working_baseline():
    table = planted(40)
    bank, rng = Bank(table.tasks), np.random.default_rng(0)
    space = Space.from_rollout_tables(table, window=16)
    batch = Batch(table.tasks.take(np.arange(12)), np.linspace(0, 1, 12))
    for _ in range(60):
        assert np.isfinite(space.build_baseline(Answers(rng), bank).predict(batch).baseline_B).all()


@pytest.mark.parametrize("text", ["", "x", "-3", "0", "1.5", "3d"])
def test_budget_refuses(text):
    with pytest.raises(InputError, match="--budget"):
        Budget.from_budget_text(text)


def test_budgets():
    assert Budget.from_budget_text("200") == (200, np.inf)
    assert Budget.from_budget_text("1.5m") == (np.inf, 90)


def test_saved_baseline_is_small_and_loads_without_the_tuning_libraries(found, tmp_path):
    path = tmp_path / "baseline.json"
    found.baseline.save(path, {"tuned_on": "planted"})
    assert path.stat().st_size < 200_000
    code = (
        "import sys\nfor m in ('optuna', 'sklearn', 'scipy', 'numba', 'cmaes'): sys.modules[m] = None\nfrom "
        f"rollonce.baselines import Baseline, Batch\nb = Baseline.load({str(path)!r})\nprint(b.provenance['tuned_on'], "
        "b.predict(Batch.of(['chess chess one', 'chess chess two', 'logic logic'], [1.0, 0.0, 1.0])).baseline_B.shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["planted", "(3,)"]


_SEARCH = """
import sys
sys.path.insert(0, {folder!r})
from planted import planted
from rollonce.tuning.tune import tune
tune(planted(), budget={budget!r}, storage={storage!r}, n_batches=60, resamples=0, report_batches=20)
"""


def test_resumes_after_kill_9(tmp_path):
    import optuna

    storage = str(tmp_path / "search.db")
    folder = os.path.dirname(__file__)

    def completed() -> int:
        try:
            names = optuna.get_all_study_names(f"sqlite:///{storage}")
            study = optuna.load_study(study_name=names[0], storage=f"sqlite:///{storage}")
            return sum(t.state.name == "COMPLETE" for t in study.trials)
        except Exception:
            return 0

    code = _SEARCH.format(folder=folder, budget="100000", storage=storage)
    running = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.time() + 600
    while completed() < 5 and time.time() < deadline:
        time.sleep(0.3)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = completed()
    assert before >= 5
    goal = before + 3
    result = tune(planted(), budget=str(goal), storage=storage, n_batches=60, resamples=0, report_batches=20)
    assert result.n_trials == goal  # the killed process's trials count, all but the one that was running


@pytest.mark.parametrize(
    ("n_tasks", "batch_size", "window"),
    [(300, 32, 193), (60, 32, 0), (85, 32, 0), (86, 32, 32), (5000, 32, 512)],
)
def test_the_window_is_what_three_quarters_of_the_tasks_leave(n_tasks, batch_size, window):
    assert window_that_tasks_allow(n_tasks, batch_size) == window


def test_self_tuning_is_a_finalist_and_judged_on_the_same_tasks(monkeypatch):
    """With a search that finds nothing, what needs no search is chosen; it has not seen the tasks that judge it."""
    monkeypatch.setattr("rollonce.tuning.tune._best_of_each_kind", lambda trials: [])
    result = tune(planted(200), budget="1", batch_size=16, window=0, n_batches=100, resamples=0, report_batches=300)
    assert isinstance(result.baseline, SelfTuning)
    assert result.judged.self_tuning is not None
    assert result.judged.self_tuning.ratio == result.judged.score.ratio
    assert result.judged.score.ratio.value > 1.02
    # The shares of variance come from 150 tasks, those of tune and choose, one rollout each.
    parts = split_for_tuning(planted(200), 0)
    again = SelfTuning().fit(planted(200).tasks)
    at = np.union1d(parts.tune, parts.choose)
    rewards, _ = draw_one_reward_each(planted(200), at, np.random.default_rng([0, 7, 1]))
    again.fit_rewards(planted(200).tasks.take(at), rewards)
    np.testing.assert_allclose(result.baseline.variance_shares_K1, again.variance_shares_K1)


def test_a_kernel_of_ones_own_is_where_the_search_begins():
    start = KernelBaseline(Softmax(temperature=0.5), shrinkage=0.25)
    space = Space.from_rollout_tables(planted(60), window=0).with_start_baseline(start)
    first = list_starting_points(space)[0]
    assert first == {"family": "start", "window": 0, "decay": 1.0, "shrinkage": 0.25, "start.kernel.temperature": 0.5}
    built = space.build_baseline(Answers(np.random.default_rng(0), dict(first)), Bank(planted(60).tasks))
    assert built.config() == start.config()
    moved = space.build_baseline(
        Answers(np.random.default_rng(0), first | {"start.kernel.temperature": 0.1}), Bank(planted(60).tasks)
    )
    assert moved.config()["kernel"]["temperature"] == 0.1
    with pytest.raises(InputError, match="no weighted mean"):
        space.with_start_baseline(ExpertMixture())


def test_importances_need_nothing_but_the_core(monkeypatch):
    """scikit-learn is an extra: a search in a plain installation had ended in its ImportError."""
    import sys

    import optuna

    from rollonce.tuning.search import parameter_importances

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))

    def value(trial):
        family = trial.suggest_categorical("family", ["a", "b"])
        return trial.suggest_float("matters", 0, 1) + 0.001 * trial.suggest_float("idle", 0, 1) + 0 * (family == "a")

    study.optimize(value, n_trials=60)
    for name in [m for m in sys.modules if m.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    found = parameter_importances(study)["all trials"]
    assert found["matters"] > 0.8 > found["idle"]
