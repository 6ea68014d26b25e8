"""Settings with which a run would go wrong in silence, named and refused before its first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from rollonce.errors import InputError


class Rule(NamedTuple):
    """A setting of a trainer with which the advantages would be wrong.

    Attributes:
        setting: Its name, dotted where nested (``algorithm.norm_adv_by_std_in_grpo``).
        breaks: Whether a value of it breaks; True stands for "any value that counts as true".
        why: What would happen.
        fix: What to set instead.
    """

    setting: str
    breaks: Callable[[Any], bool] | Literal[True]
    why: str
    fix: str


_ABSENT = object()


def read_dotted_setting(settings: Any, name: str, default: Any = None) -> Any:
    """A dotted setting of nested mappings or objects (argparse, dataclasses, OmegaConf); ``default`` where there is
    none."""
    value = settings
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, _ABSENT)
        else:
            value = getattr(value, part, _ABSENT)
        if value is _ABSENT or value is None:
            return default
    return value


def refuse(settings: Any, rules: Iterable[Rule], trainer: str) -> None:
    """Stop before the first step where a setting would spoil the advantages afterwards.

    Args:
        settings: The trainer's settings: mappings or objects, nested as they come. A setting that is not there breaks
            nothing.
        rules: What to look at.
        trainer: Its name, for the message.

    Raises:
        InputError: naming every such setting with its value, what it would do and the fix.
    """
    wrong = []
    for rule in rules:
        value = read_dotted_setting(settings, rule.setting, _ABSENT)
        if value is _ABSENT:
            continue
        if bool(value) if rule.breaks is True else rule.breaks(value):
            wrong.append(f"{rule.setting}={value!r} {rule.why}: {rule.fix}")
    if wrong:
        raise InputError(f"{trainer} cannot run with this baseline as it is set. " + "; ".join(wrong))
