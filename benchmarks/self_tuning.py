"""How long self-tuning takes: a fit on N rewards, and a prediction for a batch of 32 with a window of 512.

Run ``OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/self_tuning.py``: seconds of the processor on one
thread (the least of ``--repeats``), on prompts of the shipped set rg_easy_gemma3_27b_G3, the largest.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from rollonce import datasets
from rollonce.baselines import Batch, SelfTuning
from rollonce.rollouts import Tasks


def seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Least processor seconds, and least seconds by the clock."""
    cpu, wall = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        cpu.append(time.process_time() - start_cpu)
        wall.append(time.perf_counter() - start)
    return min(cpu), min(wall)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[250, 500, 1000])
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    table = datasets.load("rg_easy_gemma3_27b_G3")
    prompts = table.tasks.prompts
    rewards = table.rewards_R[table.offsets_N1[:-1]]
    baseline = SelfTuning(max_rows=max(args.rows), window=512, refit_every=0)
    print("                                             processor      clock")
    cpu, wall = seconds(lambda: baseline.fit(Tasks(prompts)), 1)
    print(f"features fitted on {len(prompts):5d} prompts           {cpu:8.2f} s {wall:8.2f} s")
    rng = np.random.default_rng(0)
    for n in args.rows:
        at = rng.permutation(len(prompts))[:n]
        tasks = Tasks([prompts[i] for i in at])
        for kernel in baseline.kernels:  # features of the rows are computed once and kept, in a trainer too
            kernel.compute_covariance(tasks, np.arange(1)[None], np.arange(1)[None])
        cpu, wall = seconds(lambda tasks=tasks, at=at: baseline.fit_rewards(tasks, rewards[at]), args.repeats)
        print(f"shares fitted on {n:5d} rewards              {cpu:8.2f} s {wall:8.2f} s")
    order = rng.permutation(len(prompts))
    for start in range(0, 512, 32):
        at = order[start : start + 32]
        baseline.observe(Batch.of([prompts[i] for i in at], rewards[at]))
    at = order[512:544]

    def step() -> None:
        baseline.predict(Batch.of([prompts[i] for i in at], rewards[at]))

    cpu, wall = seconds(step, args.repeats + 1)
    print(f"prediction, batch of 32 and window of 512    {cpu:8.2f} s {wall:8.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        baseline.save(Path(folder) / "b.json")
        print(f"saved file, window included: {(Path(folder) / 'b.json').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
