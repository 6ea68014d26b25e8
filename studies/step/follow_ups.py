"""The analysis that follow_ups.md fixes, of the runs of the four follow_up_*.toml.

python studies/step/follow_ups.py out [--json FILE]      (out/follow_up_rates and so on)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from analyse import Table, holm, outcomes, paired

RATES = ("0.0001", "0.0002", "0.0004")
ARMS = ("norm_weighted_loo", "none")


def minus_loo(table: Table, arms: tuple[str, ...], reference: str = "loo") -> dict[str, dict[str, float]]:
    """Paired difference of each arm to the reference; arms that are not there are left out."""
    return {arm: paired(table[arm], table[reference]) for arm in arms if arm in table}


def best_rate(reward: Table, arm: str) -> str:
    """The rate with the highest mean training reward over the last 40 steps."""
    return max(RATES, key=lambda rate: float(reward[f"{arm}@{rate}"].mean()))


def with_holm(differences: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The differences of one question, with Holm's corrected p-values beside their own."""
    corrected = holm({name: d["p"] for name, d in differences.items()})
    return {name: d | {"holm": corrected[name]} for name, d in differences.items()}


def analyse(out: Path) -> dict[str, Any]:
    """Everything that follow_ups.md asks for, by question; a question without finished runs is left out."""
    tables = {name: outcomes(out / f"follow_up_{name}") for name in ("rates", "clip_18", "clip_09", "240")}
    there = {name: (t, seeds) for name, (t, seeds) in tables.items() if seeds}
    result: dict[str, Any] = {name: {"seeds": seeds, "means": means(t)} for name, (t, seeds) in there.items()}
    if "rates" in there:
        accuracy, reward = (there["rates"][0][key] for key in ("accuracy", "reward of the last 40 steps"))
        result["rates"]["differences"] = with_holm(
            {
                f"{arm}@{rate}": paired(accuracy[f"{arm}@{rate}"], accuracy[f"loo@{rate}"])
                for rate in RATES
                for arm in ARMS
            }
        )
        best = {arm: f"{arm}@{best_rate(reward, arm)}" for arm in ("loo", *ARMS)}
        result["rates"]["at_their_best_rates"] = {
            best[arm]: paired(accuracy[best[arm]], accuracy[best["loo"]]) | {"against": best["loo"]} for arm in ARMS
        }
    clipped: dict[str, dict[str, float]] = {}
    for norm in ("clip_18", "clip_09"):
        if norm in there:
            accuracy = there[norm][0]["accuracy"]
            clipped |= {f"{arm}, {norm}": d for arm, d in minus_loo(accuracy, ARMS).items()}
    if clipped and "rates" in there:
        accuracy = there["rates"][0]["accuracy"]
        clipped |= {f"{arm}, never": paired(accuracy[f"{arm}@0.0002"], accuracy["loo@0.0002"]) for arm in ARMS}
    if clipped:
        result["clipping"] = {"differences": with_holm(clipped)}
    if "240" in there:
        accuracy = there["240"][0]["accuracy"]
        result["240"]["differences"] = with_holm(minus_loo(accuracy, (*ARMS, "norm_weighted_self_tuning")))
        result["240"]["control"] = paired(accuracy["loo_64"], accuracy["loo"])
    return result


def means(tables: dict[str, Table]) -> dict[str, dict[str, float]]:
    """Mean over seeds of each outcome, by arm."""
    return {name: {arm: float(v.mean()) for arm, v in table.items()} for name, table in tables.items()}


def difference_text(d: dict[str, Any]) -> str:
    """ "+1.20 [+0.30, +2.10]"."""
    return f"{d['value']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]"


def main() -> None:
    """Parse, analyse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = analyse(options.out)
    for name, part in result.items():
        print(f"\n## {name}" + (f", {len(part['seeds'])} seeds" if "seeds" in part else "") + "\n")
        if "means" in part:
            print("| arm | accuracy | reward of the last 40 steps |\n|---|---|---|")
            by_accuracy = sorted(part["means"]["accuracy"].items(), key=lambda item: -item[1])
            for arm, mean in by_accuracy:
                print(f"| {arm} | {mean:.2f} | {part['means']['reward of the last 40 steps'][arm]:.2f} |")
            print()
        if "differences" in part:
            print("| arm | minus LOO | Holm's p |\n|---|---|---|")
            for arm, d in part["differences"].items():
                print(f"| {arm} | {difference_text(d)} | {d['holm']:.3f} |")
        for arm, d in part.get("at_their_best_rates", {}).items():
            print(f"\nAt its best rate: {arm} minus {d['against']}: {difference_text(d)}")
        if "control" in part:
            print(f"\nControl, LOO at 64 minus LOO at 32: {difference_text(part['control'])}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
