"""Some twenty plain statistics of a prompt: lengths, numbers, symbols, repetition. Crude guesses at difficulty that
need no vocabulary."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature, tasks_from_prompts
from rollonce.rollouts import FloatArray, Tasks

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_LETTERS = re.compile(r"[A-Za-z]+")
# Statistics of ranks are kept as this many quantiles at most, so that the saved file stays small.
_QUANTILES = 256

STATISTICS = (
    "characters",
    "words",
    "lines",
    "digits",
    "numbers",
    "largest_number",
    "smallest_number",
    "mean_number",
    "spread_of_numbers",
    "distinct_numbers",
    "operators",
    "brackets",
    "sentences",
    "commas",
    "capitals",
    "mean_word",
    "distinct_share",
    "compressibility",
    "distinct_words",
    "has_decimals",
)


def prompt_statistics(prompt: str) -> list[float]:
    """The statistics named in `STATISTICS`, counts as ``ln(1 + count)``, shares as they are (20,)."""
    numbers = [min(float(x), 1e12) for x in _NUMBER.findall(prompt)]
    a = np.array(numbers or [0.0])
    words, pieces = _LETTERS.findall(prompt), prompt.split()
    n = max(1, len(prompt))

    def count_characters(characters: str) -> float:
        return float(sum(prompt.count(c) for c in characters))

    counts = np.log1p(
        [
            len(prompt),
            len(pieces),
            prompt.count("\n") + 1,
            sum(map(str.isdigit, prompt)),
            len(numbers),
            a.max(),
            a.min(),
            a.mean(),
            a.std(),
            len(set(numbers)),
            count_characters("+-*/=<>^%$\\"),
            count_characters("()[]{}"),
            count_characters(".!?;"),
            prompt.count(","),
            len({p.lower() for p in pieces}),
        ]
    ).tolist()
    shares = [
        sum(map(str.isupper, prompt)) / n,
        sum(map(len, words)) / len(words) if words else 0.0,
        len(set(words)) / max(1, len(words)),
        len(zlib.compress(prompt.encode(errors="surrogatepass"))) / n,
    ]
    return [*counts[:14], *shares, counts[14], float(any(x % 1 for x in numbers))]


@register
@dataclass
class PromptStatistics(Feature):
    """Statistics of the prompt, put on a common scale by what `fit` saw, (N, D); statistics that do not vary are left
    out.

    Args:
        names: Which of `STATISTICS`; all of them by default.
        scale: ``z``: standardised, cut at +-4 and divided by ``sqrt(D)``, so that a squared Euclidean distance is the
            mean over the statistics. ``rank``: the share of fitted prompts below (ties half), times ``sqrt(12) / D``,
            so that a city-block distance is the mean over the statistics; indifferent to outliers.
    """

    type: ClassVar[str] = "prompt_statistics"
    names: Sequence[str] = ()
    scale: Literal["z", "rank"] = "z"
    center_: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False)
    scale_: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False)
    quantiles_: list[FloatArray] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        unknown = [n for n in self.names if n not in STATISTICS]
        if unknown:
            raise InputError(f"no prompt statistic {unknown[0]!r}; there are: {', '.join(STATISTICS)}")
        if self.scale not in ("z", "rank"):
            raise InputError(f"prompt_statistics scale must be 'z' or 'rank', not {self.scale!r}")

    def _unscaled_statistics(self, tasks: Tasks) -> FloatArray:
        """(N, len(names)), computed once per set of tasks whatever the scale."""

        def statistics_of_tasks(root: Tasks) -> FloatArray:
            return np.array([prompt_statistics(p) for p in root.prompts], dtype=np.float64).reshape(
                len(root), len(STATISTICS)
            )

        raw = tasks.cached(("feature", "prompt_statistics"), statistics_of_tasks)
        return raw[:, [STATISTICS.index(n) for n in self.names]] if self.names else raw

    def fit(self, tasks: Sequence[str] | Tasks) -> Self:
        """Learn mean and deviation, or quantiles, of each statistic."""
        raw = self._unscaled_statistics(tasks_from_prompts(tasks))
        if len(raw) == 0:
            raise InputError("prompt_statistics cannot be fitted on no prompts")
        sd = raw.std(axis=0)
        self.center_, self.scale_ = raw.mean(axis=0), np.where(sd > 1e-9, sd, 0.0)
        self.quantiles_ = []
        if self.scale == "rank":
            at = np.linspace(0, 1, min(len(raw), _QUANTILES))
            self.quantiles_ = [np.quantile(c, at, method="inverted_cdf") for c in raw.T]
        return super().fit(tasks)

    def compute_feature_matrix(self, tasks: Tasks) -> FloatArray:
        """(N, D) float64.

        Raises:
            InputError: if called before `fit`.
        """
        if not len(self.scale_):
            raise InputError(
                "prompt_statistics was not fitted; call fit(prompts) on the baseline (or load a saved one) first"
            )
        raw = self._unscaled_statistics(tasks)
        active = np.flatnonzero(self.scale_ > 0)
        if self.scale == "z":
            z = np.clip((raw[:, active] - self.center_[active]) / self.scale_[active], -4, 4)
            return z / np.sqrt(max(1, len(active)))
        out = np.empty((len(raw), len(active)))
        for k, c in enumerate(active):
            q = self.quantiles_[c]
            below = np.searchsorted(q, raw[:, c], "left") + np.searchsorted(q, raw[:, c], "right")
            out[:, k] = below / (2 * len(q)) * np.sqrt(12) / len(active)
        return out

    def own_state(self) -> dict[str, Any]:
        """Mean and deviation, and the quantiles of ranks."""
        if not len(self.scale_):
            return {}
        state: dict[str, Any] = {"center": self.center_, "scale": self.scale_}
        return state | ({"quantiles": [q.tolist() for q in self.quantiles_]} if self.quantiles_ else {})

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.center_, self.scale_ = (np.asarray(state.get(k, []), np.float64) for k in ("center", "scale"))
        self.quantiles_ = [np.asarray(q, np.float64) for q in state.get("quantiles", [])]
        n = len(self.names) or len(STATISTICS)
        if len(self.scale_) and (
            self.center_.shape != (n,) or self.scale_.shape != (n,) or len(self.quantiles_) not in (0, n)
        ):
            raise InputError(f"a state of {n} prompt statistics needs as many centres and scales")
