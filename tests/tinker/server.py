"""SkyRL's Tinker API server on this machine's loopback address, for tests: JAX on the CPU, a free port, everything in
one directory.

As a module: ``with TinkerServer(directory, model) as server: server.url``. By hand: ``python tests/tinker/server.py
DIR`` makes a tiny model there, prints the address and serves until interrupted.

What SkyRL 0.4.0 needs besides its installation to answer a tinker 0.38 client on Python 3.11, all of it here
(`_serve`):

* ``typing.TypedDict`` replaced by typing_extensions' (pydantic refuses the former before Python 3.12);
* its engine started with this interpreter rather than through ``uv run``;
* ``sample_sequence_ids`` in the replies to ``/asample``, ``POST /sessions/{id}/finish``, and a ``/load_weights`` that
  makes the model it loads into: what the client has since come to expect;
* adapters of finished sessions leave, the oldest first, when their slots are wanted; where none is finished, those of
  the oldest session (a killed client never finishes one).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

SLOTS = 24
"""Adapters at once. On a CPU every forward pass costs in proportion to the slots, used or not: at 96 a batch took 40 s,
at 24 two."""

KEY = "tml-dummy"
"""A key of the shape that the client insists on; the server takes any."""


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class TinkerServer:
    """The server in a process group of its own, gone when the block (or this process) ends.

    Args:
        directory: Its database, checkpoints, compilation cache and log.
        model: Directory of the base model.
        port: Where to listen, default a free one.
        cache: Where compiled programs are kept, so that a second server compiles nothing anew.
        rank: The largest LoRA rank.
        slots: Adapters at once, default `SLOTS`.
    """

    def __init__(
        self,
        directory: Path,
        model: Path | str,
        port: int | None = None,
        cache: Path | None = None,
        rank: int = 8,
        slots: int = SLOTS,
    ) -> None:
        self.directory = Path(directory)
        self.model, self.rank, self.slots = model, rank, slots
        self.port = port or free_port()
        self.cache = cache or self.directory / "jax_cache"
        self.log = self.directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its base address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, timeout: float = 120.0) -> TinkerServer:
        """Start it and wait until it answers; RuntimeError with the log's end otherwise."""
        self.directory.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            # What the server needs beside the client's environment lies in a folder of its own (tests/tinker/ci.sh).
            "PYTHONPATH": os.environ.get("SERVER_PACKAGES", str(Path(sys.prefix) / "server")),
        }
        settings = {
            "base_model": str(self.model),
            "backend": "jax",
            # Every batch is padded to 32 rollouts: each new shape would be compiled for seconds.
            "backend_config": {
                "max_lora_adapters": self.slots,
                "max_lora_rank": self.rank,
                "sample_max_num_sequences": 32,
            },
            "checkpoints_base": str(self.directory / "checkpoints"),
            "database_url": f"sqlite:///{self.directory / 'tinker.db'}",
            # Its JAX backend samples from a checkpoint only while the model that it came from is loaded, and a recipe's
            # session is over by the time its final weights are evaluated: so none is unloaded by the clock, see
            # `_serve`.
            "session_timeout_sec": -1,
        }
        command = [sys.executable, __file__, "--serve", str(self.port), json.dumps(settings)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=2) as answer,
            ):
                if answer.status == 200:
                    return self
            time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"the Tinker server did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        """End the whole process group at once, as a crash would."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def __enter__(self) -> TinkerServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


# ---- in the server's processes


def _die_with_parent() -> None:
    """No orphan survives a killed test run (Linux: PR_SET_PDEATHSIG)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _patch_typing() -> None:
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict


def _serve(port: int, settings: dict[str, Any]) -> None:
    _die_with_parent()
    _patch_typing()
    import uvicorn
    from fastapi import Depends
    from fastapi import Request as HttpRequest
    from skyrl.tinker import api, config, types

    def engine_command(_: list[str], engine: Any) -> list[str]:
        return [sys.executable, __file__, "--engine", *config.config_to_argv(engine)]

    api._build_uv_run_cmd_engine = engine_command

    database = Depends(api.get_session)
    loaded: list[tuple[str, str]] = []  # (model, session), oldest first
    finished: set[str] = set()

    async def make_room(session: Any) -> None:
        while len(loaded) >= settings["backend_config"]["max_lora_adapters"] - 2:  # one is the base model's
            entry = next((entry for entry in loaded if entry[1] in finished), loaded[0])
            loaded.remove(entry)
            await api.unload_model(api.UnloadModelRequest(model_id=entry[0]), session)

    async def create_model(request: api.CreateModelRequest, session: Any = database) -> Any:
        await make_room(session)
        created = await api.create_model(request, session)
        loaded.append((created.model_id, request.session_id))
        return created

    async def asample(request: api.SampleRequest, req: HttpRequest, session: Any = database) -> dict[str, Any]:
        future = await api.asample(request, req, session)
        ids = [f"{future.request_id}-{i}" for i in range(request.num_samples)]
        return {**future.model_dump(), "sample_sequence_ids": ids}

    async def load_weights(body: dict[str, Any], req: HttpRequest, session: Any = database) -> Any:
        if not body.get("model_id"):
            path = types.TinkerPath.parse(body["path"])
            source = await api.get_model(session, path.primary_id if path else "")
            await make_room(session)
            body["model_id"] = (
                f"{body['session_id']}:train:{body['model_seq_id']}"  # the client makes the same name up on its side
            )
            created = types.CreateModelInput(lora_config=types.LoraConfig.model_validate(source.lora_config))
            made = {"request_type": types.RequestType.CREATE_MODEL, "model_id": body["model_id"]}
            request_id = await api.create_future(session=session, request_data=created, **made)
            row = {
                "base_model": source.base_model,
                "lora_config": source.lora_config,
                "status": "created",
                "request_id": request_id,
            }
            session.add(api.ModelDB(model_id=body["model_id"], session_id=body["session_id"], **row))
            await session.commit()
            loaded.append((body["model_id"], body["session_id"]))
        return await api.load_weights(api.LoadWeightsRequest.model_validate(body), req, session)

    async def finish(session_id: str) -> dict[str, str]:
        finished.add(session_id)
        return {"session_id": session_id, "status": "finished"}

    # FastAPI's annotations are strings here, and the names of this function are not among its globals.
    asample.__annotations__ = {
        "request": api.SampleRequest,
        "req": HttpRequest,
        "session": Any,
        "return": dict[str, Any],
    }
    create_model.__annotations__ = {"request": api.CreateModelRequest, "session": Any, "return": Any}
    load_weights.__annotations__ = {"body": dict[str, Any], "req": HttpRequest, "session": Any, "return": Any}
    replaced = ("/api/v1/asample", "/api/v1/load_weights", "/api/v1/create_model")
    api.app.router.routes = [r for r in api.app.router.routes if getattr(r, "path", "") not in replaced]
    api.app.post("/api/v1/asample")(asample)
    api.app.post("/api/v1/load_weights")(load_weights)
    api.app.post("/api/v1/create_model")(create_model)
    api.app.post("/api/v1/sessions/{session_id}/finish")(finish)
    api.app.state.engine_config = config.EngineConfig.model_validate(settings)
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


def _engine(arguments: list[str]) -> None:
    _die_with_parent()
    _patch_typing()
    sys.argv = ["skyrl.tinker.engine", *arguments]
    from skyrl.tinker import engine

    engine.main()


def _by_hand(directory: Path) -> None:
    from tiny_model import make_tiny_model

    model = directory / "model"
    if not (model / "config.json").is_file():
        make_tiny_model(model)
    with TinkerServer(directory, model) as server:
        print(f"TINKER_BASE_URL={server.url} TINKER_API_KEY={KEY} model={model}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(int(sys.argv[2]), json.loads(sys.argv[3]))
    elif sys.argv[1] == "--engine":
        _engine(sys.argv[2:])
    else:
        _by_hand(Path(sys.argv[1]).resolve())
