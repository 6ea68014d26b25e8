"""prime-rl's orchestrator with a baseline from past rollouts, one rollout per task.

    python examples/prime_rl_gs1.py baseline.json @ orch.toml      # in place of `orchestrator @ orch.toml`

In the file: algorithm ``grpo`` without a length penalty, ``group_size = 1``, ``train.filter_zero_advantages = false``.
prime-rl's `rl` command starts a program called ``orchestrator``; start the parts by hand, or put a script of that name
first on the PATH that runs this one. The history lies in OUTPUT_DIR/rollonce and is read again where ``resume`` is set.
"""

from __future__ import annotations

import asyncio
import sys


def main() -> None:
    """What prime-rl's own command does, with the baseline installed in between."""
    baseline = sys.argv.pop(1)
    from prime_rl.configs.orchestrator import OrchestratorConfig
    from prime_rl.utils.config import cli

    config = cli(OrchestratorConfig)
    from prime_rl.orchestrator.orchestrator import run_orchestrator

    from rollonce.integrations.prime_rl import install

    install(config, baseline)
    asyncio.run(run_orchestrator(config))


if __name__ == "__main__":
    main()
