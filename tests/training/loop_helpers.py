"""Small runs of the embedded policy: 8 rollouts of at most 20 tokens, so that a step takes a few hundredths of a
second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollonce.training.config import RunConfig
from rollonce.training.sections import validate_section

TIMES = ("cpu_seconds", "wall_seconds")


def small_run(arm: dict[str, Any] | None = None, *, steps: int = 4, seed: int = 0, **sections: Any) -> RunConfig:
    """A run of a few seconds; ``sections`` add to the tables."""
    tables: dict[str, dict[str, Any]] = {
        "tasks": {"train": 90, "holdout": 8, "test": 8},
        "train": {
            "steps": steps,
            "rollouts": 8,
            "max_new_tokens": 20,
            "checkpoint_every": 2,
            "kl_every": 2,
            "shadow": ["loo", "gs1_buckets"],
        },
        "evaluation": {"every": 2},
        "loss": {},
        "policy": {},
        "track": {},
    }
    for name, values in sections.items():
        tables[name] |= values
    arm = arm or {"baseline": "flashreinforce"}
    name = str(arm.get("baseline") or "critic").replace("/", "_")
    return validate_section(RunConfig, {"name": name if len(name) < 40 else "arm", "arm": arm, "seed": seed, **tables})


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics without what depends on the clock."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def everything(directory: Path) -> dict[str, Any]:
    """All that a run left behind, as values to compare bit for bit."""
    import torch

    state = torch.load(directory / "checkpoint.pt", weights_only=True)

    def plain(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return (tuple(x.shape), x.numpy().tobytes())
        if isinstance(x, dict):
            return {k: plain(v) for k, v in x.items()}
        return [plain(v) for v in x] if isinstance(x, list | tuple) else x

    return {
        "metrics": metrics(directory),
        "rollouts": (directory / "rollouts.jsonl").read_text(),
        "evaluations": {p.name: p.read_text() for p in sorted((directory / "evaluations").glob("*.jsonl"))},
        "state": plain(state),
        "result": json.loads((directory / "result.json").read_text()),
        "weights": (directory / "final" / "model.safetensors").read_bytes(),
    }
