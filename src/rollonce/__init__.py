"""rollonce: which baseline for reinforcement learning of language models with one rollout per task?

The public names load on first use, so that ``import rollonce`` is quick and needs nothing beyond the standard library.

>>> import rollonce
>>> table = rollonce.Rollouts.from_groups([[0, 1], [1, 1], [0, 0]], ["2+2?", "3+3?", "prove it"])
>>> table.n_tasks
3
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Baseline": "rollonce.baselines",
    "Batch": "rollonce.baselines",
    "History": "rollonce.baselines",
    "InputError": "rollonce.errors",
    "Rollouts": "rollonce.rollouts",
    "Tasks": "rollonce.rollouts",
    "check_baseline": "rollonce.testing",
    "moments": "rollonce.scoring",
    "read_rollouts": "rollonce.readers",
    "score_rollouts": "rollonce.scoring",
}
__all__ = [
    "Baseline",
    "Batch",
    "History",
    "InputError",
    "Rollouts",
    "Tasks",
    "check_baseline",
    "moments",
    "read_rollouts",
    "score_rollouts",
]

if TYPE_CHECKING:
    from rollonce.baselines import Baseline, Batch, History
    from rollonce.errors import InputError
    from rollonce.readers import read_rollouts
    from rollonce.rollouts import Rollouts, Tasks
    from rollonce.scoring import moments, score_rollouts
    from rollonce.testing import check_baseline


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rollonce' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
