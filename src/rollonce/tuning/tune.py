"""Tune a baseline on a table of rollouts, and say honestly what it is worth on tasks it was not tuned on.

With 150 tasks or more they are split into tune / choose / report; the search sees the first two alone. With fewer, the
*procedure* is cross-fitted: for each of five folds it is run from the start on the other folds, and the fold judges
what came out; the baseline that is saved comes from one more run on all tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rollonce.baselines import Baseline, LeaveOneOut, LinearSmoother, SelfTuning, published_tfidf
from rollonce.errors import InputError
from rollonce.files import convert_to_plain_json
from rollonce.rollouts import IntArray, Rollouts
from rollonce.scoring import CrossFitted, Estimate, Scorer, check_can_be_scored
from rollonce.scoring.batches import draw_one_reward_each
from rollonce.tuning.fingerprints import fingerprint_search, hash_rollout_table
from rollonce.tuning.objective import Comparison
from rollonce.tuning.parts import (
    CROSS_FIT_BELOW,
    Judged,
    ReportPart,
    divide_tasks_by_shares,
    fold_of_each_prompt,
    split_for_tuning,
)
from rollonce.tuning.search import (
    Budget,
    Search,
    Trial,
    best_value_curve,
    parameter_importances,
    trials_until_share_of_gain,
)
from rollonce.tuning.space import Bank, Space
from rollonce.tuning.step_objective import ObjectiveName, exponents_of_objective, make_tuning_objective

FOLDS = 5
# The best few of the tune part, and the self-tuning baseline, compete on the choose part; the winner must beat LOO by
# half a percent and so many standard errors.
FINALISTS, MIN_Z, MIN_GAIN = 5, 1.28, 1.005


class Outcome(NamedTuple):
    """What one search came to.

    Attributes:
        baseline: The chosen one, fitted: the LOO mean where no gain was shown.
        tuned: Ratio to LOO of the best trial on the tune part (optimistic).
        chosen: Ratio to LOO of the best finalist on the choose part, and its gain in standard errors
            over the LOO mean (with the longest window searched).
        chosen_z: See ``chosen``.
        is_loo: Whether the choice fell back to LOO.
        trials: All trials.
        self_tuning: The self-tuning baseline, fitted on what the search saw; None where that is too little.
    """

    baseline: LinearSmoother
    tuned: float
    chosen: float
    chosen_z: float
    is_loo: bool
    trials: list[Trial]
    importances: dict[str, dict[str, float]]
    self_tuning: SelfTuning | None


@dataclass
class TuneResult:
    """Everything `rollonce tune` prints.

    Attributes:
        baseline: The chosen baseline, fitted on all prompts.
        best_trial: The best trial's label, whatever was chosen.
        tuned, chosen: Ratios to LOO on the tune and choose parts.
        judged: Scores on the report part, or cross-fitted (`Judged`).
        cross_fitted: Whether ``judged`` is of the procedure, cross-fitted over ``folds`` (their labels in
            ``fold_labels``).
        curve: (trials, seconds, best so far).
        trials_for_95: Trials that had found 95% of the final gain on the tune part.
        importances: Optuna's, over all trials and within the best family.
        counts: Tasks in each part.
        notes: Sentences that the reader must know.
    """

    name: str
    source: str
    batch_size: int
    baseline: LinearSmoother
    best_trial: str
    is_loo: bool
    tuned: float
    chosen: float
    chosen_z: float
    judged: Judged
    cross_fitted: bool
    fold_labels: list[str]
    curve: list[tuple[int, float, float]]
    trials_for_95: int | None
    importances: dict[str, dict[str, float]]
    counts: dict[str, int]
    n_trials: int
    seconds_of_trials: float
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def reported(self) -> Estimate:
        """What was climbed, relative to LOO, on the tasks that judge: the ratio of B_eff, or a step's progress."""
        score = self.judged.score
        return score.ratio if score.progress is None else score.progress

    @property
    def optimism(self) -> float:
        """The optimism gap: ratio on the tasks it was tuned on minus the reported ratio."""
        return self.tuned - self.reported.value

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; NaN becomes null."""
        out = {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in ("baseline", "judged")}
        out["baseline"] = {"label": self.baseline.label, "config": self.baseline.config()}
        for k in ("score", "loo", "published", "self_tuning"):
            out["reported" if k == "score" else k] = getattr(self.judged, k)
        out["over_published"] = self.judged.over_published
        out["optimism"] = self.optimism
        return convert_to_plain_json(out)


def tune(
    rollouts: Rollouts,
    *,
    budget: Budget | str = "200",
    batch_size: int = 32,
    window: int = 0,
    sampler: str = "tpe",
    seed: int = 0,
    storage: str | None = None,
    embedding: bool = False,
    objective: ObjectiveName = "b_eff",
    exponent: float | None = None,
    n_batches: int = 400,
    resamples: int = 100,
    report_batches: int = 2000,
    start: Baseline | None = None,
    progress: Callable[[str, int, float, float], None] | None = None,
) -> TuneResult:
    """Search for a baseline on a table of rollouts and report on tasks that the search did not see.

    Args:
        rollouts: The table.
        budget: Trials (``"200"``) or time (``"60s"``). Cross-fitting runs six searches: each has so many trials, or a
            sixth of the time.
        batch_size: B.
        window: The longest history window that may be searched, in rows of other tasks; ratios are to the in-batch LOO
            mean all the same.
        sampler: ``tpe``, ``cmaes`` or ``hillclimb``.
        seed: Of the split, the batches and the sampler.
        storage: SQLite file or Optuna URL; a search of the same rollouts, settings and seed is joined or resumed.
        embedding: Search sentence embeddings as well (extra ``embed``).
        objective: ``b_eff``, or ``step``: the progress of a training step, predicted from log-probabilities.
        exponent: Of the surprisal, as `rollonce noise` measures it, for ``step``; without it the geometric mean of what
            is predicted for 1 and for 2 counts.
        n_batches: Common batches of a trial.
        resamples, report_batches: Of the report.
        start: A baseline from which the search begins as well, and around whose settings it looks: a family of its own.
        progress: Called with (which search, trials, seconds, best so far).

    Raises:
        InputError: if no batch can be drawn, or a setting makes no sense.
    """
    check_can_be_scored(rollouts, batch_size)
    if np.ptp(rollouts.rewards_R) == 0:
        raise InputError(
            f"all {rollouts.n_rollouts} rewards are {rollouts.rewards_R[0]:g}: there is nothing to tune",
            file=rollouts.source or None,
        )
    exponents, note = exponents_of_objective(objective, exponent, [rollouts])
    budget = Budget.from_budget_text(budget) if isinstance(budget, str) else budget
    space = Space.from_rollout_tables(rollouts, window=window, embedding=embedding)
    if start is not None:
        space = space.with_start_baseline(start)
    settings = {
        "batch_size": batch_size,
        "window": window,
        "sampler": sampler,
        "seed": seed,
        "n_batches": n_batches,
        "resamples": resamples,
        "report_batches": report_batches,
        "space": space.to_dict(),
    }
    if exponents is not None:
        settings |= {"objective": objective, "exponents": list(exponents)}
    run = _Run(
        rollouts,
        space,
        Bank(rollouts.tasks),
        batch_size,
        n_batches,
        sampler,
        seed,
        storage,
        fingerprint_search(rollouts, settings),
        progress,
        exponents,
    )
    published = published_tfidf().fit(rollouts.tasks)
    assert isinstance(published, LinearSmoother)
    scorer_args = (rollouts, batch_size, report_batches, resamples)
    notes: list[str] = [note] if note else []
    labels: list[str] = []
    if rollouts.n_tasks >= CROSS_FIT_BELOW:
        parts = split_for_tuning(rollouts, seed)
        outcome = run(parts.tune, parts.choose, "search", budget)
        part = ReportPart(Scorer(*scorer_args, seed=seed + 1, targets=parts.report), exponents)
        judged = part.judge_baselines_once(outcome.baseline, published, outcome.self_tuning)
        counts = {k: len(v) for k, v in parts._asdict().items()}
    else:
        each = Budget(budget.trials, budget.seconds / (FOLDS + 1))
        folds = divide_tasks_by_shares(rollouts, [1.0] * FOLDS, seed)
        fold_of_N = np.zeros(rollouts.n_tasks, dtype=np.int64)
        experts: list[LinearSmoother] = []
        learners: list[SelfTuning | None] = []
        for f, fold in enumerate(folds):
            fold_of_N[fold] = f
            rest = np.setdiff1d(np.arange(rollouts.n_tasks), fold)
            found = run(*_tune_and_choose(rollouts, rest, seed + f), f"fold {f + 1}/{FOLDS}", each)
            expert, same = found.baseline, [e for e in experts if e.config() == found.baseline.config()]
            # What learns from rewards has those of other folds in each.
            experts.append(same[0] if same and not isinstance(expert, SelfTuning) else expert)
            learners.append(found.self_tuning)
        labels = [e.label for e in experts]
        outcome = run(*_tune_and_choose(rollouts, np.arange(rollouts.n_tasks), seed), "all tasks", each)
        part = ReportPart(Scorer(*scorer_args, seed=seed + 1), exponents)
        fold_of = fold_of_each_prompt(rollouts, fold_of_N)
        learned = [learner for learner in learners if learner is not None]
        judged = part.judge_baselines_once(
            CrossFitted(experts, fold_of, name="cross-fitted"),
            published,
            CrossFitted(learned, fold_of) if len(learned) == FOLDS else None,
        )
        counts = {"cross-fitted": rollouts.n_tasks, "folds": FOLDS}
        notes.append(
            f"{rollouts.n_tasks} tasks are too few for a split (from {CROSS_FIT_BELOW}): what is reported is the whole "
            f"procedure, run {FOLDS} times on four fifths of the tasks and judged on the other fifth; the saved "
            "baseline comes from a run on all of them."
        )
    if run.neighbours_everywhere:
        notes.append(
            f"Too few tasks for batches of {batch_size} without the judging ones: as neighbours (not as targets) "
            "those were seen in the search."
        )
    if outcome.is_loo:
        notes.append(
            f"The choose part does not show a gain over the {outcome.baseline.label} ({outcome.chosen:.3f}, "
            f"{outcome.chosen_z:+.1f} standard errors; {MIN_GAIN} and {MIN_Z} are asked for): "
            "that is the chosen baseline."
            + (
                " The reported ratio is the procedure's over the folds, not that of the saved baseline."
                if labels
                else ""
            )
        )
    if not Scorer(rollouts, batch_size, 1, 0).has_repeats:
        notes.append("Every task has a single rollout: ratios are of E[A^2], and no absolute B_eff can be told.")
    if window:
        notes.append(
            "Calibration rollouts come from one policy, so this search cannot see a window going stale: "
            "decay must be judged in training (rollonce watch)."
        )
    best = max(outcome.trials, key=lambda t: t.value) if outcome.trials else None
    curve = best_value_curve(outcome.trials)
    return TuneResult(
        rollouts.name,
        rollouts.source,
        batch_size,
        outcome.baseline,
        run.bank.rebuild_from_config(best.config).label if best else "",
        outcome.is_loo,
        outcome.tuned,
        outcome.chosen,
        outcome.chosen_z,
        judged,
        bool(labels),
        labels,
        curve,
        trials_until_share_of_gain(curve),
        outcome.importances,
        counts,
        len(outcome.trials),
        float(sum(t.seconds for t in outcome.trials)),
        notes,
        settings
        | {
            "n_rollouts": rollouts.n_rollouts,
            "n_tasks": rollouts.n_tasks,
            "rollouts_hash": hash_rollout_table(rollouts),
        },
    )


@dataclass
class _Run:
    """One search from tune and choose positions to a choice."""

    rollouts: Rollouts
    space: Space
    bank: Bank
    batch_size: int
    n_batches: int
    sampler: str
    seed: int
    storage: str | None
    fingerprint: str
    progress: Callable[[str, int, float, float], None] | None
    exponents: Sequence[float] | None
    neighbours_everywhere: bool = False

    def __call__(self, tune_at: IntArray, choose_at: IntArray, label: str, budget: Budget) -> Outcome:
        seen = np.union1d(tune_at, choose_at)
        table = self.rollouts.select(seen)
        if len(seen) < self.batch_size:
            table, seen, self.neighbours_everywhere = self.rollouts, np.arange(self.rollouts.n_tasks), True
        in_tune, in_choose = np.isin(seen, tune_at), np.isin(seen, choose_at)
        make = partial(make_tuning_objective, self.exponents, table, self.batch_size, bank=self.bank)
        objective = make(self.n_batches, self.seed, targets=np.flatnonzero(in_tune))
        name = f"rollonce-{self.rollouts.name}-{self.fingerprint}-{label.split('/')[0].replace(' ', '-')}"
        search = Search(self.space, self.bank, objective.value_of_baseline, self.sampler, self.seed, self.storage, name)
        told = self.progress
        trials = search.run_until_budget_spent(budget, None if told is None else lambda n, s, b: told(label, n, s, b))
        # Fresh batches for the choice, so that it does not inherit the luck of the search's.
        again = make(2 * self.n_batches, self.seed + 1000, targets=np.flatnonzero(in_choose))
        winner, best = None, Comparison(-np.inf, -np.inf, np.nan)
        # With a window the plain mean gains from it too; a kernel must beat that mean, not only the in-batch one.
        plain = LeaveOneOut(window=self.space.window)
        finalists = _best_of_each_kind(trials)
        best_tuned = finalists[0].value if finalists else np.nan
        entrants = [self.bank.rebuild_from_config(trial.config) for trial in finalists]
        entrants += [b for b in (self._fit_self_tuning(tune_at),) if b is not None]
        for baseline in entrants:
            comparison = again.compare_with_plain(baseline, plain)
            if comparison.over_loo > best.over_loo:
                winner, best = baseline, comparison
        is_loo = winner is None or not (best.over_plain >= MIN_GAIN and best.z >= MIN_Z)
        self_tuning = self._fit_self_tuning(np.union1d(tune_at, choose_at))  # all that the search saw
        if isinstance(winner, SelfTuning):
            winner = self_tuning or winner
        return Outcome(
            plain if is_loo or winner is None else winner,
            best_tuned,
            best.over_loo,
            best.z,
            is_loo,
            trials,
            parameter_importances(search.study),
            self_tuning,
        )

    def _fit_self_tuning(self, at: IntArray) -> SelfTuning | None:
        """The self-tuning baseline, which needs no search, after one random rollout of each of these tasks; None where
        they are too few to learn from."""
        baseline = SelfTuning(window=self.space.window)
        if len(at) < baseline.min_rows:
            return None
        baseline.fit(self.rollouts.tasks)
        rewards, _ = draw_one_reward_each(self.rollouts, at, np.random.default_rng([self.seed, 7, 1]))
        return baseline.fit_rewards(self.rollouts.tasks.take(at), rewards)


def _best_of_each_kind(trials: list[Trial]) -> list[Trial]:
    """The best few, no two with the same choices in all but numbers."""
    out: list[Trial] = []
    kinds = set()
    for t in sorted((t for t in trials if np.isfinite(t.value)), key=lambda t: -t.value):
        kind = json.dumps({k: v for k, v in t.params.items() if not isinstance(v, float)}, sort_keys=True)
        if kind not in kinds:
            kinds.add(kind)
            out.append(t)
        if len(out) == FINALISTS:
            break
    return out


def _tune_and_choose(rollouts: Rollouts, at: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """These tasks in tune (two thirds) and choose (one third)."""
    first, second = divide_tasks_by_shares(rollouts.select(at), (2.0, 1.0), seed)
    return at[first], at[second]
