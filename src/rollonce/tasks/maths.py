"""GSM8K and MATH-500, from a local directory or, when asked for, the hub.

Sources: Cobbe et al., "Training Verifiers to Solve Math Word Problems" (2021), openai/gsm8k (MIT); Hendrycks et al.,
"Measuring Mathematical Problem Solving With the MATH Dataset" (2021), the 500 of Lightman et al. (2023),
HuggingFaceH4/MATH-500. Neither is copied into this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.errors import InputError, MissingExtraError
from rollonce.prompts import normalise_prompt
from rollonce.tasks.base import Task, TaskSet, TaskSplits, check_splits_disjoint
from rollonce.tasks.grading import extract_final_answer, math_verify, numeric_exact
from rollonce.tasks.jsonl import read_json_lines
from rollonce.tasks.source import Source, TaskRequest, choose_all

GSM8K_HUB = "openai/gsm8k"
MATH500_HUB = "HuggingFaceH4/MATH-500"


def _read_local_rows(directory: str | Path, split: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    folder = Path(directory).expanduser()
    if not folder.is_dir():
        raise InputError(
            f"there is no directory {str(directory)!r}; give one that holds train.jsonl(.gz) and test.jsonl(.gz), or "
            "ask for the hub"
        )
    for name in (f"{split}.jsonl", f"{split}.jsonl.gz"):
        if (folder / name).is_file():
            for line, record in read_json_lines(folder / name):
                yield str(folder / name), line, record
            return
    raise InputError(f"holds neither {split}.jsonl nor {split}.jsonl.gz", file=folder)


def _read_hub_rows(dataset: str, config: str | None, split: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtraError(f"{dataset} from the hub", "datasets", "train") from error
    try:
        rows = load_dataset(dataset, config, split=split)
    except Exception as error:  # the hub's client raises many kinds: no network, no such set, gated
        raise InputError(
            f"{dataset} cannot be had from the hub ({type(error).__name__}); give a local directory instead"
        ) from error
    for line, record in enumerate(rows, 1):
        yield f"{dataset} ({split})", line, dict(record)


def _read_text_field(record: dict[str, Any], names: tuple[str, ...], source: str, line: int) -> str:
    for name in names:
        if isinstance(record.get(name), str) and record[name].strip():
            return record[name]
    raise InputError(f"has no text under {' or '.join(names)}", file=source, line=line)


def _drop_repeated_prompts(tasks: list[Task]) -> list[Task]:
    """The first of each prompt: both benchmarks hold a few twice."""
    seen: dict[str, Task] = {}
    for task in tasks:
        seen.setdefault(normalise_prompt(task.prompt), task)
    return list(seen.values())


def _make_gsm8k_tasks(rows: Iterator[tuple[str, int, dict[str, Any]]], split: str) -> list[Task]:
    tasks = []
    for source, line, record in rows:
        answer = _read_text_field(record, ("answer",), source, line)
        if "####" not in answer:
            raise InputError(
                "the answer has no '####' before its final number, as GSM8K's have", file=source, line=line
            )
        reference = extract_final_answer(answer).replace(",", "")
        # The worked answer's lines are its steps: known before the rollout, and the level that GSM8K offers.
        steps = answer.count("\n")
        question = _read_text_field(record, ("question", "problem"), source, line)
        tasks.append(
            Task(f"gsm8k/{split}/{line}", question, reference, numeric_exact, {"family": "gsm8k", "level": str(steps)})
        )
    return _drop_repeated_prompts(tasks)


def _make_math500_tasks(rows: Iterator[tuple[str, int, dict[str, Any]]]) -> list[Task]:
    tasks = []
    for source, line, record in rows:
        problem, reference = (
            _read_text_field(record, ("problem", "question"), source, line),
            _read_text_field(record, ("answer",), source, line),
        )
        columns = {"family": str(record.get("subject", "math")), "level": str(record.get("level", ""))}
        tasks.append(Task(f"math500/{record.get('unique_id', line)}", problem, reference, math_verify, columns))
    return _drop_repeated_prompts(tasks)


def _set_tasks_apart(pool: list[Task], n: int, seed: int) -> tuple[list[Task], list[Task]]:
    """``n`` of them drawn by the seed, and the rest in their order."""
    if n > len(pool):
        raise InputError(f"{n} hold-out tasks asked for, but there are only {len(pool)}")
    chosen = set(np.random.default_rng(seed).permutation(len(pool))[:n].tolist())
    return [t for i, t in enumerate(pool) if i in chosen], [t for i, t in enumerate(pool) if i not in chosen]


def load_gsm8k_tasks(directory: str | Path | None, *, holdout: int = 512, seed: int = 0) -> TaskSplits:
    """GSM8K: the published test set whole, and ``holdout`` tasks set apart from the published training set.

    Graded by exact comparison of the final number (`numeric_exact`).

    Args:
        directory: Holds ``train.jsonl(.gz)`` and ``test.jsonl(.gz)`` with ``question`` and ``answer``; None asks the
            hub.
        holdout: Tasks set apart from training.
        seed: Which.

    Raises:
        InputError: no such files or lines that are not GSM8K's.
    """
    rows = (
        (lambda s: _read_hub_rows(GSM8K_HUB, "main", s))
        if directory is None
        else (lambda s: _read_local_rows(directory, s))
    )
    test = _make_gsm8k_tasks(rows("test"), "test")
    held = {normalise_prompt(t.prompt) for t in test}
    pool = [t for t in _make_gsm8k_tasks(rows("train"), "train") if normalise_prompt(t.prompt) not in held]
    apart, train = _set_tasks_apart(pool, holdout, seed)
    return check_splits_disjoint(
        TaskSplits(TaskSet(train, "gsm8k/train"), TaskSet(apart, "gsm8k/holdout"), TaskSet(test, "gsm8k/test"))
    )


def load_math500_tasks(directory: str | Path | None, *, holdout: int = 0, seed: int = 0) -> TaskSplits:
    """MATH-500 as a test set, graded with math-verify. Training tasks come from a ``train.jsonl`` beside it, where
    there is one.

    Args:
        directory: Holds ``test.jsonl(.gz)`` with ``problem``, ``answer``, and where known ``subject``, ``level``;
            perhaps ``train.jsonl(.gz)``; None asks the hub, which has the 500 test problems only.
        holdout: Tasks set apart from training.
        seed: Which.

    Raises:
        InputError: no such files, or hold-out tasks asked for without training tasks.
    """
    test = _make_math500_tasks(
        _read_hub_rows(MATH500_HUB, None, "test") if directory is None else _read_local_rows(directory, "test")
    )
    pool: list[Task] = []
    if directory is not None and any(
        (Path(directory).expanduser() / f"train.jsonl{end}").is_file() for end in ("", ".gz")
    ):
        held = {normalise_prompt(t.prompt) for t in test}
        train_rows = _make_math500_tasks(_read_local_rows(directory, "train"))
        # A training file numbers its lines like the test file does: keep the ids apart.
        pool = [
            Task(f"train/{t.id}", t.prompt, t.reference, t.grader, t.columns)
            for t in train_rows
            if normalise_prompt(t.prompt) not in held
        ]
    apart, train = _set_tasks_apart(pool, holdout, seed)
    return check_splits_disjoint(
        TaskSplits(TaskSet(train, "math500/train"), TaskSet(apart, "math500/holdout"), TaskSet(test, "math500/test"))
    )


def read_gsm8k_solutions(place: str) -> dict[str, str]:
    """Question -> worked solution, of the files in a directory; empty for the hub."""
    if place == "hub":
        return {}
    solutions: dict[str, str] = {}
    for split in ("train", "test"):
        for end in (".jsonl", ".jsonl.gz"):
            file = Path(place).expanduser() / (split + end)
            if file.is_file():
                solutions |= {str(r.get("question")): str(r.get("answer")) for _, r in read_json_lines(file)}
                break
    return solutions


def _directory_unless_hub(source: str, place: str) -> str | None:
    if not place:
        raise InputError(f"say where {source} lies, as {source}:DIRECTORY, or ask for the hub with {source}:hub")
    return None if place == "hub" else place


def _load_gsm8k_splits(place: str, request: TaskRequest) -> TaskSplits:
    set_apart = 512 if request.holdout is None else request.holdout
    return choose_all(
        load_gsm8k_tasks(_directory_unless_hub("gsm8k", place), holdout=set_apart, seed=request.seed), request
    )


def _load_math500_splits(place: str, request: TaskRequest) -> TaskSplits:
    splits = load_math500_tasks(
        _directory_unless_hub("math500", place), holdout=request.holdout or 0, seed=request.seed
    )
    return choose_all(splits, request)


GSM8K = Source(
    "gsm8k",
    _load_gsm8k_splits,
    place="DIR",
    holdout_is_set_apart=True,
    usual_place="hub",
    solutions=read_gsm8k_solutions,
)
MATH500 = Source("math500", _load_math500_splits, place="DIR", holdout_is_set_apart=True, usual_place="hub")
