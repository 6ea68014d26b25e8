"""A process that runs one training after another: ``python -m rollonce.training.worker``. Jobs on stdin, events on
stdout, JSON lines.

One thread a process: at the sizes that a CPU trains, two processes with a thread each beat one with two. When stdin
closes, because the parent is done or was killed, the run at hand is saved and the process ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from rollonce.errors import InputError
from rollonce.run_directory import StepRecord


class Runner:
    """Makes runs in this process, one after another, on one thread. Tasks that were loaded, and evaluations of a start
    policy, serve the next run too."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        with contextlib.suppress(RuntimeError):  # too late to be set: something has run in this process already
            torch.set_num_interop_threads(1)
        self.splits: dict[str, Any] = {}
        self.starts: dict[str, Any] = {}

    def run_training_job(
        self,
        settings: Any,
        directory: Path,
        on_step: Callable[[StepRecord], None],
        stop: threading.Event,
        *,
        on_checkpoint: Callable[[Path], None] | None = None,
        patience: float = 0.0,
    ) -> dict[str, Any]:
        """Make a run, and say how it ended: ``{"event": "end", "result": ...}`` or ``{"event": "error", "message":
        ...}``. ``on_checkpoint``, ``patience``: see `rollonce.training.loop.train_with_own_loop`."""
        from rollonce.training.config import RunConfig
        from rollonce.training.engines import train_on_engine
        from rollonce.training.rolling import load_configured_tasks
        from rollonce.training.sections import validate_section

        try:
            config = validate_section(RunConfig, settings)
            tasks_key = config.tasks.model_dump_json()
            if tasks_key not in self.splits:
                self.splits[tasks_key] = load_configured_tasks(config.tasks)
            result = train_on_engine(
                config,
                directory,
                splits=self.splits[tasks_key],
                on_step=on_step,
                start_evaluation=_make_cached_evaluation(self.starts, config),
                on_checkpoint=on_checkpoint,
                stop=stop,
                patience=patience,
            )
            return {"event": "end", "result": result._asdict()}
        except InputError as error:
            return {"event": "error", "message": str(error)}
        except Exception as error:  # a fault of one run is no reason to give up the others
            traceback.print_exc()
            return {"event": "error", "message": explain_run_failure(error)}
        finally:
            free_device_memory()


@functools.cache
def get_process_runner() -> Runner:
    """This process's."""
    return Runner()


def main(jobs: TextIO, events: TextIO) -> None:
    """Serve until ``jobs`` ends."""

    def write_event_line(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    stop = threading.Event()
    queue: list[str] = []
    arrived = threading.Condition()

    def queue_arriving_jobs() -> None:
        for line in jobs:
            with arrived:
                queue.append(line)
                arrived.notify()
        stop.set()
        with arrived:
            queue.append("")
            arrived.notify()

    def write_step_event(record: StepRecord) -> None:
        write_event_line({"event": "step", "step": record["step"], "reward": record["reward"]})

    threading.Thread(target=queue_arriving_jobs, daemon=True).start()
    while True:
        with arrived:
            arrived.wait_for(lambda: queue)
            line = queue.pop(0)
        if not line.strip():
            return
        job = json.loads(line)
        write_event_line(
            get_process_runner().run_training_job(job["config"], Path(job["directory"]), write_step_event, stop)
        )
        if stop.is_set():
            return


def explain_run_failure(error: Exception) -> str:
    """What went wrong with a run, for its user."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return (
            "does not fit into the memory of its device; let fewer rows be computed at once (policy.sample_rows, "
            "policy.train_rows), or take fewer rollouts, adapters (policy.lora_rank) or a smaller model"
        )
    return f"{type(error).__name__}: {error}"


def free_device_memory() -> None:
    """Give back what the last run held on the device, so that the next one has all of it."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _make_cached_evaluation(starts: dict[str, Any], config: Any) -> Callable[[Callable[[], Any]], Any]:
    """The start policy's evaluation is the same for all arms and seeds, unless adapters start from the run's seed."""

    def evaluate_or_recall(look: Callable[[], Any]) -> Any:
        if config.policy.seed_follows_run:
            return look()
        train = {"temperature": config.train.temperature, "max_new_tokens": config.train.max_new_tokens}
        key = json.dumps([config.policy.model_dump(), config.tasks.model_dump(), config.evaluation.model_dump(), train])
        if key not in starts:
            starts[key] = look()
        return starts[key]

    return evaluate_or_recall


if __name__ == "__main__":
    # Whatever libraries print goes to stderr: stdout is for events alone.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    main(sys.stdin, own)
