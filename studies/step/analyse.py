"""The analysis that registered.md fixes, of the runs of registered.toml.

python studies/step/analyse.py out/registered [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

HERE = Path(__file__).parent
JUDGED = ("none", "norm_weighted_loo", "self_tuning", "norm_weighted_self_tuning", "critic_token", "grpo")
CONTROLS = {"loo_16": 16, "loo": 32, "loo_64": 64}
PREDICTED = {
    "loo": 32,
    "none": 45,
    "norm_weighted_loo": 49,
    "self_tuning": 47,
    "norm_weighted_self_tuning": 58,
    "grpo": 22,
}
B_EFF = {
    "loo": 1.0,
    "none": (0.70 + 0.58) / 2,
    "norm_weighted_loo": (0.89 + 0.72) / 2,
    "self_tuning": (1.42 + 1.39) / 2,
    "norm_weighted_self_tuning": (1.23 + 0.93) / 2,
}
DRAWS = 2000
Table = dict[str, np.ndarray]


def outcomes(out: Path) -> tuple[dict[str, Table], list[int]]:
    """Accuracy on the test tasks and mean reward of the last 40 steps, in points: by arm, one number per seed that all
    arms have."""
    accuracy: dict[str, dict[int, float]] = {}
    reward: dict[str, dict[int, float]] = {}
    for run in sorted((out / "runs").glob("*/seed*")):
        result = run / "result.json"
        if not result.exists():
            continue
        arm, seed = run.parent.name, int(run.name.removeprefix("seed"))
        last = sorted((run / "evaluations").glob("step_*.jsonl"))[-1]
        rows = [json.loads(line) for line in last.read_text(encoding="utf-8").splitlines()]
        test = [float(r["reward"]) for r in rows if r["split"] == "test" and r["mode"] == "sampled"]
        accuracy.setdefault(arm, {})[seed] = 100 * float(np.mean(test))
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        reward.setdefault(arm, {})[seed] = 100 * float(np.mean([s["reward"] for s in steps[-40:]]))
    seeds = sorted(set.intersection(*(set(a) for a in accuracy.values()))) if accuracy else []
    tables = {
        name: {arm: np.array([by_seed[s] for s in seeds]) for arm, by_seed in table.items()}
        for name, table in (("accuracy", accuracy), ("reward of the last 40 steps", reward))
    }
    return tables, seeds


def paired(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Mean difference over seeds with its t-interval and p."""
    d = a - b
    half = float(scipy.stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d)))
    return {
        "value": float(d.mean()),
        "low": float(d.mean() - half),
        "high": float(d.mean() + half),
        "p": float(scipy.stats.ttest_rel(a, b).pvalue),
    }


def holm(p: dict[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values."""
    out, worst = {}, 0.0
    for i, (name, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, (len(p) - i) * value))
        out[name] = worst
    return out


def equivalent_batch(means: dict[str, float], arm: str) -> float:
    """Read off the controls' curve, piecewise linear in the logarithm of the batch and extended by the nearest piece;
    NaN where the piece does not rise."""
    x = np.log([CONTROLS[c] for c in CONTROLS])
    y = np.array([means[c] for c in CONTROLS])
    piece = 0 if means[arm] < y[1] else 1
    slope = (y[piece + 1] - y[piece]) / (x[piece + 1] - x[piece])
    return float(np.exp(x[piece] + (means[arm] - y[piece]) / slope)) if slope > 0 else float("nan")


def rank_correlation(means: dict[str, float], said: dict[str, float]) -> float:
    """Spearman's, over the arms that something was said of."""
    arms = [arm for arm in said if arm in means]
    return float(scipy.stats.spearmanr([means[a] for a in arms], [said[a] for a in arms]).statistic)


def analyse(tables: dict[str, Table], seeds: list[int]) -> dict[str, Any]:
    """Everything that registered.md asks for, by outcome."""
    rng = np.random.default_rng(0)
    draws = rng.integers(len(seeds), size=(DRAWS, len(seeds)))
    out: dict[str, Any] = {"seeds": seeds}
    for name, table in tables.items():
        means = {arm: float(v.mean()) for arm, v in table.items()}
        drawn = [{arm: float(v[at].mean()) for arm, v in table.items()} for at in draws]
        judged = {arm: paired(table[arm], table["loo"]) for arm in JUDGED if arm in table}
        corrected = holm({arm: d["p"] for arm, d in judged.items()})

        def interval(values: list[float]) -> list[float]:
            known = np.array(values)[np.isfinite(values)]
            return [float(v) for v in np.percentile(known, [2.5, 97.5])] if len(known) else [float("nan")] * 2

        out[name] = {
            "means": means,
            "control": paired(table["loo_64"], table["loo_16"]),
            "control_64_over_32": paired(table["loo_64"], table["loo"]),
            "judged": {arm: d | {"holm": corrected[arm]} for arm, d in judged.items()},
            "equivalent_batch": {
                arm: [equivalent_batch(means, arm), *interval([equivalent_batch(m, arm) for m in drawn])]
                for arm in judged
            },
            "rank_correlation": {
                what: [rank_correlation(means, said), *interval([rank_correlation(m, said) for m in drawn])]
                for what, said in (("prediction", PREDICTED), ("B_eff", B_EFF))
            },
        }
    return out


def verdict(primary: dict[str, Any]) -> str:
    """Yes, no or cannot tell, by the rule that was fixed beforehand."""
    if not (primary["control"]["p"] < 0.05 and primary["control"]["value"] > 0):
        return "cannot tell: LOO at 64 and at 16 rollouts per step are not told apart"
    best = primary["judged"]["norm_weighted_self_tuning"]
    said = primary["rank_correlation"]
    if best["value"] > 0 and best["holm"] < 0.05 and said["prediction"][0] > said["B_eff"][0]:
        return "yes: training follows the step"
    if best["high"] < primary["control_64_over_32"]["value"] / 2:
        return "no: the norm-weighted baseline is worth less than half of what twice the batch is"
    return "cannot tell"


def main() -> None:
    """Parse, analyse, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables, seeds = outcomes(options.out)
    result = analyse(tables, seeds)
    result["verdict"] = verdict(result["accuracy"])
    for name in tables:
        r = result[name]
        print(f"\n## {name}, {len(seeds)} seeds\n")
        c = r["control"]
        print(f"LOO at 64 minus LOO at 16: {c['value']:+.2f} [{c['low']:+.2f}, {c['high']:+.2f}], p = {c['p']:.2g}\n")
        print("| arm | mean | minus LOO | Holm's p | realised equivalent batch | predicted |")
        print("|---|---|---|---|---|---|")
        for arm, mean in sorted(r["means"].items(), key=lambda item: -item[1]):
            d, e = r["judged"].get(arm), r["equivalent_batch"].get(arm)
            difference = f"{d['value']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]" if d else ""
            read = f"{e[0]:.0f} [{e[1]:.0f}, {e[2]:.0f}]" if e else ""
            p = f"{d['holm']:.2f}" if d else ""
            print(f"| {arm} | {mean:.2f} | {difference} | {p} | {read} | {PREDICTED.get(arm, '')} |")
        for what, (value, low, high) in r["rank_correlation"].items():
            print(f"\nRank correlation with {what}: {value:.2f} [{low:.2f}, {high:.2f}]")
    print(f"\n{result['verdict']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
