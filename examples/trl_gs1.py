"""TRL with one rollout per task and the self-tuning baseline, on the embedded policy: 32 tasks x 1 rollout per step.

    python examples/trl_gs1.py --steps 60 --seed 0        # a few minutes on one CPU core
    python examples/trl_gs1.py --baseline baseline.json   # what `rollonce tune` wrote

Its twin with TRL as it comes is examples/trl_grpo.py; both differ in the two lines that name the configuration and the
trainer.
"""

from __future__ import annotations

import sys

from embedded_policy import COMMON, arguments, load_data, load_model, write_log

from rollonce.baselines import Baseline, SelfTuning
from rollonce.integrations.trl import SingleRolloutGRPOConfig, SingleRolloutGRPOTrainer


def main() -> None:
    """One run."""
    file = None
    if "--baseline" in sys.argv:
        at = sys.argv.index("--baseline")
        file = sys.argv[at + 1]
        del sys.argv[at : at + 2]
    args = arguments("GS1 with a self-tuning baseline")
    model, tokenizer = load_model()
    train, test, reward = load_data(args.held_out)
    # A smaller window and rarer fits than the default: a step of this policy takes a second, a step of a real one
    # minutes.
    baseline = Baseline.load(file) if file else SelfTuning(window=256, max_rows=256, refit_every=32)
    trainer = SingleRolloutGRPOTrainer(
        model,
        reward,
        SingleRolloutGRPOConfig(args.out, max_steps=args.steps, seed=args.seed, **COMMON),
        train_dataset=train,
        eval_dataset=test,
        processing_class=tokenizer,
        baseline=baseline,
    )
    trainer.train()
    write_log(trainer, "gs1", args)


if __name__ == "__main__":
    main()
