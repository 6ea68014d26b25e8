"""rLLM with one rollout per task and a tuned baseline.

    python examples/rllm_gs1.py rllm.rollout.n=1 rllm.rejection_sample.min_trajs_per_group=1 +baseline=baseline.json

Fill in your agent, evaluator and data as in rLLM's own scripts, and the role's name: that of your trajectories.
"""

from __future__ import annotations

from typing import Any

from rollonce.integrations.rllm import register

ROLE = "solver"


def advantages_by_role(config: Any) -> dict[str, str]:
    """Register the baseline; what AgentTrainer takes as ``traj_group_adv_estimator_map``."""
    return {ROLE: register(config, config.baseline, state="out/rollonce.json")}


def main() -> None:
    """Train your agent."""
    import hydra
    from rllm.trainer import AgentTrainer

    @hydra.main(config_path="pkg://rllm.trainer.config", config_name="unified", version_base=None)
    def train(config: Any) -> None:
        trainer = AgentTrainer(
            config=config, backend="tinker", traj_group_adv_estimator_map=advantages_by_role(config)
        )  # and agent_flow=..., evaluator=..., train_dataset=...
        trainer.train()

    train()


if __name__ == "__main__":
    main()
