"""A process that runs one training after another: ``python -m rollonce.training.worker``. Jobs on stdin, events on
stdout, JSON lines.

One thread a process: at the sizes that a CPU trains, two processes with a thread each beat one with two. When stdin
closes, because the parent is done or was killed, the run at hand is saved and the process ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from rollonce.errors import InputError


def main(jobs: TextIO, events: TextIO) -> None:
    """Serve until ``jobs`` ends."""
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    from rollonce.training.config import RunConfig, validated
    from rollonce.training.loop import train
    from rollonce.training.rolling import tasks_of

    def tell(event: str, **values: Any) -> None:
        events.write(json.dumps({"event": event, **values}) + "\n")
        events.flush()

    stop = threading.Event()
    queue: list[str] = []
    arrived = threading.Condition()

    def listen() -> None:
        for line in jobs:
            with arrived:
                queue.append(line)
                arrived.notify()
        stop.set()
        with arrived:
            queue.append("")
            arrived.notify()

    threading.Thread(target=listen, daemon=True).start()
    splits: dict[str, Any] = {}
    starts: dict[str, Any] = {}
    while True:
        with arrived:
            arrived.wait_for(lambda: queue)
            line = queue.pop(0)
        if not line.strip():
            return
        job = json.loads(line)
        try:
            config = validated(RunConfig, job["config"])
            tasks_key = config.tasks.model_dump_json()
            if tasks_key not in splits:
                splits[tasks_key] = tasks_of(config.tasks)
            result = train(
                config,
                Path(job["directory"]),
                splits=splits[tasks_key],
                on_step=lambda record: tell("step", step=record["step"], reward=record["reward"]),
                start_evaluation=_from(starts, config),
                stop=stop,
            )
            tell("end", result=result._asdict())
        except InputError as error:
            tell("error", message=str(error))
        except Exception as error:  # a fault of one run is no reason to give up the others
            traceback.print_exc()
            tell("error", message=sentence_of(error))
        free_memory()
        if stop.is_set():
            return


def sentence_of(error: Exception) -> str:
    """What went wrong with a run, for its user."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return (
            "does not fit into the memory of its device; let fewer rows be computed at once (policy.sample_rows, "
            "policy.train_rows), or take fewer rollouts, adapters (policy.lora_rank) or a smaller model"
        )
    return f"{type(error).__name__}: {error}"


def free_memory() -> None:
    """Give back what the last run held on the device, so that the next one has all of it."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _from(starts: dict[str, Any], config: Any) -> Callable[[Callable[[], Any]], Any]:
    """The start policy's evaluation is the same for all arms and seeds, unless adapters start from the run's seed."""

    def answer(look: Callable[[], Any]) -> Any:
        if config.policy.seed_follows_run:
            return look()
        train = {"temperature": config.train.temperature, "max_new_tokens": config.train.max_new_tokens}
        key = json.dumps([config.policy.model_dump(), config.tasks.model_dump(), config.evaluation.model_dump(), train])
        if key not in starts:
            starts[key] = look()
        return starts[key]

    return answer


if __name__ == "__main__":
    # Whatever libraries print goes to stderr: stdout is for events alone.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    main(sys.stdin, own)
