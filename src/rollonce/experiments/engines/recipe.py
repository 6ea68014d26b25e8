"""tinker-cookbook's ``recipes.math_rl.train`` as a process of its own: its command line, and the watch over it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.experiments.advantages import make_advantage_baseline
from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.engine import StageFailed
from rollonce.experiments.engines.recipe_log import read_foreign_log
from rollonce.experiments.engines.recipe_watch import OTHER_START
from rollonce.experiments.spec import ArmSpec, Spec

RECIPE = "tinker_cookbook.recipes.math_rl.train"
DENSE = "rollonce.experiments.engines.dense_recipe"
WATCHER = "rollonce.experiments.engines.recipe_watch"
PATIENCE_S = 120.0


def make_recipe_command(
    spec: Spec,
    s: ExperimentSettings,
    arm: ArmSpec,
    steps: int,
    directory: Path,
    *,
    renderer: str,
    train_prompts: Sequence[str],
) -> list[str]:
    """The recipe's command line; under our patch unless the advantage is the stock one."""
    options: dict[str, Any] = {
        "model_name": s.policy,
        "env": "gsm8k",
        "group_size": arm.group_size,
        "groups_per_batch": arm.groups_per_batch,
        "learning_rate": arm.lr,
        "lora_rank": spec.lora_rank or 32,
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
    options["renderer_name"] = renderer
    words = [f"{k}={v}" for k, v in options.items()]
    recipe = DENSE if s.dense_reward else RECIPE
    watched = [sys.executable, "-m", WATCHER, str(directory / "watch.json"), "--"]
    if arm.advantage == "group_mean":
        return [*watched, recipe, *words]
    baseline = directory / "baseline.json"
    if not baseline.is_file():
        make_advantage_baseline(spec, arm.advantage).fit(list(train_prompts)).save(baseline)
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


def make_recipe_environment(source: str, where: Path) -> dict[str, str]:
    """The recipe's environment. Given files have a cache of their own: `datasets` knows a cached set by the relative
    path of its files, not by what is in them, and would train on the rows of another run's folder."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    if source != "gsm8k:hub":
        environment |= {"HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(where / "cache")}
    return environment


def run_recipe_process(
    command: list[str], *, where: Path, directory: Path, settings: ExperimentSettings, tell: Callable[[], None]
) -> None:
    """Run it to its end beside a watch on the service; ``tell`` is called every second.

    Args:
        command: From `make_recipe_command`.
        where: The working directory.
        directory: Of the arm, for ``recipe.log`` and what the watch writes.
        settings: Of the experiment.
        tell: Notes what there is; it may end the recipe by raising.

    Raises:
        StageFailed: its client starts from another policy.
        ServiceError: the service went away.
        InputError: it ended with an error.
    """
    from rollonce.policies.tinker_service import ServiceError, TinkerService, api_key_from_environment

    api_key_from_environment()
    service = TinkerService(settings.base_url, patience_s=PATIENCE_S)
    _ = service.service_client  # not there, or a wrong key: said here, before a process that would try for minutes
    environment = make_recipe_environment(settings.tasks, where)
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
                trouble = service.health_check_trouble()
                unwell_since = None if trouble is None else (unwell_since or time.monotonic())
                if unwell_since is not None and time.monotonic() - unwell_since > PATIENCE_S:
                    said = (
                        f"the service at {service.name} went away while the recipe ran: {trouble} for {PATIENCE_S:g} s"
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
        differs = [
            r["start_difference"] for r in read_foreign_log(directory / "watch.jsonl") if "start_difference" in r
        ]
        raise StageFailed(
            "the recipe's training client does not start from the policy of the restoration preflight: "
            f"log-probabilities differ by {differs[-1] if differs else None}"
        )
    if process.returncode != 0:
        tail = (directory / "recipe.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        from rollonce.policies.tinker_service import redact_service_key

        last = redact_service_key(tail[-1][:300]) if tail else "it said nothing"
        said = f"the recipe ended with code {process.returncode}: {last}"
        raise InputError(f"{said}; the same command goes on from its last checkpoint", file=directory / "recipe.log")


def _die_with_parent() -> None:
    """A recipe whose run was killed must not train on alone (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
