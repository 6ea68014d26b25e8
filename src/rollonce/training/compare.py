"""Arms x seeds over processes. What is done is kept: called again, it goes on with what is missing, and new seeds or
arms are added."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollonce.errors import InputError
from rollonce.files import write_json_file
from rollonce.run_directory import CONFIG_FILE, INTERRUPTED, PLAN_FILE, ArmPlan, ComparisonPlan, run_folder
from rollonce.training.config import ExperimentConfig, RunConfig
from rollonce.training.devices import Place, check_device, with_devices
from rollonce.training.files import result_of, same_config
from rollonce.training.loading import runs_of


class Progress(NamedTuple):
    """Where a comparison stands.

    Attributes:
        done, total: Runs.
        steps_done, steps_total: Of all runs together.
        running: ``arm seed step reward`` of the runs at hand.
    """

    done: int
    total: int
    steps_done: int
    steps_total: int
    running: list[str]


class ComparisonOutcome(NamedTuple):
    """How a comparison ended.

    Attributes:
        done: Runs that have a result.
        errors: Sentences of those that could not run.
        interrupted: True if it was stopped before all were done.
    """

    done: int
    errors: list[str]
    interrupted: bool


def write_plan(config: ExperimentConfig, out: Path, runs: Sequence[RunConfig]) -> None:
    """``compare.json``: the arms as they are run, what they share, and the seeds."""
    arms: dict[str, ArmPlan] = {}
    for run in runs:
        arms[run.name] = {
            "arm": run.name.partition("@")[0],
            "baseline": run.arm.baseline if run.arm.critic is None else f"token-level critic ({run.arm.critic.kind})",
            "group_size": run.arm.group_size,
            "rollouts_per_step": run.train.rollouts,
            "learning_rate": run.learning_rate,
        }
    plan: ComparisonPlan = {
        "arms": arms,
        "seeds": list(config.compare.seeds),
        "steps": config.train.steps,
        "reference": config.compare.reference,
        "seed_means": "the order of tasks and the stream of samples; the start policy is the same for all",
        "config": config.model_dump(mode="json"),
    }
    write_json_file(out / PLAN_FILE, plan, make_parents=True)


def compare(config: ExperimentConfig, out: Path, tell: Callable[[Progress], None] | None = None) -> ComparisonOutcome:
    """Run every arm with every seed that has no result yet.

    Args:
        config: What to run.
        out: The comparison's directory. Runs in it that are of another configuration are refused before anything
            starts.
        tell: Called as runs go on.

    Raises:
        InputError: a run there of another configuration, or a disk that is full.
    """
    config, places = with_devices(config)
    runs = runs_of(config)
    for run in runs:
        directory = run_folder(out, run.name, run.seed)
        if (directory / CONFIG_FILE).exists():
            same_config(run, directory)
    write_plan(config, out, runs)
    waiting = [run for run in runs if result_of(run_folder(out, run.name, run.seed)) is None]
    return _Pool(waiting, out, total=len(runs), steps=config.train.steps, places=places, tell=tell).run()


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

    def start(self, run: RunConfig, out: Path) -> None:
        self.run, self.step = run, 0
        job = {"config": run.model_dump(mode="json"), "directory": str(run_folder(out, run.name, run.seed))}
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(job) + "\n").encode())
        self.process.stdin.flush()

    @property
    def label(self) -> str:
        assert self.run is not None
        where = f" on {self.place.name}" if self.place.name else ""
        return f"{self.run.name} seed {self.run.seed}{where}"

    def close(self) -> None:
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

    def run(self) -> ComparisonOutcome:
        with selectors.DefaultSelector() as selector:
            for _ in range(min(len(self.free), len(self.waiting))):
                self._hire(selector)
            while selector.get_map():
                try:
                    for key, _ in selector.select():
                        worker, stream = key.data
                        data = os.read(key.fd, 65536)
                        if not data:
                            selector.unregister(key.fileobj)
                            if stream == "out":
                                self._ended(worker)
                                if self.waiting and not self.interrupted:
                                    self._hire(selector)
                        elif stream == "err":
                            worker.last_words = (worker.last_words + data)[-4000:]
                        else:
                            self._heard(worker, data)
                except KeyboardInterrupt:
                    if self.interrupted:
                        for worker in self.workers:
                            worker.process.kill()
                    else:
                        os.write(2, b"\nstopping after the steps that are running; Ctrl-C again ends them at once\n")
                    self.interrupted = True
                    self.waiting.clear()
                    for worker in self.workers:
                        worker.close()
        for worker in self.workers:
            worker.process.wait()
        return ComparisonOutcome(self.done, self.errors, self.interrupted)

    def _hire(self, selector: selectors.BaseSelector) -> None:
        """One more process, on a free place, for the next run that waits."""
        worker = _Worker(self.free.pop(0))
        self.workers.append(worker)
        assert worker.process.stdout is not None
        assert worker.process.stderr is not None
        selector.register(worker.process.stdout, selectors.EVENT_READ, (worker, "out"))
        selector.register(worker.process.stderr, selectors.EVENT_READ, (worker, "err"))
        worker.start(self.waiting.pop(0), self.out)

    def _heard(self, worker: _Worker, data: bytes) -> None:
        worker.buffer += data
        *lines, worker.buffer = worker.buffer.split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "step":
                worker.step, worker.reward = event["step"], event["reward"]
            else:
                self._finish(worker, event)
        if self.tell is not None:
            at = [f"{w.label} step {w.step}: reward {w.reward:.2f}" for w in self.workers if w.run is not None]
            steps = self.done * self.steps + sum(w.step for w in self.workers if w.run is not None)
            self.tell(Progress(self.done, self.total, steps, self.total * self.steps, at))

    def _finish(self, worker: _Worker, event: dict[str, Any]) -> None:
        run = worker.run
        assert run is not None
        if event["event"] == "error":
            self.errors.append(f"{worker.label}: {event['message']}")
            self._skip_if_never_begun(worker, run)
        elif event["result"]["status"] != INTERRUPTED:
            self.done += 1
        worker.run = None
        if self.waiting and not self.interrupted:
            worker.start(self.waiting.pop(0), self.out)
        else:
            worker.close()

    def _ended(self, worker: _Worker) -> None:
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
            self.errors.append(f"{worker.label}: its process {why}; the same command goes on from its checkpoint")
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


def check_start(config: ExperimentConfig) -> None:
    """Find out what no run could do, before processes start.

    Raises:
        InputError: tasks, policy or a baseline that cannot be had.
    """
    from rollonce.training.arms import ORACLE
    from rollonce.training.arms.baseline import make_baseline
    from rollonce.training.rolling import tasks_of

    if config.policy.engine == "local":
        with_devices(config)
        check_device(config.policy.device)
    splits = tasks_of(config.tasks)
    for name, arm in config.arms.items():
        distinct = (arm.rollouts or config.train.rollouts) // arm.group_size
        if distinct > len(splits.train):
            raise InputError(f"arm {name!r} needs {distinct} different tasks a step, but there are {len(splits.train)}")
        if arm.critic is not None or arm.baseline == ORACLE:
            continue
        try:
            make_baseline(arm, splits.train.as_tasks())
        except InputError as error:
            raise InputError(f"arm {name!r}: {error}") from None
