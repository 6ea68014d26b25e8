"""What many kernels share: those on equal features have one vocabulary, in memory and in the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from rollonce.component import Component
from rollonce.errors import InputError
from rollonce.features import Tfidf
from rollonce.features.base import Feature
from rollonce.kernels.base import Kernel
from rollonce.rollouts import Tasks


def fit_features_once(kernels: Sequence[Kernel], tasks: Tasks) -> list[bool]:
    """Fit the kernels' features on prompts; of features with equal settings one is fitted and the others take over what
    it learned.

    Returns:
        Whether each kernel can be used: not where a TF-IDF found no term at all in these prompts (words in "2+2", say).
    """
    fitted: dict[str, Feature | None] = {}
    usable = []
    for kernel in kernels:
        parts: list[Component] = [kernel]
        fine = True
        while parts:
            part = parts.pop()
            parts.extend(part.nested_components().values())
            if not isinstance(part, Feature):
                continue
            name = json.dumps(part.config(), sort_keys=True)
            if name not in fitted:
                try:
                    fitted[name] = part.fit(tasks)
                    _ = part.matrix_cache_key
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


def pool_equal_states(state: dict[str, Any]) -> dict[str, Any]:
    """The state with equal states of parts written once, under ``pool``; `restore_pooled_states` undoes it."""
    kept: dict[str, Any] = {}

    def pool_part_of_state(part: dict[str, Any]) -> dict[str, Any]:
        if "children" in part:
            return part | {"children": {name: pool_part_of_state(child) for name, child in part["children"].items()}}
        name = hashlib.blake2b(json.dumps(part, sort_keys=True).encode(), digest_size=6).hexdigest()
        kept[name] = part
        return {"pooled": name}

    if "children" not in state:
        return state
    return pool_part_of_state(state) | {"pool": kept}


def restore_pooled_states(state: dict[str, Any]) -> dict[str, Any]:
    """From `pool_equal_states`; a state that was not pooled is given back as it is."""
    kept = state.get("pool", {})

    def restore_part_of_state(part: dict[str, Any]) -> dict[str, Any]:
        if "pooled" in part:
            return kept[part["pooled"]]
        return (
            part | {"children": {name: restore_part_of_state(c) for name, c in part["children"].items()}}
            if "children" in part
            else part
        )

    return restore_part_of_state({k: v for k, v in state.items() if k != "pool"})
