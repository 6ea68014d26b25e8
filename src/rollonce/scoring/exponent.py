"""The exponent of the surprisal as a file: written by `rollonce noise`, read by whatever predicts a training step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rollonce.errors import InputError

FORMAT, VERSION = "rollonce-exponent", 1


def exponent_document(exponents: dict[str, Any], policy: str) -> dict[str, Any]:
    """What the file holds.

    Args:
        exponents: By metric (``plain``, ``adam``) plain JSON with ``exponent: {value, low, high}``.
        policy: Whose they are.
    """
    return {"format": FORMAT, "version": VERSION, "policy": policy, "exponents": exponents}


def read_surprisal_exponent(source: str, metric: str = "adam") -> float:
    """A number as it stands, or the exponent in a file that ``rollonce noise --save`` wrote.

    Args:
        source: ``2.4``, or the file.
        metric: ``adam`` for steps of Adam, ``plain`` for clipped or normalised gradients.

    Raises:
        InputError: neither a number between 0 and 6 nor such a file.
    """
    try:
        value = float(source)
    except ValueError:
        value = _read_exponent_file(Path(source), metric)
    if not 0 <= value <= 6 or not math.isfinite(value):
        raise InputError(f"the exponent of the surprisal is a number between 0 and 6, not {source}")
    return value


def _read_exponent_file(path: Path, metric: str) -> float:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "no such file; --exponent takes a number or what `rollonce noise --save` wrote", file=path
        ) from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"cannot be read as JSON ({error})", file=path) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
        raise InputError("is not what `rollonce noise --save` writes", file=path)
    try:
        return float(document["exponents"][metric]["exponent"]["value"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"has no exponent for the metric {metric!r}", file=path) from None


__all__ = ["exponent_document", "read_surprisal_exponent"]
