"""Measured progress of a training step beside what logs predict and what B_eff says, for one policy.

    python studies/step/run.py NAME --policy DIR [--tasks SOURCE] [...]     # writes studies/step/NAME.json
    python studies/step/run.py --table                                      # prints the table of all that were written

The rollouts that are measured are the rollouts that the prediction reads: same tasks, same rewards, log-probabilities
beside them. The exponent is the one measured on them, in the metric of the optimizer (Adam).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

HERE = Path(__file__).parent
CONSTANTS = (0.1, 0.2)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one policy as plain JSON."""
    from rollonce.baselines import Constant
    from rollonce.baselines.catalogue import default_board_baselines
    from rollonce.files import convert_to_plain_json, write_json_file
    from rollonce.noise.session import MeasurementSettings, exponent_between_rewards, measure_policy
    from rollonce.policies import LoraSettings, TransformersPolicy, load_embedded
    from rollonce.reports.noise import make_noise_json
    from rollonce.scoring import score_rollouts
    from rollonce.tasks import TaskRequest, choose_tasks, load_tasks, parse_source_spec

    more: dict[str, Any] = {"sample_rows": options.sample_rows}
    if options.template:
        more["prompt_template"] = Path(options.template).read_text(encoding="utf-8").rstrip("\n")
    if options.lora_rank:
        more["lora"] = LoraSettings(options.lora_rank)
    policy = load_embedded() if options.policy == "embedded" else TransformersPolicy.load(options.policy, **more)
    numbers = parse_source_spec(options.tasks)[0].numbers_for_one_split(options.split, options.n_tasks)
    there = getattr(load_tasks(options.tasks, TaskRequest(seed=options.seed, **numbers)), options.split)
    tasks = choose_tasks(there, options.n_tasks, 0) if len(there) > options.n_tasks else there
    settings = MeasurementSettings(
        rollouts=options.rollouts,
        batch_size=options.batch_size,
        batches=1000,
        sketch=4096,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        seed=options.seed,
    )
    constants = [Constant(value) for value in CONSTANTS]
    measured = measure_policy(policy, tasks, settings, baselines=constants, tell=tell)
    rollouts, exponents, document = measured.rollouts, measured.exponents, make_noise_json(measured)
    write_json_file(HERE / f"{options.name}.json", document | {"name": options.name})  # before anything is made of it
    exponent = next(e for e in exponents if e.metric == "adam").exponent.value
    norm_weighted = exponent_between_rewards(exponents)
    board = score_rollouts(
        rollouts,
        baselines=default_board_baselines(rollouts.tasks, norm_exponent=norm_weighted),
        fitted=constants,
        leave_out=True,
        batch_size=options.batch_size,
        exponent=exponent,
        n_batches=2000,
        resamples=0,
        progress=lambda what, done, total: tell("score", what, done, total),
    )
    predicted = {s.label: convert_to_plain_json(s) for s in board.scores}
    for row in document["rows"]:
        own = predicted.get(row["label"])
        row["predicted_progress"] = own["progress"] if own else None
        row["predicted_equivalent_batch"] = own["equivalent_batch"] if own else None
        row["b_eff_ratio"] = own["ratio"]["value"] if own else None
    return document | {"name": options.name, "exponent_used": exponent, "options": vars(options)}


def agreement(document: dict[str, Any], draws: int = 4000) -> dict[str, Any]:
    """Rank correlations of measured progress with the prediction and with B_eff, and the size of the prediction.

    Intervals: measured values are drawn anew from log-normal distributions with their own standard
    errors.
    """
    rows = [
        r
        for r in document["rows"]
        if r["predicted_progress"] and r["progress"]["low"] and r["label"] not in ("LOO mean", "oracle (true mean)")
    ]
    if len(rows) < 4:
        return {}
    twins = [r for r in rows if r["label"] not in ("FlashREINFORCE batch mean", "REINFORCE++ (whitened)")]
    measured, predicted = (
        np.log([[r[key][end] for end in ("value", "low", "high")] for r in twins])
        for key in ("progress", "predicted_progress")
    )
    b_eff = np.log([r["b_eff_ratio"] for r in twins])
    rng = np.random.default_rng(0)
    noise = (measured[:, 2] - measured[:, 1]) / 2 / 2.18
    drawn = measured[:, 0] + noise * rng.normal(size=(draws, len(twins)))

    def ranked(other: np.ndarray) -> dict[str, float]:
        value = float(scipy.stats.spearmanr(measured[:, 0], other).statistic)
        low, high = np.percentile([scipy.stats.spearmanr(d, other).statistic for d in drawn], [2.5, 97.5])
        return {"value": value, "low": float(low), "high": float(high)}

    # What a perfect prediction would get: the truth is taken to be what was measured, drawn together to the share of
    # its variance that is not noise, and measured again with errors of the same size (independent ones).
    truth = measured[:, 0].mean() + np.sqrt(_reliability(measured[:, 0], noise)) * (
        measured[:, 0] - measured[:, 0].mean()
    )
    ceiling = [
        float(scipy.stats.spearmanr(truth, truth + noise * rng.normal(size=len(twins))).statistic) for _ in range(draws)
    ]
    x, y = predicted[:, 0], measured[:, 0]
    scale = float(x @ y / (x @ x))
    return {
        "n_baselines": len(twins),
        "rank_correlation_predicted": ranked(x),
        "rank_correlation_b_eff": ranked(b_eff),
        "rank_correlation_of_a_perfect_prediction": {
            "value": float(np.mean(ceiling)),
            "low": float(np.percentile(ceiling, 2.5)),
            "high": float(np.percentile(ceiling, 97.5)),
        },
        "scale": scale,
        "worst_after_scale": float(np.abs(scale * x - y).max()),
        "root_mean_square_after_scale": float(np.sqrt(np.mean((scale * x - y) ** 2))),
        "typical_error_of_measurement": float(np.median(noise)),
    }


def _reliability(measured: np.ndarray, noise: np.ndarray) -> float:
    """The share of the variance of what was measured that is not noise, at least 0."""
    return max(0.0, 1 - float(np.mean(noise**2)) / float(measured.var(ddof=1)))


def tell(what: str, detail: str, done: int, total: int) -> None:
    """A line now and then."""
    if done % max(1, total // 8) == 0:
        print(what, detail, done, total, flush=True)


def shown(estimate: dict[str, float], digits: int = 2) -> str:
    """ "1.10 [1.05, 1.17]"."""
    return " ".join(
        [f"{estimate['value']:.{digits}f}", f"[{estimate['low']:.{digits}f}, {estimate['high']:.{digits}f}]"]
    )


def table() -> None:
    """All policies, as Markdown: the exponents; how measured and predicted progress agree; every baseline."""
    documents = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(HERE.glob("*.json"))]
    documents = [d for d in documents if "exponents" in d]
    print(
        "| policy | rollouts | mean reward | exponent, plain | exponent, Adam | between rewards | correlation of "
        "logarithms | 1% of rollouts carry |"
    )
    print("|" + "---|" * 8)
    for d in documents:
        plain, adam = d["exponents"]["plain"], d["exponents"]["adam"]
        between = adam.get("between_rewards")  # not in what was measured before there were norm-weighted baselines
        print(
            f"| {d['name']} | {adam['n_rollouts']} | {d['mean_reward']:.2f} | {shown(plain['exponent'])} "
            f"| {shown(adam['exponent'])} | {shown(between) if between else '-'} | {adam['correlation']:.2f} "
            f"| {d['approximations']['norm_top_share']:.0%} |"
        )
    documents = [d | agreement(d) for d in documents]
    documents = [d for d in documents if "scale" in d]
    print(
        "\n| policy | baselines | rank correlation, predicted | a perfect prediction's | rank correlation, B_eff "
        "| scale | rms after scale | error of measurement |"
    )
    print("|" + "---|" * 8)
    for d in documents:
        print(
            f"| {d['name']} | {d['n_baselines']} | {shown(d['rank_correlation_predicted'])} "
            f"| {shown(d['rank_correlation_of_a_perfect_prediction'])} "
            f"| {shown(d['rank_correlation_b_eff'])} | {d['scale']:.2f} | {d['root_mean_square_after_scale']:.3f} "
            f"| {d['typical_error_of_measurement']:.3f} |"
        )
    for d in documents:
        print(f"\n### {d['name']} (B = {d['batch_size']})\n")
        print("| baseline | progress / LOO | equivalent batch | predicted progress | B_eff over LOO's |")
        print("|---|---|---|---|---|")
        for r in d["rows"]:
            if r["progress"]["low"] is None:
                continue
            guess = shown(r["predicted_progress"]) if r["predicted_progress"] else "-"
            ratio = f"{r['b_eff_ratio']:.2f}" if r["b_eff_ratio"] else "-"
            print(f"| {r['label']} | {shown(r['progress'])} | {shown(r['equivalent_batch'], 0)} | {guess} | {ratio} |")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--policy", default="embedded")
    parser.add_argument("--tasks", default="embedded")
    parser.add_argument("--split", default="holdout", choices=("holdout", "train", "test"))
    parser.add_argument("--template", default="", help="a file with {prompt} in it")
    parser.add_argument("--n-tasks", type=int, default=256)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--sample-rows", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        table()
        return
    from rollonce.files import write_json_file

    document = measure(options)
    document["options"]["policy"] = Path(options.policy).name
    document["options"]["template"] = Path(options.template).name
    write_json_file(HERE / f"{options.name}.json", document)  # before anything is made of it
    write_json_file(HERE / f"{options.name}.json", document | agreement(document))


if __name__ == "__main__":
    main()
