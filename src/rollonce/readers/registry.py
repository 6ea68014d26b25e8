"""The list of formats, in the order in which they are tried: those that are recognised by more come first, the generic one last."""

from __future__ import annotations

from rollonce.errors import InputError
from rollonce.readers.base import Format
from rollonce.readers.generic import Generic

FORMATS: tuple[Format, ...] = (Generic(),)


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        InputError: if there is none, with the names there are.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    raise InputError(f"no format {name!r}; the formats are {', '.join(f.name for f in FORMATS)}")
