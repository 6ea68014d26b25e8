"""The runs of a comparison as tasks of a Ray cluster: Ray says which node a run is on, and starts it again on another
when its node dies.

A run's directory lies where every node sees it, and it goes on from its checkpoint there, to the same numbers. Nothing
is scheduled here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.ray_nodes import connect_to_ray, node_check, ray_sentence, shared_token
from rollonce.run_directory import INTERRUPTED, run_folder
from rollonce.training.comparison_runs import ComparisonOutcome, Progress, prepare
from rollonce.training.config import ExperimentConfig

TIMES_STARTED_AGAIN = 10
"""How often Ray starts a run again whose node or process died."""
_SECONDS_BETWEEN_LOOKS = 1.0


def compare_on_ray(
    config: ExperimentConfig,
    out: Path,
    *,
    address: str | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> ComparisonOutcome:
    """As `rollonce.training.compare.compare`, with every run a Ray task.

    Args:
        config: What to run; each run asks for a GPU where ``policy.device`` is ``cuda`` or ``compare.devices`` is
            ``auto`` and the cluster has some, and for one CPU.
        out: The comparison's directory, seen by every node under the same path.
        address: ``HOST:PORT`` or ``ray://HOST:PORT``; None: ``RAY_ADDRESS``, or the cluster that runs on this machine.
        tell: Called as runs go on.

    Raises:
        InputError: no cluster there, or none that could ever make a run; a run there of another configuration.
    """
    ray = connect_to_ray(address)
    try:
        config, gpus = _with_gpus(config, ray.cluster_resources())
        out = out.resolve()
        runs, waiting = prepare(config, out)
        with shared_token(out) as token:
            board = _board(ray)
            task = ray.remote(_run_on_node(board, node_check(out, token))).options(
                num_cpus=1, num_gpus=gpus, max_retries=TIMES_STARTED_AGAIN
            )
            labels = {
                task.remote(run.model_dump(mode="json"), str(run_folder(out, run.name, run.seed)), label): label
                for run in waiting
                for label in [f"{run.name} seed {run.seed}"]
            }
            return _Tasks(ray, board, labels, total=len(runs), steps=config.train.steps, tell=tell).run()
    finally:
        ray.shutdown()


def _with_gpus(config: ExperimentConfig, there: dict[str, float]) -> tuple[ExperimentConfig, int]:
    """The configuration with the device that its runs will see, and how many GPUs each asks for."""
    if config.compare.devices not in (None, "auto"):
        raise InputError(
            "compare.devices lists devices of one machine; with --ray leave it out, or let it be 'auto' for a GPU a run"
        )
    device = config.policy.device
    if config.compare.devices == "auto":
        device = "cuda" if there.get("GPU", 0) >= 1 else "cpu"
    gpus = int(device.startswith("cuda"))
    if gpus and there.get("GPU", 0) < 1:
        raise InputError("each run asks for a GPU (policy.device is 'cuda'), but no node of the Ray cluster has one")
    policy = config.policy.model_copy(update={"device": "cuda" if gpus else device})
    return config.model_copy(update={"policy": policy}), gpus


class _Board:
    """An actor on the node of the command: how far each run is, and whether runs should stop."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[int, float]] = {}
        self.is_stopping = False

    def report(self, label: str, step: int, reward: float) -> bool:
        self.steps[label] = (step, reward)
        return self.is_stopping

    def look(self) -> dict[str, tuple[int, float]]:
        return self.steps

    def stop(self) -> None:
        self.is_stopping = True


def _board(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()


def _run_on_node(board: Any, check: Callable[[], str | None]) -> Callable[[dict[str, Any], str, str], dict[str, Any]]:
    """What a node does with a run."""

    def make_run(settings: dict[str, Any], directory: str, label: str) -> dict[str, Any]:
        import threading
        from pathlib import Path

        import ray

        if (reason := check()) is not None:
            return {"event": "error", "message": reason}
        from rollonce.training.files import LEASE_SECONDS
        from rollonce.training.worker import runner

        stop = threading.Event()

        def on_step(record: Any) -> None:
            if ray.get(board.report.remote(label, record["step"], record["reward"])):
                stop.set()

        # A node that was lost may still hold the lock for a while.
        return runner().run(settings, Path(directory), on_step, stop, patience=2 * LEASE_SECONDS)

    return make_run


class _Tasks:
    """Runs that Ray has been given, and what it says of them."""

    def __init__(
        self,
        ray: Any,
        board: Any,
        labels: dict[Any, str],
        *,
        total: int,
        steps: int,
        tell: Callable[[Progress], None] | None,
    ) -> None:
        self.ray, self.board, self.labels = ray, board, labels
        self.total, self.steps, self.tell = total, steps, tell
        self.done, self.interrupted = total - len(labels), False
        self.errors: list[str] = []

    def run(self) -> ComparisonOutcome:
        while self.labels:
            try:
                ended, _ = self.ray.wait(list(self.labels), timeout=_SECONDS_BETWEEN_LOOKS)
                for task in ended:
                    self._finish(task)
                self._tell()
            except KeyboardInterrupt:
                if self.interrupted:
                    break
                os.write(2, b"\nstopping after the steps that are running; Ctrl-C again ends them at once\n")
                self._stop()
        for task in self.labels:
            self.ray.cancel(task, force=True)
        return ComparisonOutcome(self.done, self.errors, self.interrupted)

    def _stop(self) -> None:
        """Runs that are under way save and end; those that wait for a node are taken back."""
        self.interrupted = True
        self.ray.get(self.board.stop.remote())
        started = self.ray.get(self.board.look.remote())
        for task, label in list(self.labels.items()):
            if label not in started:
                self.ray.cancel(task, force=True)

    def _finish(self, task: Any) -> None:
        label = self.labels.pop(task)
        try:
            event = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            return
        except self.ray.exceptions.RayError as error:
            if not self.interrupted:
                reason = ray_sentence(error)
                self.errors.append(f"{label}: Ray gave it up ({reason}); the same command goes on from its checkpoint")
            return
        if event["event"] == "error":
            self.errors.append(f"{label}: {event['message']}")
        elif event["result"]["status"] != INTERRUPTED:
            self.done += 1

    def _tell(self) -> None:
        if self.tell is None:
            return
        begun = self.ray.get(self.board.look.remote())
        running = {label: begun[label] for label in self.labels.values() if label in begun}
        at = [f"{label} step {step}: reward {reward:.2f}" for label, (step, reward) in running.items()]
        if self.labels and not at:
            free = self.ray.available_resources()
            at = [f"no run has made a step yet; free: {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs"]
        steps = self.done * self.steps + sum(step for step, _ in running.values())
        self.tell(Progress(self.done, self.total, steps, self.total * self.steps, at))
