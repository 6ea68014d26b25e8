"""What lies in the directory of a comparison and of each of its runs: written by `rollonce.training`, read by
`rollonce.comparison`.

::

    compare.json                           which arms and seeds: `ComparisonPlan`
    cost.json                              what `compare --check` expected
    runs/ARM/seed0/
        config.json                        the run's settings, all of them
        metrics.jsonl                      one line per step: `StepRecord`
        rollouts.jsonl                     one line per rollout: `RolloutRecord`
        evaluations/step_000020.jsonl      one line per answer to a held-out task: `EvaluationRecord`
        checkpoint.pt                      written whole; a killed run goes on from it, to the same numbers
        final/                             the policy, as transformers reads it
        result.json                        how the run ended: `RunResult`

NaN and infinity are null in all of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

PLAN_FILE, COST_FILE, RUNS_FOLDER = "compare.json", "cost.json", "runs"
CONFIG_FILE, METRICS_FILE, ROLLOUTS_FILE, RESULT_FILE = "config.json", "metrics.jsonl", "rollouts.jsonl", "result.json"
CHECKPOINT_FILE, EVALUATIONS_FOLDER, POLICY_FOLDER = "checkpoint.pt", "evaluations", "final"
EVALUATION_NAME = re.compile(r"^step_(\d+)\.jsonl$")
SEED_NAME = re.compile(r"^seed(\d+)$")

PARTS = ("sample", "grade", "advantage", "critic", "update")
"""What a training step's time is split into."""
MODES = ("sampled", "greedy")
SPLITS = ("test", "holdout")
DONE, COLLAPSED, NOT_FINITE, INTERRUPTED = "done", "collapsed", "nan", "interrupted"
BAD_ENDS = (COLLAPSED, NOT_FINITE)
"""Statuses of runs that went wrong in training: results of their arm, not accidents of the machine."""


class ArmPlan(TypedDict):
    """An arm of a comparison: ``arm`` is its name without the learning rate."""

    arm: str
    baseline: str | dict[str, Any] | None
    group_size: int
    rollouts_per_step: int
    learning_rate: float


class ComparisonPlan(TypedDict):
    """``compare.json``: the arms by name, and the file that the comparison was started with (``config``)."""

    arms: dict[str, ArmPlan]
    seeds: list[int]
    steps: int
    reference: str | None
    seed_means: str
    config: dict[str, Any]


class AdvantageFigures(TypedDict):
    """What a step's rewards, advantages and baselines say, whatever engine made them.

    Attributes:
        reward: Mean over the step's rollouts.
        advantage_mean, advantage_var, advantage_nonzero: Mean, variance, and share that differs from 0.
        baseline_mean: Mean of the baselines.
        loo_gap: Mean absolute difference of the baselines from the batch's leave-one-out mean.
        baseline_outcome_correlation: Pearson's, over the step's rollouts.
        dead_groups: Share of the groups whose rollouts were all rewarded alike.
    """

    reward: float
    advantage_mean: float
    advantage_var: float
    advantage_nonzero: float
    baseline_mean: float
    loo_gap: float | None
    baseline_outcome_correlation: float | None
    dead_groups: float | None


class StepRecord(AdvantageFigures):
    """One training step. None where a quantity does not exist for the arm, or was not measured at this step.

    Attributes:
        step, rollouts: Step from 1, and the rollouts up to and with it.
        self_weight_max: Largest weight of a rollout's own reward in its baseline.
        shadow: By baseline scored alongside: ``mean_square_advantage``.
        truncated: Share of the rollouts that met the length limit.
        tokens: Response tokens of all rollouts.
        surprisal: Mean over rollouts of ``-log pi(rollout)`` under the policy that sampled it (nats).
        grader_failures: Rollouts that the grader could not judge.
        critic_loss: Of a token-level critic, before the step taught it.
        loss, grad_norm, entropy, kl, kl_old, gated, clipped: See `rollonce.training.learners.Update`.
        cpu_seconds, wall_seconds: By `PARTS`.
    """

    step: int
    rollouts: int
    self_weight_max: float | None
    shadow: dict[str, dict[str, float]]
    truncated: float
    tokens: int
    surprisal: float
    grader_failures: int
    critic_loss: float | None
    loss: float
    grad_norm: float
    entropy: float
    kl: float | None
    kl_old: float
    gated: float
    clipped: float
    cpu_seconds: dict[str, float]
    wall_seconds: dict[str, float]


class RolloutRecord(TypedDict):
    """One training rollout, as `rollonce score` and `rollonce watch` read it.

    Attributes:
        step, task_id, prompt, reward: Which, and what it was worth.
        log_prob: Summed log-probability of the response's tokens under the policy that sampled them (nats).
        response_tokens: How many there are.
    """

    step: int
    task_id: str
    prompt: str
    reward: float
    log_prob: float
    response_tokens: int


class EvaluationRecord(TypedDict):
    """One answer to a held-out task. ``failure`` says why the grader could not judge it; empty where it could."""

    task_id: str
    family: str
    split: str
    mode: str
    repeat: int
    reward: float
    truncated: bool
    tokens: int
    failure: str


class RunResult(NamedTuple):
    """How a run ended.

    Attributes:
        status: ``done``, ``collapsed``, ``nan`` or ``interrupted``.
        message: The same in a sentence.
        steps: Updates made.
        holdout, test, test_greedy: Final mean rewards, None where not evaluated.
    """

    status: str
    message: str
    steps: int
    holdout: float | None = None
    test: float | None = None
    test_greedy: float | None = None


def path_of_run_folder(comparison: Path, arm: str, seed: int) -> Path:
    """Where a run of a comparison lies."""
    return comparison / RUNS_FOLDER / arm / f"seed{seed}"


def evaluation_file(run: Path, step: int) -> Path:
    """Where a run's evaluation after ``step`` updates lies."""
    return run / EVALUATIONS_FOLDER / f"step_{step:06d}.jsonl"
