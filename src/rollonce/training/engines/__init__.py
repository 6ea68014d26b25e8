"""What carries out a run: our own loop (`rollonce.training.loop`), with a policy on this machine or on a service, or
TRL's trainer (`trl`). All of them leave the same directory behind (`rollonce.run_directory`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollonce.run_directory import RunResult
from rollonce.training.config import RunConfig


def train_on_engine(config: RunConfig, directory: Path, **options: Any) -> RunResult:
    """Make a run, or go on with it, on the engine that ``policy.engine`` names; ``options`` as
    `rollonce.training.loop.train`."""
    if config.policy.engine == "trl":
        from rollonce.training.engines.trl import train_with_trl

        return train_with_trl(config, directory, **options)
    from rollonce.training.loop import train_with_own_loop

    return train_with_own_loop(config, directory, **options)


def check_engine_can_run(config: RunConfig) -> None:
    """See that the run's engine can carry it out, before anything starts.

    Raises:
        InputError: naming the arm and what the engine cannot do.
        MissingExtraError: the engine is not installed.
    """
    if config.policy.engine == "trl":
        from rollonce.training.engines.trl import check_trl_can_run

        check_trl_can_run(config)
