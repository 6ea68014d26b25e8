"""Critics at prompt level: regressors of reward on pre-rollout features, trained on past steps only."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from rollonce.baselines.base import Baseline, LinearSmoother
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.tags import Cost, Tags
from rollonce.component import register
from rollonce.errors import InputError, MissingExtraError
from rollonce.features import Feature, LogLength, SparseRows, Tfidf
from rollonce.kernels.base import (
    FULL_MATRIX_UP_TO,
    BoolArray,
    full_pairwise_table,
    look_up_pair_blocks,
    normalise_log_weights,
    pairwise_similarity,
)
from rollonce.rollouts import FloatArray, IntArray, Tasks

_ENTRIES_AT_ONCE = 400_000  # what fits the processor's cache


@register
@dataclass
class Ridge(LinearSmoother):
    """Ridge regression of past rewards on features, with an unpenalised intercept; the batch's own rewards are not
    used.

    ``b = mean(y) + k_i' (K_c + penalty I)^-1 (y - mean(y))`` in its dual form with the centred Gram matrix ``K_c`` of
    the window's features: linear in the past rewards, rows summing to 1. Without history it falls back to the LOO mean
    of the batch.

    Args:
        features: Their matrices side by side; word TF-IDF and log prompt length by default.
        penalty: Ridge penalty, in the unit of the features' squared length.
        window: Rows of history it is trained on (at least 1).
    """

    type: ClassVar[str] = "ridge"
    source: ClassVar[str] = "Hoerl & Kennard 1970; dual form, Saunders et al. 1998"
    features: Sequence[Feature] = ()
    penalty: float = 1.0
    window: int = field(default=512, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.features = self.features or [Tfidf(), LogLength()]
        if self.window < 1 or not self.penalty > 0:
            raise InputError(
                f"ridge needs a window of at least 1 row and a penalty above 0, not {self.window} and {self.penalty}"
            )

    @property
    def tags(self) -> Tags:
        """Neutral over the *history* rows it learned from, which is not the leave-one-out mean of all rows visible."""
        return Tags(windowed=True, needs_history=True, neutral=False, cost=Cost.SOLVE)

    def describe(self) -> str:
        return self.describe_with_settings("ridge critic")

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """(K, B, M): zero on the batch's columns, unless there is no history."""
        n_blocks, n_columns = columns_KM.shape
        past = n_columns - n_rows
        if past == 0:
            return normalise_log_weights(np.zeros(visible_KBM.shape), visible_KBM)
        out = np.zeros(visible_KBM.shape)
        ages = ages_M[n_rows:] - ages_M[n_rows:].min()
        recency = np.exp(np.maximum(ages * np.log(self.decay), np.log(1e-12)))
        share_H = recency / recency.sum()
        chunk = max(1, _ENTRIES_AT_ONCE // past**2)
        for start in range(0, n_blocks, chunk):
            part = slice(start, min(start + chunk, n_blocks))
            w = self._history_weights(tasks, columns_KM[part, :n_rows], columns_KM[part, n_rows:], recency, share_H)
            hidden = ~visible_KBM[part, :, n_rows:]
            if hidden.any():  # a copy of the own task in the window: take its weight out
                w = np.where(hidden, 0.0, w)
                total = w.sum(axis=2, keepdims=True)
                # Nothing but copies in the window: the batch's other rows, as where there is no history.
                alone = np.abs(total) < 1e-12
                w = np.divide(w, total, out=np.zeros_like(w), where=~alone)
                if alone.any():
                    own = visible_KBM[part, :, :n_rows]
                    out[part, :, :n_rows] = np.where(alone, normalise_log_weights(np.zeros(own.shape), own), 0.0)
            out[part, :, n_rows:] = w
        return out

    def gram_of_all(self, tasks: Tasks) -> FloatArray:
        """Inner products of the features (N, N)."""
        return np.sum([full_pairwise_table(feature, tasks) for feature in self.features], axis=0)

    def _history_weights(
        self, tasks: Tasks, rows_KB: IntArray, columns_KH: IntArray, recency_H: FloatArray, share_H: FloatArray
    ) -> FloatArray:
        """Weights (K, B, H) of the window's rows. The centring by ``I - 1 share'`` is done by its rank of one."""
        if len(tasks) <= FULL_MATRIX_UP_TO:
            table = self.gram_of_all(tasks)
            gram, cross = (look_up_pair_blocks(table, rows, columns_KH) for rows in (columns_KH, rows_KB))
        else:
            gram, cross = (
                np.sum([pairwise_similarity(feature, tasks, rows, columns_KH) for feature in self.features], axis=0)
                for rows in (columns_KH, rows_KB)
            )
        mean_KH = gram @ share_H
        cross -= mean_KH[:, None, :]
        cross -= (cross @ share_H)[:, :, None]
        gram += (mean_KH @ share_H)[:, None, None] - mean_KH[:, :, None] - mean_KH[:, None, :]
        at = np.arange(len(share_H))
        gram[:, at, at] += self.penalty / recency_H
        solved = np.linalg.solve(gram, cross.swapaxes(1, 2)).swapaxes(1, 2)
        return solved + (1 - solved.sum(axis=2, keepdims=True)) * share_H


@register
@dataclass
class BoostedTrees(Baseline):
    """Gradient-boosted trees on past rewards (scikit-learn's histogram boosting), refitted on the stream.

    Args:
        features: Dense ones are used as they are; of sparse ones the leading ``components`` principal directions of the
            history.
        components: How many.
        window: Rows of history kept and trained on.
        refit_every: Steps between refits.
        min_rows: Below this many rows of history it gives the running mean.
        iterations, learning_rate, max_leaf_nodes, seed: Of the trees.

    It is fitted in `observe`, on rows of earlier steps alone. The saved file holds those rows, not the trees; loading
    fits the same trees again from the same seed. Needs the extra ``trees`` (scikit-learn).
    """

    type: ClassVar[str] = "boosted_trees"
    source: ClassVar[str] = "Friedman 2001; scikit-learn HistGradientBoostingRegressor"
    features: Sequence[Feature] = ()
    components: int = 16
    window: int = 2048
    refit_every: int = 4
    min_rows: int = 64
    iterations: int = 60
    learning_rate: float = 0.06
    max_leaf_nodes: int = 8
    seed: int = 0
    _fitted: tuple | None = field(default=None, init=False, repr=False, compare=False)
    _steps_behind: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.features = self.features or [Tfidf(), LogLength()]
        if self.window < 1 or self.refit_every < 1 or self.min_rows < 2 or self.components < 1:
            raise InputError(
                "boosted_trees needs window, refit_every and components of at least 1, and min_rows of at least 2"
            )

    @property
    def tags(self) -> Tags:
        """Learns from history; trees follow no exact scaling."""
        return Tags(
            needs_history=True,
            windowed=True,
            neutral=False,
            shift_equivariant=False,
            scale_equivariant=False,
            cost=Cost.MODEL_FIT,
        )

    def describe(self) -> str:
        """Boosted trees and their window."""
        return f"boosted-trees critic, window {self.window}"

    @property
    def keep_rows(self) -> int:
        return self.window

    def fit_tasks(self, tasks: Tasks) -> None:
        """As of any baseline; a missing scikit-learn is said here, before anything is computed.

        Raises:
            MissingExtraError: naming the extra.
        """
        if importlib.util.find_spec("sklearn") is None:  # its import takes most of a second, so not before it is used
            raise MissingExtraError("the boosted-trees critic", "scikit-learn", "trees")
        super().fit_tasks(tasks)

    def _train_boosted_trees(self, history: History) -> tuple | None:
        if len(history) < self.min_rows:
            return None
        blocks, projections = [], []
        for feature in self.features:
            matrix = feature.transform_tasks(history.tasks)
            projection = None
            if isinstance(matrix, SparseRows):
                gram = matrix.dot_with_transposed(matrix)
                projection = (matrix, _principal_coefficients(gram, self.components))
                matrix = gram @ projection[1]
            blocks.append(matrix)
            projections.append(projection)
        model = _import_histogram_boosting()(
            max_iter=self.iterations,
            learning_rate=self.learning_rate,
            max_leaf_nodes=self.max_leaf_nodes,
            min_samples_leaf=max(5, min(20, len(history) // 16)),
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=self.seed,
        )
        with _limit_to_one_thread():
            model.fit(np.hstack(blocks), history.rewards_H)
        return model, projections

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """(B,). With ``history`` given, trees are fitted on it for this call."""
        rows = self.history if history is None else history.keep_newest_rows(self.window)
        fitted = self._fitted if history is None else self._train_boosted_trees(rows)
        if fitted is None:
            mean = rows.rewards_H.mean() if len(rows) else self.prior
            return Prediction.of(batch, np.full(len(batch), mean), np.full(len(batch), len(rows) == 0))
        if len(batch) == 0:
            return Prediction.of(batch, np.zeros(0))
        model, projections = fitted
        blocks = []
        for feature, projection in zip(self.features, projections, strict=True):
            matrix = feature.transform_tasks(batch.tasks)
            if projection is not None:
                assert isinstance(matrix, SparseRows)
                matrix = matrix.dot_with_transposed(projection[0]) @ projection[1]
            blocks.append(matrix)
        with _limit_to_one_thread():
            return Prediction.of(batch, np.asarray(model.predict(np.hstack(blocks)), dtype=np.float64))

    def observe(self, batch: Batch) -> None:
        """Keep the rows, and refit every ``refit_every`` steps.

        Old rows are dropped at a refit only, so that the rows the trees were fitted on are still there to be saved.
        """
        self._history = self.history.with_batch_appended(batch)
        self._steps_behind += 1
        if self._fitted is None or self._steps_behind >= self.refit_every:
            self._history = self.history.keep_newest_rows(self.window)
            self._fitted = self._train_boosted_trees(self.history)
            self._steps_behind = 0

    def own_state(self) -> dict:
        """The rows, and how many steps of them the trees have not seen."""
        return {**super().own_state(), "steps_behind": self._steps_behind}

    def load_own_state(self, state: dict) -> None:
        """Restore the rows and fit the same trees again."""
        super().load_own_state(state)
        self._steps_behind = int(state.get("steps_behind", 0))
        at = np.flatnonzero(self.history.ages_H > self._steps_behind)
        self._fitted = self._train_boosted_trees(self.history.rows_at_positions(at))


def _import_histogram_boosting() -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        raise MissingExtraError("the boosted-trees critic", "scikit-learn", "trees") from None
    return HistGradientBoostingRegressor


@lru_cache(maxsize=1)
def _openmp_thread_controller() -> Any:
    from threadpoolctl import ThreadpoolController  # comes with scikit-learn

    return ThreadpoolController()


def _limit_to_one_thread() -> Any:
    """A few thousand rows are fitted faster by one thread than by many that wait for each other, fifty times so on a
    busy machine."""
    return _openmp_thread_controller().limit(limits=1, user_api="openmp")


def _principal_coefficients(gram_HH: FloatArray, n: int) -> FloatArray:
    """Coefficients (H, n) so that ``x @ rows.T @ coefficients`` are x's first n principal components (uncentred), from
    the rows' inner products."""
    values, vectors = np.linalg.eigh(gram_HH)
    # Beyond the matrix's rank an eigenvector is rounding noise, which the trees would split on: differently for each
    # order of rows.
    n = max(1, min(n, int((values > 1e-9 * max(values[-1], 1e-300)).sum())))
    values, vectors = values[::-1][:n], vectors[:, ::-1][:, :n]
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(n)])
    return vectors / np.sqrt(np.maximum(values, 1e-12))
