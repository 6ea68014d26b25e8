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
import torch

import rollonce
from rollonce.baselines import Batch
from rollonce.errors import InputError
from rollonce.experiments.advantages import dummy_advantages
from rollonce.experiments.dense import with_dense_reward
from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.engine import (
    Answer,
    ExperimentTasks,
    FreshClient,
    Probe,
    Progress,
    StageFailed,
    StartPolicy,
    StepLog,
    TrainedArm,
    largest_difference,
)
from rollonce.experiments.engines.cookbook_tasks import read_gsm8k_rows
from rollonce.experiments.engines.loop_config import make_loop_config
from rollonce.experiments.files import compute_file_digest
from rollonce.experiments.ledger import Ledger
from rollonce.experiments.preflight import OwnPath
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.files import write_json_file
from rollonce.rollouts import FloatArray
from rollonce.run_directory import CHECKPOINT_FILE, INTERRUPTED, POLICY_FOLDER, StepRecord
from rollonce.tasks import Task, TaskSet, TaskSplits, grade, load_tasks, parse_source_spec, read_worked_solutions
from rollonce.training.config import RunConfig

BATCHES = "batches.jsonl"
CLIENT = "client.json"


class LoopEngine:
    """See the module.

    Args:
        spec: The specification.
        settings: Derived from it.
        service: Train and sample on a Tinker-compatible service instead of here.
    """

    def __init__(self, spec: Spec, settings: ExperimentSettings, *, service: bool = False) -> None:
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
        self._lengths: dict[str, int] = {}

    def describe_identity(self) -> dict[str, Any]:
        """See `Engine.describe_identity`."""
        import transformers

        weights = ""
        if self.settings.policy == "embedded":
            from rollonce.policies import embedded_directory

            weights = compute_file_digest(embedded_directory() / "model.safetensors")
        return {
            "engine": self.name,
            "policy": self.settings.policy,
            "weights_sha256": weights,
            "rollonce": rollonce.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "renderer": self.settings.renderer,
        }

    # ---- tasks

    def load_experiment_tasks(self) -> ExperimentTasks:
        if self._tasks is None:
            s, is_gsm8k = self.settings, self.settings.tasks.startswith("gsm8k:")
            splits = load_tasks(
                s.tasks,
                train=s.train_tasks,
                holdout=s.calibration_tasks + s.selection_tasks,
                test=self.spec.eval.n_examples if parse_source_spec(s.tasks)[0].is_endless else None,
                seed=s.task_seed,
            )
            train, held_out, test = (with_dense_reward(t) if s.dense_reward else t for t in splits)
            rows = {split: len(read_gsm8k_rows(s.tasks, split)) for split in ("train", "test") if is_gsm8k}
            self._tasks = ExperimentTasks(
                train=train,
                used=self._find_trained_tasks(train),
                calibration=held_out[: s.calibration_tasks],
                test=test,
                labels=self._known_solutions(train, test),
                selection=held_out[s.calibration_tasks :],
                train_rows=rows.get("train"),
                test_rows=rows.get("test"),
            )
        return self._tasks

    def _find_trained_tasks(self, train: TaskSet) -> TaskSet:
        from rollonce.training.rolling import choose_step_tasks

        ids: set[str] = set()
        for arm in self.spec.arms:
            for step in range(1, arm.steps + 1):
                ids |= {t.id for t in choose_step_tasks(train, arm.groups_per_batch, step, arm.seed)}
        return TaskSet([t for t in train if t.id in ids], train.name)

    def _known_solutions(self, train: TaskSet, test: TaskSet) -> list[tuple[Task, str]]:
        """Known solutions: GSM8K's worked ones where the files are here, else the reference itself as the response."""
        if self.settings.dense_reward:
            return []
        solutions = read_worked_solutions(self.settings.tasks)
        return [(t, solutions.get(t.prompt, t.reference)) for t in [*test, *train]]

    def make_arm_config(self, arm: ArmSpec, steps: int) -> RunConfig:
        """What the loop is given for an arm."""
        return make_loop_config(self.spec, self.settings, arm, steps, service=self.service)

    def _make_arm_learner(self, arm: ArmSpec) -> Any:
        from rollonce.training.learners import make_configured_learner

        return make_configured_learner(self.make_arm_config(arm, arm.steps))

    # ---- what is asked

    def sample_task_groups(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[list[Answer]]:
        repeated = [t for t in tasks for _ in range(group_size)]
        found = self._sample_graded_answers(self._starting_learner(), repeated, 1.0, [seed])
        return [found[i : i + group_size] for i in range(0, len(found), group_size)]

    def _starting_learner(self) -> Any:
        if self._start is None:
            self._start = self._make_arm_learner(self.spec.arms[0])
        return self._start

    def answer_greedily(self, checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        if self._loaded[0] != checkpoint:
            self._loaded = (checkpoint, self._load_trained_learner(checkpoint))
        return self._sample_graded_answers(self._loaded[1], tasks, 0.0, [0])

    def _load_trained_learner(self, checkpoint: str) -> Any:
        from rollonce.training.learners.local import LocalLearner, load_configured_policy

        config = self.make_arm_config(self.spec.arms[0], 1)
        if self.service:
            learner = self._make_arm_learner(self.spec.arms[0])
            learner.sample_from_saved_weights(json.loads(Path(checkpoint).read_text())["path"])
            return learner
        source = config.policy.model_copy(update={"source": checkpoint, "lora_rank": 0, "attention": "eager"})
        return LocalLearner(config, load_configured_policy(source))

    def _sample_graded_answers(
        self, learner: Any, tasks: Sequence[Task], temperature: float, seed: list[int]
    ) -> list[Answer]:
        samples = learner.sample_rollouts(
            [t.prompt for t in tasks], max_new_tokens=self.settings.max_tokens, temperature=temperature, seed=seed
        )
        truncated, lengths = samples.truncated_B.tolist(), samples.lengths_B.tolist()
        grades = grade(tasks, samples.texts, truncated=truncated)
        read = self.count_prompt_tokens([t.prompt for t in tasks])
        return [
            Answer(r, bool(c), int(n), f, k)
            for r, c, n, f, k in zip(grades.rewards, truncated, lengths, grades.failures, read, strict=True)
        ]

    def count_prompt_tokens(self, prompts: Sequence[str]) -> list[int]:
        """See `Engine.count_prompt_tokens`."""
        for prompt in prompts:
            if prompt not in self._lengths:
                self._lengths[prompt] = len(self._encode_prompt_tokens(self._starting_learner(), prompt))
        return [self._lengths[p] for p in prompts]

    def _encode_prompt_tokens(self, learner: Any, prompt: str) -> list[int]:
        policy = getattr(learner, "policy", learner)
        return list(policy.encode_prompt(prompt)) if self.service else policy.encode_prompts([prompt])[0][0].tolist()

    def measure_fresh_client(self, arm: ArmSpec, prompts: Sequence[str]) -> FreshClient:
        """See `Engine.measure_fresh_client`: the prompts' tokens after their first, through a policy loaded for this
        arm."""
        learner = self._make_arm_learner(arm)
        asked = {
            "lora_rank": self.make_arm_config(arm, 1).policy.lora_rank or None,
            "seed": self.make_arm_config(arm, 1).policy.seed,
        }
        return FreshClient(self._prompt_log_probs(learner, prompts), asked)

    def _prompt_log_probs(self, learner: Any, prompts: Sequence[str]) -> list[list[float]]:
        """Of each prompt's own tokens after its first."""
        from rollonce.policies.samples import pad_rollouts_to_samples

        rows = [self._encode_prompt_tokens(learner, p) for p in prompts]
        zeros = [[0.0] * (len(r) - 1) for r in rows]
        first, rest, n = [r[:1] for r in rows], [r[1:] for r in rows], len(rows)
        samples = pad_rollouts_to_samples(
            prompts=list(prompts),
            texts=[""] * n,
            prompt_ids=first,
            response_ids=rest,
            log_probs=zeros,
            truncated=[False] * n,
            temperature=1.0,
            pad_id=0,
        )
        policy = getattr(learner, "policy", learner)
        log_probs = policy.compute_log_probs(samples).detach().double().tolist()
        return [row[: len(r) - 1] for row, r in zip(log_probs, rows, strict=True)]

    def probe_arm_training(self, arm: ArmSpec, tasks: Sequence[Task]) -> Probe:
        """See `Engine.probe_arm_training`; the rewards are 0 and 1 in turns, so that there is something to learn."""
        learner = self._make_arm_learner(arm)
        prompts = [t.prompt for t in tasks]
        samples = learner.sample_rollouts(
            prompts, max_new_tokens=self.settings.max_tokens, temperature=1.0, seed=[arm.seed]
        )
        advantages = dummy_advantages(self.spec, arm, tasks, self.load_experiment_tasks().train.prompts)
        before = learner.policy.compute_log_probs(samples).detach().double()
        update = learner.update_policy(samples, advantages)
        after = learner.policy.compute_log_probs(samples).detach().double()
        mask = samples.response_mask_BT
        ratio_error = (torch.exp(before - samples.log_probs_BT.double()) - 1).abs()[mask].max()
        moved = (after - before).abs()[mask].max()
        given = {k: v[0] for k, v in self._read_optimizer_settings(learner, arm).items()}
        if self.service:
            learner.close()
        return Probe(len(tasks), int(samples.n_tokens), update.loss, float(ratio_error), given, float(moved))

    def _read_optimizer_settings(self, learner: Any, arm: ArmSpec) -> dict[str, list[Any]]:
        """Read from the optimizer itself; for a service from what was sent with its last step."""
        if self.service:
            sent = learner.policy.last_adam
            return {k: [sent[k]] for k in ("beta1", "beta2", "eps", "learning_rate")}
        group = learner.optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        return {"beta1": [beta1], "beta2": [beta2], "eps": [group["eps"]], "learning_rate": [group["lr"]]}

    def discard_weights(self, directory: Path) -> None:
        shutil.rmtree(directory / POLICY_FOLDER, ignore_errors=True)
        if (directory / POLICY_FOLDER).is_file():  # a service's weights: a note of where they are
            (directory / POLICY_FOLDER).unlink()
        (directory / CHECKPOINT_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """End what sessions there are on a service."""
        for learner in (self._start, self._loaded[1]):
            if hasattr(learner, "close"):
                learner.close()

    def train_or_resume_arm(
        self,
        arm: ArmSpec,
        steps: int,
        directory: Path,
        *,
        progress: Progress,
        ledger: Ledger,
        start: StartPolicy | None,
    ) -> TrainedArm:
        from rollonce.training.loop import train_with_own_loop

        name = directory.relative_to(ledger.directory).as_posix()
        remarks = discard_unnoted_training(directory, name, ledger)
        directory.mkdir(parents=True, exist_ok=True)
        config, log, client_file = self.make_arm_config(arm, steps), f"{name}/{BATCHES}", directory / CLIENT
        rows: dict[int, dict[str, Any]] = {row["step"]: row for row in ledger.read_noted_lines(log)}
        learner, difference = self._make_arm_learner(arm), None
        if client_file.is_file():
            difference = json.loads(client_file.read_text())["start_difference"]
        elif start is not None:
            difference = largest_difference(self._prompt_log_probs(learner, start.prompts), start.log_probs)
            if difference is None or difference > start.atol:
                raise StageFailed(
                    f"the training client of {arm.name} does not start from the policy of the restoration preflight: "
                    f"log-probabilities differ by {difference} (limit {start.atol:g})"
                )
        write_json_file(client_file, {"start_difference": difference})
        ledger.note_file_digest(f"{name}/{CLIENT}")
        told: dict[int, dict[str, Any]] = {}

        def note_batch_advantages(step: int, batch: Batch, advantages_B: FloatArray, baseline_B: FloatArray) -> None:
            told[step] = {
                "step": step,
                "task_ids": [str(i) for i in batch.tasks.task_ids],
                "rewards": batch.rewards_B.tolist(),
                "baselines": baseline_B.tolist(),
                "advantages": np.asarray(advantages_B).tolist(),
                "prompt_tokens": sum(self.count_prompt_tokens(batch.tasks.prompts)),
            }

        def record_executed_step(record: StepRecord) -> None:
            row = told.pop(record["step"])
            row |= {
                "group_size": int(np.unique(row["task_ids"], return_counts=True)[1].max()),
                "seconds": float(sum(record["wall_seconds"].values())),
                "self_weight_max": record["self_weight_max"],
                "response_tokens": int(record["tokens"]),
                "optimizer": {k: v[0] for k, v in self._read_optimizer_settings(learner, arm).items()},
            }
            rows[row["step"]] = row
            ledger.append_noted_line(log, row)
            progress(arm.name, "steps", record["step"], steps)

        splits = TaskSplits(self.load_experiment_tasks().train, TaskSet([], "none"), TaskSet([], "none"))
        result = train_with_own_loop(
            config,
            directory,
            splits=splits,
            learner=learner,
            on_batch=note_batch_advantages,
            on_step=record_executed_step,
            on_checkpoint=lambda file: ledger.note_file_digest(f"{name}/{file.name}"),
        )
        if result.status == INTERRUPTED:
            raise KeyboardInterrupt
        if result.status != "done":
            raise StageFailed(f"arm {arm.name} ended early: {result.message}")
        for file in _list_policy_files(directory):
            ledger.note_file_digest(file.relative_to(ledger.directory).as_posix())
        given = [row.pop("optimizer") for _, row in sorted(rows.items())]
        optimizer = {k: sorted({o[k] for o in given}) for k in given[0]}
        return TrainedArm(
            steps=[
                StepLog(learning_rate=given[i]["learning_rate"], **row)
                for i, (_, row) in enumerate(sorted(rows.items()))
            ],
            checkpoint=str(directory / POLICY_FOLDER),
            command=f"# {arm.name}: rollonce.training.loop.train, all settings in {name}/config.json",
            remarks=remarks,
            optimizer=optimizer,
            start_difference=difference,
            files=[str(directory / POLICY_FOLDER)],
        )


def _list_policy_files(directory: Path) -> list[Path]:
    final = directory / POLICY_FOLDER
    return [final] if final.is_file() else sorted(p for p in final.rglob("*") if p.is_file())


def discard_unnoted_training(directory: Path, name: str, ledger: Ledger) -> list[str]:
    """An arm goes on from a checkpoint only if it is the one that the run wrote: else it starts anew.

    (A kill between the checkpoint and its note leaves one that nobody can vouch for.)
    """
    kept = [directory / CHECKPOINT_FILE, directory / CLIENT, *_list_policy_files(directory)]
    for file in (f for f in kept if f.exists()):
        noted = file.relative_to(ledger.directory).as_posix()
        try:
            ledger.check_noted_file(noted)
            known = ledger.has_noted_file(noted)
        except InputError:
            known = False
        if not known:
            shutil.rmtree(directory)
            ledger.forget_below_folder(name)
            return [f"{name} started anew: {file.name} was not what the run had noted of it"]
    return []
