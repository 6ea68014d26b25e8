"""A run in TRL's GRPOTrainer, through `rollonce.integrations.trl`: TRL samples (with vLLM where it is asked to),
computes the loss and moves the policy; tasks, their order, grading, baseline, evaluation and the run's directory are
ours.

What TRL takes besides is the table ``[policy.trl]``: fields of `trl.GRPOConfig` (``use_vllm``, ``deepspeed``, ``fsdp``
...) but for those that the configuration has words of its own for.

Shapes: ``_B`` rollouts of a step.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.baselines import Batch
from rollonce.errors import InputError, MissingExtraError
from rollonce.rollouts import FloatArray
from rollonce.run_directory import (
    CHECKPOINT_FILE,
    DONE,
    INTERRUPTED,
    NOT_FINITE,
    POLICY_FOLDER,
    EvaluationRecord,
    RolloutRecord,
    RunResult,
    StepRecord,
)
from rollonce.tasks import Task, TaskSplits, grade
from rollonce.training.arms import ORACLE, TOKEN_BASELINES
from rollonce.training.arms.baseline import make_arm_baseline
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
from rollonce.training.learners.local import LocalLearner
from rollonce.training.metrics import Stopwatch, advantage_figures
from rollonce.training.rolling import build_feature_tasks, choose_step_tasks, load_configured_tasks
from rollonce.training.run_log import RunLog
from rollonce.training.shadow import Shadow

TRL_FOLDER = "trl"
"""TRL's own checkpoints, in the run's directory."""
LOSS_TYPES = {"token-mean": "dapo", "sequence-mean": "grpo"}
"""TRL's names of the two aggregations."""


def check_trl_can_run(config: RunConfig) -> None:
    """See that TRL can carry out the run.

    Raises:
        InputError: naming the arm and what TRL cannot do.
        MissingExtraError: TRL is not installed.
    """
    try:
        import trl  # noqa: F401
    except ImportError as error:
        raise MissingExtraError('engine = "trl"', "trl", "trl") from error
    cannot = [
        (config.arm.critic is not None, "a token-level critic: TRL has one advantage per rollout"),
        (config.arm.baseline == ORACLE, "the oracle: its extra rollouts are sampled between TRL's steps"),
        (config.arm.baseline in (*TOKEN_BASELINES,), "a baseline for each token: TRL takes one advantage per rollout"),
        (config.loss.gate is not None, "loss.gate"),
        (config.loss.lag > 0, "loss.lag"),
        (config.train.audit_weights, "train.audit_weights"),
        (config.train.rollouts % 2 == 1, "an odd number of rollouts a step"),
        (config.policy.sample_rows is not None, "policy.sample_rows"),
        (
            config.train.rollouts % _training_batch_rows(config) > 0,
            "policy.train_rows that do not divide train.rollouts",
        ),
    ]
    if reasons := [what for is_so, what in cannot if is_so]:
        raise InputError(f'arm {config.name!r}: engine = "trl" cannot run {"; ".join(reasons)}')
    own = set(_translate_settings_to_trl(config, Path())) & set(config.policy.trl)
    if own:
        raise InputError(f"policy.trl: {', '.join(sorted(own))}: set from the rest of the file; leave it out")


def _training_batch_rows(config: RunConfig) -> int:
    return config.policy.train_rows or config.train.rollouts


def _translate_settings_to_trl(config: RunConfig, directory: Path) -> dict[str, Any]:
    """The run's configuration in TRL's words."""
    train, loss, policy = config.train, config.loss, config.policy
    clip = 1e6 if loss.clip is None else loss.clip  # TRL always clips: here nothing that could occur
    return {
        "output_dir": str(directory / TRL_FOLDER),
        "max_steps": train.steps * loss.epochs,
        "num_generations": config.arm.group_size,
        "per_device_train_batch_size": _training_batch_rows(config),
        "gradient_accumulation_steps": train.rollouts // _training_batch_rows(config),
        "num_iterations": loss.epochs,
        "max_completion_length": train.max_new_tokens,
        "temperature": train.temperature,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant",
        "adam_beta1": train.beta1,
        "adam_beta2": train.beta2,
        "adam_epsilon": train.epsilon,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm or 0.0,  # 0: TRL does not clip
        "loss_type": LOSS_TYPES[loss.aggregation],
        "beta": loss.kl,
        "epsilon": clip,
        "epsilon_high": loss.clip_high or clip,
        "scale_rewards": "none",
        "seed": config.seed,
        "shuffle_dataset": False,  # the order is ours
        "remove_unused_columns": False,
        "save_strategy": "steps",
        "save_steps": train.checkpoint_every * loss.epochs,
        "save_total_limit": 2,  # the older one serves where the newer was cut off
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # or a loss that is not finite is logged as a mean of others
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": policy.device == "cpu",
        "bf16": policy.bf16,
        "gradient_checkpointing": policy.gradient_checkpointing,
    }


def train_with_trl(
    config: RunConfig,
    directory: Path,
    *,
    splits: TaskSplits | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    on_checkpoint: Callable[[Path], None] | None = None,
    start_evaluation: Callable[[Callable[[], list[EvaluationRecord]]], list[EvaluationRecord]] | None = None,
    stop: threading.Event | None = None,
    patience: float = 0.0,
) -> RunResult:
    """Run one arm with one seed in TRL, or go on with it: as `rollonce.training.loop.train`.

    Raises:
        InputError: what cannot be run, another run in that directory, or a disk that is full.
    """
    check_trl_can_run(config)
    with lock_run_directory(directory, patience=patience), stop_on_signals(stop) as stopped:
        ensure_same_config(config, directory)
        if (ended := read_run_result(directory)) is not None:
            return ended
        run = _TrlRun(config, directory, splits or load_configured_tasks(config.tasks), stopped, on_step, on_checkpoint)
        if run.steps_done == 0:
            start = lambda: run.evaluate_trained_policy(step=0, final=True)  # noqa: E731
            write_evaluation(directory, 0, start() if start_evaluation is None else start_evaluation(start))
        return run.train_and_evaluate()


class _TrlRun:
    """A run under way: what TRL's trainer calls back, and what is written of it."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        splits: TaskSplits,
        stopped: threading.Event,
        on_step: Callable[[StepRecord], None] | None,
        on_checkpoint: Callable[[Path], None] | None,
    ) -> None:
        self.config, self.directory, self.splits = config, directory, splits
        self.stopped, self.on_step, self.on_checkpoint = stopped, on_step, on_checkpoint
        self.learner = LocalLearner(config)
        self.policy = self.learner.policy
        self.shadow = Shadow(config.train.shadow, splits.train.as_feature_tasks())
        self.checkpoint, self.steps_done = self._find_last_checkpoint()
        if self.checkpoint is not None:
            state = load_checkpoint(self.checkpoint)
            assert state is not None
            self.shadow.restore_checkpoint_state(state["shadow"])
        self.tasks: list[Task] = [
            task
            for step in range(1, config.train.steps + 1)
            for task in choose_step_tasks(splits.train, config.tasks_per_step, step, config.seed)
        ]
        self.watch, self.step_began = Stopwatch(), (0.0, 0.0)  # wall clock, processor
        self.sampled: _Sampled | None = None
        self.not_finite: str | None = None

    def _find_last_checkpoint(self) -> tuple[Path | None, int]:
        """The newest that was written to its end, and the steps made by then."""
        for step in range(self.config.train.steps, 0, -1):
            folder = self.directory / TRL_FOLDER / f"checkpoint-{step * self.config.loss.epochs}"
            if folder.is_dir() and load_checkpoint(folder) is not None:
                return folder, step
        return None, 0

    def train_and_evaluate(self) -> RunResult:
        config = self.config
        if self.steps_done < config.train.steps:
            keep = self.steps_done
            with RunLog(config, self.directory, keep, keep_until=keep) as self.log:
                trainer = self._make_trl_trainer()
                trainer.train(resume_from_checkpoint=None if self.checkpoint is None else str(self.checkpoint))
        if self.steps_done < config.train.steps and self.not_finite is None:
            message = f"stopped after step {self.steps_done}; the same command goes on from there"
            return RunResult(INTERRUPTED, message, self.steps_done)
        records = self.evaluate_trained_policy(step=self.steps_done, final=True)
        write_evaluation(self.directory, self.steps_done, records)
        write_directory(self.directory / POLICY_FOLDER, self.policy.save)
        status, message = (DONE, f"{self.steps_done} steps")
        if self.not_finite is not None:
            status, message = NOT_FINITE, self.not_finite
        result = write_run_result(self.directory, status, message, self.steps_done, records)
        shutil.rmtree(self.directory / TRL_FOLDER, ignore_errors=True)
        return result

    def evaluate_trained_policy(self, *, step: int, final: bool) -> list[EvaluationRecord]:
        was_training = self.policy.model.training
        records = evaluate_learner(
            self.learner, self.splits.holdout, self.splits.test, self.config, step=step, final=final
        )
        self.policy.model.train(was_training)
        return records

    # ---- what TRL is given

    def _make_trl_trainer(self) -> Any:
        from datasets import Dataset
        from transformers import PrinterCallback, TrainerCallback

        from rollonce.integrations.trl import SingleRolloutGRPOConfig, SingleRolloutGRPOTrainer

        run = self

        class Trainer(SingleRolloutGRPOTrainer):
            def _calculate_rewards(self, inputs: Any, *more: Any, **settings: Any) -> Any:
                rewards = super()._calculate_rewards(inputs, *more, **settings)
                _, kept, columns = self._kept  # the baseline reads a task's own prompt, not what a template makes of it
                self._kept = ([run.tasks[row["task"]].prompt for row in inputs], kept, columns)
                return rewards

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                run.step_began = (time.perf_counter(), time.process_time())
                with run.watch.time_step_part("sample"):
                    return super()._generate_and_score_completions(inputs)

        class Listener(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if logs and "loss" in logs and state.global_step % run.config.loss.epochs == 0:
                    run.record_step_made(trainer, state.global_step // run.config.loss.epochs, logs)
                if run.stopped.is_set() or run.not_finite is not None:
                    control.should_save = control.should_training_stop = True

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                folder = run.directory / TRL_FOLDER / f"checkpoint-{state.global_step}"
                # The last file: says that all are there.
                save_checkpoint(folder, {"shadow": run.shadow.checkpoint_state()})
                if run.on_checkpoint is not None:
                    run.on_checkpoint(folder / CHECKPOINT_FILE)

        baseline = make_arm_baseline(self.config.arm, self.splits.train.as_feature_tasks())
        settings = {
            **_translate_settings_to_trl(self.config, self.directory),
            "max_completion_length": self.learner.max_new_tokens,
        }
        trainer = Trainer(
            self.policy.model,
            self.rewards,
            SingleRolloutGRPOConfig(**settings, **self.config.policy.trl),
            train_dataset=Dataset.from_list(
                [{"prompt": self._prompt_for_trl(t), "task": n} for n, t in enumerate(self.tasks)]
            ),
            processing_class=self.policy.tokenizer,
            callbacks=[Listener()],
            baseline=baseline,
        )
        trainer.remove_callback(PrinterCallback)  # standard output is not TRL's
        return trainer

    def _prompt_for_trl(self, task: Task) -> Any:
        """As TRL wants it, so that the model reads what `rollonce.policies.TransformersPolicy.render_prompt` writes."""
        if not getattr(self.policy.tokenizer, "chat_template", None):
            return self.policy.render_prompt(task.prompt)
        system = [] if self.policy.system is None else [{"role": "system", "content": self.policy.system}]
        return [*system, {"role": "user", "content": self.policy.prompt_template.replace("{prompt}", task.prompt)}]

    def rewards(
        self, completions: list[Any], completion_ids: list[list[int]], task: list[int], **_: Any
    ) -> list[float]:
        """TRL's reward function: our graders; a rollout that met the length limit has reward 0."""
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        truncated = [not ids or ids[-1] not in self.policy.eos_ids for ids in completion_ids]
        tasks = [self.tasks[n] for n in task]
        with self.watch.time_step_part("grade"):
            grades = grade(tasks, texts, truncated=truncated, time_limit=self.config.tasks.time_limit)
        lengths = [len(ids) for ids in completion_ids]
        self.sampled = _Sampled(tasks, np.asarray(grades.rewards, np.float64), lengths, truncated, grades.n_failed)
        return grades.rewards

    # ---- what TRL tells

    def record_step_made(self, trainer: Any, step: int, logs: dict[str, float]) -> None:
        """Write a step down, and evaluate where the learning curve wants it."""
        sampled, result, watch = self.sampled, trainer.last, self.watch
        assert sampled is not None
        rewards_B, advantages_B, baseline_B = sampled.rewards_B, result.advantages_N, result.baseline_N
        now = (time.perf_counter(), time.process_time())
        for part, end, began in zip((watch.wall, watch.cpu), now, self.step_began, strict=True):
            part["update"] = end - began - part["sample"]
            part["advantage"] = trainer._seconds
            part["sample"] -= part["grade"] + part["advantage"]  # which TRL does within
        config = self.config
        record: StepRecord = {
            **advantage_figures(rewards_B, advantages_B, baseline_B, config.arm.group_size),
            "step": step,
            "rollouts": step * config.train.rollouts,
            "self_weight_max": None,
            "shadow": self.shadow.score_and_observe(Batch(build_feature_tasks(sampled.tasks), rewards_B)),
            "truncated": float(np.mean(sampled.truncated)),
            "tokens": sum(sampled.lengths),
            "surprisal": float("nan"),
            "grader_failures": sampled.n_failed,
            "critic_loss": None,
            "loss": float(logs["loss"]),
            "grad_norm": logs.get("grad_norm", float("nan")),
            "entropy": logs.get("entropy", float("nan")),
            "kl": logs.get("kl"),
            "kl_old": float("nan"),
            "gated": 0.0,
            "clipped": logs.get("clip_ratio/region_mean", 0.0),
            "cpu_seconds": watch.cpu,
            "wall_seconds": watch.wall,
        }
        self.log.write_step_and_rollouts(record, sampled.make_rollout_records(step))
        self.steps_done, self.watch = step, Stopwatch()
        if not math.isfinite(record["loss"]) or not math.isfinite(logs.get("grad_norm", 0.0)):
            self.not_finite = (
                f"loss {record['loss']}, gradient norm {record['grad_norm']} at step {step}; "
                "TRL has moved the policy by it"
            )
        if self.on_step is not None:
            self.on_step(record)
        every = config.evaluation.every
        if every and step % every == 0 and step < config.train.steps and len(self.splits.holdout):
            write_evaluation(self.directory, step, self.evaluate_trained_policy(step=step, final=False))


class _Sampled:
    """A step's rollouts, as the reward function saw them."""

    def __init__(
        self, tasks: list[Task], rewards_B: FloatArray, lengths: list[int], truncated: list[bool], n_failed: int
    ) -> None:
        self.tasks, self.rewards_B, self.lengths, self.truncated = tasks, rewards_B, lengths, truncated
        self.n_failed = n_failed

    def make_rollout_records(self, step: int) -> list[RolloutRecord]:
        """For the log. TRL does not compute what the sampling policy gave its responses unless it needs to."""
        return [
            {
                "step": step,
                "task_id": task.id,
                "prompt": task.prompt,
                "reward": float(reward),
                "log_prob": float("nan"),
                "response_tokens": length,
            }
            for task, reward, length in zip(self.tasks, self.rewards_B, self.lengths, strict=True)
        ]
