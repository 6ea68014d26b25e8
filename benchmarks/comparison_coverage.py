"""How often 95% intervals on the difference of two arms hold the truth, against the plain bootstrap over seeds and
items.

    python benchmarks/comparison_coverage.py

Two arms without a difference; 0/1 rewards; item difficulties uniform on .15 to .85 and in common; each seed shifts an
arm's chances by a normal deviate of the given sd; paired: half of that variance is in common to both arms at the same
seed, and differences are taken seed by seed. docs/comparison.md has the table.
"""

from __future__ import annotations

import argparse

import numpy as np

from rollonce.comparison.intervals import bootstrap_difference, crossed_difference


def draw(rng: np.random.Generator, n_seeds: int, n_items: int, sd: float, shared: float) -> list[np.ndarray]:
    """Rewards (S, I) of two arms."""
    item, common = rng.uniform(0.15, 0.85, n_items), rng.standard_normal(n_seeds)
    out = []
    for _ in range(2):
        own = np.sqrt(shared) * common + np.sqrt(1 - shared) * rng.standard_normal(n_seeds)
        p = np.clip(item + sd * own[:, None] + 0.05 * rng.standard_normal(n_items), 0, 1)
        out.append((rng.random((n_seeds, n_items)) < p).astype(float))
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--items", type=int, default=300)
    args = parser.parse_args()
    print("| seeds | sd of a seed, points | pairing | formula | its half-width | bootstrap | its half-width | IQM |")
    print("|---|---|---|---|---|---|---|---|")
    for paired, shared in ((True, 0.5), (False, 0.0)):
        for n_seeds in (3, 5, 8, 12):
            for sd in (0.0, 0.02, 0.05):
                rng = np.random.default_rng([n_seeds, int(1000 * sd), paired])
                hits, widths = np.zeros(3), np.zeros(2)
                for _ in range(args.runs):
                    a, b = draw(rng, n_seeds, args.items, sd, shared)
                    exact = crossed_difference(a, b, paired)
                    boot = bootstrap_difference(
                        a, b, paired, exact=exact, resamples=400, seed=int(rng.integers(1 << 30))
                    )
                    intervals = (exact.estimate, boot.mean, boot.iqm)
                    hits += [e.low <= 0 <= e.high for e in intervals]
                    widths += [(e.high - e.low) / 2 for e in intervals[:2]]
                h, w = hits / args.runs, 100 * widths / args.runs
                how = "by seed" if paired else "none"
                print(
                    f"| {n_seeds} | {100 * sd:g} | {how} | {h[0]:.3f} | {w[0]:.1f} | {h[1]:.3f} | {w[1]:.1f} | "
                    f"{h[2]:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
