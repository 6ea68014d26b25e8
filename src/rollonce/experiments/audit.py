"""Data audit: the three sets share no prompt, the grader agrees with known solutions, and counts and hashes are on
record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from rollonce.experiments.engine import ExperimentTasks
from rollonce.experiments.spec import Spec
from rollonce.prompts import normalise_prompt
from rollonce.tasks import Task, grade


def audit_task_sets(
    tasks: ExperimentTasks, spec: Spec, *, max_tokens: int, prompt_lengths: Callable[[Sequence[str]], list[int]]
) -> dict[str, Any]:
    """Counts, hashes, overlaps, lengths and label errors; ``passed`` and ``problems`` say whether the limits hold.

    Overlap is counted after `rollonce.prompts.normalise_prompt`. A label error is a known right solution that the
    grader does not accept. The sets must have the registered sizes, and every prompt must leave room for the response
    within ``max_seq_len``.
    """
    limits = spec.generation_audit
    sets = {
        "train": tasks.train,
        "used": tasks.used,
        "calibration": tasks.calibration,
        "selection": tasks.selection,
        "test": tasks.test,
    }
    keys = {name: {normalise_prompt(t.prompt) for t in found} for name, found in sets.items()}
    held_out = keys["calibration"] | keys["selection"]
    overlaps = {
        "train and test": len(keys["train"] & keys["test"]),
        "calibration and test": len(held_out & keys["test"]),
        "calibration and what the arms train on": len(held_out & keys["used"]),
    }
    sample = tasks.labels[: max(limits.min_sample_size, 1)]
    graded = grade([t for t, _ in sample], [answer for _, answer in sample]) if sample else None
    wrong = [t.id for (t, _), r in zip(sample, graded.rewards, strict=True) if r < 1] if graded else []
    problems = [
        f"{n} prompts are in {pair}; {limits.max_eval_overlaps} are allowed"
        for pair, n in overlaps.items()
        if n > limits.max_eval_overlaps
    ]
    if len(wrong) > limits.max_label_errors:
        problems.append(
            f"the grader rejects {len(wrong)} of {len(sample)} known solutions ({wrong[0]!r} first); "
            f"{limits.max_label_errors} are allowed"
        )
    if len(sample) < limits.min_sample_size and limits.required:
        problems.append(f"only {len(sample)} known solutions to grade, {limits.min_sample_size} required")
    deviations = []
    test_rows = len(tasks.test) if tasks.test_rows is None else tasks.test_rows
    if test_rows != spec.eval.n_examples:
        problems.append(f"the test set has {test_rows} items; eval.n_examples registers {spec.eval.n_examples}")
    elif test_rows != len(tasks.test):
        deviations.append(f"{test_rows - len(tasks.test)} of {test_rows} test items repeat another and are asked once")
    if spec.dataset.n_examples is not None and tasks.train_rows not in (None, spec.dataset.n_examples):
        problems.append(
            f"the training set has {tasks.train_rows} rows; dataset.n_examples registers {spec.dataset.n_examples}"
        )
    longest = None
    if spec.max_seq_len is not None:
        read = [t.prompt for name in ("used", "calibration", "selection", "test") for t in sets[name]]
        longest = max(prompt_lengths(read), default=0)
        if longest + max_tokens > spec.max_seq_len:
            problems.append(
                f"the longest prompt has {longest} tokens, which with {max_tokens} of the response is over max_seq_len "
                f"{spec.max_seq_len}"
            )
    return {
        "passed": not problems,
        "problems": problems,
        "deviations": deviations,
        "longest_prompt": longest,
        "counts": {name: len(found) for name, found in sets.items()},
        "sha256": {name: compute_tasks_digest(found) for name, found in sets.items()},
        "overlaps": overlaps,
        "labels_graded": len(sample),
        "label_errors": wrong,
    }


def compute_tasks_digest(tasks: Sequence[Task]) -> str:
    """sha256 over ids, prompts and references in order."""
    total = hashlib.sha256()
    for t in tasks:
        total.update("\0".join((t.id, t.prompt, t.reference)).encode() + b"\n")
    return total.hexdigest()
