"""Data audit: the three sets share no prompt, the grader agrees with known solutions, and counts and hashes are on
record."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from rollonce.experiments.engine import ExperimentTasks
from rollonce.experiments.spec import EvalSpec, GenerationAudit
from rollonce.rollouts import normalise_prompt
from rollonce.tasks import Task, grade


def audit_tasks(tasks: ExperimentTasks, limits: GenerationAudit, evaluation: EvalSpec) -> dict[str, Any]:
    """Counts, hashes, overlaps and label errors; ``passed`` and ``problems`` say whether the limits hold.

    Overlap is counted after `rollonce.rollouts.normalise_prompt`. A label error is a known right solution that the
    grader does not accept.
    """
    sets = {"train": tasks.train, "used": tasks.used, "calibration": tasks.calibration, "test": tasks.test}
    keys = {name: {normalise_prompt(t.prompt) for t in found} for name, found in sets.items()}
    overlaps = {
        "train and test": len(keys["train"] & keys["test"]),
        "calibration and test": len(keys["calibration"] & keys["test"]),
        "calibration and what the arms train on": len(keys["calibration"] & keys["used"]),
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
    if len(tasks.test) != evaluation.n_examples:
        deviations.append(
            f"the evaluation has {len(tasks.test)} different prompts; {evaluation.n_examples} were registered"
        )
    return {
        "passed": not problems,
        "problems": problems,
        "deviations": deviations,
        "counts": {name: len(found) for name, found in sets.items()},
        "sha256": {name: tasks_digest(found) for name, found in sets.items()},
        "overlaps": overlaps,
        "labels_graded": len(sample),
        "label_errors": wrong,
    }


def tasks_digest(tasks: Sequence[Task]) -> str:
    """sha256 over ids, prompts and references in order."""
    total = hashlib.sha256()
    for t in tasks:
        total.update("\0".join((t.id, t.prompt, t.reference)).encode() + b"\n")
    return total.hexdigest()
