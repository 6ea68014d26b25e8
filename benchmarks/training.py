"""A step of the loop beside a step of TRL's GRPOTrainer, and what advantages cost: ratios measured in one run, on one
thread.

    python benchmarks/training.py [--steps 12] [--no-trl] [--profile]

Same model (the embedded policy), prompts, 4 tasks x 8 rollouts, sampling (temperature 1, whole vocabulary, 96 tokens),
loss (group mean, token mean, no KL, no clipping that bites), optimizer and machine; steps of both take turns, so that
whatever else the machine does falls on both. Prints Markdown. TRL is the extra ``trl``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import torch

from rollonce.baselines import Batch
from rollonce.policies import EMBEDDED_MAX_NEW_TOKENS, embedded_directory
from rollonce.tasks import grade
from rollonce.training.arms.make import make_configured_arm
from rollonce.training.config import RunConfig
from rollonce.training.learners.local import LocalLearner
from rollonce.training.rolling import build_feature_tasks, choose_step_tasks, load_configured_tasks, sample_and_grade
from rollonce.training.sections import validate_section

EVALUATED = 1024
KERNEL_ARMS = ("gs1_tfidf", "gs1_buckets", "gs1_family", "gs1_kriging", "gs1_self_tuning")


def our_config(arm: dict[str, Any], **train: Any) -> RunConfig:
    return validate_section(
        RunConfig, {"name": "x", "arm": arm, "tasks": {"train": 1920, "holdout": 30, "test": 30}, "train": train}
    )


class Ours:
    """Steps of the loop without its files."""

    def __init__(self, arm: dict[str, Any]) -> None:
        self.config = our_config(arm)
        self.splits = load_configured_tasks(self.config.tasks)
        self.learner = LocalLearner(self.config)
        self.arm = make_configured_arm(self.config, self.learner, self.splits.train)
        self.k = 0
        self.parts = {"sample": 0.0, "advantage": 0.0, "update": 0.0}

    def step(self) -> float:
        self.k += 1
        start = time.process_time()
        tasks = [
            t
            for t in choose_step_tasks(self.splits.train, self.config.tasks_per_step, self.k, 0)
            for _ in range(self.config.arm.group_size)
        ]
        rewards_B, samples, _ = sample_and_grade(self.learner, tasks, self.config, [0, self.k])
        a = time.process_time()
        batch = Batch(build_feature_tasks(tasks), rewards_B)
        judged = self.arm.advantages_of_step(batch, samples)
        b = time.process_time()
        self.learner.update_policy(samples, judged.advantages)
        c = time.process_time()
        self.arm.learn_from_step(batch, samples, judged)
        end = time.process_time()
        for name, seconds in (("sample", a - start), ("advantage", b - a + end - c), ("update", c - b)):
            self.parts[name] += seconds
        return end - start


def trl_stepper(steps: int) -> Callable[[], float]:
    """A function that lets TRL's trainer make one step and gives its CPU seconds."""
    import threading

    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    splits = load_configured_tasks(our_config({"baseline": "grpo", "group_size": 8}).tasks)
    known = {t.prompt: t for t in splits.train}

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return grade([known[p] for p in prompts], completions).rewards

    go, done, times = threading.Semaphore(0), threading.Semaphore(0), [0.0]

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            go.acquire()
            self.start = time.thread_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times[0] = time.thread_time() - self.start
            done.release()

    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(embedded_directory(), dtype=torch.float32, attn_implementation="eager"),
        reward,
        GRPOConfig(
            tempfile.mkdtemp(),
            max_steps=steps,
            num_generations=8,
            per_device_train_batch_size=32,
            max_completion_length=EMBEDDED_MAX_NEW_TOKENS,
            temperature=1.0,
            learning_rate=2e-4,
            lr_scheduler_type="constant",
            beta=0.0,
            scale_rewards=False,
            loss_type="dapo",  # TRL's name of the token mean
            adam_beta2=0.95,
            save_strategy="no",
            logging_steps=1000,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": t.prompt} for t in splits.train]),
        processing_class=AutoTokenizer.from_pretrained(embedded_directory()),
        callbacks=[Turns()],
    )
    thread = threading.Thread(target=trainer.train, daemon=True)
    thread.start()

    def step() -> float:
        go.release()
        done.acquire()
        return times[0]

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--no-trl", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where the time of both goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.no_trl:
        ours, theirs = Ours({"baseline": "grpo", "group_size": 8}), trl_stepper(args.steps + 3)
        for _ in range(2):
            ours.step(), theirs()
        pairs = np.array([(ours.step(), theirs()) for _ in range(args.steps)])
        ratio = np.median(pairs[:, 1] / pairs[:, 0])
        print("| a step of 4 x 8 rollouts | CPU s, median |\n|---|---|")
        print(f"| rollonce | {np.median(pairs[:, 0]):.3f} |\n| TRL GRPOTrainer | {np.median(pairs[:, 1]):.3f} |")
        low, high = np.quantile(pairs[:, 1] / pairs[:, 0], [0.25, 0.75])
        print(f"\nTRL takes {ratio:.2f} times as long (middle half of {args.steps} pairs: {low:.2f} to {high:.2f})\n")
        if args.profile:
            profiles(ours, theirs)
    print("| arm, 32 x 1 | a step, CPU s | sample and grade | update | advantage, CPU ms | its share |")
    print("|---|---|---|---|---|---|")
    for name in KERNEL_ARMS:
        run = Ours({"baseline": name})
        run.step()  # compiles and loads
        run.parts = dict.fromkeys(run.parts, 0.0)
        seconds = np.median([run.step() for _ in range(2 * args.steps)])
        sample, advantage, update = (run.parts[part] / (2 * args.steps) for part in ("sample", "advantage", "update"))
        share = advantage / (sample + advantage + update)
        print(f"| {name} | {seconds:.3f} | {sample:.3f} | {update:.3f} | {1000 * advantage:.1f} | {share:.1%} |")
    asked = [task.prompt for task in list(run.splits.train)[:EVALUATED]]
    start = time.process_time()
    for at in range(0, EVALUATED, run.config.evaluation.rows):
        rows = asked[at : at + run.config.evaluation.rows]
        run.learner.sample_rollouts(rows, max_new_tokens=run.learner.max_new_tokens, temperature=1.0, seed=[1, at])
    print(f"\n{EVALUATED} sampled answers: {time.process_time() - start:.2f} CPU s")


def profiles(ours: Ours, theirs: Callable[[], float]) -> None:
    """The operators that take longest in three steps of each."""
    from torch.profiler import ProfilerActivity, profile

    for name, step in (("rollonce", ours.step), ("TRL", theirs)):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            step()
        print(
            name,
            seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=40),
            sep="\n",
        )


if __name__ == "__main__":
    main()
