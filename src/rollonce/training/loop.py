"""The loop: sample, grade, take a baseline off, update. Every arm runs through these lines; they differ in one
function.

Simplified on purpose: one machine, one process, synchronous. What would be a framework's job (sharding, a sampling
server, asynchronous rollouts) is not here; `rollonce.integrations` puts the same baselines into trainers that have it.

Shapes: ``_B`` rollouts of a step (tasks x group size), ``_T`` response tokens.

A run's directory::

    config.json                      what was run
    metrics.jsonl                    one line a step
    evaluations/step_000020.jsonl    one line an item
    checkpoint.pt                    written whole; a killed run goes on from it, to the same numbers
    final/                           the policy, as transformers reads it
    result.json                      how it ended
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollonce.baselines import Batch
from rollonce.rollouts import FloatArray
from rollonce.tasks import TaskSplits
from rollonce.training.advantages import Arm
from rollonce.training.config import RunConfig
from rollonce.training.evaluation import evaluate, mean_reward, write_evaluation
from rollonce.training.files import (
    JsonLines,
    finished,
    load_checkpoint,
    locked,
    same_config,
    save_checkpoint,
    stopping,
    write_directory,
    write_json,
)
from rollonce.training.learner import Learner, make_learner
from rollonce.training.metrics import Shadow, Stopwatch, correlation, dead_groups, flat, loo_gap, trackers
from rollonce.training.rolling import roll, step_tasks, tasks_of, view

_STREAM = 11  # seed of the rollouts
DONE, COLLAPSED, NOT_FINITE, INTERRUPTED = "done", "collapsed", "nan", "interrupted"


class Result(NamedTuple):
    """How a run ended.

    Attributes:
        status: ``done``, ``collapsed``, ``nan`` or ``interrupted``.
        message: The same in a sentence.
        steps: Updates made.
        holdout, test, test_greedy: Final mean rewards, None where not evaluated.
        directory: Where everything is.
    """

    status: str
    message: str
    steps: int
    holdout: float | None
    test: float | None
    test_greedy: float | None
    directory: Path


def train(
    config: RunConfig,
    directory: Path,
    *,
    splits: TaskSplits | None = None,
    learner: Learner | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    on_batch: Callable[[int, Batch, FloatArray, FloatArray], None] | None = None,
    start_evaluation: Callable[[Callable[[], list[dict[str, Any]]]], list[dict[str, Any]]] | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Run one arm with one seed, or go on with it.

    Args:
        config: What to run. A directory that holds another configuration is refused.
        directory: The run's own.
        splits, learner: Instead of those that the configuration names.
        on_step: Called with each step's record.
        on_batch: Called with each step, its rollouts, their advantages (B,) and baselines (B,), after the update; a
            step that a killed run repeats is told of again.
        start_evaluation: Called with a function that evaluates the start policy; may answer from a cache.
        stop: Set it to stop after the step that is running, with a checkpoint; so does SIGINT or SIGTERM in the main
            thread.

    Raises:
        InputError: what cannot be run, another run in that directory, or a disk that is full.
    """
    with locked(directory), stopping(stop) as stopped:
        same_config(config, directory)
        if (old := finished(directory)) is not None:
            return Result(**{**old, "directory": directory})
        splits = splits or tasks_of(config.tasks)
        learner = learner or make_learner(config)
        all_tasks = splits.train.as_tasks()
        arm = Arm(config, learner, splits.train, all_tasks)
        shadow = Shadow(config.train.shadow, all_tasks)
        done, strange, status, message = 0, 0, DONE, ""
        if (state := load_checkpoint(directory)) is not None:
            done, strange, status, message = state["step"], state["strange"], state["status"], state["message"]
            learner.load_state_dict(state["learner"])
            arm.load_state(state["arm"])
            shadow.load_state(state["shadow"])
        else:
            look = lambda: evaluate(learner, splits.calibration, splits.test, config, step=0, final=True)  # noqa: E731
            write_evaluation(directory, 0, look() if start_evaluation is None else start_evaluation(look))
        log = JsonLines(
            directory / "metrics.jsonl", keep=lambda record: record["step"] <= done + (status == NOT_FINITE)
        )
        tracked = trackers(config, directory, done)
        B, every = config.train.rollouts, config.evaluation.every

        def checkpoint() -> None:
            # A run that ended badly has ended: killed in its last evaluation it goes on with that, and trains no more.
            ended = {
                "status": DONE if status == INTERRUPTED else status,
                "message": "" if status == INTERRUPTED else message,
            }
            state = {
                "step": done,
                "strange": strange,
                "learner": learner.state_dict(),
                "arm": arm.state(),
                "shadow": shadow.state(),
            }
            save_checkpoint(directory, state | ended)

        for step in range(done + 1, config.train.steps + 1) if status == DONE else ():
            watch = Stopwatch()
            arm.before(step)
            tasks = [
                t
                for t in step_tasks(splits.train, config.tasks_per_step, step, config.seed)
                for _ in range(config.arm.group_size)
            ]
            rewards_B, samples, grades = roll(learner, tasks, config, [config.seed, _STREAM, step], watch)
            batch = Batch(view(tasks), rewards_B)
            with watch.part("critic" if arm.critic is not None else "advantage"):
                advantages, baseline_B = arm.advantages(batch, samples)
            own_weight = (
                arm.self_weight_max(batch) if config.train.audit_weights else None
            )  # before the batch joins the history
            with watch.part("update"):
                measure_kl = config.train.kl_every > 0 and (step == 1 or step % config.train.kl_every == 0)
                update = learner.update(
                    samples, advantages, measure_kl=measure_kl, move=not arm.policy_stands_still(step)
                )
            finite = bool(np.isfinite(update.loss + (0.0 if np.isnan(update.grad_norm) else update.grad_norm)))
            with watch.part("critic" if arm.critic is not None else "advantage"):
                critic_loss = arm.learn(batch, samples) if finite else None

            per_rollout_B = advantages if advantages.ndim == 1 else rewards_B - baseline_B
            truncated = float(samples.truncated_B.float().mean())
            record = {
                "step": step,
                "rollouts": step * B,
                "reward": float(rewards_B.mean()),
                "advantage_mean": float(per_rollout_B.mean()),
                "advantage_var": float(per_rollout_B.var()),
                "advantage_nonzero": float((np.abs(per_rollout_B) > 1e-6).mean()),
                "baseline_mean": float(baseline_B.mean()),
                "loo_gap": loo_gap(rewards_B, baseline_B),
                "self_weight_max": own_weight,
                "baseline_outcome_correlation": correlation(baseline_B, rewards_B),
                "dead_groups": dead_groups(rewards_B, config.arm.group_size),
                "shadow": shadow.step(batch) if finite else {},
                "truncated": truncated,
                "tokens": samples.n_tokens,
                "grader_failures": grades.n_failed,
                "critic_loss": critic_loss,
                **update._asdict(),
                "cpu_seconds": watch.cpu,
                "wall_seconds": watch.wall,
            }
            log.write(record)
            if on_batch is not None:
                on_batch(step, batch, per_rollout_B, baseline_B)
            for tracker in tracked:
                tracker.log(step, flat(record))
            if on_step is not None:
                on_step(record)
            if not finite:
                status, message = (
                    NOT_FINITE,
                    f"loss {update.loss}, gradient norm {update.grad_norm} at step {step}: no update was made",
                )
                break
            done = step
            low_entropy = not np.isnan(update.entropy) and update.entropy < config.train.collapse_entropy
            strange = strange + 1 if truncated > config.train.collapse_truncated or low_entropy else 0
            if strange >= config.train.collapse_steps:
                what = (
                    f"entropy {update.entropy:.2g} nats a token"
                    if low_entropy
                    else f"{truncated:.0%} of rollouts truncated"
                )
                status, message = COLLAPSED, f"{what} for {strange} steps in a row, at step {step}"
                break
            if every and step % every == 0 and step < config.train.steps and len(splits.calibration):
                write_evaluation(
                    directory, step, evaluate(learner, splits.calibration, splits.test, config, step=step, final=False)
                )
            if stopped.is_set() and step < config.train.steps:
                status, message = INTERRUPTED, f"stopped after step {step}; the same command goes on from there"
                checkpoint()
                break
            if step % config.train.checkpoint_every == 0 and step < config.train.steps:
                checkpoint()
        log.close()
        for tracker in tracked:
            tracker.close()
        if status == INTERRUPTED:
            return Result(status, message, done, None, None, None, directory)
        checkpoint()
        records = evaluate(learner, splits.calibration, splits.test, config, step=done, final=True)
        write_evaluation(directory, done, records)
        write_directory(directory / "final", learner.save)
        means = (mean_reward(records, "holdout"), mean_reward(records, "test"), mean_reward(records, "test", "greedy"))
        result = Result(status, message or f"{done} steps", done, *means, directory)
        write_json(directory / "result.json", {**result._asdict(), "directory": None})
        return result
