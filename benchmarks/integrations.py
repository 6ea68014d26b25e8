"""What a baseline costs inside a trainer: the hook alone, and its share of a step of the TRL example.

Run ``OMP_NUM_THREADS=1 python benchmarks/integrations.py``: the hook alone in milliseconds of the processor, its share
of a step by the clock, on one thread. A step of the example is 32 rollouts of the 0.7M-parameter embedded policy on a
CPU, as short as steps get; where a step takes a minute, divide accordingly.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from rollonce import datasets
from rollonce.baselines import Baseline, KernelBaseline, Kriging, LeaveOneOut, SelfTuning
from rollonce.integrations import AdvantageHook


def baselines() -> dict[str, Baseline]:
    """What is compared."""
    return {
        "LOO mean": LeaveOneOut(),
        "TF-IDF kernel": KernelBaseline(),
        "TF-IDF kernel, window 512": KernelBaseline(window=512),
        "Kriging, window 512": Kriging(window=512),
        "self-tuning of the example": SelfTuning(window=256, max_rows=256, refit_every=32),
        "self-tuning, window 512": SelfTuning(window=512),
    }


def hook_alone(rows: int, steps: int) -> None:
    """Processor milliseconds a step of the hook, the refits of self-tuning included in the mean and left out of the
    median."""
    table = datasets.load("rg_easy_gemma3_27b_G3")
    prompts, rewards = table.tasks.prompts, table.rewards_R[table.offsets_N1[:-1]]
    print(f"the hook alone, {rows} rollouts per step        median      mean of {steps} steps")
    for name, baseline in baselines().items():
        hook, rng, taken = AdvantageHook(baseline, warn=False), np.random.default_rng(0), []
        hook.fit(prompts)
        for _ in range(steps):
            at = rng.permutation(len(prompts))[:rows]
            start = time.process_time()
            hook.advantages([prompts[i] for i in at], rewards[at])
            taken.append(1e3 * (time.process_time() - start))
        late = taken[steps // 2 :]  # once the window is full
        print(f"  {name:36s} {np.median(late):8.1f} ms {np.mean(late):8.1f} ms")


def in_trl(steps: int, folder: Path) -> None:
    """The hook's share of TRL's own ``step_time``."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from embedded_policy import COMMON, load_data, load_model

    from rollonce.integrations.trl import SingleRolloutGRPOConfig, SingleRolloutGRPOTrainer

    train, _, reward = load_data(15)
    settings = {**COMMON, "eval_strategy": "no", "eval_on_start": False}
    print(f"inside TRL, 32 rollouts per step              a step       hook      share ({steps} steps)")
    for name in ("LOO mean", "TF-IDF kernel, window 512", "self-tuning of the example"):
        model, tokenizer = load_model()
        args = SingleRolloutGRPOConfig(str(folder), max_steps=steps, **settings)
        trainer = SingleRolloutGRPOTrainer(
            model,
            reward,
            args,
            train_dataset=train,
            processing_class=tokenizer,
            baseline=baselines()[name],
            warn_after=10**6,
        )
        trainer.train()
        rows = [r for r in trainer.state.log_history if "step_time" in r][steps // 4 :]
        whole, own = (np.array([r[k] for r in rows]) for k in ("step_time", "rollonce/seconds"))
        share = 100 * own.sum() / whole.sum()  # over all steps, those with a refit too
        print(f"  {name:36s} {np.median(whole):8.2f} s {1e3 * np.median(own):8.1f} ms {share:8.2f}%", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40, help="of the hook alone")
    parser.add_argument("--trl-steps", type=int, default=24)
    args = parser.parse_args()
    hook_alone(args.rows, args.steps)
    try:
        import trl  # noqa: F401
    except ModuleNotFoundError:
        print("inside TRL: not measured, the extra trl is not installed")
        return
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        in_trl(args.trl_steps, Path(folder))


if __name__ == "__main__":
    main()
