"""How fast rollouts load, and how much memory the table takes.

Run ``python benchmarks/reading.py``: it writes a JSON Lines file of 1M rollouts of 100k tasks (about 250 MB) to a
temporary folder, reads it in a fresh process, and prints MB/s (on a busy machine look at the processor's time) and how
far the process's memory grew. ``--with-responses`` writes fewer and larger rows, each with a response, as most logs
have; ``--gz`` packs the file; ``--tasks`` and ``--group`` change the table.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_TEXT = (
    "the number of ways to choose three apples from seven baskets when every basket holds two red and one green fruit "
    "is at most what"
)
WORDS = _TEXT.split()


def write(path: Path, n_tasks: int, group: int, response_words: int) -> None:
    """A calibration set with prompts of about 25 words, one rollout a line."""
    rng = random.Random(0)
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as f:
        for task in range(n_tasks):
            prompt = f"Problem {task}: " + " ".join(rng.choices(WORDS, k=25)) + "?"
            for rollout in range(group):
                row = {
                    "task_id": f"task-{task}",
                    "prompt": prompt,
                    "rollout_id": rollout,
                    "reward": float(rng.random() < 0.3),
                }
                row["response_length"] = rng.randrange(1000)
                if response_words:
                    row["response"] = " ".join(rng.choices(WORDS, k=response_words))
                f.write(json.dumps(row) + "\n")


def read(path: Path) -> dict[str, float]:
    """Read it here, and measure."""
    from rollonce.readers import read_rollouts

    def resident() -> float:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    before = resident()
    start, cpu = time.perf_counter(), time.process_time()
    table = read_rollouts(path)
    seconds = time.perf_counter() - start
    cpu = time.process_time() - cpu
    after = resident()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "MB": path.stat().st_size / 1e6,
        "rollouts": table.n_rollouts,
        "tasks": table.n_tasks,
        "resident growth MiB": after - before,
        "peak growth MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10 - before,
    }


def main() -> None:
    """Write, read in a fresh process three times, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--group", type=int, default=10)
    parser.add_argument("--with-responses", action="store_true")
    parser.add_argument("--gz", action="store_true")
    parser.add_argument("--once", action="store_true", help="read once rather than three times")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(read(args.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("rollouts.jsonl.gz" if args.gz else "rollouts.jsonl")
        tasks = args.tasks // 4 if args.with_responses else args.tasks
        write(path, tasks, args.group, 150 if args.with_responses else 0)
        for _ in range(1 if args.once else 3):
            out = subprocess.run(
                [sys.executable, __file__, "--read", str(path)], check=True, capture_output=True, text=True
            )
            r = json.loads(out.stdout)
            print(
                f"{r['MB']:.0f} MB, {r['rollouts']:,} rollouts of {r['tasks']:,} tasks: {r['seconds']:.2f} s, "
                f"{r['MB'] / r['seconds']:.0f} MB/s ({r['MB'] / r['cpu']:.0f} MB per second of processor time); "
                f"memory grew by {r['resident growth MiB']:.0f} MiB, {r['peak growth MiB']:.0f} MiB at its peak"
            )


if __name__ == "__main__":
    main()
