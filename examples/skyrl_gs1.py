"""SkyRL with one rollout per task and a tuned baseline. Needs GPUs, Python 3.12, skyrl[fsdp] and rollonce in one
environment.

    rollonce tune rollouts.jsonl --out baseline.json
    ROLLONCE_BASELINE=baseline.json python examples/skyrl_gs1.py trainer.policy.model.path=... data.train_data=... \
        trainer.algorithm.advantage_estimator=gs1 generator.n_samples_per_prompt=1        # all other settings as SkyRL
        has them

The history of rewards lies in SkyRL's checkpoints. Metrics: ``rollonce/*``.
"""

from __future__ import annotations

import os
import sys

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray

from rollonce.integrations.skyrl import register, use_baseline


class Experiment(BasePPOExp):
    """SkyRL's own, with the baseline in its trainer."""

    def get_trainer(self, *args, **kwargs):
        """SkyRL's trainer, its advantages ours."""
        return use_baseline(super().get_trainer(*args, **kwargs), os.environ["ROLLONCE_BASELINE"])


@ray.remote(num_cpus=1)
def entrypoint(cfg: SkyRLTrainConfig) -> None:
    """In a process of Ray's, as SkyRL's own entry point."""
    Experiment(cfg).run()


def main() -> None:
    """One run."""
    os.environ["ROLLONCE_BASELINE"] = os.path.abspath(os.environ["ROLLONCE_BASELINE"])
    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    register()  # before validate_cfg, which looks the estimator's name up
    validate_cfg(cfg)
    initialize_ray(cfg)
    environment = {"env_vars": {"ROLLONCE_BASELINE": os.environ["ROLLONCE_BASELINE"]}}
    ray.get(entrypoint.options(runtime_env=environment).remote(cfg))


if __name__ == "__main__":
    main()
