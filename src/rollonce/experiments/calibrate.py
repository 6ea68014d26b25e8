"""Calibration rollouts of the starting policy: a few tasks that no arm trains on, G sampled rollouts each; resumable,
under a time cap that holds within a request as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rollonce.experiments.engine import Engine, StageFailed
from rollonce.experiments.evaluate import run_within_seconds
from rollonce.experiments.ledger import Ledger
from rollonce.tasks import TaskSet

CHUNK = 8
CALIBRATION = "calibration.jsonl"


class Calibration(NamedTuple):
    """One list of G rewards per task, in the order of the tasks, and what it took."""

    rewards: list[list[float]]
    truncated: float
    seconds: float
    response_tokens: int
    prompt_tokens: int


def sample_calibration_groups(
    engine: Engine,
    tasks: TaskSet,
    *,
    group_size: int,
    seed: int,
    ledger: Ledger,
    minutes: float,
    progress: Callable[[str, int, int], None],
    stage: str = "calibration",
) -> Calibration:
    """Sample, or go on sampling.

    ``calibration.jsonl`` gets one line per task: ``task_id, prompt, rewards, truncated, tokens, prompt_tokens``. The
    cap counts the time of all sittings, those that were killed as well, by the ledger's clock. Each chunk of tasks has
    a seed of its own, so a resumed calibration draws what the first would have.

    Raises:
        StageFailed: the cap came before the end. A gate is not scored on the tasks that happened to be quick.
    """
    done: dict[str, dict[str, Any]] = {row["task_id"]: row for row in ledger.read_noted_lines(CALIBRATION)}
    progress("tasks", len(done), len(tasks))
    for start in range(0, len(tasks), CHUNK):
        chunk = list(tasks[start : start + CHUNK])
        if all(t.id in done for t in chunk):
            continue
        ledger.count_elapsed_time(stage, write=True)
        left = 60 * minutes - ledger.spent_stage_seconds(stage)
        ask = lambda chunk=chunk, start=start: engine.sample_task_groups(chunk, group_size, seed * 1_000_003 + start)  # noqa: E731
        answers = run_within_seconds(left, ask) if left > 0 else None
        if answers is None:
            raise StageFailed(
                f"the cap of {minutes:g} minutes came after {len(done)} of {len(tasks)} calibration tasks; the gate is "
                "not scored"
            )
        for task, group in zip(chunk, answers, strict=True):
            if task.id in done:
                continue
            row = {"task_id": task.id, "prompt": task.prompt, "rewards": [a.reward for a in group]}
            row |= {
                "truncated": [a.truncated for a in group],
                "tokens": [a.tokens for a in group],
                "prompt_tokens": [a.prompt_tokens for a in group],
            }
            done[task.id] = row
            ledger.append_noted_line(CALIBRATION, row)
        progress("tasks", len(done), len(tasks))
    ordered = [done[t.id] for t in tasks]
    cut = [c for row in ordered for c in row["truncated"]]
    tokens, read = (sum(sum(row[k]) for row in ordered) for k in ("tokens", "prompt_tokens"))
    rewards = [row["rewards"] for row in ordered]
    return Calibration(rewards, sum(cut) / len(cut), ledger.spent_stage_seconds(stage), tokens, read)
