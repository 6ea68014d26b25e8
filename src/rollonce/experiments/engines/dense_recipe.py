"""tinker-cookbook's math_rl recipe with `rollonce.experiments.dense.share_of_even_characters` as its grade:
``python -m`` with the recipe's own arguments.

For tests of the machinery with a model that knows nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rollonce.experiments.dense import share_of_even_characters


def main() -> None:
    import chz  # type: ignore[import-not-found]
    from tinker_cookbook.recipes.math_rl import math_env, train  # type: ignore[import-not-found]

    def check_answer(self: Any, text: str) -> float:
        return share_of_even_characters(text, "")

    math_env.MathEnv.check_answer = check_answer
    asyncio.run(train.cli_main(chz.entrypoint(train.CLIConfig)))


if __name__ == "__main__":
    main()
