"""Calibration rollouts from a policy: what `rollonce collect` does. Importing this loads neither torch nor httpx."""

from __future__ import annotations

from rollonce.collecting.run import Collected, collect_rollouts
from rollonce.collecting.settings import CollectSettings

__all__ = ["CollectSettings", "Collected", "collect_rollouts"]
