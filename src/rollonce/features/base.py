"""A feature turns what is known before a rollout into a matrix with a row a task."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from rollonce.component import Component
from rollonce.features.sparse import SparseRows
from rollonce.rollouts import FloatArray, Tasks

Matrix = FloatArray | SparseRows


def tasks_from_prompts(prompts: Sequence[str] | Tasks) -> Tasks:
    """Prompts as the view that features read; a `Tasks` is passed through."""
    return prompts if isinstance(prompts, Tasks) else Tasks(list(prompts))


class Feature(Component):
    """Base of all features: `fit` learns vocabulary or scales from prompts, `compute_feature_matrix` gives an (N, D)
    matrix.

    Features see a `Tasks` view: no rewards, responses or lengths of responses.
    """

    _key: str | None = None

    def fit(self, tasks: Sequence[str] | Tasks) -> Self:
        """Learn vocabulary, IDF or scales from prompts. The default learns nothing."""
        self._key = None
        return self

    @abstractmethod
    def compute_feature_matrix(self, tasks: Tasks) -> Matrix:
        """The (N, D) matrix, dense float64 or `SparseRows`, without any caching."""

    def transform_tasks(self, tasks: Sequence[str] | Tasks) -> Matrix:
        """The (N, D) matrix, computed once per set of tasks: views of the same tasks share it."""
        return tasks_from_prompts(tasks).cached(self.matrix_cache_key, self.compute_feature_matrix)

    @property
    def matrix_cache_key(self) -> tuple[str, str]:
        """What the cached matrix is filed under; changes with the settings and with what was fitted."""
        if self._key is None:
            text = json.dumps([self.config(), self.state_dict()], sort_keys=True)
            self._key = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return ("feature", self._key)

    def load_state_dict(self, state: dict) -> None:
        """Restore what `fit` learned."""
        super().load_state_dict(state)
        self._key = None
