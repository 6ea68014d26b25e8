"""What logs alone predict for the arms of registered.toml at one policy: B_eff and the progress of a step.

python studies/step/predict.py [POLICY] --exponent 2.5     # Adam's exponent of the surprisal, from `rollonce noise`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def main() -> None:
    """Sample the policy on hold-out tasks, and score the arms that are baselines at one rollout per task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", nargs="?", default="embedded")
    parser.add_argument("--exponent", type=float, required=True)
    parser.add_argument("--n-tasks", type=int, default=256)
    parser.add_argument("--rollouts", type=int, default=12)
    options = parser.parse_args()

    from rollonce.policies import TransformersPolicy, load_embedded
    from rollonce.rollouts import Rollouts
    from rollonce.scoring import score_rollouts
    from rollonce.tasks import TaskRequest, grade, load_tasks, parse_source_spec
    from rollonce.training.arms.baseline import make_arm_baseline
    from rollonce.training.loading import load_experiment_config

    policy = load_embedded() if options.policy == "embedded" else TransformersPolicy.load(options.policy)
    numbers = parse_source_spec("embedded")[0].numbers_for_one_split("holdout", options.n_tasks)
    tasks = load_tasks("embedded", TaskRequest(seed=0, **numbers)).holdout
    every = [task for task in tasks for _ in range(options.rollouts)]
    samples = policy.sample([t.prompt for t in every], max_new_tokens=96, temperature=1.0, generator=0)
    rewards = grade(every, samples.texts, truncated=samples.truncated_B.tolist()).rewards
    log_probs = samples.log_probs_BT.double().sum(dim=1).numpy()
    known = tasks.as_feature_tasks()
    groups = [slice(i, i + options.rollouts) for i in range(0, len(every), options.rollouts)]
    table = Rollouts.from_groups(
        [rewards[g] for g in groups],
        known.prompts,
        task_ids=[str(t) for t in known.task_ids],
        log_probs=[log_probs[g] for g in groups],
    )
    arms = {
        name: arm for name, arm in load_experiment_config(HERE / "registered.toml").arms.items() if not arm.rollouts
    }
    made = {name: make_arm_baseline(arm, known) for name, arm in arms.items() if arm.baseline and arm.group_size == 1}
    board = score_rollouts(
        table, baselines=list(made.values()), exponent=options.exponent, n_batches=2000, resamples=50, window=512
    )
    shown = {s.label: s for s in board.scores}
    print(f"{len(known)} tasks x {options.rollouts}, mean reward {np.mean(rewards):.3f}, exponent {options.exponent}")
    for name, baseline in made.items():
        s = shown[baseline.label]
        step = (
            ""
            if s.progress is None or s.equivalent_batch is None
            else (
                f"progress {s.progress.value:.2f} [{s.progress.low:.2f}, {s.progress.high:.2f}], "
                f"equivalent batch {s.equivalent_batch.value:.0f}"
            )
        )
        print(f"{name:28s} B_eff over LOO's {s.ratio.value:.2f} [{s.ratio.low:.2f}, {s.ratio.high:.2f}]; {step}")


if __name__ == "__main__":
    main()
