"""TRL's GRPO as it comes, on the embedded policy: 4 tasks x 8 rollouts per step. The twin of examples/trl_gs1.py.

python examples/trl_grpo.py --steps 60 --seed 0
"""

from __future__ import annotations

from embedded_policy import COMMON, arguments, load_data, load_model, write_log
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    """One run."""
    args = arguments("stock GRPO")
    model, tokenizer = load_model()
    train, test, reward = load_data(args.held_out)
    trainer = GRPOTrainer(
        model,
        reward,
        GRPOConfig(args.out, max_steps=args.steps, seed=args.seed, num_generations=8, **COMMON),
        train_dataset=train,
        eval_dataset=test,
        processing_class=tokenizer,
    )
    trainer.train()
    write_log(trainer, "grpo", args)


if __name__ == "__main__":
    main()
