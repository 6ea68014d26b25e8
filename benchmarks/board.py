"""The board of `rollonce score`, beside that of an earlier commit: CPU seconds of whole processes of one thread.

    python benchmarks/board.py [--quick] [--sets] [--commit 52d337e]

Each board is computed in a process of its own, from starting Python to the last row: once with an empty cache of numba
(the first run on a machine) and once with a filled one. The earlier commit is unpacked from this repository into a
temporary folder, and both run in turn. With ``--sets`` also the eight shipped sets, with a filled cache. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def synthetic(n: int, g: int) -> Any:
    """N tasks of 40 words by Zipf's law, G rollouts of 0/1 rewards each."""
    import numpy as np

    from rollonce.rollouts import Rollouts

    rng = np.random.default_rng(0)
    p = 1 / np.arange(1, 5001)
    prompts = [" ".join(f"word{w}" for w in row) for row in rng.choice(5000, size=(n, 40), p=p / p.sum())]
    chance = rng.beta(0.7, 0.7, size=n)
    return Rollouts.from_groups((rng.random((n, g)) < chance[:, None]).astype(float), prompts)


def child(what: str) -> None:
    """One board; a line of JSON: CPU seconds in all and until the first row, the values that must agree."""
    started = time.process_time()
    try:
        from rollonce.boards import BoardSettings as Settings
        from rollonce.boards import make_baseline_board
    except ImportError:  # the code that it is measured against
        from rollonce.commands.boards import Settings  # pyright: ignore
        from rollonce.commands.boards import score_table as make_baseline_board  # pyright: ignore

    if what[0].isdigit():
        table = synthetic(*map(int, what.split("x")))
    else:
        from rollonce import datasets

        table = datasets.load(what)
    second = []  # the second message on progress comes with the first row

    def tell(label: str, done: int, total: int) -> None:
        if done:
            second.append(time.process_time() - started)

    board = make_baseline_board(table, Settings(), tell)
    scores = {s.label: s.ratio for s in [*board.scores, *board.apart]}
    said = {"cpu": time.process_time(), "first": second[0], "ratios": scores}
    print(json.dumps(said))


def run(source: Path, cache: Path, what: str) -> dict[str, Any]:
    """The child's answer, with the code in ``source``."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    environment = os.environ | one_thread | {"PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, str(HERE / "board.py"), "--child", what]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def difference(before: dict[str, Any], now: dict[str, Any]) -> float:
    """The largest relative difference of a ratio or a bound of its interval, over the rows that both boards have."""
    pairs = [
        (a, b)
        for label in before["ratios"].keys() & now["ratios"].keys()
        for a, b in zip(before["ratios"][label], now["ratios"][label], strict=True)
        if a == a
    ]
    return max(abs(b / a - 1) for a, b in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="80 x 5 only")
    parser.add_argument("--sets", action="store_true", help="the eight shipped sets as well")
    parser.add_argument("--commit", default="52d337e")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", args.commit, "src"], check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        before, now = Path(folder) / "src", ROOT / "src"
        shipped = sorted(p.name.split(".")[0] for p in (before / "rollonce/datasets/data").glob("*.jsonl.gz"))
        print(f"| board | numba's cache | {args.commit}, CPU s | now, CPU s | times faster | first row | differs by |")
        print("|---|---|---|---|---|---|---|", flush=True)
        todo = [(what, cache) for what in ("80x5", "300x8") for cache in ("empty", "filled")]
        todo = todo[: 2 if args.quick else 4] + [(name, "filled") for name in shipped if args.sets]
        sums = [0.0, 0.0]
        for what, filled in todo:
            # What the first run left behind is the filled cache of all later ones.
            caches = [Path(folder) / f"{side}-{what if filled == 'empty' else '80x5'}" for side in ("before", "now")]
            a, b = run(before, caches[0], what), run(now, caches[1], what)
            if what in shipped:
                sums = [sums[0] + a["cpu"], sums[1] + b["cpu"]]
            print(
                f"| {what} | {filled} | {a['cpu']:.1f} | {b['cpu']:.1f} | {a['cpu'] / b['cpu']:.1f} "
                f"| {b['first']:.1f} | {difference(a, b):.0e} |",
                flush=True,
            )
        if args.sets:
            print(f"| the shipped sets | filled | {sums[0]:.1f} | {sums[1]:.1f} | {sums[0] / sums[1]:.1f} | | |")


if __name__ == "__main__":
    main()
