"""What tinker-cookbook's recipe leaves in its directory, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.engine import StepLog
from rollonce.experiments.engines.cookbook_tasks import FORMAT_COEF, read_gsm8k_rows
from rollonce.experiments.spec import ArmSpec
from rollonce.integrations.rows import stable_task_id


def read_recipe_steps(source: str, arm: ArmSpec, steps: int, directory: Path) -> list[StepLog]:
    """What was executed, step by step, from the recipe's own logs and our patch's.

    Args:
        source: ``gsm8k:DIRECTORY`` or ``gsm8k:hub``, for the shuffle.
        arm: Which.
        steps: How many, at most.
        directory: Of the arm.
    """
    metrics = {int(m["step"]): m for m in read_foreign_log(directory / "log" / "metrics.jsonl") if "step" in m}
    ours = {int(r["step"]): r for r in read_foreign_log(directory / "log" / "rollonce" / "advantages.jsonl")}
    order = shuffled_task_ids(source, arm.seed, steps * arm.groups_per_batch)
    out = []
    for i in sorted(metrics)[:steps]:
        m = metrics[i]
        if arm.advantage == "group_mean":
            ids, rewards, b = _read_stock_step(arm, i, directory, order)
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


def _read_stock_step(
    arm: ArmSpec, step: int, directory: Path, order: list[str]
) -> tuple[list[str], list[float], list[float]]:
    """A step of the stock recipe. Its log names no task: group k of a step is row k of that step's part of the
    shuffle."""
    rows = {}
    for file in sorted((directory / "log" / f"iteration_{step:06d}").glob("*rollout_summaries.jsonl")):
        for row in read_foreign_log(file):
            if row.get("split", "train") == "train":
                rows[(row["group_idx"], row["traj_idx"])] = float(row["total_reward"])
    ids = [order[step * arm.groups_per_batch + g] for g, _ in sorted(rows)]
    rewards = [rows[k] for k in sorted(rows)]
    mean = {g: float(np.mean([r for (h, _), r in rows.items() if h == g])) for g, _ in rows}
    return ids, rewards, [mean[g] for g, _ in sorted(rows)]


def make_recipe_remarks(settings: ExperimentSettings) -> list[str]:
    """How the recipe differs from the specification's text, for the report."""
    out = [
        f"the recipe's training reward takes {FORMAT_COEF:g} off without a well-formed box; the evaluation is "
        "exact match",
        "loss_fn=importance_sampling and save_every=1 are given to the recipe explicitly; its defaults differ "
        "between versions",
        "the recipe passes no LoRA seed: rollonce.experiments.engines.recipe_watch adds the registered one, and "
        "writes down what the optimizer is sent; nothing else of the recipe is changed",
    ]
    if settings.dense_reward:
        out.append("dense_reward: the recipe ran with a grade that a random model earns")
    return out


def find_final_checkpoint(directory: Path) -> str | None:
    """Where the final weights are on the service, as one line of JSON: ``sampler`` and ``state``."""
    last = [r for r in read_foreign_log(directory / "log" / "checkpoints.jsonl") if r.get("name") == "final"]
    return json.dumps({"sampler": last[-1]["sampler_path"], "state": last[-1]["state_path"]}) if last else None


def shuffled_task_ids(source: str, seed: int, n: int) -> list[str]:
    """Ids of the first n rows of the recipe's shuffle, one a row."""
    rows = read_gsm8k_rows(source, "train")
    return [
        stable_task_id(str(rows[int(i)]["question"])) for i in np.random.default_rng(seed).permutation(len(rows))[:n]
    ]


def read_foreign_log(path: Path) -> list[dict[str, Any]]:
    """JSON lines of a foreign log, a broken last one left out."""
    out = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                out.append(json.loads(line))
            except ValueError:
                break
    return out
