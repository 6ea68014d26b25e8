"""rLLM with one rollout a task and a tuned baseline. Not run here: the adapter is tested on a stand-in only.

    python examples/rllm_gs1.py baseline.json

Put `advantages_by_role` into your own training script: `rllm` takes the estimator by its registered name.
"""

from __future__ import annotations

import sys

from rollonce.integrations.rllm import register


def advantages_by_role(file: str) -> dict[str, str]:
    """Register the baseline; what AgentTrainer takes as ``traj_group_adv_estimator_map`` (with
    ``rllm.algorithm.use_rllm=true``)."""
    register("rollonce", file, state="out/rollonce.json")
    return {"solver": "rollonce"}


def main() -> None:
    """Train your agent; fill in the dots as in rLLM's own examples."""
    from rllm.trainer import AgentTrainer

    trainer = AgentTrainer(
        backend="tinker", traj_group_adv_estimator_map=advantages_by_role(sys.argv[1])
    )  # workflow_class=..., config=...
    trainer.train()


if __name__ == "__main__":
    main()
