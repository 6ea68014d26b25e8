"""Character n-grams of whole texts looked up in a vocabulary at once, without a string for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rollonce.rollouts import IntArray

_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


class NgramTable:
    """Where each n-gram stands in a vocabulary.

    A letter is its number in the vocabulary's alphabet, an n-gram those numbers side by side in 64 bits, so two n-grams
    never share a key. Keys are found through hash tables; what collides in one is put into the next.

    Args:
        terms: The vocabulary, in order.
        alphabet: Its letters as code points, ascending.
        bits: Of a letter.
    """

    def __init__(self, terms: Sequence[str], alphabet: IntArray, bits: int) -> None:
        self._unknown = int(alphabet[-1]) + 1
        self._letter = np.zeros(self._unknown + 1, np.uint64)
        self._letter[alphabet] = np.arange(1, len(alphabet) + 1)
        self._bits = np.uint64(bits)
        self._longest = max(len(t) for t in terms)
        self._keys = np.zeros(len(terms), np.uint64)
        for n in {len(t) for t in terms}:
            at = np.array([i for i, t in enumerate(terms) if len(t) == n])
            codes = _unicode_code_points("".join([t for t in terms if len(t) == n])).reshape(len(at), n)
            for letters in self._letter[codes].T:
                self._keys[at] = (self._keys[at] << self._bits) | letters
        size = len(terms).bit_length() + 3
        self._shift = np.uint64(64 - size)
        self._tables: list[tuple[np.uint64, IntArray]] = []
        rest = np.arange(len(terms))
        while len(rest):
            factor = np.uint64(_MULTIPLIERS[len(self._tables) % 4] + 2 * (len(self._tables) // 4))
            slot = (self._keys[rest] * factor) >> self._shift
            table = np.full(1 << size, -1)
            table[slot] = rest
            self._tables.append((factor, table))
            rest = rest[table[slot] != rest]

    @classmethod
    def from_vocabulary(cls, terms: Iterable[str]) -> NgramTable | None:
        """The table of a vocabulary, or None where its n-grams are too long or its letters too many for 64 bits."""
        terms = list(terms)
        alphabet = np.unique(_unicode_code_points("".join(terms))).astype(np.int64)
        bits = len(alphabet).bit_length()
        if not terms or not all(terms) or bits * max(map(len, terms)) > 64:
            return None
        return cls(terms, alphabet, bits)

    def find_known_ngrams(self, texts: Sequence[str], shortest: int, longest: int) -> tuple[IntArray, IntArray]:
        """Text and position in the vocabulary of every known n-gram of these lengths, repeats included, in no
        particular order."""
        letters_of = [self._letter[np.minimum(_unicode_code_points(t), self._unknown)] for t in texts]
        gap = np.zeros(1, np.uint64)  # between texts; no n-gram reaches across
        letters = np.concatenate([part for text in letters_of for part in (text, gap)] or [gap])
        row = np.repeat(np.arange(len(texts)), [len(text) + 1 for text in letters_of])
        start = np.arange(len(row))
        keys = np.zeros(len(row), np.uint64)
        rows, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for n in range(1, min(longest, self._longest) + 1):
            start = start[start + n <= len(row)]
            last = letters[start + n - 1]
            start, keys = start[last > 0], (keys[: len(last)] << self._bits | last)[last > 0]
            if n >= shortest:
                at = self._look_up_positions(keys)
                rows.append(row[start[at >= 0]])
                found.append(at[at >= 0])
        return np.concatenate(rows), np.concatenate(found)

    def _look_up_positions(self, keys: np.ndarray) -> IntArray:
        out = np.full(len(keys), -1)
        for factor, table in self._tables:
            at = table[(keys * factor) >> self._shift]
            hit = (self._keys[at] == keys) & (at >= 0)
            out[hit] = at[hit]
        return out


def _unicode_code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
