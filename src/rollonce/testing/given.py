"""Baselines that a user gives to be scored beside those of the board: read or imported, and audited before their errors
are believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollonce.baselines import Baseline, load_baseline
from rollonce.baselines.own import baseline_from_object
from rollonce.errors import InputError
from rollonce.testing.audit import check_baseline


def load_given_baseline(what: Any) -> Baseline:
    """A file's baseline as it was fitted (its ``fit`` does nothing more) under the file's stem; one by name or
    ``module:name``, unfitted; or an object (`baseline_from_object`), as it was fitted if it was.

    Raises:
        InputError: if there is no such baseline; or, for one's own code, if a rollout's own reward moves its baseline:
            its squared errors would say nothing.
    """
    if not isinstance(what, str):
        baseline = baseline_from_object(what)
        _refuse_leaky_baseline(baseline, baseline.label)
        return baseline.named(baseline.label, keep_fit=True) if baseline.state_dict() else baseline
    baseline = load_baseline(what)
    if baseline.provenance is not None:
        return baseline.named(Path(what).stem, keep_fit=True)
    if ":" in what:
        _refuse_leaky_baseline(baseline, what)
    return baseline


def _refuse_leaky_baseline(baseline: Baseline, name: str) -> None:
    if not baseline.tags.leave_one_out:
        return
    leaks = [r for r in check_baseline(baseline) if r.name == "leave_one_out" and not r.passed]
    if leaks:
        raise InputError(f"{name} cannot be scored: {leaks[0].message}; rollonce check has the whole audit")
