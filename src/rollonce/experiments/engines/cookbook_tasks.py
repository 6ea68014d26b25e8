"""GSM8K as tinker-cookbook's recipe reads it: its shuffle, its prompts, its grader."""

from __future__ import annotations

import gzip
import importlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.errors import InputError, MissingExtraError
from rollonce.experiments.dense import with_dense_reward
from rollonce.experiments.engine import ExperimentTasks
from rollonce.experiments.evaluate import run_within_seconds
from rollonce.integrations.rows import stable_task_id
from rollonce.tasks import Task, TaskSet

HUB_S = 60.0
FORMAT_COEF = 0.1
"""What the recipe takes off its training reward for an answer without a well-formed box."""
_README = (
    "---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: train.jsonl}\n  - {split: test, path: "
    "test.jsonl}\n---\n"
)


@dataclass(frozen=True)
class CookbookGrader:
    """The recipe's exact match: the last ``\\boxed{}`` against the reference, by its own grader (which needs a
    process's main thread)."""

    def warm_up(self) -> None:
        """Import the cookbook, which takes seconds that are no response's fault."""
        importlib.import_module("tinker_cookbook.recipes.math_rl.math_env")

    def __call__(self, response: str, reference: str) -> float:
        from tinker_cookbook.recipes.math_rl import math_env  # type: ignore[import-not-found]

        try:
            given = math_env.extract_boxed(response)
        except ValueError:
            return 0.0
        return float(math_env.safe_grade(given, reference))


def grade_boxed_format(response: str) -> float:
    """1 if there is a ``\\boxed{}``."""
    from tinker_cookbook.recipes.math_rl import math_env  # type: ignore[import-not-found]

    try:
        math_env.extract_boxed(response)
    except ValueError:
        return 0.0
    return 1.0


def prepare_directory(source: str, folder: Path) -> Path:
    """A working directory in which the recipe finds ``openai/gsm8k``: the given files, or nothing, and then the hub."""
    folder.mkdir(parents=True, exist_ok=True)
    place = source.partition(":")[2]
    if place == "hub":
        return folder
    data = folder / "openai" / "gsm8k"
    data.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        found = next(
            (f for end in (".jsonl", ".jsonl.gz") if (f := Path(place).expanduser() / (split + end)).is_file()), None
        )
        if found is None:
            raise InputError(f"holds neither {split}.jsonl nor {split}.jsonl.gz", file=place)
        opener = gzip.open if found.suffix == ".gz" else open
        with opener(found, "rb") as src, open(data / f"{split}.jsonl", "wb") as out:
            shutil.copyfileobj(src, out)
    (data / "README.md").write_text(_README, encoding="utf-8")
    return folder


def read_gsm8k_rows(source: str, split: str) -> list[dict[str, Any]]:
    """Rows of GSM8K as they come, from a directory (``gsm8k:DIR``) or the hub (``gsm8k:hub``)."""
    from rollonce.tasks.jsonl import read_json_lines

    place = source.partition(":")[2]
    if place != "hub":
        for end in (".jsonl", ".jsonl.gz"):
            file = Path(place).expanduser() / (split + end)
            if file.is_file():
                return [record for _, record in read_json_lines(file)]
        raise InputError(f"holds neither {split}.jsonl nor {split}.jsonl.gz", file=place)
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtraError("GSM8K from the hub", "datasets", "tinker") from error
    try:
        rows = run_within_seconds(HUB_S, lambda: load_dataset("openai/gsm8k", "main", split=split))
    except Exception as error:  # the hub's client raises many kinds
        raise InputError(
            f"GSM8K cannot be had from the hub ({type(error).__name__}); give --gsm8k DIR instead"
        ) from None
    if rows is None:
        raise InputError(f"the hub did not give GSM8K within {HUB_S:g} s; give --gsm8k DIR instead")
    return [dict(row) for row in rows]


def load_cookbook_tasks(
    source: str, seed: int, *, n_used: int, n_calibration: int, n_selection: int, dense: bool
) -> ExperimentTasks:
    """The sets as the recipe sees them. Ids are those that its log has under our patch (`stable_task_id`).

    Args:
        source: ``gsm8k:DIRECTORY`` or ``gsm8k:hub``.
        seed: Of the recipe's shuffle (``datasets``' own: numpy's default generator, one permutation).
        n_used: Tasks that the arm with the most trains on.
        n_calibration, n_selection: Tasks right behind those in the shuffle, first the ones and then the others.
        dense: Graded by `rollonce.experiments.dense`.

    Raises:
        InputError: no such files, rows that are not GSM8K's, or too few of them.
    """
    solutions: dict[str, str] = {}

    def rows_to_task_set(rows: list[dict[str, Any]], name: str) -> TaskSet:
        out: dict[str, Task] = {}
        for number, row in enumerate(rows, 1):
            question, answer = row.get("question"), row.get("answer")
            if not isinstance(question, str) or not isinstance(answer, str) or "####" not in answer:
                raise InputError(
                    f"row {number} of the {name} set is no GSM8K row: question and answer with a final '#### NUMBER'",
                    file=source,
                )
            reference = answer.rpartition("####")[2].strip().replace(",", "")
            task = Task(stable_task_id(question), question, reference, CookbookGrader(), {"family": "gsm8k"})
            if task.id not in out:
                out[task.id] = task
                solutions[task.id] = f"{answer}\n\\boxed{{{reference}}}"
        return TaskSet(out.values(), f"gsm8k/{name}")

    rows = read_gsm8k_rows(source, "train")
    order = np.random.default_rng(seed).permutation(len(rows))
    used = rows_to_task_set([rows[int(i)] for i in order[:n_used]], "used")
    taken = {t.id for t in used}
    behind = [t for t in rows_to_task_set([rows[int(i)] for i in order[n_used:]], "behind") if t.id not in taken]
    test_rows = read_gsm8k_rows(source, "test")
    train, test = rows_to_task_set(rows, "train"), rows_to_task_set(test_rows, "test")
    sets = {
        "train": train,
        "used": used,
        "calibration": TaskSet(behind[:n_calibration], "gsm8k/calibration"),
        "test": test,
        "selection": TaskSet(behind[n_calibration : n_calibration + n_selection], "gsm8k/selection"),
    }
    if dense:
        sets = {name: with_dense_reward(tasks) for name, tasks in sets.items()}
    labels = [] if dense else [(t, solutions[t.id]) for t in [*test, *train]]
    return ExperimentTasks(**sets, labels=labels, train_rows=len(rows), test_rows=len(test_rows))
