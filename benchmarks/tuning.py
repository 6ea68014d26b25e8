"""Trials a minute of the tuner at N = 800 tasks, G = 10, B = 32 on one core, and the share of the time spent in
scoring.

Run:  OMP_NUM_THREADS=1 python benchmarks/tuning.py [--trials 200] [--window 0]

The set is the shipped cruxeval_input_codellama7b_t02 (800 x 10). The process is warmed up first (numba compiles once a
machine);
features are not: their vocabulary and similarity tables are part of what a search costs.
"""

from __future__ import annotations

import argparse
import time

from rollonce import datasets
from rollonce.tuning.objective import Objective
from rollonce.tuning.search import Budget, Search, best_trial_value
from rollonce.tuning.space import Space


def main() -> None:
    """Print one line a sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--samplers", nargs="+", default=["tpe", "cmaes", "hillclimb"])
    args = parser.parse_args()
    warm = datasets.load("gsm8k_qwen25coder_1.5b")
    objective = Objective(warm, n_batches=20)
    Search(Space.from_rollout_tables(warm), objective.bank, objective.value_of_baseline).run_until_budget_spent(
        Budget(12, float("inf"))
    )
    for sampler in args.samplers:
        table = datasets.load("cruxeval_input_codellama7b_t02")
        objective = Objective(table)
        search = Search(
            Space.from_rollout_tables(table, window=args.window), objective.bank, objective.value_of_baseline, sampler
        )
        wall, cpu = time.perf_counter(), time.process_time()
        trials = search.run_until_budget_spent(Budget(args.trials, float("inf")))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"{sampler:>9}, window {args.window}: {len(trials)} trials in {wall:.1f} s ({cpu:.1f} CPU s), "
            f"{60 * len(trials) / wall:.0f} a minute ({60 * len(trials) / cpu:.0f} a CPU minute), "
            f"{objective.seconds_scoring / wall:.0%} in scoring and similarity tables, "
            f"best {best_trial_value(trials):.3f} of LOO"
        )


if __name__ == "__main__":
    main()
