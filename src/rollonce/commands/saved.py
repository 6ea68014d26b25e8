"""Baselines that a command is given beside those of the board: a file, a name, or ``module:name``."""

from __future__ import annotations

from pathlib import Path

from rollonce.baselines import Baseline, load_baseline
from rollonce.errors import InputError
from rollonce.testing import check_baseline


def load_given(what: str) -> Baseline:
    """A file's baseline as it was fitted (its ``fit`` does nothing more) under the file's stem; any other one unfitted,
    under its own label.

    Raises:
        InputError: if there is no such baseline; or, for one's own code, if a rollout's own reward moves its baseline:
            its squared errors would say nothing.
    """
    baseline = load_baseline(what)
    if ":" in what and not what.endswith(".json"):
        leaks = [result for result in check_baseline(baseline) if result.name == "leave_one_out" and not result.passed]
        if leaks and baseline.tags.leave_one_out:
            raise InputError(f"{what} cannot be scored: {leaks[0].message}; rollonce check {what} has the whole audit")
    from_file = baseline.provenance is not None
    return baseline.named(Path(what).stem, keep_fit=True) if from_file else baseline
