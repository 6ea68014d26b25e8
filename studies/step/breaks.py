"""What breaks the power law between a rollout's surprisal and its squared gradient norm: temperature and lag.

    python studies/step/breaks.py [--later STEPS=DIR ...]       # writes studies/step/breaks.json, prints two tables

Temperature: the start policy samples at it, and the gradient is that of its log-probability at it, as in training. Lag:
the start policy samples and logs its surprisals, and the gradient, with importance ratios, is that of a policy some
steps later; beside the logged surprisal stands the one that the later policy would give the same rollout.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TEMPERATURES = (0.5, 0.7, 1.0, 1.3, 1.6)
N_TASKS, N_ROLLOUTS, MAX_NEW_TOKENS = 128, 8, 96


def fit_exponents(policy: Any, samples: Any, rewards_R: np.ndarray, logged: bool) -> dict[str, Any]:
    """The exponent in both metrics, with the surprisals that the sampler logged or those of the policy itself."""
    from rollonce.files import convert_to_plain_json
    from rollonce.noise.exponent import adam_squared_norms, fit_surprisal_exponent
    from rollonce.noise.gradients import score_gradients

    gradients = score_gradients(policy, samples, gram_rows=np.arange(0), coordinates=16_000)
    logged_R = -samples.log_probs_BT.double().sum(dim=1).numpy()
    task_R = np.repeat(np.arange(N_TASKS), N_ROLLOUTS)
    norms = {
        "plain": gradients.squared_norms_R,
        "adam": adam_squared_norms(gradients.coordinates_RD, gradients.n_parameters),
    }
    out: dict[str, Any] = {"effective_share": gradients.on_policy.effective_share}
    for name, surprisals_R in {"own": gradients.surprisals_R, **({"logged": logged_R} if logged else {})}.items():
        out[name] = {
            metric: convert_to_plain_json(
                fit_surprisal_exponent(norms_R, surprisals_R, rewards_R, task_R, metric=metric, seed=0)
            )
            for metric, norms_R in norms.items()
        }
    largest_R = np.sort(gradients.squared_norms_R)[::-1]
    return out | {"top_share": float(largest_R[: len(largest_R) // 100].sum() / largest_R.sum())}


def measure(later: dict[int, str]) -> dict[str, Any]:
    """Both questions as plain JSON."""
    from rollonce.policies import TransformersPolicy, load_embedded
    from rollonce.tasks import TaskRequest, grade, load_tasks, parse_source_spec

    numbers = parse_source_spec("embedded")[0].numbers_for_one_split("holdout", N_TASKS)
    tasks = load_tasks("embedded", TaskRequest(seed=0, **numbers)).holdout
    every = [task for task in tasks for _ in range(N_ROLLOUTS)]
    start = load_embedded()
    policies = {steps: TransformersPolicy.load(directory) for steps, directory in later.items()}
    out: dict[str, Any] = {"temperature": [], "lag": []}
    for temperature in TEMPERATURES:
        samples = start.sample(
            [t.prompt for t in every], max_new_tokens=MAX_NEW_TOKENS, temperature=temperature, generator=0
        )
        rewards_R = np.array(grade(every, samples.texts, truncated=samples.truncated_B.tolist()).rewards)
        common = {"mean_reward": float(rewards_R.mean())}
        out["temperature"].append(
            common | {"temperature": temperature} | fit_exponents(start, samples, rewards_R, False)
        )
        if temperature == 1.0:
            for steps, policy in policies.items():
                out["lag"].append(common | {"steps": steps} | fit_exponents(policy, samples, rewards_R, True))
    return out


def shown(estimate: dict[str, float]) -> str:
    """ "1.10 [1.05, 1.17]"."""
    return f"{estimate['value']:.2f} [{estimate['low']:.2f}, {estimate['high']:.2f}]"


def print_tables(document: dict[str, Any]) -> None:
    """Temperature and lag as Markdown."""
    print("| temperature | mean reward | exponent, plain | exponent, Adam | correlation of logarithms | 1% carry |")
    print("|" + "---|" * 6)
    for row in document["temperature"]:
        plain, adam = row["own"]["plain"], row["own"]["adam"]
        print(
            f"| {row['temperature']:g} | {row['mean_reward']:.2f} | {shown(plain['exponent'])} "
            f"| {shown(adam['exponent'])} | {adam['correlation']:.2f} | {row['top_share']:.0%} |"
        )
    print(
        "\n| steps of lag | effective share | exponent of the logged surprisal, Adam | correlation | of the later "
        "policy's own | correlation |"
    )
    print("|" + "---|" * 6)
    for row in document["lag"]:
        logged, own = row["logged"]["adam"], row["own"]["adam"]
        print(
            f"| {row['steps']} | {row['effective_share']:.2f} | {shown(logged['exponent'])} "
            f"| {logged['correlation']:.2f} | {shown(own['exponent'])} | {own['correlation']:.2f} |"
        )


def main() -> None:
    """Parse, measure, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--later", action="append", default=[], metavar="STEPS=DIR", help="a later policy (repeatable)")
    parser.add_argument("--table", action="store_true", help="print what was measured before")
    options = parser.parse_args()
    file = HERE / "breaks.json"
    if options.table:
        print_tables(json.loads(file.read_text(encoding="utf-8")))
        return
    from rollonce.files import write_json_file

    later = dict(item.split("=", 1) for item in options.later)
    document = measure({int(steps): directory for steps, directory in later.items()})
    write_json_file(file, document)
    print_tables(document)


if __name__ == "__main__":
    main()
