"""The audit of a baseline, ours or a user's: ``check_baseline`` holds it to the contract of
`rollonce.baselines.base`."""

from rollonce.testing.audit import CheckResult, check_baseline
from rollonce.testing.callables import CallableBaseline

__all__ = ["CallableBaseline", "CheckResult", "check_baseline"]
