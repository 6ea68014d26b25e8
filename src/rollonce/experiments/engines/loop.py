"""The loop of `rollonce.training` as an engine: the embedded policy or any transformers model here, or a model on a
service.

Shapes: ``_B`` rollouts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rollonce
from rollonce.baselines import Batch
from rollonce.experiments.advantages import TOKEN_CRITIC, config_of
from rollonce.experiments.dense import with_dense_reward
from rollonce.experiments.derive import Settings
from rollonce.experiments.engine import Answer, ExperimentTasks, Fresh, Progress, StageFailed, StepLog, Trained
from rollonce.experiments.files import append_line, file_digest, read_lines
from rollonce.experiments.preflight import OwnPath
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.rollouts import FloatArray
from rollonce.run_directory import CHECKPOINT_FILE, METRICS_FILE, POLICY_FOLDER
from rollonce.tasks import Task, TaskSet, TaskSplits, grade, load_tasks, source_of, worked_solutions
from rollonce.training.config import RunConfig, validated

BATCHES = "batches.jsonl"


class LoopEngine:
    """See the module.

    Args:
        spec: The specification.
        settings: Derived from it.
        service: Train and sample on a Tinker-compatible service instead of here.
    """

    def __init__(self, spec: Spec, settings: Settings, *, service: bool = False) -> None:
        self.spec, self.settings, self.service = spec, settings, service
        self.name = "tinker" if service else "local"
        if service:
            from rollonce.experiments.engines.service_path import ServicePath

            self.path: OwnPath = ServicePath()
        else:
            self.path = OwnPath()
        self._tasks: ExperimentTasks | None = None
        self._start: Any = None
        self._loaded: tuple[str, Any] = ("", None)

    def identity(self) -> dict[str, Any]:
        """See `Engine.identity`."""
        import torch
        import transformers

        weights = ""
        if self.settings.policy == "embedded":
            from rollonce.policies import embedded_directory

            weights = file_digest(embedded_directory() / "model.safetensors")
        return {
            "engine": self.name,
            "policy": self.settings.policy,
            "weights_sha256": weights,
            "rollonce": rollonce.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "service": self.settings.base_url if self.service else None,
        }

    # ---- tasks

    def tasks(self) -> ExperimentTasks:
        """See `Engine.tasks`."""
        if self._tasks is None:
            s, drawn = self.settings, source_of(self.settings.tasks)[0].is_endless
            n = self.spec.eval.n_examples
            splits = load_tasks(
                s.tasks,
                train=s.train_tasks,
                holdout=s.calibration_tasks,
                test=n if drawn else None,
                seed=s.task_seed,
            )
            train, calibration, test = (with_dense_reward(t) if s.dense_reward else t for t in splits)
            self._tasks = ExperimentTasks(
                train, self._used(train), calibration, test[:n], self._labels(train, test[:n])
            )
        return self._tasks

    def _used(self, train: TaskSet) -> TaskSet:
        from rollonce.training.rolling import step_tasks

        ids: set[str] = set()
        for arm in self.spec.arms:
            for step in range(1, arm.steps + 1):
                ids |= {t.id for t in step_tasks(train, arm.groups_per_batch, step, arm.seed)}
        return TaskSet([t for t in train if t.id in ids], train.name)

    def _labels(self, train: TaskSet, test: TaskSet) -> list[tuple[Task, str]]:
        """Known solutions: GSM8K's worked ones where the files are here, else the reference itself as the response."""
        if self.settings.dense_reward:
            return []
        solutions = worked_solutions(self.settings.tasks)
        return [(t, solutions.get(t.prompt, t.reference)) for t in [*test, *train]]

    # ---- one arm's configuration

    def config(self, arm: ArmSpec, steps: int) -> RunConfig:
        """What the loop is given for an arm."""
        own, optimizer = self.spec.rollonce, self.optimizer(arm)
        arm_table: dict[str, Any] = {"group_size": arm.group_size, **own.arm_training.get(arm.name, {})}
        if arm.advantage == TOKEN_CRITIC:
            arm_table.setdefault("critic", {})
        else:
            arm_table["baseline"] = config_of(self.spec, arm.advantage)
        policy = {
            "source": self.settings.policy,
            "engine": "tinker" if self.service else "local",
            "lora_rank": self.spec.lora_rank or 0,
            "seed": arm.seed,
            "base_url": self.settings.base_url,
            "renderer": self.settings.renderer,
        }
        train = {
            "steps": steps,
            "rollouts": self.spec.batch_size,
            "learning_rate": arm.lr,
            "beta1": optimizer["beta1"],
            "beta2": optimizer["beta2"],
            "epsilon": optimizer["eps"],
            "max_new_tokens": self.settings.max_tokens,
            "kl_every": 0,
            "shadow": (),
            "audit_weights": True,
        }
        data = {
            "name": arm.name,
            "arm": arm_table,
            "seed": arm.seed,
            "policy": policy | own.training.get("policy", {}),
            "tasks": {"source": self.settings.tasks, **own.training.get("tasks", {})},
            "train": train | own.training.get("train", {}),
            "loss": own.training.get("loss", {}),
            "evaluation": {"every": 0},
        }
        return validated(RunConfig, data, f"the configuration of arm {arm.name!r}")

    def optimizer(self, arm: ArmSpec) -> dict[str, Any]:
        """The registered optimizer parameters of an arm; Adam's usual ones where none are registered."""
        for group in self.spec.restoration_preflight.groups:
            for start in group.arms:
                if start.name == arm.name:
                    return start.optimizer_config.model_dump()
        return {
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "learning_rate": arm.lr,
            "lora_rank": self.spec.lora_rank,
            "seed": arm.seed,
        }

    def _learner(self, arm: ArmSpec) -> Any:
        from rollonce.training.learners import make_learner

        return make_learner(self.config(arm, arm.steps))

    # ---- what is asked

    def sample(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[list[Answer]]:
        """See `Engine.sample`."""
        if self._start is None:
            self._start = self._learner(self.spec.arm(self.settings.treatment))
        repeated = [t for t in tasks for _ in range(group_size)]
        found = self._answers(self._start, repeated, 1.0, [seed])
        return [found[i : i + group_size] for i in range(0, len(found), group_size)]

    def answer(self, checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        """See `Engine.answer`."""
        if self._loaded[0] != checkpoint:
            self._loaded = (checkpoint, self._trained(checkpoint))
        return self._answers(self._loaded[1], tasks, 0.0, [0])

    def _trained(self, checkpoint: str) -> Any:
        from rollonce.training.learners.local import LocalLearner, load_policy

        config = self.config(self.spec.arm(self.settings.treatment), 1)
        if self.service:
            learner = self._learner(self.spec.arm(self.settings.treatment))
            learner.sample_from(json.loads(Path(checkpoint).read_text())["path"])
            return learner
        source = config.policy.model_copy(update={"source": checkpoint, "lora_rank": 0, "attention": "eager"})
        return LocalLearner(config, load_policy(source))

    def _answers(self, learner: Any, tasks: Sequence[Task], temperature: float, seed: list[int]) -> list[Answer]:
        samples = learner.sample(
            [t.prompt for t in tasks], max_new_tokens=self.settings.max_tokens, temperature=temperature, seed=seed
        )
        truncated, lengths = samples.truncated_B.tolist(), samples.lengths_B.tolist()
        grades = grade(tasks, samples.texts, truncated=truncated)
        return [
            Answer(r, bool(c), int(n), f)
            for r, c, n, f in zip(grades.rewards, truncated, lengths, grades.failures, strict=True)
        ]

    def fresh(self, arm: ArmSpec, prompts: Sequence[str]) -> Fresh:
        """See `Engine.fresh`: the prompts' tokens after their first, through a policy loaded for this arm."""
        from rollonce.policies.samples import to_samples

        learner = self._learner(arm)
        policy = getattr(learner, "policy", learner)
        rows = [policy.encode(p) if self.service else policy.encode([p])[0][0].tolist() for p in prompts]
        zeros = [[0.0] * (len(r) - 1) for r in rows]
        samples = to_samples(
            prompts=list(prompts),
            texts=[""] * len(rows),
            prompt_ids=[r[:1] for r in rows],
            response_ids=[r[1:] for r in rows],
            log_probs=zeros,
            truncated=[False] * len(rows),
            temperature=1.0,
            pad_id=0,
        )
        found = policy.log_probs(samples).detach().double().tolist()
        log_probs = [row[: len(r) - 1] for row, r in zip(found, rows, strict=True)]
        return Fresh(log_probs, self._optimizer_sent(learner, arm))

    def _optimizer_sent(self, learner: Any, arm: ArmSpec) -> dict[str, Any]:
        """Read back from the optimizer itself (for a service: from what will be sent with each step)."""
        common = {"lora_rank": self.config(arm, 1).policy.lora_rank or None, "seed": arm.seed}
        if self.service:
            adam = learner.adam
            return {"beta1": adam.beta1, "beta2": adam.beta2, "eps": adam.eps, "learning_rate": arm.lr, **common}
        group = learner.optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        return {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "learning_rate": group["lr"], **common}

    def discard(self, directory: Path) -> None:
        """See `Engine.discard`."""
        shutil.rmtree(directory / POLICY_FOLDER, ignore_errors=True)
        if (directory / POLICY_FOLDER).is_file():  # a service's weights: a note of where they are
            (directory / POLICY_FOLDER).unlink()
        (directory / CHECKPOINT_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """End what sessions there are on a service."""
        for learner in (self._start, self._loaded[1]):
            if hasattr(learner, "close"):
                learner.close()

    def train(self, arm: ArmSpec, steps: int, directory: Path, progress: Progress) -> Trained:
        """See `Engine.train`."""
        from rollonce.run_directory import INTERRUPTED
        from rollonce.training.loop import train

        directory.mkdir(parents=True, exist_ok=True)
        log = directory / BATCHES
        list(read_lines(log, mend=True))

        def on_batch(step: int, batch: Batch, advantages_B: FloatArray, baseline_B: FloatArray) -> None:
            row = {"step": step, "task_ids": [str(i) for i in batch.tasks.task_ids]}
            row |= {
                "rewards": batch.rewards_B.tolist(),
                "baselines": baseline_B.tolist(),
                "advantages": np.asarray(advantages_B).tolist(),
            }
            append_line(log, row)

        splits = TaskSplits(self.tasks().train, TaskSet([], "none"), TaskSet([], "none"))
        config = self.config(arm, steps)
        result = train(
            config, directory, splits=splits, on_batch=on_batch, on_step=lambda r: progress(arm.name, r["step"], steps)
        )
        if result.status == INTERRUPTED:
            raise KeyboardInterrupt
        if result.status != "done":
            raise StageFailed(f"arm {arm.name} ended early: {result.message}")
        checkpoint = directory / POLICY_FOLDER
        return Trained(
            steps_of(directory, config),
            str(checkpoint),
            f"# {arm.name}: rollonce.training.loop.train, all settings in arms/{arm.name}/config.json",
            [],
        )


def steps_of(directory: Path, config: RunConfig) -> list[StepLog]:
    """What was executed, from the run's two logs: the last word on each step counts (a killed run repeats some)."""
    batches = {row["step"]: row for row in read_lines(directory / BATCHES)}
    out = []
    for m in read_lines(directory / METRICS_FILE):
        row = batches[m["step"]]
        _, counts = np.unique(row["task_ids"], return_counts=True)
        seconds = float(sum(m["wall_seconds"].values()))
        out.append(
            StepLog(
                m["step"],
                row["task_ids"],
                row["rewards"],
                row["baselines"],
                row["advantages"],
                int(counts.max()),
                config.learning_rate,
                seconds,
                m["self_weight_max"],
            )
        )
    return out
