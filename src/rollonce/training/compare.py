"""Arms x seeds over processes of this machine. What is done is kept: called again, it goes on with what is missing, and
new seeds or arms are added."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollonce.run_directory import INTERRUPTED, path_of_run_folder
from rollonce.training.comparison_runs import ComparisonOutcome, Progress, prepare_comparison
from rollonce.training.config import ExperimentConfig, RunConfig
from rollonce.training.devices import Place, assign_run_devices


def compare_in_processes(
    config: ExperimentConfig, out: Path, tell: Callable[[Progress], None] | None = None
) -> ComparisonOutcome:
    """Run every arm with every seed that has no result yet.

    Args:
        config: What to run.
        out: The comparison's directory. Runs in it that are of another configuration are refused before anything
            starts.
        tell: Called as runs go on.

    Raises:
        InputError: a run there of another configuration, or a disk that is full.
    """
    config, places = assign_run_devices(config)
    runs, waiting = prepare_comparison(config, out)
    return _Pool(waiting, out, total=len(runs), steps=config.train.steps, places=places, tell=tell).run_until_all_done()


class _Worker:
    """A worker process, the place where its runs are, and the run it is at."""

    def __init__(self, place: Place) -> None:
        self.place = place
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", **place.environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rollonce.training.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then lets the workers save and leave
        )
        self.run: RunConfig | None = None
        self.step, self.reward = 0, float("nan")
        self.buffer = b""
        self.last_words = b""

    def start_training_run(self, run: RunConfig, out: Path) -> None:
        self.run, self.step = run, 0
        job = {"config": run.model_dump(mode="json"), "directory": str(path_of_run_folder(out, run.name, run.seed))}
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(job) + "\n").encode())
        self.process.stdin.flush()

    @property
    def run_label(self) -> str:
        assert self.run is not None
        where = f" on {self.place.name}" if self.place.name else ""
        return f"{self.run.name} seed {self.run.seed}{where}"

    def close_job_input(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()


class _Pool:
    """Workers on the places there are, and the runs that wait for one."""

    def __init__(
        self,
        waiting: Sequence[RunConfig],
        out: Path,
        *,
        total: int,
        steps: int,
        places: Sequence[Place],
        tell: Callable[[Progress], None] | None,
    ) -> None:
        self.waiting, self.out, self.total, self.steps, self.tell = list(waiting), out, total, steps, tell
        self.free = list(places)
        self.done = total - len(waiting)
        self.errors: list[str] = []
        self.interrupted = False
        self.workers: list[_Worker] = []

    def run_until_all_done(self) -> ComparisonOutcome:
        with selectors.DefaultSelector() as selector:
            for _ in range(min(len(self.free), len(self.waiting))):
                self._hire_worker(selector)
            while selector.get_map():
                try:
                    for key, _ in selector.select():
                        worker, stream = key.data
                        data = os.read(key.fd, 65536)
                        if not data:
                            selector.unregister(key.fileobj)
                            if stream == "out":
                                self._handle_worker_exit(worker)
                                if self.waiting and not self.interrupted:
                                    self._hire_worker(selector)
                        elif stream == "err":
                            worker.last_words = (worker.last_words + data)[-4000:]
                        else:
                            self._handle_worker_output(worker, data)
                except KeyboardInterrupt:
                    if self.interrupted:
                        for worker in self.workers:
                            worker.process.kill()
                    else:
                        os.write(2, b"\nstopping after the steps that are running; Ctrl-C again ends them at once\n")
                    self.interrupted = True
                    self.waiting.clear()
                    for worker in self.workers:
                        worker.close_job_input()
        for worker in self.workers:
            worker.process.wait()
        return ComparisonOutcome(self.done, self.errors, self.interrupted)

    def _hire_worker(self, selector: selectors.BaseSelector) -> None:
        """One more process, on a free place, for the next run that waits."""
        worker = _Worker(self.free.pop(0))
        self.workers.append(worker)
        assert worker.process.stdout is not None
        assert worker.process.stderr is not None
        selector.register(worker.process.stdout, selectors.EVENT_READ, (worker, "out"))
        selector.register(worker.process.stderr, selectors.EVENT_READ, (worker, "err"))
        worker.start_training_run(self.waiting.pop(0), self.out)

    def _handle_worker_output(self, worker: _Worker, data: bytes) -> None:
        worker.buffer += data
        *lines, worker.buffer = worker.buffer.split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "step":
                worker.step, worker.reward = event["step"], event["reward"]
            else:
                self._finish_run(worker, event)
        if self.tell is not None:
            at = [f"{w.run_label} step {w.step}: reward {w.reward:.2f}" for w in self.workers if w.run is not None]
            steps = self.done * self.steps + sum(w.step for w in self.workers if w.run is not None)
            self.tell(Progress(self.done, self.total, steps, self.total * self.steps, at))

    def _finish_run(self, worker: _Worker, event: dict[str, Any]) -> None:
        run = worker.run
        assert run is not None
        if event["event"] == "error":
            self.errors.append(f"{worker.run_label}: {event['message']}")
            self._skip_if_never_begun(worker, run)
        elif event["result"]["status"] != INTERRUPTED:
            self.done += 1
        worker.run = None
        if self.waiting and not self.interrupted:
            worker.start_training_run(self.waiting.pop(0), self.out)
        else:
            worker.close_job_input()

    def _handle_worker_exit(self, worker: _Worker) -> None:
        """A worker is gone: as told, or killed in the middle of a run. Its place is free."""
        code = worker.process.wait()
        self.free.append(worker.place)
        if worker.run is not None and not self.interrupted:
            words = worker.last_words.decode(errors="replace").strip().splitlines()
            why = (
                f"was killed by signal {-code}"
                if code < 0
                else f"ended with code {code}: {words[-1] if words else 'no message'}"
            )
            self.errors.append(f"{worker.run_label}: its process {why}; the same command goes on from its checkpoint")
            self._skip_if_never_begun(worker, worker.run)
            worker.run = None

    def _skip_if_never_begun(self, worker: _Worker, run: RunConfig) -> None:
        """A run that failed before its first step: the arm's other seeds would fail alike."""
        if worker.step:
            return
        others = [r for r in self.waiting if r.name == run.name]
        self.waiting = [r for r in self.waiting if r.name != run.name]
        if others:
            s = "s" * (len(others) > 1)
            self.errors.append(f"{run.name}: {len(others)} more seed{s} not tried, since this one failed at its start")
