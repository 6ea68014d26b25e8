"""tinker-cookbook's ``recipes.math_rl.train`` as an engine: the baseline arm is the stock recipe, the treatment the
same under our patch.

Both run as processes of their own, resumed by the recipe from its checkpoints (``save_every=1``). Calibration, fresh
clients and the final evaluation go through the raw SDK with the recipe's own prompts and grader.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rollonce
from rollonce.errors import InputError
from rollonce.experiments.advantages import baseline_of
from rollonce.experiments.derive import Settings
from rollonce.experiments.engine import Answer, ExperimentTasks, Fresh, Progress, StepLog, Trained
from rollonce.experiments.engines.cookbook_path import CookbookPath
from rollonce.experiments.engines.cookbook_tasks import (
    cookbook_format,
    cookbook_tasks,
    prepare_directory,
    read_log,
    training_order,
)
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.tasks import Task, grade

RECIPE = "tinker_cookbook.recipes.math_rl.train"
DENSE = "rollonce.experiments.engines.dense_recipe"
FORMAT_COEF = 0.1  # of the recipe's environment
PATIENCE_S = 120.0


class CookbookEngine:
    """See the module.

    Args:
        spec: The specification.
        settings: Derived from it; ``tasks`` is ``gsm8k:DIRECTORY`` or ``gsm8k:hub``.
    """

    name = "cookbook"

    def __init__(self, spec: Spec, settings: Settings) -> None:
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

    def identity(self) -> dict[str, Any]:
        """See `Engine.identity`. The address may change between sittings (a port); what is installed may not."""
        versions = {}
        for package in ("tinker", "tinker-cookbook", "transformers", "torch"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        return {"engine": self.name, "policy": self.settings.policy, "rollonce": rollonce.__version__, **versions}

    def tasks(self) -> ExperimentTasks:
        """See `Engine.tasks`."""
        if self._tasks is None:
            s, spec = self.settings, self.spec
            used = max(a.steps * a.groups_per_batch for a in spec.arms)
            n_test = spec.eval.n_examples
            self._tasks = cookbook_tasks(
                s.tasks, spec.arms[0].seed, used, s.calibration_tasks, n_test, dense=s.dense_reward
            )
        return self._tasks

    # ---- the raw SDK

    def _service(self, seed: int) -> Any:
        """A policy on a fresh training client, with the recipe's prompts."""
        from rollonce.policies.tinker_policy import AdamSettings, TinkerPolicy
        from rollonce.policies.tinker_render import Renderer
        from rollonce.policies.tinker_service import TinkerService

        tokenizer, renderer, prefix = self._recipe_renderer()

        def encode(question: str) -> list[int]:
            env = _environment(question, "", renderer, prefix)
            seen, _ = asyncio.run(env.initial_observation())
            return seen.to_ints()

        own = Renderer(f"cookbook:{self.renderer_name()}", encode, list(renderer.get_stop_sequences()))
        return TinkerPolicy(
            TinkerService(self.settings.base_url, patience_s=PATIENCE_S),
            self.settings.policy,
            tokenizer,
            own,
            loss="importance_sampling",
            adam=AdamSettings(),
            lora_rank=self.spec.lora_rank or 32,
            seed=seed,
        )

    def renderer_name(self) -> str:
        """The specification's, or the one that the cookbook recommends for the model."""
        if self.settings.renderer:
            return self.settings.renderer.removeprefix("cookbook:")
        from tinker_cookbook import model_info  # type: ignore[import-not-found]

        try:
            return model_info.get_recommended_renderer_name(self.settings.policy)
        except (KeyError, ValueError) as error:
            said = f"tinker-cookbook knows no renderer for {self.settings.policy!r}"
            raise InputError(f"{said}: name one as rollonce.renderer ({error})") from None

    def _recipe_renderer(self) -> tuple[Any, Any, Any]:
        if self._renderer is None:
            from tinker_cookbook import renderers, tokenizer_utils  # type: ignore[import-not-found]
            from tinker_cookbook.recipes.math_rl import math_env  # type: ignore[import-not-found]

            tokenizer = tokenizer_utils.get_tokenizer(self.settings.policy)
            renderer = renderers.get_renderer(self.renderer_name(), tokenizer=tokenizer)
            self._renderer = (tokenizer, renderer, math_env.MathEnv.standard_fewshot_prefix())
        return self._renderer

    def _start(self) -> Any:
        if self._policy is None:
            self._policy = self._service(self.spec.arms[0].seed)
        return self._policy

    def sample(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[list[Answer]]:
        """See `Engine.sample`: the reward that the recipe trains on, its format term included."""
        if self._sampling:  # trained weights were looked at: a fresh client for the starting policy
            self.close()
        policy = self._start()
        repeated = [t for t in tasks for _ in range(group_size)]
        samples = policy.sample(
            [t.prompt for t in repeated], max_new_tokens=self.settings.max_tokens, seed=seed % 2**31
        )
        found = self._graded(repeated, samples, training=True)
        return [found[i : i + group_size] for i in range(0, len(found), group_size)]

    def answer(self, checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        """See `Engine.answer`: exact match, no format term."""
        policy = self._open(checkpoint)
        samples = policy.sample(
            [t.prompt for t in tasks], max_new_tokens=self.settings.max_tokens, temperature=0.0, seed=0
        )
        return self._graded(tasks, samples, training=False)

    def _open(self, checkpoint: str) -> Any:
        """The policy with a recipe's final weights: from its sampler checkpoint where the service still serves that,
        else from its state.

        SkyRL drops a finished session's adapters and serves sampler checkpoints of loaded ones only.
        """
        from rollonce.policies.tinker_service import ServiceError

        policy = self._start()
        if self._sampling != checkpoint:
            where = json.loads(checkpoint)
            policy.sample_from(where["sampler"])
            try:
                policy.sample([self.tasks().test.prompts[0]], max_new_tokens=1, temperature=0.0, seed=0)
            except ServiceError:
                state = {
                    "path": where["state"],
                    "steps": 0,
                    "model": self.settings.policy,
                    "lora_rank": self.spec.lora_rank or 32,
                }
                policy.load_state(state)
            self._sampling = checkpoint
        return policy

    def _graded(self, tasks: Sequence[Task], samples: Any, *, training: bool) -> list[Answer]:
        truncated = samples.truncated_B.tolist()
        # The recipe parses a truncated response as it is; so does this.
        grades = grade(tasks, samples.texts)
        rewards = list(grades.rewards)
        if training:
            fine = [0.0 if cut else cookbook_format(text) for cut, text in zip(truncated, samples.texts, strict=True)]
            rewards = [r + FORMAT_COEF * (f - 1) for r, f in zip(rewards, fine, strict=True)]
        lengths = samples.lengths_B.tolist()
        return [
            Answer(r, bool(c), int(n), f)
            for r, c, n, f in zip(rewards, truncated, lengths, grades.failures, strict=True)
        ]

    def fresh(self, arm: ArmSpec, prompts: Sequence[str]) -> Fresh:
        """See `Engine.fresh`: a new training client as the recipe makes one, its weights saved at once and asked for
        log-probabilities."""
        from rollonce.policies.samples import to_samples

        policy = self._service(arm.seed)
        try:
            rows = [policy.encode(p) for p in prompts]
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
            found = policy.log_probs(samples).double().tolist()
        finally:
            policy.close()
        adam = recipe_adam(arm.lr)
        sent = {**adam, "lora_rank": self.spec.lora_rank, "seed": arm.seed}
        return Fresh([row[: len(r) - 1] for row, r in zip(found, rows, strict=True)], sent)

    # ---- the recipe

    def discard(self, directory: Path) -> None:
        """The pilot's weights stay on the service until it drops them; nothing here refers to them any more."""

    def command(self, arm: ArmSpec, steps: int, directory: Path) -> list[str]:
        """The recipe's command line; under our patch unless the advantage is the stock one."""
        s = self.settings
        options: dict[str, Any] = {
            "model_name": s.policy,
            "env": "gsm8k",
            "group_size": arm.group_size,
            "groups_per_batch": arm.groups_per_batch,
            "learning_rate": arm.lr,
            "lora_rank": self.spec.lora_rank or 32,
            "max_tokens": s.max_tokens,
            "max_steps": steps,
            "seed": arm.seed,
            "kl_penalty_coef": 0,
            "loss_fn": "importance_sampling",
            "save_every": 1,
            "eval_every": 0,
            "log_path": directory / "log",
            "behavior_if_log_dir_exists": "resume",
        }
        if s.base_url or os.environ.get("TINKER_BASE_URL"):
            options["base_url"] = s.base_url or os.environ["TINKER_BASE_URL"]
        options["renderer_name"] = self.renderer_name()
        words = [f"{k}={v}" for k, v in options.items()]
        recipe = DENSE if s.dense_reward else RECIPE
        if arm.advantage == "group_mean":
            return [sys.executable, "-m", recipe, *words]
        baseline = directory / "baseline.json"
        if not baseline.is_file():
            baseline_of(self.spec, arm.advantage).fit(self.tasks().train.prompts).save(baseline)
        return [
            sys.executable,
            "-m",
            "rollonce.integrations.tinker_cookbook",
            str(baseline),
            "--prompts",
            "question",
            "--",
            recipe,
            *words,
        ]

    def train(self, arm: ArmSpec, steps: int, directory: Path, progress: Progress) -> Trained:
        """See `Engine.train`."""
        directory.mkdir(parents=True, exist_ok=True)
        where = prepare_directory(self.settings.tasks, directory / "data")
        command = self.command(arm, steps, directory)
        if not _final(directory):
            self._run(
                command,
                where,
                directory,
                lambda: progress(arm.name, len(read_log(directory / "log" / "metrics.jsonl")), steps),
            )
        final = _final(directory)
        if final is None:
            raise InputError(
                "the recipe ended without a final checkpoint; its own words are in recipe.log", file=directory
            )
        return Trained(self._steps(arm, steps, directory), final, shlex.join(command), self._remarks(arm))

    def _run(self, command: list[str], where: Path, directory: Path, tell: Any) -> None:
        from rollonce.policies.tinker_service import ServiceError, TinkerService, api_key

        api_key()
        service = TinkerService(self.settings.base_url, patience_s=PATIENCE_S)
        _ = service.client  # not there, or a wrong key: said here, before a process that would try for minutes
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
        if self.settings.tasks != "gsm8k:hub":
            environment["HF_DATASETS_OFFLINE"] = "1"
        with open(directory / "recipe.log", "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=where,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
            try:
                unwell_since = None
                while process.poll() is None:
                    time.sleep(1.0)
                    tell()
                    trouble = service.trouble()
                    unwell_since = None if trouble is None else (unwell_since or time.monotonic())
                    if unwell_since is not None and time.monotonic() - unwell_since > PATIENCE_S:
                        said = (
                            f"the service at {service.name} went away while the recipe ran: {trouble} for "
                            f"{PATIENCE_S:g} s"
                        )
                        raise ServiceError(
                            f"{said}; start it again, and give the same command: it goes on from the last checkpoint"
                        )
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    try:
                        process.wait(timeout=10)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
                service.close()
        if process.returncode != 0:
            tail = (directory / "recipe.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            from rollonce.policies.tinker_service import without_key

            last = without_key(tail[-1][:300]) if tail else "it said nothing"
            said = f"the recipe ended with code {process.returncode}: {last}"
            raise InputError(
                f"{said}; the same command goes on from its last checkpoint", file=directory / "recipe.log"
            )

    def _steps(self, arm: ArmSpec, steps: int, directory: Path) -> list[StepLog]:
        metrics = {int(m["step"]): m for m in read_log(directory / "log" / "metrics.jsonl") if "step" in m}
        ours = {int(r["step"]): r for r in read_log(directory / "log" / "rollonce" / "advantages.jsonl")}
        order = training_order(self.settings.tasks, arm.seed, steps * arm.groups_per_batch)
        out = []
        for i in sorted(metrics)[:steps]:
            m = metrics[i]
            if arm.advantage == "group_mean":
                ids, rewards, b = self._stock_step(arm, i, directory, order)
                weight = None
            else:
                r = ours[i]
                ids, rewards, b, weight = r["task_ids"], r["rewards"], r["baselines"], r["self_weight_max"]
            advantages = [x - y for x, y in zip(rewards, b, strict=True)]
            _, counts = np.unique(ids, return_counts=True)
            rate, seconds = float(m["optim/lr"]), float(m.get("time/total", 0.0))
            out.append(StepLog(i + 1, ids, rewards, b, advantages, int(counts.max()), rate, seconds, weight))
        return out

    def _stock_step(
        self, arm: ArmSpec, step: int, directory: Path, order: list[str]
    ) -> tuple[list[str], list[float], list[float]]:
        """A step of the stock recipe. Its log names no task: group k of a step is row k of that step's part of the
        shuffle."""
        rows = {}
        for file in sorted((directory / "log" / f"iteration_{step:06d}").glob("*rollout_summaries.jsonl")):
            for row in read_log(file):
                if row.get("split", "train") == "train":
                    rows[(row["group_idx"], row["traj_idx"])] = float(row["total_reward"])
        ids = [order[step * arm.groups_per_batch + g] for g, _ in sorted(rows)]
        rewards = [rows[k] for k in sorted(rows)]
        mean = {g: float(np.mean([r for (h, _), r in rows.items() if h == g])) for g, _ in rows}
        return ids, rewards, [mean[g] for g, _ in sorted(rows)]

    def _remarks(self, arm: ArmSpec) -> list[str]:
        out = [
            f"the recipe's training reward takes {FORMAT_COEF:g} off without a well-formed box; the evaluation is "
            "exact match",
            "loss_fn=importance_sampling and save_every=1 are given to the recipe explicitly; its defaults differ "
            "between versions",
            "the recipe passes no LoRA seed: the service draws the adapters' start (their product is zero, so policies "
            "start equal)",
        ]
        if self.settings.dense_reward:
            out.append("dense_reward: the recipe ran with a grade that a random model earns")
        return out

    def close(self) -> None:
        """End the session."""
        if self._policy is not None:
            self._policy.close()
            self._policy, self._sampling = None, ""


def recipe_adam(learning_rate: float) -> dict[str, Any]:
    """What the installed cookbook sends with every optimizer step, read from its source's defaults."""
    import inspect

    from tinker_cookbook.rl import train  # type: ignore[import-not-found]

    found = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
    text = inspect.getsource(train)
    import re

    for name in found:
        match = re.search(rf"AdamParams\([^)]*\b{name}=([0-9.e-]+)", text)
        if match:
            found[name] = float(match[1])
    return {**found, "learning_rate": learning_rate}


def _environment(question: str, answer: str, renderer: Any, prefix: Any) -> Any:
    from tinker_cookbook.recipes.math_rl import math_env  # type: ignore[import-not-found]

    return math_env.MathEnv(question, answer, renderer, convo_prefix=prefix)


def _final(directory: Path) -> str | None:
    """Where the final weights are on the service, as one line of JSON: ``sampler`` and ``state``."""
    last = [r for r in read_log(directory / "log" / "checkpoints.jsonl") if r.get("name") == "final"]
    return json.dumps({"sampler": last[-1]["sampler_path"], "state": last[-1]["state_path"]}) if last else None


def _die_with_parent() -> None:
    """A recipe whose run was killed must not train on alone (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
