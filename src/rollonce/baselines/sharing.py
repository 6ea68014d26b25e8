"""What many share: blocks that see the same tasks one solve, kernels on equal features one vocabulary, in memory and in
the file."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rollonce.baselines.kriging import leave_out
from rollonce.component import Component
from rollonce.errors import InputError
from rollonce.features import Tfidf
from rollonce.features.base import Feature
from rollonce.kernels.base import BoolArray, Kernel
from rollonce.rollouts import FloatArray, IntArray, Tasks


def shared_blocks(columns_KM: IntArray, may_share: bool, chunk: int) -> Iterator[tuple[int, int, IntArray | None]]:
    """``(start, stop, place_KM)``: runs of blocks that see the same columns in another order, or chunks of blocks that
    do not.

    ``place_KM[k, j]`` is where block ``start + k`` has the j-th column of block ``start``'s precision: its column j
    stands at
    ``place`` there. None for a chunk: a precision for each block is needed. Where age counts (``may_share`` False)
        nothing is shared.
    """
    n_blocks, n_columns = columns_KM.shape
    new = np.ones(n_blocks, dtype=bool)
    order_KM = np.argsort(columns_KM, axis=1, kind="stable") if may_share and n_columns > 48 else None
    if order_KM is not None:
        sorted_KM = np.take_along_axis(columns_KM, order_KM, axis=1)
        new[1:] = (sorted_KM[1:] != sorted_KM[:-1]).any(axis=1)
    starts = np.append(np.flatnonzero(new), n_blocks)
    if order_KM is None or len(starts) > 0.7 * n_blocks:
        for start in range(0, n_blocks, chunk):
            yield start, min(start + chunk, n_blocks), None
        return
    for start, stop in itertools.pairwise(starts):
        place = np.empty((stop - start, n_columns), dtype=np.int64)
        np.put_along_axis(place, order_KM[start:stop], np.broadcast_to(order_KM[start], place.shape), axis=1)
        yield int(start), int(stop), place


def leave_out_rows(p_KMM: FloatArray, n_rows: int, visible_KBM: BoolArray, place_KM: IntArray | None) -> FloatArray:
    """Weights (K, B, M) from residual precisions, as `kriging.leave_out`; one precision for all where ``place_KM`` is
    given.

    Leaving out a set S that includes i, the weights on the others are ``-[P_SS^-1 P_S,rest]_i``, exactly 0 on S.
    """
    if place_KM is None:
        return _unit_rows(leave_out(p_KMM, n_rows, visible_KBM))
    p = p_KMM[0]
    diagonal = np.diag(p)
    rows_KB = place_KM[:, :n_rows]
    out = -p[rows_KB[:, :, None], place_KM[:, None, :]]
    out = np.divide(out, diagonal[rows_KB][:, :, None], out=np.zeros_like(out), where=diagonal[rows_KB][:, :, None] > 0)
    hidden = ~visible_KBM
    for k, i in zip(*np.nonzero(hidden.sum(axis=2) > 1), strict=True):
        s = np.flatnonzero(hidden[k, i])
        at = place_KM[k, s]
        if len(s) < len(p):
            out[k, i] = -np.linalg.solve(p[np.ix_(at, at)], (s == i).astype(np.float64)) @ p[np.ix_(at, place_KM[k])]
    out[hidden] = 0.0
    return _unit_rows(out)


def _unit_rows(w_KBM: FloatArray) -> FloatArray:
    """Rounding taken out of the rows' sums; a row without weight stays so."""
    total = w_KBM.sum(axis=2, keepdims=True)
    return np.divide(w_KBM, total, out=w_KBM, where=np.abs(total) > 0.5)


def fit_once(kernels: Sequence[Kernel], tasks: Tasks) -> list[bool]:
    """Fit the kernels' features on prompts; of features with equal settings one is fitted and the others take over what
    it learned.

    Returns whether each kernel can be used: not where a TF-IDF found no term at all in these prompts (words in "2+2",
        say).
    """
    fitted: dict[str, Feature | None] = {}
    usable = []
    for kernel in kernels:
        parts: list[Component] = [kernel]
        fine = True
        while parts:
            part = parts.pop()
            parts.extend(part.children().values())
            if not isinstance(part, Feature):
                continue
            name = json.dumps(part.config(), sort_keys=True)
            if name not in fitted:
                try:
                    fitted[name] = part.fit(tasks)
                    _ = part.key
                except InputError:
                    if not isinstance(part, Tfidf):
                        raise
                    fitted[name] = None
            first = fitted[name]
            if first is None:
                fine = False
            elif first is not part:
                part.__dict__.update(first.__dict__)
        usable.append(fine)
    return usable


def pool(state: dict[str, Any]) -> dict[str, Any]:
    """The state with equal states of parts written once, under ``pool``; `unpool` undoes it."""
    kept: dict[str, Any] = {}

    def walk(part: dict[str, Any]) -> dict[str, Any]:
        if "children" in part:
            return part | {"children": {name: walk(child) for name, child in part["children"].items()}}
        name = hashlib.blake2b(json.dumps(part, sort_keys=True).encode(), digest_size=6).hexdigest()
        kept[name] = part
        return {"pooled": name}

    if "children" not in state:
        return state
    return walk(state) | {"pool": kept}


def unpool(state: dict[str, Any]) -> dict[str, Any]:
    """From `pool`; a state that was not pooled is given back as it is."""
    kept = state.get("pool", {})

    def walk(part: dict[str, Any]) -> dict[str, Any]:
        if "pooled" in part:
            return kept[part["pooled"]]
        return (
            part | {"children": {name: walk(c) for name, c in part["children"].items()}} if "children" in part else part
        )

    return walk({k: v for k, v in state.items() if k != "pool"})
