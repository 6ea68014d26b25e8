"""A stand-in for the package ``modal`` and its runner, for what cannot run here: a function's container is a process of
its own whose Volume is a copy of what was last committed. It can be killed as a preemption kills one; Modal's retries
then start it again. The arguments of decorators are checked against Modal's own package in `test_modal_example`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]


class Volume:
    """Committed content in ``store``; mounted at ``mount`` in a container."""

    store: Path
    mount: Path

    @classmethod
    def from_name(cls, name: str, *, create_if_missing: bool = False) -> Volume:
        return cls()

    def commit(self) -> None:
        # A commit is whole or not there, whenever the container dies.
        fresh = self.store.with_name(f"{self.store.name}-{time.monotonic_ns()}")
        shutil.copytree(self.mount, fresh)
        link = self.store.with_name("link")
        link.unlink(missing_ok=True)
        link.symlink_to(fresh)
        os.replace(link, self.store)

    def reload(self) -> None:
        """A container's first look; `Function.remote` mounted what was committed."""


class Image:
    """Steps are noted and nothing is built."""

    def __init__(self, steps: tuple[tuple[str, Any], ...] = ()) -> None:
        self.steps = steps

    @classmethod
    def debian_slim(cls, python_version: str) -> Image:
        return cls((("debian_slim", python_version),))

    def __getattr__(self, name: str) -> Callable[..., Image]:
        if name not in ("add_local_dir", "run_commands"):
            raise AttributeError(name)
        return lambda *args, **options: Image((*self.steps, (name, (args, options))))


class Function:
    """One decorated function."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options
        self.containers = 0
        self.preempt: Callable[[], bool] = lambda: False  # asked while a container runs; True once kills it

    def remote(self, *args: Any) -> Any:
        retries = self.options["retries"].max_retries
        for attempt in range(retries + 1):
            self.containers += 1
            done, value = self._container(args, last=attempt == retries)
            if done:
                return value
        raise RuntimeError("out of retries")

    def _container(self, args: tuple[Any, ...], *, last: bool) -> tuple[bool, Any]:
        (volume,) = self.options["volumes"].values()
        shutil.rmtree(volume.mount, ignore_errors=True)
        if volume.store.exists():
            shutil.copytree(volume.store, volume.mount)
        volume.mount.mkdir(parents=True, exist_ok=True)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                answer = (True, self.function(*args))
            except BaseException as error:
                answer = (False, repr(error))
            with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as f:
                pickle.dump(answer, f)
            os._exit(0)
        os.close(write)
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if self.preempt():
                process = psutil.Process(pid)
                for one in [*process.children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
            time.sleep(0.1)
        with os.fdopen(read, "rb") as f:
            data = f.read()
        if not data:
            return False, None  # preempted
        fine, value = pickle.loads(data)
        if not fine and last:
            raise RuntimeError(value)
        return fine, value


class App:
    """Keeps functions and entrypoints by name."""

    def __init__(self, name: str) -> None:
        self.name, self.functions, self.entrypoints = name, {}, {}  # type: ignore[var-annotated]

    def function(self, **options: Any) -> Callable[[Callable[..., Any]], Function]:
        def keep(function: Callable[..., Any]) -> Function:
            self.functions[function.__name__] = Function(function, options)
            return self.functions[function.__name__]

        return keep

    def local_entrypoint(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            self.entrypoints[function.__name__] = function
            return function

        return keep


def Retries(*, max_retries: int, initial_delay: float, backoff_coefficient: float) -> SimpleNamespace:
    """What Modal's takes."""
    return SimpleNamespace(max_retries=max_retries, delay=initial_delay, backoff=backoff_coefficient)


Secret = SimpleNamespace(from_name=lambda name, *, required_keys=(): SimpleNamespace(name=name, keys=required_keys))


def load_example(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """``examples/modal_gsm8k.py``, imported with the stand-in, its places in a folder."""
    monkeypatch.setitem(sys.modules, "modal", sys.modules[__name__])
    made = importlib.util.spec_from_file_location("modal_gsm8k", ROOT / "examples" / "modal_gsm8k.py")
    assert made is not None
    assert made.loader is not None
    module: ModuleType = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    module.KEPT, module.THERE, module.WORK = str(folder / "mount"), str(ROOT), str(folder / "work")
    module.volume.store, module.volume.mount = folder / "store", folder / "mount"
    module.SAVE_EVERY_S = 0.5
    return module


def read_records(run: Path) -> list[dict[str, Any]]:
    """Of a run's directory, as they stand there."""
    file = run / "records.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
