"""Baseline files among other baselines: as they were fitted, under their file's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollonce.baselines import Baseline


def load_saved(path: str) -> Baseline:
    """The baseline of a file, whose ``fit`` does nothing more (its vocabulary stays that of the file) and whose label
    is the file's stem.

    Raises:
        InputError: if it is no baseline file.
    """
    baseline = Baseline.load(path)
    label = Path(path).stem
    baseline.__class__ = type(
        type(baseline).__name__,
        (type(baseline),),
        {"label": property(lambda self: label), "fit": lambda self, prompts: self, "__doc__": type(baseline).__doc__},
    )
    return baseline


def provenance_lines(provenance: dict[str, Any] | None) -> list[str]:
    """What a baseline file says of where it comes from, a line an entry."""
    return [f"{key}: {_short(value)}" for key, value in (provenance or {}).items()]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value[:8])) + (f" ... ({len(value)} in all)" if len(value) > 8 else "")
    if isinstance(value, dict):
        return ", ".join(f"{k}={_short(v)}" for k, v in list(value.items())[:12])
    return str(value)
