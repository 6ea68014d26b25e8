"""The search itself: Optuna's samplers or the plain hill-climb, a budget, a storage that several machines may share.

The result is a list of trials in the order they were made; everything the report says is computed from that list, so a
search that was killed and resumed, or made by four machines, reads the same.
"""

from __future__ import annotations

import json
import logging
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rollonce.baselines import LinearSmoother
from rollonce.errors import InputError
from rollonce.tuning.hillclimb import generate_climb_steps
from rollonce.tuning.space import Bank, Space, list_starting_points

SAMPLERS = ("tpe", "cmaes", "hillclimb")


class Budget(NamedTuple):
    """When to stop: after so many trials, or so many seconds; the other one is infinite."""

    trials: float
    seconds: float

    @classmethod
    def from_budget_text(cls, text: str) -> Budget:
        """``200`` trials, ``60s``, ``5m`` or ``1h``.

        Raises:
            InputError: for anything else, or nothing.
        """
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
        if not found or float(found[1]) <= 0 or (found[2] is None and "." in found[1]):
            raise InputError(f"--budget must be a number of trials or a time, as 200, 60s or 5m, not {text!r}")
        if found[2] is None:
            return cls(float(found[1]), np.inf)
        return cls(np.inf, float(found[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[found[2]])


class Trial(NamedTuple):
    """One trial.

    Attributes:
        number: Its place in the search.
        value: Ratio of B_eff to the in-batch LOO mean on the tune part; NaN if it could not be told.
        seconds: What it took.
        config: The baseline's configuration, with which `rollonce.component.from_config` builds it again.
        params: The answers that made it.
    """

    number: int
    value: float
    seconds: float
    config: dict[str, Any]
    params: dict[str, Any]


Progress = Callable[[int, float, float], None]


@dataclass
class Search:
    """A search over a space.

    Args:
        space: What may be searched.
        bank: Fitted features.
        value: What a fitted baseline is worth (larger is better).
        sampler: ``tpe``, ``cmaes`` (TPE for the structure, then CMA-ES on the numbers of the best structure) or
            ``hillclimb``.
        seed: Of the sampler. Without a storage, or as the first worker of one, equal seeds give equal trials.
        storage: A file path (SQLite), an Optuna URL, or None for memory. A search of the same name there is continued.
        name: Its name in the storage; must change with anything that changes a trial's value.
    """

    space: Space
    bank: Bank
    value: Callable[[LinearSmoother], float]
    sampler: str = "tpe"
    seed: int = 0
    storage: str | None = None
    name: str = "rollonce"

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise InputError(f"--sampler must be one of {', '.join(SAMPLERS)}, not {self.sampler!r}")
        if self.sampler == "hillclimb" and self.storage is not None:
            raise InputError("the plain hill-climb keeps no storage; use --sampler tpe or cmaes with --storage")
        self.study: Any = None

    def run_until_budget_spent(self, budget: Budget, progress: Progress | None = None) -> list[Trial]:
        """Trials until the budget is spent, oldest first (those found in the storage count towards a budget in trials).

        Args:
            budget: When to stop. At least one trial is made.
            progress: Called with (trials done, seconds, best value so far) after each.
        """
        return (
            self._climb_greedily(budget, progress)
            if self.sampler == "hillclimb"
            else self._search_with_optuna(budget, progress)
        )

    def _climb_greedily(self, budget: Budget, progress: Progress | None) -> list[Trial]:
        out: list[Trial] = []
        begin = last = time.perf_counter()
        for step in generate_climb_steps(self.space, self.bank, self.value, seed=self.seed):
            now = time.perf_counter()
            out.append(Trial(len(out), step.value, now - last, step.config, step.params))
            last = now
            if progress:
                progress(len(out), now - begin, best_trial_value(out))
            if len(out) >= budget.trials or now - begin >= budget.seconds:
                break
        return out

    def _search_with_optuna(self, budget: Budget, progress: Progress | None) -> list[Trial]:
        optuna = _import_quiet_optuna()
        study = self.study = optuna.create_study(
            storage=optuna_storage_url(self.storage), study_name=self.name, direction="maximize", load_if_exists=True
        )
        if not study.get_trials(deepcopy=False):
            for params in list_starting_points(self.space):
                study.enqueue_trial(params, skip_if_exists=True)
        done = _completed_trials(study)
        begin = time.perf_counter()
        worker: int | None = None
        best = max((t.value for t in done if np.isfinite(t.value)), default=-np.inf)
        n_done = len(done)
        while n_done < budget.trials or worker is None:
            if n_done >= budget.trials and done:
                break  # a finished search, read again
            trial = study.ask()
            if worker is None:  # the first trial's number is this worker's own: no two draw the same candidates
                worker = int(trial.number)
                study.sampler = self._make_tpe_sampler(optuna, worker)
            elif self.sampler == "cmaes" and n_done == round(
                0.4 * _estimate_planned_trials(budget, n_done, time.perf_counter() - begin)
            ):
                study.sampler = self._make_cmaes_sampler(optuna, study, worker)
            start = time.perf_counter()
            baseline = self.space.build_baseline(_OptunaAsk(trial), self.bank)
            v = self.value(baseline)
            trial.set_user_attr("config", json.dumps(baseline.config()))
            trial.set_user_attr("seconds", time.perf_counter() - start)
            if np.isfinite(v):
                study.tell(trial, v)
                best = max(best, v)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            n_done += 1
            if self.storage is not None and n_done % 10 == 0:
                n_done = max(n_done, len(_completed_trials(study)))  # other machines' trials count as well
            seconds = time.perf_counter() - begin
            if progress:
                progress(n_done, seconds, best)
            if seconds >= budget.seconds:
                break
        return _completed_trials(study)

    def _make_tpe_sampler(self, optuna: Any, worker: int) -> Any:
        return optuna.samplers.TPESampler(
            seed=self.seed + 7919 * worker, multivariate=True, group=True, n_startup_trials=20
        )

    def _make_cmaes_sampler(self, optuna: Any, study: Any, worker: int) -> Any:
        """CMA-ES on the numbers, with the choices of the best trial so far held fixed."""
        if not _completed_trials(study):
            return study.sampler
        best = study.best_trial
        fixed = {
            k: v
            for k, v in best.params.items()
            if isinstance(best.distributions[k], optuna.distributions.CategoricalDistribution)
        }
        numbers = {k: v for k, v in best.params.items() if k not in fixed}
        if len(numbers) < 2:  # CMA-ES needs two dimensions
            return study.sampler
        with warnings.catch_warnings():  # x0 goes in Optuna 6; below it there is no other way to say where to begin
            warnings.simplefilter("ignore", FutureWarning)
            inner = optuna.samplers.CmaEsSampler(
                x0=numbers, seed=self.seed + 7919 * worker, n_startup_trials=0, warn_independent_sampling=False
            )
        return optuna.samplers.PartialFixedSampler(fixed, inner)


class _OptunaAsk:
    """`Ask` on an Optuna trial. Lists become JSON text where Optuna wants plain values."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def suggest_option(self, name: str, options: Any) -> Any:
        return self.trial.suggest_categorical(name, list(options))

    def suggest_real_number(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return self.trial.suggest_float(name, low, high, log=log)

    def suggest_whole_number(self, name: str, low: int, high: int) -> int:
        return self.trial.suggest_int(name, low, high, log=True)


def optuna_storage_url(storage: str | None) -> str | None:
    """An Optuna URL; a plain path is an SQLite file."""
    return storage if storage is None or "://" in storage else f"sqlite:///{storage}"


def best_trial_value(trials: list[Trial]) -> float:
    """The best value; -inf without any."""
    return max((t.value for t in trials if np.isfinite(t.value)), default=-np.inf)


def best_value_curve(trials: list[Trial]) -> list[tuple[int, float, float]]:
    """(trials, seconds of trials, best value so far) after each trial that improved, and after the last: how easy it
    is."""
    out: list[tuple[int, float, float]] = []
    seconds, best = 0.0, -np.inf
    for i, t in enumerate(trials, 1):
        seconds += t.seconds
        if np.isfinite(t.value) and t.value > best:
            best = t.value
            out.append((i, seconds, best))
    if out and out[-1][0] != len(trials):
        out.append((len(trials), seconds, best))
    return out


def trials_until_share_of_gain(curve: list[tuple[int, float, float]], share: float = 0.95) -> int | None:
    """Trials after which this share of the final gain over LOO (ratio 1) had been found; None if there was no gain."""
    if not curve or curve[-1][2] <= 1:
        return None
    wanted = 1 + share * (curve[-1][2] - 1)
    return next(n for n, _, best in curve if best >= wanted)


def parameter_importances(study: Any) -> dict[str, dict[str, float]]:
    """Which parameters mattered, by Optuna's PED-ANOVA (fANOVA needs scikit-learn, which the core does without): over
    all trials, and within the family of the best one.

    Conditional parameters exist in some trials only, so the first knows just those that all share. Empty where there
    are too few trials.
    """
    if study is None:
        return {}
    optuna = _import_quiet_optuna()
    done = [t for t in study.get_trials(deepcopy=False) if t.state == optuna.trial.TrialState.COMPLETE]
    if len(done) < 10:
        return {}
    family = study.best_trial.params["family"]
    out = {}
    for label, trials in (
        ("all trials", done),
        (f"within {family}", [t for t in done if t.params["family"] == family]),
    ):
        part = optuna.create_study(direction="maximize")
        part.add_trials(trials)
        if len(trials) < 10:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                evaluator = optuna.importance.PedAnovaImportanceEvaluator()
                found = optuna.importance.get_param_importances(part, evaluator=evaluator)
            except (RuntimeError, ValueError):  # all trials alike: nothing mattered
                continue
        out[label] = {k: float(v) for k, v in found.items()}
    return out


def _estimate_planned_trials(budget: Budget, n_done: int, seconds: float) -> float:
    """Trials in all, as far as can be told: from the budget, or from the pace so far."""
    return budget.trials if np.isfinite(budget.trials) else max(n_done, 1) * budget.seconds / max(seconds, 1e-9)


def _completed_trials(study: Any) -> list[Trial]:
    out = []
    for t in study.get_trials(deepcopy=False):
        if t.state.name == "COMPLETE" and "config" in t.user_attrs:
            out.append(
                Trial(
                    t.number,
                    float(t.value),
                    float(t.user_attrs["seconds"]),
                    json.loads(t.user_attrs["config"]),
                    dict(t.params),
                )
            )
    return out


def _import_quiet_optuna() -> Any:
    """Optuna, loaded when first searched with; it need not be there to use what it found."""
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
