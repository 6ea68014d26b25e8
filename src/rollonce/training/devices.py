"""Which devices the runs of a comparison are spread over: one run per place, and a place is free when its run ends.

A GPU is given to a worker process by the environment (``CUDA_VISIBLE_DEVICES``), not by the run's settings: all runs of
a comparison have ``device = "cuda"`` in their ``config.json``, so that one that was killed goes on on another GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from rollonce.errors import InputError
from rollonce.training.config import ExperimentConfig

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Place(NamedTuple):
    """Where one run at a time may be.

    Attributes:
        name: The device as the user calls it (``cuda:1``); "" where runs are not spread over devices.
        environment: What the worker process is given besides its parent's environment.
    """

    name: str
    environment: Mapping[str, str]


def assign_run_devices(config: ExperimentConfig) -> tuple[ExperimentConfig, list[Place]]:
    """The configuration with the kind of device that its runs will see, and the places for them.

    Without ``compare.devices``: all runs on ``policy.device``, ``compare.processes`` at once (default: one per core).

    Raises:
        InputError: devices of several kinds or that are not here, or more processes than devices.
    """
    settings = config.compare
    if settings.devices is None:
        return config, [Place("", {})] * (settings.processes or os.cpu_count() or 1)
    names = _find_local_devices() if settings.devices == "auto" else list(settings.devices)
    kinds = {name.partition(":")[0] for name in names}
    if len(kinds) > 1:
        raise InputError(
            f"compare.devices must be of one kind, so that runs can be compared; {', '.join(names)} are of {len(kinds)}"
        )
    for name in names:
        check_device_available(name, "compare.devices")
    kind = kinds.pop()
    if kind == "cpu" and settings.devices == "auto":
        places = [Place("cpu", {})] * (settings.processes or os.cpu_count() or 1)
    else:
        places = [Place(name, _device_environment(name)) for name in names]
    if settings.processes is not None and settings.processes > len(places):
        raise InputError(
            f"compare.processes is {settings.processes}, but compare.devices has {len(places)}: each device takes one "
            "run at a time; name one twice to put two runs on it"
        )
    policy = config.policy.model_copy(update={"device": kind})
    return config.model_copy(update={"policy": policy}), places[: settings.processes]


def _find_local_devices() -> list[str]:
    """Every GPU that torch sees here; else Apple's; else the CPU."""
    import torch

    if torch.cuda.is_available():
        return [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    return ["mps"] if torch.backends.mps.is_available() else ["cpu"]


def _device_environment(name: str) -> dict[str, str]:
    kind, _, index = name.partition(":")
    if kind != "cuda":
        return {}
    visible = [v.strip() for v in os.environ.get(_VISIBLE, "").split(",") if v.strip()]
    # Numbers count within what this process was given, by a cluster's scheduler say.
    return {_VISIBLE: visible[int(index or 0)] if visible else index or "0"}


def check_device_available(name: str, setting: str = "policy.device") -> None:
    """See that torch knows a device and that it is here; ``setting`` is what named it.

    Raises:
        InputError: it does not, or it is not.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"{setting} {name!r} is none that torch knows; use 'cpu', 'cuda', 'cuda:1' or 'mps'") from None
    if device.type == "cuda":
        n = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= n:
            there = f"torch sees {n} here, numbered from 0" if n else "torch sees no GPU here; use device = 'cpu'"
            raise InputError(f"{setting} is {name!r}, but {there}")
