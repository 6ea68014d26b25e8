"""Small stand-ins for trainers that are not installed, built to the shapes read in their source: names, arguments,
padding, order.

They check our adapters, not the trainers. With the trainer installed (``run_real.sh``) the same tests run against the
real one.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any


def installed(package: str) -> bool:
    """Whether a package can be found, without importing it."""
    return package not in sys.modules and importlib.util.find_spec(package) is not None


def namespace(tree: Any) -> Any:
    """Nested dicts as nested objects, as argparse-like settings come."""
    return SimpleNamespace(**{k: namespace(v) for k, v in tree.items()}) if isinstance(tree, dict) else tree


def with_settings(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of nested settings with dotted changes."""
    out = {k: with_settings(v, {}) if isinstance(v, dict) else v for k, v in tree.items()}
    for name, value in changes.items():
        *path, last = name.split(".")
        at = out
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return out


def module(monkeypatch: Any, name: str, **content: Any) -> ModuleType:
    """A module in ``sys.modules`` with its parents, taken out again by monkeypatch."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        parent = ".".join(parts[:i])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
            sys.modules[parent].__path__ = []
    made = ModuleType(name)
    for key, value in content.items():
        setattr(made, key, value)
    monkeypatch.setitem(sys.modules, name, made)
    if len(parts) > 1:
        monkeypatch.setattr(sys.modules[".".join(parts[:-1])], parts[-1], made, raising=False)
    return made


def without(monkeypatch: Any, package: str) -> None:
    """As if a package were not installed."""
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
