"""The loop: sample, grade, take a baseline off, update. Every arm runs through these lines; they differ in one class.

What is left out, so that it can be read top to bottom:

1. One process, one device, synchronous: a step's rollouts are all sampled, graded and learned from before the next
   step begins. Sharding, sampling servers and asynchronous rollouts are a framework's job; `rollonce.integrations` puts
   the same baselines into trainers that have them.
2. On-policy: the importance ratio is 1 and carries the gradient. Clipping, several epochs per batch, a gate and a lag
   are in the loss (`rollonce.training.config.LossConfig`), off unless asked for.
3. No penalty for leaving the start policy, so no reference model in the update; the KL is measured now and then.
4. One learning rate throughout: no warm-up, no schedule. Adam, gradients clipped by their norm.
5. Token-mean loss. Advantages are scaled only in arms that are defined so.
6. Every sampled rollout counts: no filtering, resampling or replay. One that meets the length limit has reward 0.

Shapes: ``_B`` rollouts of a step (tasks x group size). What a run leaves behind: `rollonce.run_directory`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rollonce.baselines import Batch
from rollonce.rollouts import FloatArray
from rollonce.run_directory import (
    CHECKPOINT_FILE,
    COLLAPSED,
    DONE,
    INTERRUPTED,
    NOT_FINITE,
    POLICY_FOLDER,
    EvaluationRecord,
    RolloutRecord,
    RunResult,
    StepRecord,
)
from rollonce.tasks import TaskSplits
from rollonce.training.arms.base import Arm
from rollonce.training.arms.make import make_configured_arm
from rollonce.training.config import RunConfig
from rollonce.training.evaluation import evaluate_learner, write_evaluation, write_run_result
from rollonce.training.files import (
    ensure_same_config,
    load_checkpoint,
    lock_run_directory,
    read_run_result,
    save_checkpoint,
    stop_on_signals,
    write_directory,
)
from rollonce.training.learners import Learner, make_configured_learner
from rollonce.training.metrics import Stopwatch, advantage_figures
from rollonce.training.rolling import (
    build_feature_tasks,
    choose_step_tasks,
    load_configured_tasks,
    rollout_records,
    sample_and_grade,
)
from rollonce.training.run_log import RunLog
from rollonce.training.shadow import Shadow

_STREAM = 11  # seed of the rollouts
Evaluate = Callable[[], list[EvaluationRecord]]


@dataclass
class RunUnderWay:
    """What a run is made of, and how far it is: ``strange_steps`` in a row that looked like a collapse."""

    config: RunConfig
    directory: Path
    splits: TaskSplits
    learner: Learner
    arm: Arm
    shadow: Shadow
    steps_done: int = 0
    strange_steps: int = 0
    status: str = DONE
    message: str = ""
    on_checkpoint: Callable[[Path], None] | None = None

    @property
    def has_steps_left(self) -> bool:
        """Whether there is another step to make."""
        return self.status == DONE and self.steps_done < self.config.train.steps


class StepTaken(NamedTuple):
    """One step: its record, whether the policy could be moved, its rollouts one by one, and what the arm made of them
    (B,)."""

    record: StepRecord
    is_finite: bool
    rollouts: list[RolloutRecord]
    batch: Batch
    advantages_B: FloatArray
    baseline_B: FloatArray


def train_with_own_loop(
    config: RunConfig,
    directory: Path,
    *,
    splits: TaskSplits | None = None,
    learner: Learner | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    on_batch: Callable[[int, Batch, FloatArray, FloatArray], None] | None = None,
    on_checkpoint: Callable[[Path], None] | None = None,
    start_evaluation: Callable[[Evaluate], list[EvaluationRecord]] | None = None,
    stop: threading.Event | None = None,
    patience: float = 0.0,
) -> RunResult:
    """Run one arm with one seed, or go on with it: set up, step by step, finish. The module says what is simplified.

    Args:
        config: What to run. A directory that holds another configuration is refused.
        directory: The run's own.
        splits, learner: Instead of those that the configuration names.
        on_step: Called with each step's record.
        on_batch: Called with each step, its rollouts, their advantages (B,) and baselines (B,), after the update; a
            step that a killed run repeats is told of again.
        on_checkpoint: Called with the file each time that a checkpoint was written.
        start_evaluation: Called with a function that evaluates the start policy; may answer from a cache.
        stop: Set it to stop after the step that is running, with a checkpoint; so does SIGINT or SIGTERM in the main
            thread.
        patience: Seconds to wait for another process that writes to the directory.

    Raises:
        InputError: what cannot be run, another run in that directory, or a disk that is full.
    """
    with lock_run_directory(directory, patience=patience), stop_on_signals(stop) as stopped:
        ensure_same_config(config, directory)
        if (ended := read_run_result(directory)) is not None:
            return ended
        run = set_up_training_run(config, directory, splits, learner, start_evaluation)
        run.on_checkpoint = on_checkpoint
        with RunLog(config, directory, run.steps_done, keep_until=run.steps_done + (run.status == NOT_FINITE)) as log:
            while run.has_steps_left:
                taken = take_training_step(run)
                log.write_step_and_rollouts(taken.record, taken.rollouts)
                if on_batch is not None:
                    on_batch(taken.record["step"], taken.batch, taken.advantages_B, taken.baseline_B)
                if on_step is not None:
                    on_step(taken.record)
                count_step_or_end_run(run, taken)
                if run.has_steps_left:
                    evaluate_and_checkpoint(run, stopped)
        return finish_training_run(run)


def set_up_training_run(
    config: RunConfig,
    directory: Path,
    splits: TaskSplits | None,
    learner: Learner | None,
    start_evaluation: Callable[[Evaluate], list[EvaluationRecord]] | None,
) -> RunUnderWay:
    """Tasks, policy and arm: as the last checkpoint left them, or new, with the start policy's evaluation written."""
    splits = splits or load_configured_tasks(config.tasks)
    learner = learner or make_configured_learner(config)
    arm = make_configured_arm(config, learner, splits.train)
    shadow = Shadow(config.train.shadow, splits.train.as_feature_tasks())
    run = RunUnderWay(config, directory, splits, learner, arm, shadow)
    if (state := load_checkpoint(directory)) is not None:
        learner.load_state_dict(state["learner"])
        arm.restore_checkpoint_state(state["arm"])
        shadow.restore_checkpoint_state(state["shadow"])
        run.steps_done, run.strange_steps = state["step"], state["strange"]
        run.status, run.message = state["status"], state["message"]
        return run

    def evaluate_start_policy() -> list[EvaluationRecord]:
        return evaluate_learner(learner, splits.holdout, splits.test, config, step=0, final=True)

    write_evaluation(
        directory, 0, evaluate_start_policy() if start_evaluation is None else start_evaluation(evaluate_start_policy)
    )
    return run


def take_training_step(run: RunUnderWay) -> StepTaken:
    """Sample and grade the next step's rollouts, let the arm judge them, move the policy, let the arm learn."""
    config, learner, arm, step = run.config, run.learner, run.arm, run.steps_done + 1
    watch = Stopwatch()
    arm.prepare_for_step(step)
    distinct = choose_step_tasks(run.splits.train, config.tasks_per_step, step, config.seed)
    tasks = [task for task in distinct for _ in range(config.arm.group_size)]
    rolled = sample_and_grade(learner, tasks, config, [config.seed, _STREAM, step], watch)
    rewards_B, samples, grades = rolled
    batch = Batch(build_feature_tasks(tasks), rewards_B, samples.lengths_B.double().numpy(), rolled.log_prob_B)
    with watch.time_step_part(arm.part):
        judged = arm.advantages_of_step(batch, samples)
    # Before the batch joins the history:
    self_weight_max = arm.largest_self_weight(batch) if config.train.audit_weights else None
    with watch.time_step_part("update"):
        measure_kl = config.train.kl_every > 0 and (step == 1 or step % config.train.kl_every == 0)
        update = learner.update_policy(
            samples, judged.advantages, measure_kl=measure_kl, move=arm.moves_policy_at_step(step)
        )
    with watch.time_step_part(arm.part):
        critic_loss = arm.learn_from_step(batch, samples, judged) if update.is_finite else None
    baseline_B = judged.baseline_B
    advantages_B = judged.advantages if judged.advantages.ndim == 1 else rewards_B - baseline_B
    record: StepRecord = {
        **advantage_figures(rewards_B, advantages_B, baseline_B, config.arm.group_size),
        "step": step,
        "rollouts": step * config.train.rollouts,
        "self_weight_max": self_weight_max,
        "shadow": run.shadow.score_and_observe(batch) if update.is_finite else {},
        "truncated": float(samples.truncated_B.float().mean()),
        "tokens": samples.n_tokens,
        "surprisal": -float(rolled.log_prob_B.mean()),
        "grader_failures": grades.n_failed,
        "critic_loss": critic_loss,
        "loss": update.loss,
        "grad_norm": update.grad_norm,
        "entropy": update.entropy,
        "kl": update.kl,
        "kl_old": update.kl_old,
        "gated": update.gated,
        "clipped": update.clipped,
        "cpu_seconds": watch.cpu,
        "wall_seconds": watch.wall,
    }
    return StepTaken(record, update.is_finite, rollout_records(step, tasks, rolled), batch, advantages_B, baseline_B)


def count_step_or_end_run(run: RunUnderWay, taken: StepTaken) -> None:
    """Count a step that was made; end the run where its update was not finite, or where it has collapsed."""
    record, settings = taken.record, run.config.train
    step = record["step"]
    if not taken.is_finite:
        run.status = NOT_FINITE
        run.message = f"loss {record['loss']}, gradient norm {record['grad_norm']} at step {step}: no update was made"
        return
    run.steps_done = step
    low_entropy = record["entropy"] < settings.collapse_entropy  # False where a service gives none (NaN)
    cut_off = record["truncated"] > settings.collapse_truncated
    run.strange_steps = run.strange_steps + 1 if cut_off or low_entropy else 0
    if run.strange_steps >= settings.collapse_steps:
        what = (
            f"entropy {record['entropy']:.2g} nats a token"
            if low_entropy
            else f"{record['truncated']:.0%} of rollouts truncated"
        )
        run.status = COLLAPSED
        run.message = f"{what} for {run.strange_steps} steps in a row, at step {step}"


def evaluate_and_checkpoint(run: RunUnderWay, stopped: threading.Event) -> None:
    """After a step that is not the last: the learning curve, a checkpoint, and whether to stop here."""
    config, step = run.config, run.steps_done
    every = config.evaluation.every
    if every and step % every == 0 and len(run.splits.holdout):
        records = evaluate_learner(run.learner, run.splits.holdout, run.splits.test, config, step=step, final=False)
        write_evaluation(run.directory, step, records)
    stopping_here = stopped.is_set()
    if stopping_here or step % config.train.checkpoint_every == 0:
        write_run_checkpoint(run)
    if stopping_here:
        run.status, run.message = INTERRUPTED, f"stopped after step {step}; the same command goes on from there"


def write_run_checkpoint(run: RunUnderWay) -> None:
    """Write all that the run needs to go on. One that ended badly has ended: it goes on with its last evaluation, and
    trains no more."""
    state: dict[str, Any] = {
        "step": run.steps_done,
        "strange": run.strange_steps,
        "learner": run.learner.state_dict(),
        "arm": run.arm.checkpoint_state(),
        "shadow": run.shadow.checkpoint_state(),
        "status": run.status,
        "message": run.message,
    }
    save_checkpoint(run.directory, state)
    if run.on_checkpoint is not None:
        run.on_checkpoint(run.directory / CHECKPOINT_FILE)


def finish_training_run(run: RunUnderWay) -> RunResult:
    """The last evaluation, the policy and the result, unless the run was interrupted."""
    if run.status == INTERRUPTED:
        return RunResult(run.status, run.message, run.steps_done)
    write_run_checkpoint(run)
    step, splits = run.steps_done, run.splits
    records = evaluate_learner(run.learner, splits.holdout, splits.test, run.config, step=step, final=True)
    write_evaluation(run.directory, step, records)
    write_directory(run.directory / POLICY_FOLDER, run.learner.save_policy)
    return write_run_result(run.directory, run.status, run.message or f"{step} steps", step, records)
