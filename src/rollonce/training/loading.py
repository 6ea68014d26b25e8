"""From a TOML file to runs: paths made independent of where the command is called from, grids and seeds written out."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.training.config import ExperimentConfig, LossConfig, RunConfig
from rollonce.training.sections import validate_section


def load_experiment_config(path: str | Path) -> ExperimentConfig:
    """Read a TOML file. Relative paths to baselines and tasks in it are from the file's own directory.

    Raises:
        InputError: no such file, no TOML, an unknown key, a value out of range.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not TOML: {error}", file=path) from None
    return validate_section(ExperimentConfig, _make_paths_absolute(data, path.parent), path)


def _make_paths_absolute(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """Paths made independent of where the command is called from, since the resolved copy lies elsewhere."""
    for arm in (data.get("arms") or {}).values() if isinstance(data.get("arms"), dict) else ():
        if isinstance(arm, dict) and str(arm.get("baseline", "")).endswith(".json"):
            arm["baseline"] = str((base / arm["baseline"]).resolve())
    tasks = data.get("tasks")
    if isinstance(tasks, dict) and isinstance(tasks.get("source"), str):
        name, colon, place = tasks["source"].partition(":")
        if name in ("gsm8k", "math500", "jsonl") and place and place != "hub":
            tasks["source"] = f"{name}{colon}{(base / place).resolve()}"
    policy = data.get("policy")
    if isinstance(policy, dict) and str(policy.get("source", "")).startswith("."):
        policy["source"] = str((base / policy["source"]).resolve())
    return data


def list_comparison_runs(config: ExperimentConfig) -> list[RunConfig]:
    """Every run of a comparison: seeds outermost, so that an interrupted one has all arms alike; a grid gives arms
    ``NAME@RATE``."""
    shared = {k: getattr(config, k) for k in ("policy", "tasks", "evaluation", "track")}
    out = []
    for seed in config.compare.seeds:
        for name, arm in config.arms.items():
            loss = validate_section(LossConfig, {**config.loss.model_dump(), **arm.loss}, f"arm {name!r}, loss")
            train = config.train.model_copy(update={"rollouts": arm.rollouts or config.train.rollouts})
            for rate in arm.learning_rates or (arm.learning_rate,):
                label = f"{name}@{rate:g}" if arm.learning_rates else name
                single = arm.model_copy(
                    update={"learning_rate": rate, "learning_rates": (), "loss": {}, "rollouts": None}
                )
                out.append(RunConfig(name=label, arm=single, seed=seed, train=train, loss=loss, **shared))
    return out
