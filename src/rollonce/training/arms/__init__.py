"""The arms: ways of getting advantages from a step's rollouts, one class per file. All else in the loop is the same.

Importing this loads no torch; `rollonce.training.arms.make` does.
"""

ORACLE = "oracle"
"""The arm whose baseline is measured from extra rollouts; every other name is one of `rollonce.baselines.catalogue`."""

__all__ = ["ORACLE"]
