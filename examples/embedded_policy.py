"""What the TRL examples share: a policy small enough for a laptop's CPU, its tasks, and their reward. Put your own in
their place."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollonce.policies import EMBEDDED_MAX_NEW_TOKENS, embedded_directory
from rollonce.tasks import TaskSet, grade, load_tasks

# What both arms have in common: 32 rollouts per step, Adam at a constant rate, held-out reward every 20 steps.
COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 240,
    "max_completion_length": EMBEDDED_MAX_NEW_TOKENS,
    "learning_rate": 4e-4,
    "lr_scheduler_type": "constant",
    "num_generations_eval": 1,
    "eval_strategy": "steps",
    "eval_steps": 20,
    "eval_on_start": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
}


def arguments(description: str) -> argparse.Namespace:
    """--steps, --seed, --held-out, --out."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the tasks' order and the sampling")
    parser.add_argument("--held-out", type=int, default=480, help="test tasks to evaluate on")
    parser.add_argument("--out", default="out/trl", help="where the log goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    return args


def load_model() -> tuple[Any, Any]:
    """The embedded policy and its tokenizer, as transformers load any directory."""
    model = AutoModelForCausalLM.from_pretrained(embedded_directory(), dtype=torch.float32, attn_implementation="eager")
    return model, AutoTokenizer.from_pretrained(embedded_directory())


def load_data(held_out: int, train: int = 1920) -> tuple[Dataset, Dataset, Any]:
    """Training and test prompts as chat messages, and a reward function that grades completions against the
    references."""
    splits = load_tasks("embedded", train=train, test=held_out)
    known = {task.prompt: task for tasks in (splits.train, splits.test) for task in tasks}

    def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        return grade([known[p[-1]["content"]] for p in prompts], [c[0]["content"] for c in completions]).rewards

    def chat(tasks: TaskSet) -> Dataset:
        return Dataset.from_list([{"prompt": [{"role": "user", "content": t.prompt}], **t.columns} for t in tasks])

    return chat(splits.train), chat(splits.test), reward


def write_log(trainer: Any, arm: str, args: argparse.Namespace) -> None:
    """TRL's own log of the run as one JSON file."""
    path = Path(args.out) / f"{arm}-{args.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"arm": arm, "seed": args.seed, "log": trainer.state.log_history}, indent=1) + "\n")
    held_out = [row["eval_reward"] for row in trainer.state.log_history if "eval_reward" in row]
    print(f"{arm}, seed {args.seed}: held-out reward {', '.join(f'{r:.3f}' for r in held_out)}; log in {path}")
