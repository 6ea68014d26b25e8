"""Where a run's numbers go: ``metrics.jsonl`` and ``rollouts.jsonl`` always, W&B, trackio and TensorBoard where they
are asked for."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rollonce.errors import MissingExtraError
from rollonce.files import write_whole_file
from rollonce.run_directory import METRICS_FILE, ROLLOUTS_FILE, RolloutRecord, StepRecord
from rollonce.training.config import RunConfig
from rollonce.training.files import JsonLines


class RunLog:
    """The logs of a run that goes on after ``steps_done`` steps; what was written of later steps is void.

    Args:
        config, directory: Of the run.
        steps_done: Steps that were made.
        keep_until: The last step whose lines are kept: one more where the run ended in a step that was not made.

    Raises:
        MissingExtraError: a tracker is not installed.
        InputError: a file cannot be written.
    """

    def __init__(self, config: RunConfig, directory: Path, steps_done: int, keep_until: int) -> None:
        def is_within_kept_steps(record: Mapping[str, Any]) -> bool:
            return record["step"] <= keep_until

        self.metrics = JsonLines(directory / METRICS_FILE, is_within_kept_steps)
        self.rollouts = (
            JsonLines(directory / ROLLOUTS_FILE, is_within_kept_steps) if config.train.log_rollouts else None
        )
        self.trackers = open_configured_trackers(config, directory, steps_done)

    def write_step_and_rollouts(self, record: StepRecord, rollouts: Sequence[RolloutRecord]) -> None:
        """Add a step. Its rollouts come first: a line of metrics says that all of the step is there."""
        if self.rollouts is not None:
            self.rollouts.append_records(*rollouts)
        self.metrics.append_records(record)
        for tracker in self.trackers:
            tracker.log_step_values(record["step"], flatten_numbers(record))

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.metrics.close_log_file()
        if self.rollouts is not None:
            self.rollouts.close_log_file()
        for tracker in self.trackers:
            tracker.close_tracker()


class Tracker(Protocol):
    """What a run reports to: a step's numbers by name."""

    def log_step_values(self, step: int, values: Mapping[str, float]) -> None: ...

    def close_tracker(self) -> None: ...


class _Module:
    """W&B and trackio, whose calls are nearly the same. A resumed run goes on with the run that it had there."""

    def __init__(self, module: Any, config: RunConfig, directory: Path) -> None:
        self.module = module
        run = f"{config.name}-seed{config.seed}"
        settings: dict[str, Any] = {
            "project": config.track.project,
            "config": config.model_dump(mode="json"),
            "resume": "allow",
        }
        # Two runs of one name are two runs; the same directory is the same run.
        known = directory / f"{module.__name__}_run"
        if not known.exists():
            write_whole_file(known, f"{run}-{secrets.token_hex(4)}\n")
        identity = known.read_text(encoding="utf-8").strip()
        if module.__name__ == "wandb":
            module.init(name=run, id=identity, dir=str(directory), **settings)
        else:
            module.init(name=identity, **settings)

    def log_step_values(self, step: int, values: Mapping[str, float]) -> None:
        self.module.log(dict(values), step=step)

    def close_tracker(self) -> None:
        self.module.finish()


class _TensorBoard:
    def __init__(self, module: Any, directory: Path, done: int) -> None:
        # What a killed run had written of later steps is void: they are made again.
        self.writer = module.SummaryWriter(str(directory / "tensorboard"), purge_step=done + 1 if done else None)

    def log_step_values(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close_tracker(self) -> None:
        self.writer.close()


def open_configured_trackers(config: RunConfig, directory: Path, done: int = 0) -> list[Tracker]:
    """Those that the configuration names, for a run that goes on after ``done`` steps.

    Raises:
        MissingExtraError: one is not installed.
    """
    out: list[Tracker] = []
    for name in config.track.to:
        module_name = "torch.utils.tensorboard" if name == "tensorboard" else name
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise MissingExtraError(f"track.to = {name!r}", name, name) from error
        out.append(
            _TensorBoard(module, directory, done) if name == "tensorboard" else _Module(module, config, directory)
        )
    return out


def flatten_numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """A record's numbers by path, as trackers want them."""
    out: dict[str, float] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            out |= flatten_numbers(value, name + "/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[name] = float(value)
    return out
