"""What a user wrote, by its name ``module:name``: baselines, kernels, graders."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from rollonce.errors import InputError


def import_named_object(name: str, folder: str | None = None) -> Any:
    """The object that ``module:name`` names (dots go inwards: ``module:Class.make``). The folder, which is the current
    directory by default, is on the path, also for an installed command.

    Raises:
        InputError: if it is not ``module:name``, the module cannot be imported, or has nothing of that name.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise InputError(f"{name!r} is not module:name, like mykernel:NumberCount")
    here = folder or os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise InputError(f"{module_name!r} cannot be imported ({type(error).__name__}: {error})") from None
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            public = [n for n, v in inspect.getmembers(value) if not n.startswith("_") and callable(v)]
            public.sort(key=lambda n: n[:1].lower() != part[:1].lower())  # those that begin alike come first
            shown = f"{', '.join(public[:12])}{' ...' if len(public) > 12 else ''}" or "nothing that can be called"
            raise InputError(f"{module_name!r} has no {part!r}; it has {shown}") from None
    return value


def import_name_of_object(value: Any) -> str | None:
    """``module:name`` of a class or function, from which `import_named_object` gives it again; None where there is no
    such name (made inside a function, or in the script that is being run)."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    return f"{module}:{name}"
