"""The baselines that have a name: one list for the board, the arms of a training run and a specification.

A name means a baseline that sees the batch alone. ``<name>_window`` sees the newest 512 rows of earlier steps as well
(16 steps of 32, as in the post), ``<name>_window_<rows>`` another number of them: ``length_buckets``,
``length_buckets_window``, ``kriging_window_128``. Critics, trackers and the oracle know nothing but the past; their
names have no window unless another than their own is asked for (``ridge_window_128``).

``norm_weighted_<name>`` is any smoother with the rewards weighted by typical squared gradient norms
(`rollonce.baselines.norm_weighted`): ``norm_weighted_loo_window``, ``norm_weighted_self_tuning``.

`ALIASES` are names from before this rule, from configurations and from specifications; they go on working.
``tfidf_kernel_loo_T<temperature>`` is the published TF-IDF kernel at another temperature.

A new baseline is a file and an `Entry` here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rollonce.baselines.base import Baseline, LinearSmoother
from rollonce.baselines.experts import ExpertMixture
from rollonce.baselines.groups import Grpo, Rloo
from rollonce.baselines.james_stein import JamesStein
from rollonce.baselines.kernel import KernelBaseline, LeaveOneOut, family_mean_baseline
from rollonce.baselines.kriging import Kriging
from rollonce.baselines.norm_weighted import NormWeighted
from rollonce.baselines.opo import Opo
from rollonce.baselines.own import imported_baseline, load_offered_baseline, offered_baselines
from rollonce.baselines.plain import Constant, FlashReinforce, NoBaseline, ReinforcePlusPlus
from rollonce.baselines.regressor import BoostedTrees, Ridge
from rollonce.baselines.self_tuning import SelfTuning
from rollonce.baselines.tracker import Oracle, Tracker
from rollonce.errors import InputError
from rollonce.features import LogLength, Tfidf
from rollonce.kernels import Buckets, Nearest, Rbf, Softmax
from rollonce.rollouts import Tasks

WINDOW = 512
"""Rows of earlier steps behind ``_window``: the post's 16 batches of 32."""

Forms = Literal["batch", "both", "history"]


@dataclass(frozen=True)
class Entry:
    """One named baseline.

    Attributes:
        name: What configurations and specifications call it.
        make: From a number of rows of earlier steps (0 for none) to a fresh, unfitted baseline.
        short: A few letters for figures.
        formula: ``b_i`` in one line; ``r`` rewards, ``w`` weights, ``p`` pre-rollout features.
        forms: ``batch``: without a window only. ``both``: with and without. ``history``: with one only.
        window: Of a ``history`` form, its own number of rows; 0 where the number of rows is no setting of it.
        board: The forms that `rollonce score` ranks by default, or None.
        published_example: The form in which the post ("You Only Rollout Once") gives it as an example of GS1, or None.
        per_column: Made once for each declared column of the tasks.
    """

    name: str
    make: Callable[[int], Baseline]
    short: str
    formula: str
    forms: Forms = "batch"
    window: int = 0
    board: Forms | None = None
    published_example: Forms | None = None
    per_column: bool = False

    @property
    def baseline_class(self) -> type[Baseline]:
        """The class that it makes."""
        return type(self.make(self.window))

    @property
    def cited_source(self) -> str:
        """Paper or post, as the class cites it."""
        return self.baseline_class.source

    @property
    def label_in_tables(self) -> str:
        """What tables call its form without a window, or its only one."""
        return self.make(self.window).label


CATALOGUE: tuple[Entry, ...] = (
    Entry("none", lambda _: NoBaseline(), "none", "0", board="batch"),
    Entry("constant", lambda _: Constant(), "0.5", "0.5", board="batch"),
    Entry(
        "flashreinforce", lambda _: FlashReinforce(), "Flash", "mean_j r_j over the batch, own included", board="batch"
    ),
    Entry(
        "reinforce++", lambda _: ReinforcePlusPlus(), "R++", "mean_j r_j; A over the batch's deviation", board="batch"
    ),
    Entry("loo", lambda w: LeaveOneOut(window=w), "LOO", "mean_{j != i} r_j", forms="both", board="both"),
    Entry("grpo", lambda _: Grpo(), "GRPO", "mean of the task's group, own included"),
    Entry("grpo_std", lambda _: Grpo(scale="group"), "GRPO std", "as grpo; A over the group's deviation"),
    Entry("rloo", lambda _: Rloo(), "RLOO", "mean of the task's other rollouts"),
    Entry("opo", lambda _: Opo(), "OPO", "sum_j l_j r_j / sum_j l_j over the task's group, own included; l lengths"),
    Entry("opo_loo", lambda _: Opo(own=False), "OPO LOO", "as opo, over the group's others"),
    Entry(
        "opo_batch",
        lambda _: Opo(over="batch", own=False),
        "OPO batch",
        "as opo, over the batch's others: one rollout per task",
    ),
    Entry(
        "james_stein",
        lambda _: JamesStein(),
        "James-Stein",
        "(1 - a) rloo + a (mean of the other groups), a = v / (v + tau^2) of the other groups",
    ),
    Entry(
        "length_buckets",
        lambda w: KernelBaseline(Buckets(), window=w),
        "length",
        "mean_{j != i} r_j over prompts in the same fifth by length",
        forms="both",
        board="both",
        published_example="history",
    ),
    Entry(
        "tfidf",
        lambda w: KernelBaseline(Softmax(), window=w),
        "TF-IDF",
        "sum_{j != i} w_ij r_j / sum w_ij, w_ij = exp(cos(p_i, p_j) / 0.1)",
        forms="both",
        board="both",
        published_example="batch",
    ),
    Entry(
        "tfidf_half_loo",
        lambda w: KernelBaseline(Softmax(), window=w, shrinkage=0.5),
        "TF-IDF/2",
        "half tfidf, half loo",
        forms="both",
        board="batch",
    ),
    Entry(
        "tfidf_sublinear",
        lambda w: KernelBaseline(Softmax(Tfidf(sublinear=True), temperature=0.2), window=w),
        "TF-IDF log",
        "as tfidf, with 1 + ln(tf) and T = 0.2",
        forms="both",
        board="batch",
    ),
    Entry(
        "tfidf_characters",
        lambda w: KernelBaseline(Softmax(Tfidf(analyzer="char_wb", ngrams=(3, 5)), temperature=0.1), window=w),
        "char TF-IDF",
        "as tfidf, on 3 to 5 characters within words",
        forms="both",
        board="batch",
    ),
    Entry(
        "length_rbf",
        lambda w: KernelBaseline(Rbf(LogLength()), window=w),
        "RBF length",
        "as tfidf, w_ij = exp(-(ln len_i - ln len_j)^2 / (2 l^2))",
        forms="both",
        board="batch",
    ),
    Entry(
        "tfidf_nearest",
        lambda w: KernelBaseline(Nearest(k=8), window=w),
        "kNN",
        "mean of the 8 nearest by TF-IDF",
        forms="both",
        board="batch",
    ),
    Entry(
        "family",
        lambda w: family_mean_baseline(window=w),
        "family",
        "mean_{j != i} r_j over tasks with the same declared column",
        forms="both",
        board="both",
        per_column=True,
    ),
    Entry(
        "kriging",
        lambda w: Kriging(window=w),
        "Kriging",
        "r_i - [P r]_i / P_ii, P the precision of the rewards less its mean",
        forms="both",
        board="both",
    ),
    Entry(
        "ridge",
        lambda w: Ridge(window=w),
        "ridge",
        "ridge regression of past rewards on p",
        forms="history",
        window=WINDOW,
        board="history",
    ),
    Entry(
        "boosted_trees",
        lambda w: BoostedTrees(window=w),
        "trees",
        "boosted trees of past rewards on p",
        forms="history",
        window=2048,
        board="history",
    ),
    Entry(
        "self_tuning",
        lambda w: SelfTuning(window=w),
        "self-tuning",
        "Kriging with shares of variance fitted on past rewards",
        forms="both",
        board="both",
    ),
    # A fit on 256 rows every 32 steps costs less than the prediction itself; on 500 every 4, ten times a tiny policy's
    # share.
    Entry(
        "self_tuning_light",
        lambda w: SelfTuning(window=w, max_rows=256, refit_every=32),
        "self-tuning",
        "as self_tuning, fitted on 256 rows every 32 steps",
        forms="both",
    ),
    Entry(
        "norm_weighted_loo",
        lambda w: NormWeighted(LeaveOneOut(window=w)),
        "LOO norm",
        "sum_{j != i} m_j r_j / sum m_j, m_j the typical S^2 of past rollouts with reward r_j, S = -log pi",
        forms="both",
    ),
    Entry("experts", lambda _: ExpertMixture(), "experts", "the mixture of baselines with the least past E[A^2]"),
    Entry(
        "tracker", lambda _: Tracker(), "tracker", "discounted mean of the task's own earlier rewards", board="batch"
    ),
    Entry("oracle", lambda _: Oracle(), "oracle", "the task's true mean reward", board="batch"),
)

ALIASES: dict[str, str] = {
    "gs1_tfidf": "tfidf",
    "gs1_buckets": "length_buckets_window",
    "gs1_family": "family",
    "gs1_kriging": "kriging_window_128",
    "gs1_self_tuning": "self_tuning_light_window_128",
    "critic_prompt": "ridge",
    "critic_trees": "boosted_trees",
    "group_mean": "grpo",
    "batch_mean": "flashreinforce",
    "loo_mean": "loo",
    "length_buckets_loo": "length_buckets",
}
"""Other names of the same baselines, in configurations and specifications: from -> to."""

NORM_WEIGHTED = "norm_weighted_"
"""Before the name of a smoother: its norm-weighted form."""

_BY_NAME = {entry.name: entry for entry in CATALOGUE}
_WINDOWED = re.compile(r"(.+?)_window(?:_(\d+))?")
_TFIDF_AT = re.compile(r"tfidf_kernel_loo_T(\d+(?:\.\d+)?)")


def tfidf_temperature(name: str) -> float | None:
    """The temperature in ``tfidf_kernel_loo_T0.1``; None for other names."""
    match = _TFIDF_AT.fullmatch(name)
    return float(match[1]) if match else None


def known_baseline_names() -> list[str]:
    """Every name in the list (windowed forms, which follow the rule, not repeated), the aliases, and what installed
    packages offer."""
    return [*_BY_NAME, *ALIASES, *offered_baselines()]


def load_baseline(what: str | os.PathLike[str]) -> Baseline:
    """The baseline of a file that `Baseline.save` wrote, as it was fitted; or a fresh one by its name, see
    `named_baseline`.

    Raises:
        InputError: if there is no such file or name.
    """
    text = os.fspath(what)
    if text.endswith(".json") or os.path.isfile(text) or (os.sep in text and ":" not in text):
        return Baseline.load(text)
    return named_baseline(text)


def named_baseline(name: str) -> Baseline:
    """A fresh, unfitted baseline by its name, its windowed name or an alias; by the name under which an installed
    package offers it; or as ``module:name`` (`rollonce.baselines.own`).

    Raises:
        InputError: for a name that means nothing, and a window for a baseline that has none.

    >>> named_baseline("loo_window_64").label
    'LOO mean, window 64'
    """
    if ":" in name:
        return imported_baseline(name)
    if name.startswith(NORM_WEIGHTED) and name not in _BY_NAME:
        return _make_norm_weighted(named_baseline(name.removeprefix(NORM_WEIGHTED)), name)
    temperature = tfidf_temperature(name)
    if temperature is not None:
        return KernelBaseline(Softmax(temperature=temperature))
    name = ALIASES.get(name, name)
    if name in _BY_NAME:
        return _BY_NAME[name].make(_BY_NAME[name].window)
    match = _WINDOWED.fullmatch(name)
    entry = _BY_NAME.get(match[1]) if match else None
    if match is None or entry is None:
        if name in offered_baselines():
            return load_offered_baseline(name)
        raise InputError(
            f"there is no baseline {name!r}; there are {', '.join(known_baseline_names())}, with rows of earlier steps "
            "<name>_window and <name>_window_<rows>, and module:name for one of your own"
        )
    if entry.forms == "batch":
        raise InputError(f"{entry.name} has no window: {name!r} means nothing; take {entry.name}")
    return entry.make(int(match[2]) if match[2] else WINDOW)


def _make_norm_weighted(smoother: Baseline, name: str) -> NormWeighted:
    if not isinstance(smoother, LinearSmoother):
        raise InputError(f"{smoother.label} is no weighted mean of other rewards, so {name!r} means nothing")
    return NormWeighted(smoother)


def default_board_baselines(tasks: Tasks, window: int = WINDOW, norm_exponent: float | None = None) -> list[Baseline]:
    """What `rollonce score` ranks by default, unfitted: plain ones, the published examples, relatives, and their
    windowed forms.

    Args:
        tasks: A declared column of these becomes a "same column" baseline of its own.
        window: Rows of earlier steps for the windowed forms; 0 leaves them and the critics out.
        norm_exponent: Of the surprisal, for the norm-weighted forms, which need log-probabilities; None leaves them
            out.
    """
    out: list[Baseline] = []
    for entry in CATALOGUE:
        if entry.board is None:
            continue
        windows = {"batch": [0], "both": [0, window], "history": [window]}[entry.board]
        windows = [w for w in dict.fromkeys(windows) if w or entry.board != "history"]
        if entry.per_column:
            out += [family_mean_baseline(column, window=w) for column in tasks.column_names for w in windows]
        else:
            out += [entry.make(w) for w in windows]
    return out if norm_exponent is None else [*out, *norm_weighted_baselines(window, norm_exponent)]


def norm_weighted_baselines(window: int, exponent: float) -> list[Baseline]:
    """The norm-weighted forms that boards show, unfitted: of LOO, and of LOO, TF-IDF and self-tuning with a window."""
    smoothers: list[LinearSmoother] = [LeaveOneOut()]
    if window:
        smoothers += [
            LeaveOneOut(window=window),
            KernelBaseline(Softmax(), window=window),
            SelfTuning(window=window),
        ]
    return [NormWeighted(smoother, exponent) for smoother in smoothers]


__all__ = [
    "ALIASES",
    "CATALOGUE",
    "WINDOW",
    "Entry",
    "default_board_baselines",
    "known_baseline_names",
    "load_baseline",
    "named_baseline",
    "norm_weighted_baselines",
    "tfidf_temperature",
]
