"""A kernel of your own, from this file to the board and a training run: tasks with as many numbers in them are alike.

python examples/own_kernel.py OUT     # needs rollonce[train]; a minute on a CPU, on the tiny embedded policy
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollonce import check_baseline, datasets, score_rollouts
from rollonce.baselines import KernelBaseline, LeaveOneOut
from rollonce.component import register
from rollonce.kernels import Kernel
from rollonce.training.config import RunConfig
from rollonce.training.loop import train


@register
@dataclass
class NumberCount(Kernel):
    """``w_ij = exp(-|n_i - n_j| / scale)`` with n the numbers in a prompt."""

    type = "number_count"
    symbols = {"scale": "scale"}
    scale: float = 1.0

    def log_weights(self, tasks, rows_KB, columns_KM, visible_KBM):
        count_N = np.array([len(re.findall(r"\d+", prompt)) for prompt in tasks.prompts], dtype=np.float64)
        return -np.abs(count_N[rows_KB][:, :, None] - count_N[columns_KM][:, None, :]) / self.scale


if __name__ == "__main__":
    check_baseline(KernelBaseline(NumberCount()), raise_on_failure=True)  # the audit: no leak, the order no matter
    table = datasets.load("rg_smollm2_135m")
    for score in score_rollouts(table, baselines=[LeaveOneOut(), KernelBaseline(NumberCount())]).scores:
        print(f"{score.label:30} {score.b_eff.value:5.1f} effective rollouts of 32, {score.ratio.value:.2f} x LOO")
    arm = {"baseline": {"type": "kernel", "kernel": {"type": "number_count"}, "window": 64}}
    tasks, length = {"holdout": 0, "test": 32}, {"steps": 4, "rollouts": 16}
    run = RunConfig.model_validate({"name": "number_count", "arm": arm, "tasks": tasks, "train": length})
    print(train(run, Path(sys.argv[1])))
