"""The contract of a baseline.

A baseline gives one number ``b_i`` for each rollout of a batch, from what was known before the rollouts and from the
rewards of *other* rollouts; the advantage is ``A_i = r_i - b_i``. The life of one in a trainer::

    baseline.fit(prompts)                    # vocabulary, IDF, scales: once, before training
    for batch in steps:
        prediction = baseline.predict(batch) # baseline_B and advantages_B; b_i never reads batch.rewards_B[i]
        baseline.observe(batch)              # joins the history, after the step

`LinearSmoother` adds `weights`, whose rows sum to 1. `rollonce.testing.check_baseline` holds every baseline to this.
"""

from __future__ import annotations

import copy
import json
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np

from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.tags import Tags
from rollonce.component import Component, from_config, register_former_type, registered_types
from rollonce.errors import InputError
from rollonce.features.base import Feature, tasks_from_prompts
from rollonce.files import write_whole_file
from rollonce.kernels.base import BoolArray, Kernel, normalise_log_weights
from rollonce.rollouts import FloatArray, IntArray, Tasks

FORMAT, VERSION = "rollonce-baseline", 1


class Baseline(Component):
    """Base of all baselines. Subclasses are dataclasses, registered under ``type``, with their settings as fields."""

    source: ClassVar[str] = ""
    prior: ClassVar[float] = 0.0

    _history: History | None = None
    _given_label: str | None = None
    _keeps_fit: bool = False
    provenance: dict[str, Any] | None = None

    @property
    def tags(self) -> Tags:
        return Tags()

    @final
    @property
    def label(self) -> str:
        """What it is called in tables: what `named` gave it, else `describe`."""
        return self._given_label or self.describe()

    def describe(self) -> str:
        """A few words for tables: what it is, and the settings that tell it from its like."""
        return self.type or type(self).__name__

    def named(self, label: str, *, keep_fit: bool = False) -> Self:
        """A copy under another label; with ``keep_fit`` its `fit` does nothing more, so that it keeps the vocabulary
        that it brings. Label and promise are of this object, not of a file that it is saved to."""
        other = copy.deepcopy(self)
        other._given_label, other._keeps_fit = label, keep_fit
        return other

    @property
    def keeps_existing_fit(self) -> bool:
        """Whether its `fit` does nothing more, see `named`."""
        return self._keeps_fit

    @property
    def keep_rows(self) -> int:
        """How many rows of history `observe` keeps; 0 keeps none."""
        return 0

    @property
    def history(self) -> History:
        """The rows observed so far, newest last."""
        return self._history if self._history is not None else History.before_first_step()

    @final
    def fit(self, prompts: Sequence[str] | Tasks) -> Self:
        """Learn vocabulary, IDF and scales from prompts (no rewards). Returns itself."""
        if not self._keeps_fit:
            self.fit_tasks(tasks_from_prompts(prompts))
        return self

    def fit_tasks(self, tasks: Tasks) -> None:
        """What `fit` does: here, fit every feature, kernel and baseline that this one is made of."""
        for child in self.nested_components().values():
            if isinstance(child, Feature | Kernel | Baseline):
                child.fit(tasks)

    @abstractmethod
    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The baseline and the advantage of each rollout; one call per step gives all.

        Args:
            batch: The step's rollouts.
            history: Rows of earlier steps; None uses those that `observe` was given.

        A row that has nothing to go by gets ``prior`` and is marked in ``only_prior_B``.
        """

    @final
    def advantages(self, batch: Batch, history: History | None = None) -> FloatArray:
        """The advantages (B,) of `predict`, for those who want nothing else. Scaling belongs into `predict`."""
        return self.predict(batch, history).advantages_B

    def observe(self, batch: Batch) -> None:
        """Let the step's rollouts join the history. Call it after `predict`."""
        if self.keep_rows:
            self._history = self.history.with_batch_appended(batch, self.keep_rows)

    def twin(self) -> Baseline:
        """The leave-one-out baseline that a self-inclusive one is scored by; itself for all others."""
        return self

    def own_state(self) -> dict[str, Any]:
        """The rows of history, for baselines that keep any."""
        return {"history": self.history.to_json_state()} if len(self.history) else {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Restore the rows of history."""
        self._history = History.from_json_state(state["history"]) if "history" in state else None

    def save(self, path: str | os.PathLike[str], provenance: dict[str, Any] | None = None) -> None:
        """Write one small JSON file with everything a trainer needs (no pickle), atomically.

        Args:
            path: The file.
            provenance: What it was tuned on, by which command; shown by ``rollonce check``.

        Raises:
            InputError: if it cannot be written, or could not be read again.
        """
        _check_can_be_read_again(self)
        document = {
            "format": FORMAT,
            "version": VERSION,
            "config": self.config(),
            "state": self.state_dict(),
            "provenance": provenance if provenance is not None else (self.provenance or {}),
        }
        write_whole_file(path, json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Baseline:
        """Read a file written by `save`.

        Raises:
            InputError: if it is no baseline file, or of a newer version.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError("no such file", file=path) from None
        except OSError as e:
            raise InputError(f"cannot be read: {e.strerror}", file=path) from None
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as e:
            raise InputError(f"not a baseline file: not JSON ({e})", file=path) from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"not a baseline file: 'format' is not {FORMAT!r}; rollonce tune writes one", file=path)
        if document.get("version") != VERSION:
            version = document.get("version")
            raise InputError(
                f"baseline file version {version!r}; this rollonce reads version {VERSION}: upgrade it", file=path
            )
        try:
            baseline = from_config(document.get("config", {}))
            if not isinstance(baseline, Baseline):
                raise InputError(f"{baseline.type!r} is no baseline but a part of one")
            baseline.load_state_dict(document.get("state", {}))
        except InputError as e:
            raise InputError(e.message, file=path) from None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
            raise InputError(f"a damaged baseline file ({type(e).__name__}: {e})", file=path) from None
        baseline.provenance = document.get("provenance") or {}
        return baseline


@dataclass
class LinearSmoother(Baseline):
    """A baseline that is a weighted mean of other rollouts' rewards: ``b = W r`` with rows summing to 1.

    Args:
        window: Rows of earlier steps that may count as well; 0 is the batch alone. (The post's 16 batches of 32 are
            512.)
        decay: Weight of a row per step of age, in (0, 1]: recency decay.
        shrinkage: Share of the leave-one-out mean of the rows visible, in [0, 1]: ``(1 - shrinkage) W + shrinkage LOO``
            is safer where features may carry nothing.
    """

    window: int = field(default=0, kw_only=True)
    decay: float = field(default=1.0, kw_only=True)
    shrinkage: float = field(default=0.0, kw_only=True)
    _was_shrunk: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.shrinkage <= 1:
            raise InputError(f"shrinkage must be in [0, 1], not {self.shrinkage}")
        if self.window < 0 or not 0 < self.decay <= 1:
            raise InputError(f"window must be >= 0 and decay in (0, 1], not {self.window} and {self.decay}")

    @property
    def keeps_existing_fit(self) -> bool:
        """Whether its `fit` does nothing more, see `named`."""
        return self._keeps_fit

    @property
    def keep_rows(self) -> int:
        return self.window

    @property
    def tags(self) -> Tags:
        """Leave-one-out, equivariant and neutral, as every normalised smoother is."""
        return Tags(windowed=self.window > 0)

    def describe_with_settings(self, name: str) -> str:
        """A name and, after it, what differs from the defaults of shrinkage, window and decay."""
        parts = [name]
        if self.shrinkage:
            parts.append(f"{self.shrinkage:.2g} LOO")
        if self.window:
            parts.append(f"window {self.window}")
        if self.decay < 1:
            parts.append(f"decay {self.decay:.3g}")
        return ", ".join(parts)

    @abstractmethod
    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """What a new smoother implements: its weights (K, B, M) before any shrinkage, arguments as
        `compute_weight_blocks`."""

    def compute_weight_blocks(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """Weights (K, B, M) for K batches at once; rows sum to 1 over the visible columns (all zero where there are
        none).

        Args:
            tasks: All tasks that the blocks take from.
            columns_KM: Positions in ``tasks`` of what each batch can see. The first ``n_rows`` are the batch itself.
            n_rows: B.
            visible_KBM: False where row i must not use column j: its own above all.
            ages_M: Steps ago that a column was sampled; 0 for the batch.
        """
        w = self.smoothing_weights(tasks, columns_KM, n_rows, visible_KBM, ages_M)
        return self._shrink_towards_loo(w, visible_KBM, ages_M)

    def baselines_from_weights(self, w_KBM: FloatArray, rewards_KM: FloatArray) -> FloatArray:
        """``W r`` (K, B) of many batches at once, from `compute_weight_blocks` and the rewards of the
        columns (K, M)."""
        return np.einsum("kbm,km->kb", w_KBM, rewards_KM)

    def _shrink_towards_loo(self, w_KBM: FloatArray, visible_KBM: BoolArray, ages_M: IntArray) -> FloatArray:
        if self.shrinkage == 0:
            return w_KBM
        loo = normalise_log_weights(np.broadcast_to(ages_M * np.log(self.decay), w_KBM.shape), visible_KBM)
        return (1 - self.shrinkage) * w_KBM + self.shrinkage * loo

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`, also that of a former ``shrunk`` around this smoother."""
        super().load_state_dict(self._without_former_shrunk(state))

    def _without_former_shrunk(self, state: dict[str, Any]) -> dict[str, Any]:
        """Of a former ``shrunk``, what the smoother inside it had learned, with the history that the outer one kept."""
        inner = state.get("children", {}).get("smoother") if self._was_shrunk else None
        return state if inner is None else inner | {k: state[k] for k in ("history",) if k in state}

    def weights(self, batch: Batch, history: History | None = None) -> FloatArray:
        """Weights (B, B + H) over the batch and the newest ``window`` rows of history, oldest first. ``W[i, i]`` is
        0."""
        return self._weights_with_window(batch, self._history_within_window(history))

    def _history_within_window(self, history: History | None) -> History:
        return (self.history if history is None else history).keep_newest_rows(self.window)

    def _weights_with_window(self, batch: Batch, window: History) -> FloatArray:
        n_rows, n_columns = len(batch), len(batch) + len(window)
        if n_rows == 0:
            return np.zeros((0, n_columns))
        tasks = self._batch_with_window(batch, window)
        visible = np.ones((1, n_rows, n_columns), dtype=bool)
        visible[0, np.arange(n_rows), np.arange(n_rows)] = False
        ages = np.concatenate([np.zeros(n_rows, np.int64), window.ages_H])
        return self.compute_weight_blocks(tasks, np.arange(n_columns)[None], n_rows, visible, ages)[0]

    def _batch_with_window(self, batch: Batch, window: History) -> Tasks:
        """Batch and window in one, with features computed for each apart: so a row's are computed once in its life."""
        if not len(window):
            return batch.tasks
        for feature in find_nested_features(self):
            feature.transform_tasks(batch.tasks)
            feature.transform_tasks(window.tasks)
        return Tasks.concat(batch.tasks, window.tasks)

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """``W r`` (B,); the declared prior where a row sees nothing."""
        window = self._history_within_window(history)
        w = self._weights_with_window(batch, window)
        nothing_B: BoolArray = ~np.asarray(w.any(axis=1))
        b_B = np.where(nothing_B, self.prior, w @ np.concatenate([batch.rewards_B, window.rewards_H]))
        return Prediction.of(batch, b_B, nothing_B)


@register_former_type("shrunk")
def _smoother_with_shrinkage(settings: dict[str, Any]) -> LinearSmoother:
    """``(1 - amount) smoother + amount LOO``, which was a baseline around another before each had its shrinkage."""
    smoother, amount = settings.get("smoother"), settings.get("amount", 0.5)
    if not isinstance(smoother, LinearSmoother) or not isinstance(amount, int | float) or not 0 <= amount <= 1:
        raise InputError(f"a 'shrunk' baseline needs a smoother and an amount in [0, 1], not {amount!r}")
    smoother.shrinkage, smoother._was_shrunk = 1 - (1 - smoother.shrinkage) * (1 - amount), True
    return smoother


def _check_can_be_read_again(component: Component) -> None:
    cls = type(component)
    if component.config()["type"] == cls.type and registered_types().get(cls.type) is not cls:
        raise InputError(
            f"{cls.__name__} cannot be saved: a file names a class as module:Class, so it has to be in a module, not "
            "in the script that is run or inside a function; or give it a type of its own and decorate it with "
            "@register"
        )
    for part in component.nested_components().values():
        _check_can_be_read_again(part)


def find_nested_features(component: Component) -> list[Feature]:
    """All features inside a component, however deep."""
    if isinstance(component, Feature):
        return [component]
    return [f for child in component.nested_components().values() for f in find_nested_features(child)]


def copy_without_history(baseline: Baseline) -> Baseline:
    """A fresh baseline with the same settings and fit, and no history."""
    if registered_types().get(baseline.type) is type(baseline):
        clone = from_config(baseline.config())
    else:  # a user's subclass without a type of its own: from_config would make its parent
        clone = copy.deepcopy(baseline)
    state = baseline.state_dict()
    _drop_history_from_state(state)
    clone.load_state_dict(state)
    clone._given_label, clone._keeps_fit = baseline._given_label, baseline._keeps_fit
    return clone


def _drop_history_from_state(state: dict[str, Any]) -> None:
    state.pop("history", None)
    for child in state.get("children", {}).values():
        _drop_history_from_state(child)


__all__ = ["Baseline", "LinearSmoother", "copy_without_history"]
