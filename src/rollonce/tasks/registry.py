"""The sources of tasks by name, and a line of a configuration -> tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollonce.errors import InputError
from rollonce.tasks.base import TaskSplits
from rollonce.tasks.embedded import EMBEDDED
from rollonce.tasks.jsonl import JSONL
from rollonce.tasks.maths import GSM8K, MATH500
from rollonce.tasks.reasoning_gym import REASONING_GYM
from rollonce.tasks.source import Source, TaskRequest

SOURCES: dict[str, Source] = {source.name: source for source in (EMBEDDED, REASONING_GYM, GSM8K, MATH500, JSONL)}
"""By name. A source of your own: ``SOURCES["mine"] = Source("mine", load)``."""


def parse_source_spec(spec: str) -> tuple[Source, str]:
    """The source that ``source`` or ``source:place`` names, and the place.

    Raises:
        InputError: there is no such source.
    """
    name, _, place = spec.partition(":")
    if name not in SOURCES:
        raise InputError(f"there is no source of tasks {name!r} (in {spec!r}); there are {', '.join(SOURCES)}")
    return SOURCES[name], place.strip()


def list_source_usages() -> str:
    """How the sources are written, for help and messages: ``embedded, reasoning-gym:MIXTURE ...``."""
    return ", ".join(source.usage for source in SOURCES.values())


def load_tasks(spec: str, request: TaskRequest | None = None, **options: Any) -> TaskSplits:
    """Train, hold-out and test tasks that share no prompt.

    Args:
        spec: ``source`` or ``source:place``: ``embedded``; ``reasoning-gym:`` and a mixture
            (`rollonce.tasks.reasoning_gym.parse_mixture`); ``gsm8k:DIR`` or ``gsm8k:hub``; ``math500:DIR`` or
            ``math500:hub``; ``jsonl:FILE`` (split by the hash of each prompt, `split_of`).
        request: How many tasks and which.
        **options: Fields of `TaskRequest`, instead of ``request``.

    Raises:
        InputError: an unknown source, or what the source says.
    """
    source, place = parse_source_spec(spec)
    return source.load(place, request or TaskRequest(**options))


def usual_source_spec(name: str) -> str | None:
    """``source:place`` for the bare name of a data set (``gsm8k`` -> ``gsm8k:hub``); None where the name does not say
    enough."""
    source = SOURCES.get(name)
    if source is None or source.usual_place is None:
        return None
    return f"{name}:{source.usual_place}" if source.usual_place else name


def read_worked_solutions(spec: str) -> Mapping[str, str]:
    """Prompt -> worked solution, for sources that have some at hand; empty for others."""
    source, place = parse_source_spec(spec)
    return source.solutions(place) if source.solutions else {}
