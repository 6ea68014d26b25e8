"""The arms: ways of getting advantages from a step's rollouts, one class per file. All else in the loop is the same.

Importing this loads no torch; `rollonce.training.arms.make` does.
"""

ORACLE = "oracle"
"""The arm whose baseline is measured from extra rollouts."""

TOKEN_BASELINES = {"otb": True, "otb_batch": False}
"""Arms with the optimal token baseline, one number per token: name -> over the task's group, or over the batch's other
rollouts. Every name but these and `ORACLE` is one of `rollonce.baselines.catalogue`."""

__all__ = ["ORACLE", "TOKEN_BASELINES"]
