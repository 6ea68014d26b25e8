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
)
from rollonce.experiments.engines.cookbook_path import CookbookPath
from rollonce.experiments.engines.cookbook_tasks import (
    cookbook_format,
    cookbook_tasks,
    prepare_directory,
    read_log,
    training_order,
)
from rollonce.experiments.engines.loop import dummy_advantages
from rollonce.experiments.engines.recipe_watch import OTHER_START, client_log_probs
from rollonce.experiments.ledger import Ledger
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.files import write_json_file
from rollonce.tasks import Task, grade

RECIPE = "tinker_cookbook.recipes.math_rl.train"
DENSE = "rollonce.experiments.engines.dense_recipe"
WATCHER = "rollonce.experiments.engines.recipe_watch"
LOGS = ("log/checkpoints.jsonl", "log/metrics.jsonl", "log/rollonce/advantages.jsonl", "watch.jsonl")
"""Files that the recipe appends to, and a later sitting reads."""
KEPT = ("baseline.json", "log/iteration_*/*rollout_summaries.jsonl", "log/rollonce/state_*.json")
"""Files that it writes once."""
FORMAT_COEF = 0.1  # of the recipe's environment
PATIENCE_S = 120.0


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

    def identity(self) -> dict[str, Any]:
        """See `Engine.identity`. The address may change between sittings (a port); what is installed may not."""
        versions = {}
        for package in ("tinker", "tinker-cookbook", "transformers", "torch"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        return {"engine": self.name, "policy": self.settings.policy, "rollonce": rollonce.__version__, **versions} | {
            "renderer": self.settings.renderer
        }

    def tasks(self) -> ExperimentTasks:
        if self._tasks is None:
            s, spec = self.settings, self.spec
            used = max(a.steps * a.groups_per_batch for a in spec.arms)
            self._tasks = cookbook_tasks(
                s.tasks,
                spec.arms[0].seed,
                n_used=used,
                n_calibration=s.calibration_tasks,
                n_selection=s.selection_tasks,
                dense=s.dense_reward,
            )
        return self._tasks

    # ---- the raw SDK

    def _service(self, seed: int) -> Any:
        """A policy on a fresh training client, with the recipe's prompts."""
        from rollonce.policies.tinker_policy import AdamSettings, TinkerPolicy
        from rollonce.policies.tinker_render import Renderer
        from rollonce.policies.tinker_service import TinkerService

        tokenizer, renderer, _ = self._recipe_renderer()
        registered = self._registered(self.spec.arms[0])

        own = Renderer(f"cookbook:{self.renderer_name()}", self._encode, list(renderer.get_stop_sequences()))
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

    def renderer_name(self) -> str:
        """The one that was named, as the cookbook calls it.

        Raises:
            InputError: none was: whether the model thinks before it answers decides this experiment, so none is chosen.
        """
        if self.settings.renderer:
            return self.settings.renderer.removeprefix("cookbook:")
        raise InputError(no_renderer(self.settings.policy))

    def _registered(self, arm: ArmSpec) -> dict[str, Any]:
        groups = self.spec.restoration_preflight.groups
        by_name = {a.name: a.optimizer_config.model_dump() for g in groups for a in g.arms}
        return by_name.get(arm.name, {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8})

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

    def contents(self, samples: Any) -> tuple[list[str], list[bool]]:
        """What the recipe grades of each rollout: the text of the parsed message, without its thinking part; and
        whether it ended at a stop sequence."""
        from tinker_cookbook import renderers  # type: ignore[import-not-found]

        from rollonce.policies.samples import rows_of

        _, renderer, _ = self._recipe_renderer()
        texts, ended = [], []
        for _, response, _ in rows_of(samples):
            message, termination = renderer.parse_response(response)
            texts.append(renderers.get_text_content(message))
            ended.append(bool(getattr(termination, "is_stop_sequence", termination)))
        return texts, ended

    def _graded(self, tasks: Sequence[Task], samples: Any, *, training: bool) -> list[Answer]:
        texts, ended = self.contents(samples)
        # The recipe grades a truncated response as it is; so does this.
        grades = grade(tasks, texts)
        rewards = list(grades.rewards)
        if training:
            fine = [cookbook_format(text) if end else 0.0 for text, end in zip(texts, ended, strict=True)]
            rewards = [r + FORMAT_COEF * (f - 1) for r, f in zip(rewards, fine, strict=True)]
        read = self.prompt_lengths([t.prompt for t in tasks])
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

    def prompt_lengths(self, prompts: Sequence[str]) -> list[int]:
        """See `Engine.prompt_lengths`: with the recipe's example and suffix."""
        for prompt in prompts:
            if prompt not in self._lengths:
                self._lengths[prompt] = len(self._encode(prompt))
        return [self._lengths[p] for p in prompts]

    def _encode(self, question: str) -> list[int]:
        _, renderer, prefix = self._recipe_renderer()
        seen, _ = asyncio.run(_environment(question, "", renderer, prefix).initial_observation())
        return list(seen.to_ints())

    def fresh(self, arm: ArmSpec, prompts: Sequence[str]) -> FreshClient:
        """See `Engine.fresh`: a forward pass of a new training client."""
        policy = self._service(arm.seed)
        try:
            rows = [self._encode(p) for p in prompts]
            log_probs = policy.service.call("a forward pass", lambda: client_log_probs(policy.trainer, rows))
        finally:
            policy.close()
        return FreshClient(log_probs, {"lora_rank": policy.lora_rank, "seed": policy.seed})

    def probe(self, arm: ArmSpec, tasks: Sequence[Task]) -> Probe:
        """See `Engine.probe`, through the raw SDK; what the recipe itself sends is watched while it trains."""
        import torch

        policy = self._service(arm.seed)
        try:
            samples = policy.sample([t.prompt for t in tasks], max_new_tokens=self.settings.max_tokens, seed=arm.seed)
            advantages = torch.from_numpy(dummy_advantages(self.spec, arm, tasks, self.tasks().train.prompts))
            update = policy.update(samples, advantages, learning_rate=arm.lr)
            after = policy.log_probs(samples).double()
        finally:
            policy.close()
        mask, before = samples.response_mask_BT, update.log_probs_BT.double()
        ratio = torch.exp(before - samples.log_probs_BT.double())
        loss = -float((ratio * advantages[:, None] * mask).sum())
        adam = {k: policy.last_adam[k] for k in ("beta1", "beta2", "eps", "learning_rate")}
        error, moved = float((ratio - 1).abs()[mask].max()), float((after - before).abs()[mask].max())
        return Probe(len(tasks), int(samples.n_tokens), loss, error, adam, moved)

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
        watched = [sys.executable, "-m", WATCHER, str(directory / "watch.json"), "--"]
        if arm.advantage == "group_mean":
            return [*watched, recipe, *words]
        baseline = directory / "baseline.json"
        if not baseline.is_file():
            baseline_of(self.spec, arm.advantage).fit(self.tasks().train.prompts).save(baseline)
        return [
            *watched,
            "rollonce.integrations.tinker_cookbook",
            str(baseline),
            "--prompts",
            "question",
            "--",
            recipe,
            *words,
        ]

    def train(
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
        command = self.command(arm, steps, directory)
        relative = lambda path: path.relative_to(ledger.directory).as_posix()  # noqa: E731
        for log in LOGS:  # what nobody vouches for is made again: the recipe goes on from the checkpoint before
            ledger.check_file(relative(directory / log), cut=True)
        for file in sorted(f for pattern in KEPT for f in directory.glob(pattern)):
            ledger.check_file(relative(file))
        common = None
        if start is not None:
            rows = [self._encode(p) for p in start.prompts]
            common = {"rows": rows, "log_probs": start.log_probs, "atol": start.atol}
        seen = directory / "watch.jsonl"
        write_json_file(directory / "watch.json", {"seed": arm.seed, "start": common, "out": str(seen)})

        def tell() -> None:
            for pattern in (*LOGS, *KEPT):
                for file in directory.glob(pattern):
                    ledger.note_file(relative(file))
            progress(arm.name, "steps", min(len(read_log(directory / "log" / "metrics.jsonl")), steps), steps)

        if not _final(directory):
            self._run(command, where, directory, tell)
            tell()
        final = _final(directory)
        if final is None:
            raise InputError(
                "the recipe ended without a final checkpoint; its own words are in recipe.log", file=directory
            )
        told = read_log(seen)
        differences = [row["start_difference"] for row in told if "start_difference" in row]
        adam = [row["adam"] for row in told if "adam" in row]
        names = ("beta1", "beta2", "eps", "learning_rate")
        optimizer: dict[str, list[Any]] = {k: sorted({a[k] for a in adam}) for k in names}
        seeds = {row["adapters"]["seed"] for row in told if "adapters" in row}
        return TrainedArm(
            steps=self._steps(arm, steps, directory),
            checkpoint=final,
            command=shlex.join(command),
            remarks=self._remarks(arm),
            optimizer=optimizer | {"seed": sorted(seeds)},
            start_difference=differences[-1] if differences else None,
        )

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
        if process.returncode == OTHER_START:
            differs = [r["start_difference"] for r in read_log(directory / "watch.jsonl") if "start_difference" in r]
            raise StageFailed(
                "the recipe's training client does not start from the policy of the restoration preflight: "
                f"log-probabilities differ by {differs[-1] if differs else None}"
            )
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
            tokens = {k: int(m.get(f"env/all/total_{k}_tokens", 0)) for k in ("ob", "ac")}
            out.append(
                StepLog(
                    step=i + 1,
                    task_ids=ids,
                    rewards=rewards,
                    baselines=b,
                    advantages=advantages,
                    group_size=int(counts.max()),
                    learning_rate=float(m["optim/lr"]),
                    seconds=float(m.get("time/total", 0.0)),
                    self_weight_max=weight,
                    response_tokens=tokens["ac"],
                    prompt_tokens=tokens["ob"],
                )
            )
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
            "the recipe passes no LoRA seed: rollonce.experiments.engines.recipe_watch adds the registered one, and "
            "writes down what the optimizer is sent; nothing else of the recipe is changed",
        ]
        if self.settings.dense_reward:
            out.append("dense_reward: the recipe ran with a grade that a random model earns")
        return out

    def close(self) -> None:
        if self._policy is not None:
            self._policy.close()
            self._policy, self._sampling = None, ""


def no_renderer(model: str) -> str:
    """The sentence where none was named, with those that the cookbook has for the model, or its family."""
    known: list[str] = []
    try:
        from tinker_cookbook import model_info  # type: ignore[import-not-found]

        known = list(model_info.get_recommended_renderer_names(model))
    except (ImportError, AttributeError, KeyError, ValueError):
        family = model.rpartition("/")[2].partition("-")[0].lower().replace(".", "_")
        known = [f"{family}_disable_thinking", family] if family.startswith("qwen3") else []
    some = f" ({', '.join(known)} of tinker-cookbook's, say)" if known else ""
    return (
        f"no renderer is named for {model!r}: give --renderer NAME{some}. None is chosen for you: with thinking on, "
        "most answers are cut off at the registered max_tokens, with thinking off the model answers at once, and that "
        "decides this experiment"
    )


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
