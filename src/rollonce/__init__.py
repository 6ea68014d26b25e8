"""rollonce: which baseline for reinforcement learning of language models with one rollout per task?

The public names load on first use, so that ``import rollonce`` is quick and needs nothing beyond the standard library.

>>> import rollonce as ro
>>> table = ro.Rollouts.from_groups([[0, 1], [1, 1], [0, 0]], ["2+2?", "3+3?", "prove it"])
>>> table.n_tasks
3

`read` and `score` are where to begin; the parts (``ro.baselines``, ``ro.kernels``, ``ro.scoring`` ...) are there as
attributes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AdvantageHook": "rollonce.integrations.hook",
    "Baseline": "rollonce.baselines",
    "Batch": "rollonce.baselines",
    "History": "rollonce.baselines",
    "InputError": "rollonce.errors",
    "Rollouts": "rollonce.rollouts",
    "Tasks": "rollonce.rollouts",
    "check_baseline": "rollonce.testing",
    "load_baseline": "rollonce.baselines",
    "moments": "rollonce.scoring",
    "read": "rollonce.api",
    "read_rollouts": "rollonce.readers",
    "score": "rollonce.api",
    "score_rollouts": "rollonce.scoring",
}
_PARTS = (
    *("baselines", "comparison", "datasets", "experiments", "features", "integrations", "kernels", "noise", "policies"),
    *("readers", "reference", "reports", "scoring", "tasks", "testing", "training", "tuning"),
)
__all__ = [
    "AdvantageHook",
    "Baseline",
    "Batch",
    "History",
    "InputError",
    "Rollouts",
    "Tasks",
    "check_baseline",
    "load_baseline",
    "moments",
    "read",
    "read_rollouts",
    "score",
    "score_rollouts",
]

if TYPE_CHECKING:
    from rollonce.api import read, score
    from rollonce.baselines import Baseline, Batch, History, load_baseline
    from rollonce.errors import InputError
    from rollonce.integrations.hook import AdvantageHook
    from rollonce.readers import read_rollouts
    from rollonce.rollouts import Rollouts, Tasks
    from rollonce.scoring import moments, score_rollouts
    from rollonce.testing import check_baseline


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PARTS:
        return import_module(f"rollonce.{name}")
    raise AttributeError(f"module 'rollonce' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})
