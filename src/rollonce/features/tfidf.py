"""TF-IDF of the prompt: word or character n-grams, scikit-learn's formula, numpy only.

``tfidf(t, d) = tf(t, d) * (ln((1 + n) / (1 + df(t))) + 1)``, rows scaled to length 1, with ``1 + ln tf`` in place of
``tf`` when ``sublinear``. Held equal to scikit-learn's TfidfVectorizer by a test. With the defaults it is the feature
of the published kernel ("word TF-IDF vectors of prompts", post "You Only Rollout Once", appendix B).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, ClassVar, Literal, Self

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import Feature, tasks_from_prompts
from rollonce.features.ngram_table import NgramTable
from rollonce.features.sparse import SparseRows
from rollonce.rollouts import FloatArray, IntArray, Tasks

_WORD = re.compile(r"(?u)\b\w\w+\b")
_SPACES = re.compile(r"\s\s+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_CHUNK = 4096  # prompts at a time, so that a large set's terms are never all in memory


@register
@dataclass
class Tfidf(Feature):
    """TF-IDF vectors of the prompts, (N, vocabulary), rows of unit length (zero where no term is known).

    Args:
        analyzer: ``word`` (tokens of two or more letters or digits), ``char`` (character n-grams) or ``char_wb``
            (within words).
        ngrams: Shortest and longest n-gram.
        sublinear: Use ``1 + ln(tf)``.
        min_df: Leave out terms in fewer prompts than this.
        max_features: Keep the most frequent terms only.
        skeleton: Replace every number by ``0`` first, so that prompts from one template look alike.
    """

    type: ClassVar[str] = "tfidf"
    analyzer: Literal["word", "char", "char_wb"] = "word"
    ngrams: Sequence[int] = (1, 1)
    sublinear: bool = False
    min_df: int = 1
    max_features: int | None = None
    skeleton: bool = False
    vocabulary_: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    idf_: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False)
    _table: tuple[dict[str, int], NgramTable | None] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.analyzer not in ("word", "char", "char_wb"):
            raise InputError(f"tfidf analyzer must be word, char or char_wb, not {self.analyzer!r}")
        low, high = (int(n) for n in self.ngrams)
        if not 1 <= low <= high:
            raise InputError(
                f"tfidf ngrams must be (shortest, longest) with 1 <= shortest <= longest, not {self.ngrams!r}"
            )
        self.ngrams = (low, high)

    def describe(self) -> str:
        """TF-IDF and what differs from single words."""
        kind = "" if self.analyzer == "word" else f"{self.analyzer} "
        low, high = self.ngrams
        lengths = f" {low}-{high}" if high > 1 else ""
        return f"{kind}TF-IDF{lengths}{' sublinear' if self.sublinear else ''}{' skeleton' if self.skeleton else ''}"

    def terms_of_prompt(self, prompt: str) -> Iterable[str]:
        """The terms of one prompt in order, as scikit-learn's analyzers give them."""
        text = self._normalise_prompt_text(prompt)
        low, high = self.ngrams
        if self.analyzer == "word":
            words = _WORD.findall(text) if not self.skeleton else re.findall(r"(?u)\b\w+\b|[^\w\s]", text)
            if high == 1:
                return words
            return [" ".join(words[i : i + n]) for n in range(low, high + 1) for i in range(len(words) - n + 1)]
        if self.analyzer == "char":
            return [text[i : i + n] for n in range(low, min(high, len(text)) + 1) for i in range(len(text) - n + 1)]
        grams: list[str] = []
        for word in text.split():
            padded = f" {word} "
            for n in range(low, high + 1):
                grams.append(padded[:n])
                grams.extend(padded[i : i + n] for i in range(1, len(padded) - n + 1))
                if n >= len(padded):  # a short word counts once, as in scikit-learn
                    break
        return grams

    def _normalise_prompt_text(self, prompt: str) -> str:
        text = prompt.lower()
        if self.skeleton:
            text = _NUMBER.sub("0", text)
        return text if self.analyzer == "word" else _SPACES.sub(" ", text)

    def fit(self, tasks: Sequence[str] | Tasks) -> Self:
        """Learn vocabulary and inverse document frequencies from prompts.

        Raises:
            InputError: if no prompt holds a term.
        """
        tasks = tasks_from_prompts(tasks)
        if tasks.index_N is None:  # many baselines of a board read the same words
            filed_under = ("tfidf", json.dumps(self.config(), sort_keys=True))
            self.vocabulary_, self.idf_, self._key = tasks.cached(filed_under, self._learn_terms)
        else:
            self.vocabulary_, self.idf_, self._key = self._learn_terms(tasks)
        return self

    def _learn_terms(self, tasks: Tasks) -> tuple[dict[str, int], FloatArray, str]:
        """Vocabulary and IDF, and the key that the matrices of a feature with these are filed under."""
        self.vocabulary_, self.idf_ = self._count_terms(tasks.prompts)
        super().fit(tasks)
        return self.vocabulary_, self.idf_, self.matrix_cache_key[1]

    def _count_terms(self, prompts: Sequence[str]) -> tuple[dict[str, int], FloatArray]:
        """Vocabulary and IDF."""
        document_frequency: Counter[str] = Counter()
        term_frequency: Counter[str] = Counter()
        for p in prompts:
            counts = Counter(self.terms_of_prompt(p))
            document_frequency.update(counts.keys())
            if self.max_features is not None:
                term_frequency.update(counts)
        kept = sorted(t for t, df in document_frequency.items() if df >= self.min_df)
        if self.max_features is not None and len(kept) > self.max_features:
            kept = sorted(sorted(kept, key=lambda t: (-term_frequency[t], t))[: self.max_features])
        if not kept:
            raise InputError(
                f"tfidf found no term in {len(prompts)} prompts (analyzer={self.analyzer!r}, min_df={self.min_df}); "
                "are the prompts empty?"
            )
        df = np.array([document_frequency[t] for t in kept], dtype=np.float64)
        return {t: i for i, t in enumerate(kept)}, np.log((1 + len(prompts)) / (1 + df)) + 1

    def compute_feature_matrix(self, tasks: Tasks) -> SparseRows:
        """(N, vocabulary) sparse rows of unit length.

        Raises:
            InputError: if called before `fit`.
        """
        if not self.vocabulary_:
            raise InputError(
                "this tfidf feature was not fitted; call fit(prompts) on the baseline (or load a saved one) first"
            )
        idf = self.idf_
        parts = [SparseRows(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0), len(idf))]
        for start in range(0, len(tasks), _CHUNK):
            prompts = tasks.prompts[start : start + _CHUNK]
            rows, columns = self._find_known_terms(prompts)
            places, counts = _count_occurrences(rows * len(idf) + columns, len(prompts) * len(idf))
            rows, columns = np.divmod(places, len(idf))
            value = (1 + np.log(counts) if self.sublinear else counts) * idf[columns]
            value /= np.sqrt(np.bincount(rows, value**2, minlength=len(prompts)))[rows]
            indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(rows, minlength=len(prompts)))])
            parts.append(SparseRows(indptr, columns.astype(np.int32), value, len(idf)))
        return SparseRows.stack_vertically(parts)

    def _find_known_terms(self, prompts: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Prompt and column of every term that the vocabulary has, repeats included."""
        if self.analyzer == "char":
            if self._table is None or self._table[0] is not self.vocabulary_:
                self._table = self.vocabulary_, NgramTable.from_vocabulary(self.vocabulary_)
            if self._table[1] is not None:
                return self._table[1].find_known_ngrams(
                    [self._normalise_prompt_text(p) for p in prompts], self.ngrams[0], self.ngrams[1]
                )
        columns_of = [
            np.fromiter(map(self.vocabulary_.get, self.terms_of_prompt(p), repeat(-1)), np.int64) for p in prompts
        ]
        rows = np.repeat(np.arange(len(prompts)), [len(f) for f in columns_of])
        columns = np.concatenate(columns_of)
        return rows[columns >= 0], columns[columns >= 0]

    def own_state(self) -> dict[str, Any]:
        """Vocabulary in column order, and the IDF."""
        return {"terms": list(self.vocabulary_), "idf": self.idf_} if self.vocabulary_ else {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        terms, idf = state.get("terms", []), np.asarray(state.get("idf", []), dtype=np.float64)
        if idf.shape != (len(terms),) or not np.isfinite(idf).all():
            raise InputError(f"a tfidf state of {len(terms)} terms needs as many finite inverse document frequencies")
        self.vocabulary_, self.idf_ = {t: i for i, t in enumerate(terms)}, idf


def _count_occurrences(places: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """The numbers below n that occur, ascending, and how often each."""
    if n > 50 * len(places):
        return np.unique(places, return_counts=True)
    counts = np.bincount(places, minlength=n)
    occur = np.flatnonzero(counts)
    return occur, counts[occur]
