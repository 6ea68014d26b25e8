"""prime-rl with a baseline from past rollouts (history mode). Not run here: the adapter is tested on a stand-in only.

    python examples/prime_rl_gs1.py baseline.json @ orch.toml      # in place of `orchestrator @ orch.toml`

In orch.toml: algorithm ``grpo``, ``rollouts_per_example = 1``, no length penalty, ``filter_zero_advantages`` off.
"""

from __future__ import annotations

import sys

from rollonce.integrations.prime_rl import install

STEP_ROLLOUTS = 256  # the rollouts of one training step: they join the history together


def prepare(file: str) -> None:
    """Before the orchestrator builds its algorithms."""
    install(file, state="out/rollonce.json", step_rows=STEP_ROLLOUTS)


def main() -> None:
    """The orchestrator, with the baseline in place of GRPO's group mean."""
    prepare(sys.argv.pop(1))
    from prime_rl.orchestrator.orchestrator import main as orchestrator

    orchestrator()


if __name__ == "__main__":
    main()
