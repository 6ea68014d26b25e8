"""Does a kernel tuned on one set of tasks work on another? Kernels x sets, as ratios to each set's in-batch LOO mean.

Every set sees the same list of candidates, drawn from the search space without looking at any reward. "Tuned on A" is
the candidate that does best on A. So that columns differ by the choice alone, nothing else is searched; and
cross-fitting costs little:

* A on itself (the diagonal), and the pool, are cross-fitted: for each fold of tasks the choice is made on the other
  folds, from batches that hold no task of the fold.
* "All but this set" chooses by the geometric mean ratio over the other sets.
* Features are fitted anew on the target set's prompts (vocabulary is not reward); the settings are what travels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rollonce.baselines import Baseline, KernelBaseline, LeaveOneOut, SelfTuning, published_tfidf
from rollonce.errors import InputError
from rollonce.files import convert_to_plain_json
from rollonce.kernels import Buckets
from rollonce.rollouts import FloatArray, IntArray, Rollouts
from rollonce.scoring import CrossFitted, Estimate, Scorer, check_can_be_scored, cross_fit_baseline
from rollonce.scoring.step_prediction import StepPredictor, join_over_exponents
from rollonce.tuning.objective import Objective
from rollonce.tuning.parts import divide_tasks_by_shares, fold_of_each_prompt
from rollonce.tuning.space import Answers, Bank, Space, list_starting_points
from rollonce.tuning.step_objective import ObjectiveName, StepObjective, exponents_of_objective, make_tuning_objective

FOLDS = 3
Measure = Callable[[Baseline | CrossFitted], Estimate]
POOL, OTHERS, SELF_TUNING = "the pool of all sets", "all sets but this one", "self-tuning"


class Cell(NamedTuple):
    """One kernel on one set.

    Attributes:
        ratio: B_eff relative to the in-batch LOO mean, paired interval over tasks.
        label: What was used (for cross-fitted cells the first fold's).
        cross_fitted: Whether each task was judged by a choice made without it.
    """

    ratio: Estimate
    label: str
    cross_fitted: bool


@dataclass
class TransferResult:
    """The matrix.

    Attributes:
        columns: Names of the sets.
        rows: Row name -> cells, one a column: tuned on each set, the pool, all but this one, the published examples,
            and others.
        sentences: A sentence a row.
        settings: How it was computed.
    """

    columns: list[str]
    rows: dict[str, list[Cell]]
    sentences: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; NaN becomes null."""
        cells = {name: [c._asdict() | {"ratio": list(c.ratio)} for c in row] for name, row in self.rows.items()}
        return convert_to_plain_json(
            {
                "columns": self.columns,
                "rows": cells,
                "geometric_means": {name: geometric_mean_of_ratios(row) for name, row in self.rows.items()},
                "sentences": self.sentences,
                "settings": self.settings,
            }
        )


class _CandidatesOnSet:
    """Values of all candidates on one set, on all of its tasks and without each fold."""

    def __init__(
        self,
        rollouts: Rollouts,
        batch_size: int,
        n_batches: int,
        seed: int,
        n_candidates: int,
        exponents: Sequence[float] | None,
    ) -> None:
        self.rollouts, self.bank = rollouts, Bank(rollouts.tasks)
        n = rollouts.n_tasks
        self.folds = divide_tasks_by_shares(rollouts, [1.0] * FOLDS, seed)
        self.fold_of_N: IntArray = np.zeros(n, dtype=np.int64)
        make = partial(make_tuning_objective, exponents, bank=self.bank)
        self.whole = make(rollouts, batch_size, n_batches, seed)
        self.without: list[Objective | StepObjective] = []
        self.strict = True
        for f, fold in enumerate(self.folds):
            self.fold_of_N[fold] = f
            rest = np.setdiff1d(np.arange(n), fold)
            if len(rest) >= batch_size:
                self.without.append(make(rollouts.select(rest), batch_size, n_batches, seed))
            else:
                self.strict = False
                self.without.append(make(rollouts, batch_size, n_batches, seed, targets=rest))
        self.values_C: FloatArray = np.full(n_candidates, np.nan)
        self.values_FC: FloatArray = np.full((FOLDS, n_candidates), np.nan)

    def evaluate_candidate(self, c: int, config: dict[str, Any]) -> None:
        baseline = self.bank.rebuild_from_config(config)
        self.values_C[c] = self.whole.value_of_baseline(baseline)
        for f, objective in enumerate(self.without):
            self.values_FC[f, c] = objective.value_of_baseline(baseline)


def draw_candidate_configs(space: Space, n: int, seed: int) -> list[dict[str, Any]]:
    """Configurations: LOO, the starting points, and random ones; no reward is looked at."""
    from rollonce.rollouts import Tasks

    rng = np.random.default_rng([seed, 31])
    blank = Bank(
        Tasks(
            ["a placeholder prompt with words", "another one here"],
            columns={c: ["x", "y"] for c in space.category_columns},
        )
    )
    out: list[dict[str, Any]] = [LeaveOneOut().config()]
    for values in list_starting_points(space):
        out.append(space.build_baseline(Answers(rng, dict(values)), blank).config())
    while len(out) < n:
        out.append(space.build_baseline(Answers(rng), blank).config())
    return out[:n]


def measure_kernel_transfer(
    tables: Sequence[Rollouts],
    *,
    n_candidates: int = 120,
    batch_size: int = 32,
    n_batches: int = 200,
    report_batches: int = 2000,
    resamples: int = 60,
    seed: int = 0,
    self_tuning: bool = True,
    objective: ObjectiveName = "b_eff",
    exponent: float | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> TransferResult:
    """The matrix of kernels x sets.

    Args:
        tables: Two sets or more.
        n_candidates: Length of the common list.
        batch_size: B.
        n_batches: Common batches behind a candidate's value.
        report_batches, resamples, seed: Of the cells.
        self_tuning: Whether the self-tuning baseline, which needs no transfer, gets a row too (cross-fitted).
        objective, exponent: What is compared, see `rollonce.tuning.tune.tune`; one exponent for all sets.
        progress: Called with (what, done, total).

    Raises:
        InputError: for fewer than two sets, two of one name, or one that no batch can be drawn from.
    """
    if len(tables) < 2:
        raise InputError("transfer needs two sets or more; rollonce tune works on one")
    names = [t.name for t in tables]
    if len(set(names)) < len(names):
        raise InputError(
            f"two sets are called {next(n for n in names if names.count(n) > 1)!r}; rename one of the files"
        )
    for table in tables:
        check_can_be_scored(table, batch_size)
    exponents, note = exponents_of_objective(objective, exponent, tables)
    space = Space.from_rollout_tables(tables)
    configs = draw_candidate_configs(space, n_candidates, seed)
    choices = [_CandidatesOnSet(t, batch_size, n_batches, seed, len(configs), exponents) for t in tables]
    total, done = len(configs) * len(tables), 0
    for choice in choices:
        for c, config in enumerate(configs):
            choice.evaluate_candidate(c, config)
            done += 1
            if progress:
                progress(f"candidates on {choice.rollouts.name}", done, total)
    log_SC = _log_or_worst_value(np.array([c.values_C for c in choices]))
    log_SFC = _log_or_worst_value(np.array([c.values_FC for c in choices]))
    pool_F = [int(np.argmax(log_SFC[:, f].mean(axis=0))) for f in range(FOLDS)]
    others_S = [int(np.argmax(np.delete(log_SC, s, axis=0).mean(axis=0))) for s in range(len(tables))]
    own_S = [int(np.argmax(log_SC[s])) for s in range(len(tables))]
    rows: dict[str, list[Cell]] = {f"tuned on {n}": [] for n in names}
    published = {
        "published TF-IDF": published_tfidf(),
        "5 length buckets, in batch": KernelBaseline(Buckets()),
        "LOO mean": LeaveOneOut(),
    }
    for name in (POOL, OTHERS, *published, *((SELF_TUNING,) if self_tuning else ())):
        rows[name] = []
    for s, choice in enumerate(choices):
        if progress:
            progress(f"scoring {names[s]}", s, len(tables))
        scorer = Scorer(tables[s], batch_size, report_batches, resamples, seed=seed + 1)
        measure = _make_cell_measure(scorer, exponents)
        known: dict[int, Cell] = {}

        def measure_plain_cell(
            c: int, choice: _CandidatesOnSet = choice, measure: Measure = measure, known: dict[int, Cell] = known
        ) -> Cell:
            if c not in known:
                baseline = choice.bank.rebuild_from_config(configs[c])
                known[c] = Cell(measure(baseline), baseline.label, False)
            return known[c]

        def measure_cross_fitted_cell(
            picks: Sequence[int], choice: _CandidatesOnSet = choice, measure: Measure = measure
        ) -> Cell:
            chosen = {c: choice.bank.rebuild_from_config(configs[c]) for c in picks}
            serving = CrossFitted([chosen[c] for c in picks], fold_of_each_prompt(choice.rollouts, choice.fold_of_N))
            return Cell(measure(serving), serving.label, True)

        for a, name in enumerate(names):
            own = a == s
            rows[f"tuned on {name}"].append(
                measure_cross_fitted_cell([int(np.argmax(log_SFC[s, f])) for f in range(FOLDS)])
                if own
                else measure_plain_cell(own_S[a])
            )
        rows[POOL].append(measure_cross_fitted_cell(pool_F))
        rows[OTHERS].append(measure_plain_cell(others_S[s]))
        for name, baseline in published.items():
            rows[name].append(Cell(measure(baseline.fit(tables[s].tasks)), baseline.label, False))
        if self_tuning:
            of_its_own = _make_cell_measure(Scorer(tables[s], batch_size, n_batches=4000, seed=seed), exponents)
            serving = cross_fit_baseline(SelfTuning(), tables[s], seed=seed)
            rows[SELF_TUNING].append(Cell(of_its_own(serving), serving.label, True))
    settings = {
        "n_candidates": len(configs),
        "batch_size": batch_size,
        "n_batches": n_batches,
        "report_batches": report_batches,
        "resamples": resamples,
        "seed": seed,
        "folds": FOLDS,
        "folds_without_own_neighbours": [c.strict for c in choices],
    }
    if exponents is not None:
        settings |= {"objective": objective, "exponents": list(exponents)}
    result = TransferResult(names, rows, [], settings)
    result.sentences = [sentence_about_row(name, cells, names) for name, cells in rows.items() if name != "LOO mean"]
    result.sentences += [note] if note else []
    return result


def _make_cell_measure(scorer: Scorer, exponents: Sequence[float] | None) -> Measure:
    """The ratio of a baseline's B_eff to LOO's, or its step's predicted progress."""
    if exponents is None:
        return lambda baseline: scorer.score_baseline(baseline).ratio
    predictor = StepPredictor(scorer, tuple(exponents))
    return lambda baseline: join_over_exponents(predictor.predict_step_progress(baseline))[0]


def geometric_mean_of_ratios(cells: Sequence[Cell]) -> float:
    """Geometric mean of the ratios."""
    values = np.array([c.ratio.value for c in cells])
    return float(np.exp(np.mean(np.log(values)))) if (values > 0).all() else np.nan


def sentence_about_row(name: str, cells: Sequence[Cell], columns: Sequence[str]) -> str:
    """A row in plain words: where it gains, where it loses (the interval excludes 1), and how many sets cannot tell."""
    gains = [f"{c} ({cell.ratio:.2f})" for c, cell in zip(columns, cells, strict=True) if cell.ratio.low > 1]
    losses = [f"{c} ({cell.ratio:.2f})" for c, cell in zip(columns, cells, strict=True) if cell.ratio.high < 1]
    rest = len(cells) - len(gains) - len(losses)
    parts = [f"gains on {', '.join(gains)}" if gains else "", f"loses on {', '.join(losses)}" if losses else ""]
    if rest:
        parts.append(
            f"cannot be told from LOO on {rest} of {len(cells)}"
            if rest < len(cells)
            else "cannot be told from LOO on any set"
        )
    labels = {cell.label for cell in cells if not cell.cross_fitted}
    what = f" ({labels.pop()})" if len(labels) == 1 and name.startswith("tuned on") else ""
    return (
        f"{name[0].upper()}{name[1:]}{what}: {'; '.join(p for p in parts if p)}; geometric mean "
        f"{geometric_mean_of_ratios(cells):.2f}."
    )


def _log_or_worst_value(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values) & (values > 0), np.log(np.maximum(values, 1e-9)), -10.0)
