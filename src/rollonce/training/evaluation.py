"""Held-out evaluation: every item's reward saved, sampled and greedy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollonce.files import convert_to_plain_json, write_json_file, write_whole_file
from rollonce.run_directory import RESULT_FILE, EvaluationRecord, RunResult, evaluation_file
from rollonce.tasks import Task, TaskSet, grade
from rollonce.training.config import EvaluationConfig, RunConfig
from rollonce.training.files import GOES_ON
from rollonce.training.learners.base import Learner

_HOLDOUT, _TEST = 1, 2  # seeds of the evaluations' streams


def family_and_level(task: Task) -> str:
    """The declared family, with the level where there is one; empty where neither is declared."""
    family, level = str(task.columns.get("family", "") or ""), str(task.columns.get("level", "") or "")
    return f"{family}/{level}" if family and level else family or level


def evaluate_items(
    learner: Learner, tasks: Sequence[Task], config: RunConfig, *, split: str, mode: str, repeats: int, step: int
) -> Iterator[EvaluationRecord]:
    """One record per answer. Greedily, each task is answered once.

    The stream of samples depends on split, step and the run's seed: arms of one seed have the same luck, so that their
    difference is of the arms; seeds have luck of their own, so that a mean over seeds averages it out. The start policy
    is the same for all seeds, and evaluated once.
    """
    stream = _HOLDOUT if split == "holdout" else _TEST
    luck = [config.seed] if step else []
    rows = config.evaluation.rows
    for repeat in range(repeats if mode == "sampled" else 1):
        for start in range(0, len(tasks), rows):
            asked = list(tasks[start : start + rows])
            samples = learner.sample_rollouts(
                [t.prompt for t in asked],
                max_new_tokens=learner.max_new_tokens,
                temperature=config.train.temperature if mode == "sampled" else 0.0,
                seed=[config.tasks.seed, stream, step, repeat, start, *luck],
            )
            truncated = samples.truncated_B.tolist()
            grades = grade(asked, samples.texts, truncated=truncated, time_limit=config.tasks.time_limit)
            lengths = samples.lengths_B.tolist()
            for k, task in enumerate(asked):
                yield {
                    "task_id": task.id,
                    "family": family_and_level(task),
                    "split": split,
                    "mode": mode,
                    "repeat": repeat,
                    "reward": grades.rewards[k],
                    "truncated": bool(truncated[k]),
                    "tokens": int(lengths[k]),
                    "failure": grades.failures[k],
                }


def evaluate_learner(
    learner: Learner, holdout: TaskSet, test: TaskSet, config: RunConfig, *, step: int, final: bool
) -> list[EvaluationRecord]:
    """The hold-out, sampled; and, before and after training (``final``), the test tasks, sampled and greedily."""
    e: EvaluationConfig = config.evaluation
    records: list[EvaluationRecord] = []
    if len(holdout) and e.repeats:
        records += evaluate_items(
            learner, holdout, config, split="holdout", mode="sampled", repeats=e.repeats, step=step
        )
    if final and len(test):
        records += evaluate_items(
            learner, test, config, split="test", mode="sampled", repeats=e.test_repeats, step=step
        )
        if e.greedy:
            records += evaluate_items(learner, test, config, split="test", mode="greedy", repeats=1, step=step)
    return records


def write_evaluation(directory: Path, step: int, records: Sequence[EvaluationRecord]) -> None:
    """All records of one evaluation, whole or not at all."""
    lines = "".join(json.dumps(convert_to_plain_json(r), ensure_ascii=False) + "\n" for r in records)
    write_whole_file(evaluation_file(directory, step), lines, make_parents=True, if_it_fails=GOES_ON)


def mean_reward_of_split(records: Sequence[EvaluationRecord], split: str, mode: str = "sampled") -> float | None:
    """Mean over the records of a split and mode, or None."""
    rewards = [r["reward"] for r in records if r["split"] == split and r["mode"] == mode]
    return sum(rewards) / len(rewards) if rewards else None


def write_run_result(
    directory: Path, status: str, message: str, step: int, records: Sequence[EvaluationRecord]
) -> RunResult:
    """How a run ended, with the means of its last evaluation."""
    means = (
        mean_reward_of_split(records, "holdout"),
        mean_reward_of_split(records, "test"),
        mean_reward_of_split(records, "test", "greedy"),
    )
    result = RunResult(status, message, step, *means)
    write_json_file(directory / RESULT_FILE, result, if_it_fails=GOES_ON)
    return result
