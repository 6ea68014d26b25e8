"""The runs of a comparison as tasks of a Ray cluster: Ray says which node a run is on, and starts it again on another
when its node dies.

A run's directory lies where every node sees it, or in an object store (`rollonce.training.stored_runs`), and it goes
on from its checkpoint there, to the same numbers. Nothing is scheduled here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rollonce.errors import InputError
from rollonce.ray_nodes import connect_to_ray_cluster, describe_ray_error, make_node_check, write_shared_token
from rollonce.run_directory import INTERRUPTED, path_of_run_folder
from rollonce.training.comparison_runs import ComparisonOutcome, Progress, prepare_comparison
from rollonce.training.config import ExperimentConfig, RunConfig
from rollonce.training.object_store import is_store_url
from rollonce.training.stored_runs import open_comparison_directory, write_store_token

TIMES_STARTED_AGAIN = 10
"""How often Ray starts a run again whose node or process died."""
_SECONDS_BETWEEN_LOOKS = 1.0


def compare_on_ray_cluster(
    config: ExperimentConfig,
    out: Path | str,
    *,
    address: str | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> ComparisonOutcome:
    """As `rollonce.training.compare.compare`, with every run a Ray task.

    Args:
        config: What to run; each run asks for a GPU where ``policy.device`` is ``cuda`` or ``compare.devices`` is
            ``auto`` and the cluster has some, and for one CPU.
        out: The comparison's directory, seen by every node under the same path, or a URL of an object store.
        address: ``HOST:PORT`` or ``ray://HOST:PORT``; None: ``RAY_ADDRESS``, or the cluster that runs on this machine.
        tell: Called as runs go on.

    Raises:
        InputError: no cluster there, or none that could ever make a run; a run there of another configuration.
    """
    ray = connect_to_ray_cluster(address)
    try:
        config, gpus = _assign_cluster_gpus(config, ray.cluster_resources())
        with open_comparison_directory(out) as directory:
            runs, waiting = prepare_comparison(config, directory)
        with _show_nodes_the_place(out) as place:
            board = _make_board_actor(ray)
            task = ray.remote(_make_node_runner(board, place)).options(
                num_cpus=1, num_gpus=gpus, max_retries=TIMES_STARTED_AGAIN
            )
            labels = {
                task.remote(run.model_dump(mode="json"), _name_run_folder(run), label): label
                for run in waiting
                for label in [f"{run.name} seed {run.seed}"]
            }
            return _Tasks(ray, board, labels, total=len(runs), steps=config.train.steps, tell=tell).wait_for_all_runs()
    finally:
        ray.shutdown()


def _assign_cluster_gpus(config: ExperimentConfig, there: dict[str, float]) -> tuple[ExperimentConfig, int]:
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

    def report_step_made(self, label: str, step: int, reward: float) -> bool:
        self.steps[label] = (step, reward)
        return self.is_stopping

    def read_reported_steps(self) -> dict[str, tuple[int, float]]:
        return self.steps

    def ask_runs_to_stop(self) -> None:
        self.is_stopping = True


def _make_board_actor(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()


def _name_run_folder(run: RunConfig) -> str:
    return path_of_run_folder(Path(), run.name, run.seed).as_posix()


class _Place(NamedTuple):
    """Where the results are, and how a node sees whether it can work there; ``token`` for an object store."""

    out: str
    check: Callable[[], str | None]
    token: str | None


@contextlib.contextmanager
def _show_nodes_the_place(out: Path | str) -> Iterator[_Place]:
    if is_store_url(out):
        with write_store_token(str(out)) as token:
            yield _Place(str(out), make_node_check(), token)
    else:
        directory = Path(out).resolve()
        with write_shared_token(directory) as token:
            yield _Place(str(directory), make_node_check(directory, token), None)


def _make_node_runner(board: Any, place: _Place) -> Callable[[dict[str, Any], str, str], dict[str, Any]]:
    """What a node does with a run."""
    out, check, token = place  # no class of the package travels to a node that may lack it

    def train_run_on_node(settings: dict[str, Any], run_folder: str, label: str) -> dict[str, Any]:
        import functools
        import threading
        from pathlib import Path

        import ray

        if (reason := check()) is not None:
            return {"event": "error", "message": reason}
        from rollonce.training.files import LEASE_SECONDS
        from rollonce.training.stored_runs import train_in_object_store
        from rollonce.training.worker import get_process_runner

        stop = threading.Event()

        def report_and_check_stop(record: Any) -> None:
            if ray.get(board.report_step_made.remote(label, record["step"], record["reward"])):
                stop.set()

        patience = 2 * LEASE_SECONDS  # a node that was lost may still hold the lock for a while
        train = functools.partial(
            get_process_runner().run_training_job, settings, on_step=report_and_check_stop, stop=stop
        )
        if token is None:
            return train(Path(out) / run_folder, patience=patience)
        return train_in_object_store(
            out,
            run_folder,
            token,
            lambda scratch, put: train(scratch, on_checkpoint=put),
            stop,
            patience=patience,
        )

    return train_run_on_node


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

    def wait_for_all_runs(self) -> ComparisonOutcome:
        while self.labels:
            try:
                ended, _ = self.ray.wait(list(self.labels), timeout=_SECONDS_BETWEEN_LOOKS)
                for task in ended:
                    self._collect_run_result(task)
                self._report_progress()
            except KeyboardInterrupt:
                if self.interrupted:
                    break
                os.write(2, b"\nstopping after the steps that are running; Ctrl-C again ends them at once\n")
                self._stop_all_runs()
        for task in self.labels:
            self.ray.cancel(task, force=True)
        return ComparisonOutcome(self.done, self.errors, self.interrupted)

    def _stop_all_runs(self) -> None:
        """Runs that are under way save and end; those that wait for a node are taken back."""
        self.interrupted = True
        self.ray.get(self.board.ask_runs_to_stop.remote())
        started = self.ray.get(self.board.read_reported_steps.remote())
        for task, label in list(self.labels.items()):
            if label not in started:
                self.ray.cancel(task, force=True)

    def _collect_run_result(self, task: Any) -> None:
        label = self.labels.pop(task)
        try:
            event = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            return
        except self.ray.exceptions.RayError as error:
            if not self.interrupted:
                reason = describe_ray_error(error)
                self.errors.append(f"{label}: Ray gave it up ({reason}); the same command goes on from its checkpoint")
            return
        if event["event"] == "error":
            self.errors.append(f"{label}: {event['message']}")
        elif event["result"]["status"] != INTERRUPTED:
            self.done += 1

    def _report_progress(self) -> None:
        if self.tell is None:
            return
        begun = self.ray.get(self.board.read_reported_steps.remote())
        running = {label: begun[label] for label in self.labels.values() if label in begun}
        at = [f"{label} step {step}: reward {reward:.2f}" for label, (step, reward) in running.items()]
        if self.labels and not at:
            free = self.ray.available_resources()
            at = [f"no run has made a step yet; free: {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs"]
        steps = self.done * self.steps + sum(step for step, _ in running.values())
        self.tell(Progress(self.done, self.total, steps, self.total * self.steps, at))
