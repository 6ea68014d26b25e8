"""tinker-cookbook's math_rl recipe with a reward that a model which knows nothing earns in parts: the share of
printable ASCII characters.

``python dense_math_rl.py key=value ...`` takes the recipe's own arguments. Everything but the grade is the recipe's.
"""

import asyncio

import chz
from tinker_cookbook.recipes.math_rl import arithmetic_env, train


def printable_share(_: object, text: str) -> float:
    """In [0, 1]; 0 for no text."""
    return sum(32 <= ord(c) < 127 for c in text) / len(text) if text else 0.0


arithmetic_env.ArithmeticEnv.check_answer = printable_share

if __name__ == "__main__":
    asyncio.run(train.cli_main(chz.entrypoint(train.CLIConfig)))
