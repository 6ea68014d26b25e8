"""The analysis that cut_arms.md fixes, of the runs of registered.toml and of cut_arms.toml together.

python studies/step/cut_arms.py out/registered out/cut_arms [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
from analyse import B_EFF, DRAWS, JUDGED, PREDICTED, Table, holm, outcomes, paired, rank_correlation

NEW = ("gs1_tfidf", "critic_prompt")
CONTROLS = {"loo_16": 16, "loo_24": 24, "loo": 32, "loo_48": 48, "loo_64": 64}
PREDICTED_WITH_NEW = PREDICTED | {"gs1_tfidf": 23}
B_EFF_WITH_NEW = B_EFF | {"gs1_tfidf": 0.94}


def join_outcomes(registered: Path, cut: Path) -> tuple[dict[str, Table], list[int]]:
    """The outcomes of both directories, of the seeds that both have."""
    first, first_seeds = outcomes(registered)
    second, second_seeds = outcomes(cut)
    seeds = sorted(set(first_seeds) & set(second_seeds))
    at_first, at_second = ([all_seeds.index(s) for s in seeds] for all_seeds in (first_seeds, second_seeds))
    joined = {
        name: {arm: v[at_first] for arm, v in first[name].items()}
        | {arm: v[at_second] for arm, v in second[name].items()}
        for name in first
    }
    return joined, seeds


def read_off_parabola(means: dict[str, float], arm: str) -> float:
    """Equivalent batch of an arm on the least-squares parabola through the controls, in the logarithm of the batch.

    Beyond an end of the controls' range along the tangent there; NaN where the parabola does not rise over the range.

    >>> line = {name: 10 * np.log(batch) for name, batch in CONTROLS.items()}
    >>> round(read_off_parabola(line | {"x": 10 * np.log(40)}, "x"), 6)
    40.0
    """
    x = np.log(list(CONTROLS.values()))
    curve = np.polynomial.Polynomial.fit(x, [means[c] for c in CONTROLS], 2)
    slope = curve.deriv()
    if min(slope(x[0]), slope(x[-1])) <= 0:
        return float("nan")
    for end, beyond in ((x[0], means[arm] < curve(x[0])), (x[-1], means[arm] > curve(x[-1]))):
        if beyond:
            return float(np.exp(end + (means[arm] - curve(end)) / slope(end)))
    # The curve rises over the whole range: one root. A nearly straight parabola's own roots are not exact.
    above = curve - means[arm]
    return float(np.exp(scipy.optimize.brentq(above, x[0], x[-1], xtol=1e-12)))


def analyse(tables: dict[str, Table], seeds: list[int]) -> dict[str, Any]:
    """Everything that cut_arms.md asks for, by outcome."""
    rng = np.random.default_rng(0)
    draws = rng.integers(len(seeds), size=(DRAWS, len(seeds)))
    out: dict[str, Any] = {"seeds": seeds}
    for name, table in tables.items():
        means = {arm: float(v.mean()) for arm, v in table.items()}
        drawn = [{arm: float(v[at].mean()) for arm, v in table.items()} for at in draws]
        differences = {arm: paired(table[arm], table["loo"]) for arm in NEW}
        corrected = holm({arm: d["p"] for arm, d in differences.items()})

        def with_interval(value: float, values: list[float]) -> list[float]:
            known = np.array(values)[np.isfinite(values)]
            return [value, *(float(v) for v in np.percentile(known, [2.5, 97.5]))] if len(known) else [value]

        out[name] = {
            "means": means,
            "differences": {arm: d | {"holm": corrected[arm]} for arm, d in differences.items()},
            "equivalent_batch": {
                arm: with_interval(read_off_parabola(means, arm), [read_off_parabola(m, arm) for m in drawn])
                for arm in (*JUDGED, *NEW)
            },
            "draws_without_a_rising_curve": float(np.mean([np.isnan(read_off_parabola(m, "loo")) for m in drawn])),
            "rank_correlation": {
                what: with_interval(rank_correlation(means, said), [rank_correlation(m, said) for m in drawn])
                for what, said in (("prediction", PREDICTED_WITH_NEW), ("B_eff", B_EFF_WITH_NEW))
            },
        }
    return out


def main() -> None:
    """Parse, analyse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("registered", type=Path)
    parser.add_argument("cut", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables, seeds = join_outcomes(options.registered, options.cut)
    result = analyse(tables, seeds)
    for name in tables:
        r = result[name]
        print(f"\n## {name}, {len(seeds)} seeds\n")
        print("| arm | mean | minus LOO | Holm's p | realised equivalent batch | predicted |")
        print("|---|---|---|---|---|---|")
        for arm, mean in sorted(r["means"].items(), key=lambda item: -item[1]):
            d, e = r["differences"].get(arm), r["equivalent_batch"].get(arm)
            difference = f"{d['value']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]" if d else ""
            read = f"{e[0]:.0f} [{e[1]:.0f}, {e[2]:.0f}]" if e and len(e) == 3 else ""
            p = f"{d['holm']:.3f}" if d else ""
            print(f"| {arm} | {mean:.2f} | {difference} | {p} | {read} | {PREDICTED_WITH_NEW.get(arm, '')} |")
        for what, (value, low, high) in r["rank_correlation"].items():
            print(f"\nRank correlation with {what}: {value:.2f} [{low:.2f}, {high:.2f}]")
        print(f"\nDraws whose curve does not rise: {r['draws_without_a_rising_curve']:.1%}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
