"""Hashes that tell which rollouts, and which search of them, something was made from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rollonce.rollouts import Rollouts


def hash_rollout_table(rollouts: Rollouts) -> str:
    """A hash of prompts and rewards as read, so that a saved baseline says exactly what it was tuned on."""
    digest = hashlib.sha256()
    for prompt in rollouts.tasks.prompts:
        digest.update(prompt.encode(errors="surrogatepass") + b"\0")
    digest.update(rollouts.offsets_N1.astype("<i8").tobytes())
    digest.update(rollouts.rewards_R.astype("<f8").tobytes())
    return digest.hexdigest()[:16]


def fingerprint_search(rollouts: Rollouts, settings: dict[str, Any]) -> str:
    """A hash of the rollouts and of the settings that a search's trials depend on: the same search goes on with it."""
    kept = {k: v for k, v in settings.items() if k not in ("resamples", "report_batches", "sampler")}
    return hashlib.sha256((hash_rollout_table(rollouts) + json.dumps(kept, sort_keys=True)).encode()).hexdigest()[:12]
