"""tinker-cookbook's ``recipes.math_rl.train`` as an engine: the baseline arm is the stock recipe, the treatment the
same under our patch.

Both run as processes of their own, resumed by the recipe from its checkpoints (``save_every=1``). Calibration, fresh
clients and the final evaluation go through the raw SDK with the recipe's own prompts and grader.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rollonce
from rollonce.errors import InputError
from rollonce.experiments.advantages import dummy_advantages
from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.engine import (
    Answer,
    ExperimentTasks,
    FreshClient,
    Probe,
    Progress,
    StartPolicy,
    TrainedArm,
)
from rollonce.experiments.engines.cookbook_path import CookbookPath
from rollonce.experiments.engines.cookbook_tasks import (
    FORMAT_COEF,
    grade_boxed_format,
    load_cookbook_tasks,
    prepare_directory,
)
from rollonce.experiments.engines.recipe import PATIENCE_S, make_recipe_command, run_recipe_process
from rollonce.experiments.engines.recipe_log import (
    find_final_checkpoint,
    make_recipe_remarks,
    read_foreign_log,
    read_recipe_steps,
)
from rollonce.experiments.engines.recipe_watch import client_log_probs
from rollonce.experiments.ledger import Ledger
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.files import write_json_file
from rollonce.policies.tinker_render import explain_missing_renderer
from rollonce.tasks import Task, grade

LOGS = ("log/checkpoints.jsonl", "log/metrics.jsonl", "log/rollonce/advantages.jsonl", "watch.jsonl")
"""Files that the recipe appends to, and a later sitting reads."""
KEPT = ("baseline.json", "log/iteration_*/*rollout_summaries.jsonl", "log/rollonce/state_*.json")
"""Files that it writes once."""


class CookbookEngine:
    """See the module.

    Args:
        spec: The specification.
        settings: Derived from it; ``tasks`` is ``gsm8k:DIRECTORY`` or ``gsm8k:hub``.
    """

    name = "cookbook"

    def __init__(self, spec: Spec, settings: ExperimentSettings) -> None:
        if not settings.tasks.startswith("gsm8k:"):
            raise InputError(
                f"the recipe trains on GSM8K here, not on {settings.tasks!r}: use rollonce.engine = tinker for other "
                "tasks"
            )
        self.spec, self.settings = spec, settings
        self.path = CookbookPath()
        self._tasks: ExperimentTasks | None = None
        self._policy: Any = None
        self._sampling = ""
        self._renderer: Any = None
        self._lengths: dict[str, int] = {}

    def describe_identity(self) -> dict[str, Any]:
        """See `Engine.describe_identity`. The address may change between sittings (a port); what is installed may
        not."""
        versions = {}
        for package in ("tinker", "tinker-cookbook", "transformers", "torch"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        return {"engine": self.name, "policy": self.settings.policy, "rollonce": rollonce.__version__, **versions} | {
            "renderer": self.settings.renderer
        }

    def load_experiment_tasks(self) -> ExperimentTasks:
        if self._tasks is None:
            s, spec = self.settings, self.spec
            used = max(a.steps * a.groups_per_batch for a in spec.arms)
            self._tasks = load_cookbook_tasks(
                s.tasks,
                spec.arms[0].seed,
                n_used=used,
                n_calibration=s.calibration_tasks,
                n_selection=s.selection_tasks,
                dense=s.dense_reward,
            )
        return self._tasks

    # ---- the raw SDK

    def _make_fresh_policy(self, seed: int) -> Any:
        """A policy on a fresh training client, with the recipe's prompts."""
        from rollonce.policies.tinker_policy import AdamSettings, TinkerPolicy
        from rollonce.policies.tinker_render import Renderer
        from rollonce.policies.tinker_service import TinkerService

        tokenizer, renderer, _ = self._load_recipe_renderer()
        registered = self.spec.find_optimizer_settings(self.spec.arms[0].name)

        own = Renderer(
            f"cookbook:{self.require_renderer_name()}", self._encode_question, list(renderer.get_stop_sequences())
        )
        return TinkerPolicy(
            TinkerService(self.settings.base_url, patience_s=PATIENCE_S),
            self.settings.policy,
            tokenizer,
            own,
            loss="importance_sampling",
            adam=AdamSettings(*(registered[k] for k in ("beta1", "beta2", "eps"))),
            lora_rank=self.spec.lora_rank or 32,
            seed=seed,
        )

    def require_renderer_name(self) -> str:
        """The one that was named, as the cookbook calls it.

        Raises:
            InputError: none was: whether the model thinks before it answers decides this experiment, so none is chosen.
        """
        if self.settings.renderer:
            return self.settings.renderer.removeprefix("cookbook:")
        raise InputError(explain_missing_renderer(self.settings.policy))

    def _load_recipe_renderer(self) -> tuple[Any, Any, Any]:
        if self._renderer is None:
            from tinker_cookbook import renderers, tokenizer_utils  # type: ignore[import-not-found]
            from tinker_cookbook.recipes.math_rl import math_env  # type: ignore[import-not-found]

            tokenizer = tokenizer_utils.get_tokenizer(self.settings.policy)
            renderer = renderers.get_renderer(self.require_renderer_name(), tokenizer=tokenizer)
            self._renderer = (tokenizer, renderer, math_env.MathEnv.standard_fewshot_prefix())
        return self._renderer

    def _starting_policy(self) -> Any:
        if self._policy is None:
            self._policy = self._make_fresh_policy(self.spec.arms[0].seed)
        return self._policy

    def sample_task_groups(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[list[Answer]]:
        """See `Engine.sample_task_groups`: the reward that the recipe trains on, its format term included."""
        if self._sampling:  # trained weights were looked at: a fresh client for the starting policy
            self.close()
        policy = self._starting_policy()
        repeated = [t for t in tasks for _ in range(group_size)]
        samples = policy.sample(
            [t.prompt for t in repeated], max_new_tokens=self.settings.max_tokens, seed=seed % 2**31
        )
        found = self._make_graded_answers(repeated, samples, training=True)
        return [found[i : i + group_size] for i in range(0, len(found), group_size)]

    def answer_greedily(self, checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        """See `Engine.answer_greedily`: exact match, no format term."""
        policy = self._open_checkpoint(checkpoint)
        samples = policy.sample(
            [t.prompt for t in tasks], max_new_tokens=self.settings.max_tokens, temperature=0.0, seed=0
        )
        return self._make_graded_answers(tasks, samples, training=False)

    def _open_checkpoint(self, checkpoint: str) -> Any:
        """The policy with a recipe's final weights: from its sampler checkpoint where the service still serves that,
        else from its state.

        SkyRL drops a finished session's adapters and serves sampler checkpoints of loaded ones only.
        """
        from rollonce.policies.tinker_service import ServiceError

        policy = self._starting_policy()
        if self._sampling != checkpoint:
            where = json.loads(checkpoint)
            policy.sample_from_saved_weights(where["sampler"])
            try:
                policy.sample([self.load_experiment_tasks().test.prompts[0]], max_new_tokens=1, temperature=0.0, seed=0)
            except ServiceError:
                state = {
                    "path": where["state"],
                    "steps": 0,
                    "model": self.settings.policy,
                    "lora_rank": self.spec.lora_rank or 32,
                }
                policy.load_service_state(state)
            self._sampling = checkpoint
        return policy

    def graded_contents(self, samples: Any) -> tuple[list[str], list[bool]]:
        """What the recipe grades of each rollout: the text of the parsed message, without its thinking part; and
        whether it ended at a stop sequence."""
        from tinker_cookbook import renderers  # type: ignore[import-not-found]

        from rollonce.policies.samples import unpadded_rollout_rows

        _, renderer, _ = self._load_recipe_renderer()
        texts, ended = [], []
        for _, response, _ in unpadded_rollout_rows(samples):
            message, termination = renderer.parse_response(response)
            texts.append(renderers.get_text_content(message))
            ended.append(bool(getattr(termination, "is_stop_sequence", termination)))
        return texts, ended

    def _make_graded_answers(self, tasks: Sequence[Task], samples: Any, *, training: bool) -> list[Answer]:
        texts, ended = self.graded_contents(samples)
        # The recipe grades a truncated response as it is; so does this.
        grades = grade(tasks, texts)
        rewards = list(grades.rewards)
        if training:
            fine = [grade_boxed_format(text) if end else 0.0 for text, end in zip(texts, ended, strict=True)]
            rewards = [r + FORMAT_COEF * (f - 1) for r, f in zip(rewards, fine, strict=True)]
        read = self.count_prompt_tokens([t.prompt for t in tasks])
        return [
            Answer(r, bool(c), int(n), f, k)
            for r, c, n, f, k in zip(
                rewards,
                samples.truncated_B.tolist(),
                samples.lengths_B.tolist(),
                grades.failures,
                read,
                strict=True,
            )
        ]

    def count_prompt_tokens(self, prompts: Sequence[str]) -> list[int]:
        """See `Engine.count_prompt_tokens`: with the recipe's example and suffix."""
        for prompt in prompts:
            if prompt not in self._lengths:
                self._lengths[prompt] = len(self._encode_question(prompt))
        return [self._lengths[p] for p in prompts]

    def _encode_question(self, question: str) -> list[int]:
        _, renderer, prefix = self._load_recipe_renderer()
        seen, _ = asyncio.run(_make_math_environment(question, "", renderer, prefix).initial_observation())
        return list(seen.to_ints())

    def measure_fresh_client(self, arm: ArmSpec, prompts: Sequence[str]) -> FreshClient:
        """See `Engine.measure_fresh_client`: a forward pass of a new training client."""
        policy = self._make_fresh_policy(arm.seed)
        try:
            rows = [self._encode_question(p) for p in prompts]
            log_probs = policy.service.call_with_watch(
                "a forward pass", lambda: client_log_probs(policy.training_client, rows)
            )
        finally:
            policy.close()
        return FreshClient(log_probs, {"lora_rank": policy.lora_rank, "seed": policy.seed})

    def probe_arm_training(self, arm: ArmSpec, tasks: Sequence[Task]) -> Probe:
        """See `Engine.probe_arm_training`, through the raw SDK; what the recipe itself sends is watched while it
        trains."""
        import torch

        policy = self._make_fresh_policy(arm.seed)
        try:
            samples = policy.sample([t.prompt for t in tasks], max_new_tokens=self.settings.max_tokens, seed=arm.seed)
            advantages = torch.from_numpy(
                dummy_advantages(self.spec, arm, tasks, self.load_experiment_tasks().train.prompts)
            )
            update = policy.update(samples, advantages, learning_rate=arm.lr)
            after = policy.compute_log_probs(samples).double()
        finally:
            policy.close()
        mask, before = samples.response_mask_BT, update.log_probs_BT.double()
        ratio = torch.exp(before - samples.log_probs_BT.double())
        loss = -float((ratio * advantages[:, None] * mask).sum())
        adam = {k: policy.last_adam[k] for k in ("beta1", "beta2", "eps", "learning_rate")}
        error, moved = float((ratio - 1).abs()[mask].max()), float((after - before).abs()[mask].max())
        return Probe(len(tasks), int(samples.n_tokens), loss, error, adam, moved)

    # ---- the recipe

    def discard_weights(self, directory: Path) -> None:
        """The pilot's weights stay on the service until it drops them; nothing here refers to them any more."""

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
        directory.mkdir(parents=True, exist_ok=True)
        where = prepare_directory(self.settings.tasks, directory / "data")
        command = make_recipe_command(
            self.spec,
            self.settings,
            arm,
            steps,
            directory,
            renderer=self.require_renderer_name(),
            train_prompts=self.load_experiment_tasks().train.prompts,
        )
        relative = lambda path: path.relative_to(ledger.directory).as_posix()  # noqa: E731
        for log in LOGS:  # what nobody vouches for is made again: the recipe goes on from the checkpoint before
            ledger.check_noted_file(relative(directory / log), cut=True)
        for file in sorted(f for pattern in KEPT for f in directory.glob(pattern)):
            ledger.check_noted_file(relative(file))
        common = None
        if start is not None:
            rows = [self._encode_question(p) for p in start.prompts]
            common = {"rows": rows, "log_probs": start.log_probs, "atol": start.atol}
        seen = directory / "watch.jsonl"
        write_json_file(directory / "watch.json", {"seed": arm.seed, "start": common, "out": str(seen)})

        def note_files_and_progress() -> None:
            for pattern in (*LOGS, *KEPT):
                for file in directory.glob(pattern):
                    ledger.note_file_digest(relative(file))
            progress(arm.name, "steps", min(len(read_foreign_log(directory / "log" / "metrics.jsonl")), steps), steps)

        if not find_final_checkpoint(directory):
            run_recipe_process(
                command, where=where, directory=directory, settings=self.settings, tell=note_files_and_progress
            )
            note_files_and_progress()
        final = find_final_checkpoint(directory)
        if final is None:
            raise InputError(
                "the recipe ended without a final checkpoint; its own words are in recipe.log", file=directory
            )
        told = read_foreign_log(seen)
        differences = [row["start_difference"] for row in told if "start_difference" in row]
        adam = [row["adam"] for row in told if "adam" in row]
        names = ("beta1", "beta2", "eps", "learning_rate")
        optimizer: dict[str, list[Any]] = {k: sorted({a[k] for a in adam}) for k in names}
        seeds = {row["adapters"]["seed"] for row in told if "adapters" in row}
        return TrainedArm(
            steps=read_recipe_steps(self.settings.tasks, arm, steps, directory),
            checkpoint=final,
            command=shlex.join(command),
            remarks=make_recipe_remarks(self.settings),
            optimizer=optimizer | {"seed": sorted(seeds)},
            start_difference=differences[-1] if differences else None,
        )

    def close(self) -> None:
        if self._policy is not None:
            self._policy.close()
            self._policy, self._sampling = None, ""


def _make_math_environment(question: str, answer: str, renderer: Any, prefix: Any) -> Any:
    from tinker_cookbook.recipes.math_rl import math_env  # type: ignore[import-not-found]

    return math_env.MathEnv(question, answer, renderer, convo_prefix=prefix)
