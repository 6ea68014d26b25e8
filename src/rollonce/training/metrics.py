"""What is measured beside the training: time by part, shadow scores, and trackers of other projects."""

from __future__ import annotations

import contextlib
import importlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rollonce.baselines import Baseline, Batch
from rollonce.errors import MissingExtraError
from rollonce.rollouts import FloatArray, Tasks
from rollonce.scoring.watch import predict_without_siblings
from rollonce.training.arms import named_baseline
from rollonce.training.config import RunConfig
from rollonce.training.files import write_whole

PARTS = ("sample", "grade", "advantage", "critic", "update")


class Stopwatch:
    """Wall and CPU seconds by part of a step. CPU is this process's, all threads; a grader in a process of its own
    counts as wall alone."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.cpu: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is inside."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall[name] += time.perf_counter() - wall
            self.cpu[name] += time.process_time() - cpu


class Shadow:
    """Baselines scored on the arm's own rollouts, by their leave-one-out twins, a task's other rollouts hidden; they
    change nothing.

    ``E[A^2] = s2 + MSE``, so the ratio of two baselines' B_eff is the inverse ratio of these means (MATH: section 3).

    Args:
        names: Of `rollonce.training.arms.BY_NAME`.
        tasks: To fit them on.
    """

    def __init__(self, names: Sequence[str], tasks: Tasks) -> None:
        self.baselines: dict[str, Baseline] = {
            name: named_baseline(name).fit(tasks).twin().fit(tasks) for name in names
        }

    def step(self, batch: Batch) -> dict[str, dict[str, float]]:
        """Mean squared advantage of each, by name; then the step joins their histories."""
        out = {}
        several = len(np.unique(batch.tasks.prompt_keys)) > 1
        for name, baseline in self.baselines.items():
            if several:
                b = predict_without_siblings(baseline, batch)
                out[name] = {"mean_square_advantage": float(((batch.rewards_B - b) ** 2).mean())}
            baseline.observe(batch)
        return out

    def state(self) -> str:
        """Histories, as JSON."""
        return json.dumps({name: b.state_dict() for name, b in self.baselines.items()})

    def load_state(self, text: str) -> None:
        """Put back what `state` gave."""
        for name, state in json.loads(text).items():
            self.baselines[name].load_state_dict(state)


def correlation(x_B: FloatArray, y_B: FloatArray) -> float | None:
    """Pearson's, or None where one of them is constant."""
    if len(x_B) < 2 or np.ptp(x_B) < 1e-12 or np.ptp(y_B) < 1e-12:
        return None
    return float(np.corrcoef(x_B, y_B)[0, 1])


def loo_gap(rewards_B: FloatArray, baseline_B: FloatArray) -> float | None:
    """Mean absolute difference of the baseline from the plain leave-one-out mean of the batch: 0 where a kernel has
    done nothing."""
    B = len(rewards_B)
    return float(np.abs(baseline_B - (rewards_B.sum() - rewards_B) / (B - 1)).mean()) if B > 1 else None


def dead_groups(rewards_B: FloatArray, group_size: int) -> float | None:
    """Share of groups whose rollouts were all rewarded alike (they teach nothing under a group mean); None without
    groups."""
    if group_size < 2:
        return None
    return float((np.ptp(rewards_B.reshape(-1, group_size), axis=1) < 1e-12).mean())


class Tracker(Protocol):
    """What a run reports to: a step's numbers by name."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One step."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


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
            write_whole(known, f"{run}-{secrets.token_hex(4)}\n".encode())
        identity = known.read_text(encoding="utf-8").strip()
        if module.__name__ == "wandb":
            module.init(name=run, id=identity, dir=str(directory), **settings)
        else:
            module.init(name=identity, **settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.module.log(dict(values), step=step)

    def close(self) -> None:
        self.module.finish()


class _TensorBoard:
    def __init__(self, module: Any, directory: Path, done: int) -> None:
        # What a killed run had written of later steps is void: they are made again.
        self.writer = module.SummaryWriter(str(directory / "tensorboard"), purge_step=done + 1 if done else None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


def trackers(config: RunConfig, directory: Path, done: int = 0) -> list[Tracker]:
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


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """A record's numbers by path, as trackers want them."""
    out: dict[str, float] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            out |= flat(value, name + "/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[name] = float(value)
    return out
