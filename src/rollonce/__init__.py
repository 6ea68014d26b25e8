"""rollonce: baselines for training language models with one rollout per task."""

__version__ = "0.1.0"
