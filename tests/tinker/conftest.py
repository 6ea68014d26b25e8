"""One server for all tests of this directory (one a worker). They run by ``tests/tinker/ci.sh`` alone: see there what
they need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server import KEY, TinkerServer
from tiny_model import make_tiny_model

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's directory."""
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    """The server; every test leaves it running (`test_zz_restart` starts it anew)."""
    base = tmp_path_factory.getbasetemp()
    # What one worker's server has compiled the other's need not. (The variable: to compile once when running parts of
    # this by hand.)
    shared = (
        os.environ.get("ROLLONCE_TEST_JAX_CACHE")
        or (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jax_cache"
    )
    with TinkerServer(tmp_path_factory.mktemp("server"), model, cache=Path(shared)) as running:
        yield running


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """A key of the right shape, in the environment as a user has it."""
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    return KEY


class Recipe:
    """Runs a recipe of tinker-cookbook in a process of its own, at a version."""

    def __init__(self, server: TinkerServer, model: Path) -> None:
        self.server, self.model = server, model

    def command(
        self, module: str, log: Path, *settings: str, baseline: Path | None = None, options: tuple[str, ...] = ()
    ) -> list[str]:
        """The command line: ``module`` is a module of the cookbook or of this directory."""
        common = {
            "model_name": self.model,
            "base_url": self.server.url,
            "env": "arithmetic",
            "renderer_name": "role_colon",
            "loss_fn": "importance_sampling",
            "max_tokens": 8,
            "lora_rank": 8,
            "learning_rate": 1e-3,
            "eval_every": 0,
            "log_path": log,
            "behavior_if_log_dir_exists": "resume",
        }
        common |= dict(s.split("=", 1) for s in settings)
        arguments = [module, *(f"{k}={v}" for k, v in common.items())]
        if baseline is None:
            return [sys.executable, "-m", *arguments]
        return [
            sys.executable,
            "-m",
            "rollonce.integrations.tinker_cookbook",
            str(baseline),
            *options,
            "--",
            *arguments,
        ]

    def start(self, command: list[str], version: str = "0.5.8") -> subprocess.Popen[str]:
        """Start it; output is one stream of text."""
        paths = [str(HERE)] + ([os.environ["COOKBOOK_061"]] if version == "0.6.1" else [])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )

    def run(self, command: list[str], version: str = "0.5.8") -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(command, version)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output


@pytest.fixture
def recipe(server: TinkerServer, model: Path) -> Recipe:
    """See `Recipe`."""
    return Recipe(server, model)
