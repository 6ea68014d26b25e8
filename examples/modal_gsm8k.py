"""The registered experiment on Modal: by our own loop on a rented GPU, or on a Tinker-compatible service (Spindle).

    pip install modal && modal setup
    modal run examples/modal_gsm8k.py::gpu                    # the plan, an estimate and a cap; starts nothing
    modal run examples/modal_gsm8k.py::gpu --yes              # the whole run: preflights, gate, pilot, arms, verdict
    modal secret create spindle TINKER_API_KEY=... TINKER_BASE_URL=...
    modal run examples/modal_gsm8k.py::spindle --renderer qwen3_5_disable_thinking --yes
    modal volume get rollonce gpu-gs1_vs_grpo_gsm8k ./out     # records, ledger and report

A container that is preempted or cut off is started again by Modal and goes on from what the Volume kept. The time of
all sittings counts against the registered budget, and the run ends itself when that is used up: that is the cap.

**Not run on Modal here.** The functions below run in this repository's tests on the embedded policy, through a stand-in
for Modal's runner that kills a container and starts it again (tests/integrations/test_modal_example.py); Modal's own
package is only asked whether it takes the arguments.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import modal
except ModuleNotFoundError:  # the functions below are plain Python
    modal = None

THERE, KEPT, WORK = "/rollonce", "/kept", "/rollonce-work"  # in the container: this repository, the Volume, a disk
ROOT = Path(THERE) if Path(THERE).is_dir() else Path(__file__).resolve().parents[1]
SPEC = "specs/gs1_vs_grpo_gsm8k.spec.json"
GPU, DOLLARS_PER_HOUR = "H100", 3.95  # late 2025; see modal.com/pricing, and give --dollars-per-hour
SAVE_EVERY_S, START_MINUTES, RESTARTS = 120.0, 10, 8
ASK_FOR_A_BOX = "{prompt} Write your answer in \\boxed{} format."  # the recipe's suffix
BAD_INPUT = 2


def with_our_loop(document: dict[str, Any], *, gpu: bool = True) -> dict[str, Any]:
    """The registered specification with a section of ours: our loop instead of the recipe, on one GPU. Everything that
    was registered stays; the report names the other loop as a deviation."""
    if "rollonce" in document:  # one of ours already (tests run a small one)
        return document
    policy = {
        "device": "cuda" if gpu else "cpu",
        "bf16": gpu,
        "gradient_checkpointing": gpu,
        "local_only": False,
        "prompt_template": ASK_FOR_A_BOX,
        "train_rows": 8,
    }
    return {**document, "rollonce": {"engine": "local", "training": {"policy": policy}}}


def estimate(document: dict[str, Any], dollars_per_hour: float) -> str:
    """What it costs at most, in words: the registered budget, and the starts of containers on top."""
    minutes = document["budget"]["max_wall_minutes"]
    if minutes is None:
        raise SystemExit("this specification has no budget.max_wall_minutes, so nothing would cap the bill")
    most = (minutes + (1 + RESTARTS) * START_MINUTES) / 60 * dollars_per_hour
    return (
        f"{GPU} at ${dollars_per_hour:.2f} per hour: ${minutes / 60 * dollars_per_hour:.2f} for the registered "
        f"{minutes:g} minutes, which the run does not exceed, and at most ${most:.2f} with {1 + RESTARTS} starts of "
        f"{START_MINUTES} minutes each"
    )


class Keeper:
    """Copies a run between the container's disk and the Volume: two slots in turns, and a pointer to the whole one.

    Modal commits a Volume in the background at any time, so the run itself must not lie there: half of a step would be
    kept. The copy is made while the run stands still.
    """

    def __init__(self, work: Path, kept: Path, commit: Callable[[], None]) -> None:
        self.work, self.kept, self.commit = work, kept, commit

    def restore(self) -> None:
        """Put back what was kept last, if anything was."""
        pointer = self.kept / "current"
        shutil.rmtree(self.work, ignore_errors=True)
        if pointer.is_file():
            shutil.copytree(self.kept / pointer.read_text(), self.work)
        self.work.mkdir(parents=True, exist_ok=True)

    def save(self) -> None:
        """Keep what is there now."""
        pointer = self.kept / "current"
        slot = "b" if pointer.is_file() and pointer.read_text() == "a" else "a"
        shutil.rmtree(self.kept / slot, ignore_errors=True)
        shutil.copytree(self.work, self.kept / slot)
        (self.kept / "next").write_text(slot)
        os.replace(self.kept / "next", pointer)
        self.commit()


def carry_out(
    document: dict[str, Any],
    kept: Path,
    commit: Callable[[], None],
    *,
    options: tuple[str, ...] = (),
    root: str = str(ROOT),
    work: Path = Path(WORK),
) -> int:
    """``rollonce run`` where this is called, kept on the Volume as it goes; the exit code.

    Raises:
        RuntimeError: it died, and Modal should start it again.
    """
    keeper = Keeper(work, kept, commit)
    kept.mkdir(parents=True, exist_ok=True)
    keeper.restore()
    spec = work / "registered.spec.json"
    spec.write_text(json.dumps(document, indent=1))
    command = [sys.executable, "-m", "rollonce.cli", "run", str(spec), "--out", str(work / "run"), *options]
    process = subprocess.Popen(command, cwd=root, start_new_session=True)
    saved = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - saved >= SAVE_EVERY_S:
                os.killpg(process.pid, signal.SIGSTOP)
                try:
                    keeper.save()
                finally:
                    os.killpg(process.pid, signal.SIGCONT)
                saved = time.monotonic()
    finally:
        if process.poll() is None:  # a time limit, or Modal's warning before a preemption
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        keeper.save()
    if process.returncode not in (0, 1, BAD_INPUT):
        raise RuntimeError(f"rollonce run ended with code {process.returncode}; it goes on from what was kept")
    return process.returncode


def read_registered(spec: str) -> dict[str, Any]:
    """A specification's document."""
    return json.loads((ROOT / spec).read_text(encoding="utf-8"))


def start(
    kind: str, document: dict[str, Any], spec: str, words: str, yes: bool, remote: Callable[..., int], *options: str
) -> int:
    """Say what it costs, and start it if that was agreed to."""
    print(f"{document['title']}\n{words}", flush=True)
    if not yes:
        print("Nothing was started: give --yes to start it.")
        return 0
    name = f"{kind}-{Path(spec).name.removesuffix('.json').removesuffix('.spec')}"
    code = remote(document, name, options)
    print(f"exit code {code}; modal volume get rollonce {name} ./out")
    return code


if modal is not None:
    app = modal.App("rollonce-registered")
    volume = modal.Volume.from_name("rollonce", create_if_missing=True)
    source = modal.Image.debian_slim(python_version="3.11").add_local_dir(
        str(ROOT), THERE, copy=True, ignore=[".git", ".venv", ".venv-tinker", "out", "runs"]
    )
    constraints = f"pip install --constraint {THERE}/constraints.txt"
    with_torch = source.run_commands(f"{constraints} '{THERE}[train]' datasets")
    with_sdk = source.run_commands(f"{constraints} '{THERE}[tinker]'")
    again = modal.Retries(max_retries=RESTARTS, initial_delay=1.0, backoff_coefficient=1.0)
    hours = read_registered(SPEC)["budget"]["max_wall_minutes"] / 60 + 1

    def remotely(document: dict[str, Any], name: str, options: tuple[str, ...]) -> int:
        """In the container."""
        volume.reload()
        kept, work = Path(KEPT) / name, Path(WORK)
        return carry_out(document, kept, volume.commit, options=tuple(options), root=THERE, work=work)

    @app.function(
        image=with_torch, gpu=GPU, timeout=int(hours * 3600), retries=again, volumes={KEPT: volume}, max_containers=1
    )
    def on_gpu(document: dict[str, Any], name: str, options: tuple[str, ...]) -> int:
        """Our loop, transformers sampling and training on the GPU."""
        return remotely(document, name, options)

    @app.function(
        image=with_sdk,
        cpu=2.0,
        timeout=int(hours * 3600),
        retries=again,
        volumes={KEPT: volume},
        max_containers=1,
        secrets=[modal.Secret.from_name("spindle", required_keys=["TINKER_API_KEY", "TINKER_BASE_URL"])],
    )
    def on_service(document: dict[str, Any], name: str, options: tuple[str, ...]) -> int:
        """The stock recipe on the service; here only the client runs."""
        return remotely(document, name, options)

    @app.local_entrypoint()
    def gpu(spec: str = SPEC, yes: bool = False, dollars_per_hour: float = DOLLARS_PER_HOUR) -> None:
        """The registered specification with our loop on a rented GPU."""
        document = with_our_loop(read_registered(spec))
        sys.exit(start("gpu", document, spec, estimate(document, dollars_per_hour), yes, on_gpu.remote))

    @app.local_entrypoint()
    def spindle(renderer: str, spec: str = SPEC, yes: bool = False, price: str = "") -> None:
        """The registered specification, byte for byte, on the service that the secret names."""
        options = ["--renderer", renderer, *(["--price", price] if price else [])]
        shown = subprocess.run(
            [sys.executable, "-m", "rollonce.cli", "run", str(ROOT / spec), *options, "--check", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        cost = json.loads(shown.stdout)["cost"] if shown.stdout.strip() else {"max_dollars": None}
        words = "tokens on the service: no price on record, give --price"
        if cost["max_dollars"] is not None:
            words = f"tokens on the service: at most ${cost['max_dollars']:.2f} ({cost['price']['source']})"
        document = read_registered(spec)
        sys.exit(start("spindle", document, spec, words, yes, on_service.remote, *options))
