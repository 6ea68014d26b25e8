"""The search space, written once: a function that asks for values and gives a baseline.

Whoever searches brings the answers: Optuna's trial, the greedy hill-climb, or a random generator. A branch that is not
taken asks nothing, so parameters are conditional without a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rollonce.baselines import Baseline, KernelBaseline, Kriging, LinearSmoother
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.features import CategoryColumn, Embedding, Feature, LogLength, NumberColumn, Tfidf
from rollonce.kernels import Buckets, Cosine, Kernel, Mixture, Nearest, Product, Rbf, Same, Softmax
from rollonce.rollouts import Rollouts, Tasks

# Terms kept by a tuned TF-IDF: what makes baseline.json small (about 100 kB) and similarity tables quick.
MAX_FEATURES = 2000

# Raised whenever a parameter is added or changes its meaning, so that an old storage is not continued with another
# space.
SPACE_VERSION = 1


class Ask(Protocol):
    """Where values come from."""

    def suggest_option(self, name: str, options: Sequence[Any]) -> Any:
        """One of the options (plain JSON values)."""
        ...

    def suggest_real_number(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number in [low, high]."""
        ...

    def suggest_whole_number(self, name: str, low: int, high: int) -> int:
        """An integer in [low, high], on a logarithmic scale."""
        ...


@dataclass
class Space:
    """What may be searched on a table.

    Args:
        number_columns, category_columns: Declared pre-rollout columns that may be used.
        embedding: Whether sentence embeddings (extra ``embed``) may be used.
        window: The longest history window in rows; 0 keeps to the batch.
        families: Kernel families to search; all by default.
        start: The configuration of a smoother that is a family of its own, "start": its numbers are searched around
            their values.
    """

    number_columns: tuple[str, ...] = ()
    category_columns: tuple[str, ...] = ()
    embedding: bool = False
    window: int = 0
    families: tuple[str, ...] = ()
    start: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        every = (
            "softmax",
            "kriging",
            "rbf",
            "nearest",
            "buckets",
            "cosine",
            "product",
            "mixture",
            *(("same",) if self.category_columns else ()),
        )
        every = ("start", *every) if self.start is not None else every
        self.families = tuple(f for f in every if not self.families or f in self.families)

    @classmethod
    def from_rollout_tables(
        cls, rollouts: Rollouts | Sequence[Rollouts], *, window: int = 0, embedding: bool = False
    ) -> Space:
        """The space for one table, or for the columns that several have in common.

        Args:
            window: See `Space`.
            embedding: Search sentence embeddings as well; they need the extra and cost seconds to minutes a set.
        """
        tables = [rollouts] if isinstance(rollouts, Rollouts) else list(rollouts)
        shared = [c for c in tables[0].tasks.column_names if all(c in t.tasks.column_names for t in tables)]
        numeric = [c for c in shared if all(_is_numeric_column(t.tasks, c) for t in tables)]
        return cls(tuple(numeric), tuple(c for c in shared if c not in numeric), embedding, window)

    def with_start_baseline(self, baseline: Baseline) -> Space:
        """The same space with a baseline of one's own in it.

        Raises:
            InputError: for one that is no weighted mean of other rewards.
        """
        if not isinstance(baseline, LinearSmoother):
            raise InputError(
                f"{baseline.label} is no weighted mean of other rewards, so there is nothing to search around it; put "
                "it on a board with rollonce score --baseline"
            )
        return replace(self, families=("start", *self.families), start=baseline.config())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, with the version of the space."""
        return {
            "version": SPACE_VERSION,
            "max_features": MAX_FEATURES,
            **{k: getattr(self, k) for k in self.__dataclass_fields__},
        }

    def build_baseline(self, ask: Ask, bank: Bank) -> LinearSmoother:
        """The baseline that the answers describe, fitted (features come from the bank)."""
        family = ask.suggest_option("family", self.families)
        window = 0
        decay = 1.0
        if self.window:
            window = ask.suggest_option("window", [0, self.window // 4, self.window // 2, self.window])
            if window:
                decay = ask.suggest_option("decay", [1.0, 0.98, 0.95, 0.9])
        shrinkage = ask.suggest_real_number("shrinkage", 0.0, 1.0)
        shrinkage = shrinkage if shrinkage > 0.02 else 0.0
        if family == "start" and self.start is not None:
            numbers = {
                path: ask.suggest_real_number(path, v / 8, v * 8, log=True)
                for path, v in _collect_positive_numbers(self.start).items()
            }
            config = _replace_numbers(self.start, numbers) | {"window": window, "decay": decay, "shrinkage": shrinkage}
            return bank.rebuild_from_config(config)
        if family == "kriging":
            kernels, variances = self._build_covariances(ask, bank)
            nugget = ask.suggest_real_number("nugget", 1e-3, 10.0, log=True)
            return Kriging(kernels, variances, nugget, window=window, decay=decay, shrinkage=shrinkage)
        return KernelBaseline(
            self._build_kernel_of_family(family, ask, bank), window=window, decay=decay, shrinkage=shrinkage
        )

    def _build_kernel_of_family(self, family: str, ask: Ask, bank: Bank) -> Kernel:
        if family == "softmax":
            return Softmax(
                self._choose_text_feature(ask, bank), ask.suggest_real_number("temperature", 0.02, 3.0, log=True)
            )
        if family == "cosine":
            return Cosine(self._choose_text_feature(ask, bank))
        if family == "rbf":
            return self._build_rbf_kernel(ask, bank)
        if family == "nearest":
            return Nearest(self._choose_text_feature(ask, bank), ask.suggest_whole_number("k", 1, 64))
        if family == "buckets":
            return Buckets(self._choose_numeric_feature(ask, bank), ask.suggest_whole_number("buckets", 2, 12))
        if family == "same":
            return self._build_same_kernel(ask, bank)
        first = Softmax(
            self._choose_text_feature(ask, bank), ask.suggest_real_number("temperature", 0.02, 3.0, log=True)
        )
        second = (
            self._build_same_kernel(ask, bank)
            if self.category_columns and ask.suggest_option("partner", ["number", "same"]) == "same"
            else self._build_rbf_kernel(ask, bank)
        )
        if family == "product":
            return Product([first, second])
        share = ask.suggest_real_number("share", 0.05, 0.95)
        return Mixture([first, second], [share, 1 - share])

    def _build_covariances(self, ask: Ask, bank: Bank) -> tuple[list[Kernel], list[float]]:
        text = self._choose_text_feature(ask, bank)
        sharp = ask.suggest_option("covariance", ["cosine", "softmax"]) == "softmax"
        kernels: list[Kernel] = [
            Softmax(text, ask.suggest_real_number("temperature", 0.02, 3.0, log=True)) if sharp else Cosine(text)
        ]
        variances = [ask.suggest_real_number("variance_text", 1e-3, 30.0, log=True)]
        kernels.append(self._build_rbf_kernel(ask, bank))
        variances.append(ask.suggest_real_number("variance_number", 1e-3, 30.0, log=True))
        if self.category_columns:
            kernels.append(self._build_same_kernel(ask, bank))
            variances.append(ask.suggest_real_number("variance_same", 1e-3, 30.0, log=True))
        return kernels, variances

    def _build_rbf_kernel(self, ask: Ask, bank: Bank) -> Rbf:
        return Rbf(
            self._choose_numeric_feature(ask, bank), ask.suggest_real_number("length_scale", 0.03, 3.0, log=True)
        )

    def _build_same_kernel(self, ask: Ask, bank: Bank) -> Same:
        name = (
            self.category_columns[0]
            if len(self.category_columns) == 1
            else ask.suggest_option("category", self.category_columns)
        )
        return Same(bank.get_fitted_feature(CategoryColumn(name)))  # type: ignore[arg-type]

    def _choose_numeric_feature(self, ask: Ask, bank: Bank) -> Feature:
        if not self.number_columns:
            return bank.get_fitted_feature(LogLength())
        name = ask.suggest_option("number", ["log_length", *self.number_columns])
        return bank.get_fitted_feature(LogLength() if name == "log_length" else NumberColumn(name))

    def _choose_text_feature(self, ask: Ask, bank: Bank) -> Feature:
        kind = ask.suggest_option("text", ["word", "char", *(("embedding",) if self.embedding else ())])
        if kind == "embedding":
            return bank.get_fitted_feature(Embedding())
        sublinear = ask.suggest_option("sublinear", [False, True])
        if kind == "char":  # the dear ones to compute: two variants only
            return bank.get_fitted_feature(Tfidf("char_wb", (2, 4), sublinear, max_features=MAX_FEATURES))
        skeleton = ask.suggest_option("skeleton", [False, True])
        ngrams = (1, ask.suggest_option("word_ngrams", [1, 2, 3]))
        return bank.get_fitted_feature(Tfidf("word", ngrams, sublinear, max_features=MAX_FEATURES, skeleton=skeleton))


@dataclass
class Bank:
    """Fitted features of one set of tasks, each fitted once: its matrix and similarity tables stay cached with the
    tasks."""

    tasks: Tasks
    _features: dict[str, Feature] = field(default_factory=dict)

    def get_fitted_feature(self, feature: Feature) -> Feature:
        """This feature, fitted on the tasks' prompts."""
        key = json.dumps(feature.config(), sort_keys=True)
        if key not in self._features:
            self._features[key] = feature.fit(self.tasks)
        return self._features[key]

    def rebuild_from_config(self, config: dict[str, Any]) -> LinearSmoother:
        """The baseline of a configuration with this bank's fitted features in place of fresh ones."""
        return self.put_in_fitted_features(from_config(config))

    def put_in_fitted_features(self, baseline: LinearSmoother) -> LinearSmoother:
        """Puts this bank's fitted features into a baseline (in place) and returns it."""
        self._replace_features_within(baseline)
        return baseline

    def _replace_features_within(self, component: Any) -> None:
        for name, child in component.nested_components().items():
            if isinstance(child, Feature):
                setattr(component, name, self.get_fitted_feature(child))
            else:
                self._replace_features_within(child)


@dataclass
class Answers:
    """Answers from a dictionary; what is missing is drawn at random and noted in ``values``. Also the memory of the
    hill-climb."""

    rng: np.random.Generator
    values: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def suggest_option(self, name: str, options: Sequence[Any]) -> Any:
        self.kinds[name] = ("choice", list(options))
        if self.values.get(name) not in options:
            self.values[name] = options[int(self.rng.integers(len(options)))]
        return self.values[name]

    def suggest_real_number(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        self.kinds[name] = ("real", low, high, log)
        if name not in self.values:
            u = self.rng.random()
            self.values[name] = float(low * (high / low) ** u if log else low + (high - low) * u)
        return self.values[name]

    def suggest_whole_number(self, name: str, low: int, high: int) -> int:
        self.kinds[name] = ("integer", low, high)
        if name not in self.values:
            self.values[name] = int(min(high, low * ((high + 1) / low) ** self.rng.random()))
        return self.values[name]


# Where every search begins: the published example, half-way to LOO, and Kriging with untuned settings (FINDINGS: at or
# above LOO mostly).
STARTS: tuple[dict[str, Any], ...] = (
    {
        "family": "softmax",
        "text": "word",
        "sublinear": False,
        "skeleton": False,
        "word_ngrams": 1,
        "temperature": 0.1,
        "shrinkage": 0.0,
    },
    {
        "family": "softmax",
        "text": "word",
        "sublinear": True,
        "skeleton": False,
        "word_ngrams": 1,
        "temperature": 0.2,
        "shrinkage": 0.5,
    },
    {
        "family": "kriging",
        "text": "word",
        "sublinear": False,
        "skeleton": False,
        "word_ngrams": 1,
        "covariance": "cosine",
        "variance_text": 0.5,
        "variance_number": 0.25,
        "variance_same": 0.5,
        "length_scale": 0.3,
        "nugget": 0.25,
        "shrinkage": 0.0,
    },
    {"family": "rbf", "length_scale": 0.3, "shrinkage": 0.3},
)


def list_starting_points(space: Space) -> list[dict[str, Any]]:
    """The starting points that a space allows, with its longest window where it has one."""
    extra = {"window": space.window, "decay": 1.0, "number": "log_length", "partner": "number"}
    usual = [{**s, **extra} for s in STARTS if s["family"] in space.families]
    if space.start is None:
        return usual
    own = {"family": "start", "window": space.window if space.start["window"] else 0, "decay": 1.0}
    return [{**own, "shrinkage": space.start["shrinkage"], **_collect_positive_numbers(space.start)}, *usual]


_OF_EVERY_SMOOTHER = ("window", "decay", "shrinkage")


def _collect_positive_numbers(config: dict[str, Any], inside: str = "start") -> dict[str, float]:
    """The positive numbers of a configuration by their place, without those that every smoother has."""
    out: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            out |= _collect_positive_numbers(value, f"{inside}.{name}")
        elif isinstance(value, float) and value > 0 and name not in _OF_EVERY_SMOOTHER:
            out[f"{inside}.{name}"] = value
    return out


def _replace_numbers(config: dict[str, Any], numbers: dict[str, float], inside: str = "start") -> dict[str, Any]:
    return {
        name: _replace_numbers(value, numbers, f"{inside}.{name}")
        if isinstance(value, dict)
        else numbers.get(f"{inside}.{name}", value)
        for name, value in config.items()
    }


def _is_numeric_column(tasks: Tasks, column: str) -> bool:
    try:
        return bool(np.isfinite(tasks.column(column).astype(np.float64)).all())
    except (TypeError, ValueError):
        return False
