"""The arms: ways of getting advantages from a step's rollouts, one class per file. All else in the loop is the same.

Importing this loads no torch; `rollonce.training.arms.make` does.
"""

from rollonce.training.arms.names import BY_NAME, NAMES, ORACLE, named_baseline

__all__ = ["BY_NAME", "NAMES", "ORACLE", "named_baseline"]
