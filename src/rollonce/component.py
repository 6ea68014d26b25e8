"""What features, kernels and baselines share: a name, a configuration and a state, both plain JSON.

Every one is a dataclass whose fields are its settings. `config` writes them (nested components included) with the
class's registered ``type``; `from_config` builds the same thing again; `state_dict` holds what `fit` or `observe`
learned. Together they are the whole of a saved baseline, so nothing needs pickle.

A class of one's own needs no registration: its configuration says ``"type": "module:Class"``, and where that is read
the module is imported.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import typing
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np

from rollonce.errors import InputError
from rollonce.importing import import_name_of_object, import_named_object

_REGISTRY: dict[str, type[Component]] = {}
_FORMER: dict[str, Callable[[dict[str, Any]], Component]] = {}
C = TypeVar("C", bound="type[Component]")


def register(cls: C) -> C:
    """Class decorator: makes ``cls.type`` known to `from_config`. A second class of one name is refused."""
    if cls.type in _REGISTRY and _REGISTRY[cls.type].__qualname__ != cls.__qualname__:
        raise InputError(
            f"two components are called {cls.type!r}: {_REGISTRY[cls.type].__qualname__} and {cls.__qualname__}"
        )
    _REGISTRY[cls.type] = cls
    return cls


def register_former_type(kind: str) -> Callable[[Callable[[dict[str, Any]], Component]], Any]:
    """Decorator: makes a type that is gone readable. The function is given the settings that a file has for it, nested
    components built, and returns what says the same now."""

    def remember_former_type(make: Callable[[dict[str, Any]], Component]) -> Callable[[dict[str, Any]], Component]:
        _FORMER[kind] = make
        return make

    return remember_former_type


class Component:
    """Base of features, kernels and baselines; subclasses are dataclasses."""

    type: ClassVar[str] = ""
    title: ClassVar[str] = ""
    symbols: ClassVar[dict[str, str]] = {}

    def describe(self) -> str:
        """A few words for tables: ``title`` (or the type), the parts, and the settings named in ``symbols``."""
        inside = [part.describe() for part in self.nested_components().values()]
        inside += [f"{symbol}={getattr(self, setting):.3g}" for setting, symbol in self.symbols.items()]
        name = self.title or self.type or type(self).__name__
        return f"{name} {', '.join(inside)}" if inside else name

    def config(self) -> dict[str, Any]:
        """The settings as plain JSON, with nested components expanded and ``type`` first.

        Raises:
            InputError: for a class that is no dataclass, so that its settings cannot be told.
        """
        cls = type(self)
        own_name = None if cls.__module__.partition(".")[0] == "rollonce" else import_name_of_object(cls)
        out: dict[str, Any] = {"type": own_name or self.type}
        _check_dataclass(cls)
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            if f.init:
                out[f.name] = _value_to_plain_json(getattr(self, f.name))
        return out

    def nested_components(self) -> dict[str, Component]:
        """Nested components by the name they have in the configuration (``kernel``, ``experts.2``)."""
        parts: dict[str, Component] = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if not f.init:
                continue
            if isinstance(value, Component):
                parts[f.name] = value
            elif isinstance(value, list | tuple):
                parts.update({f"{f.name}.{i}": v for i, v in enumerate(value) if isinstance(v, Component)})
        return parts

    def own_state(self) -> dict[str, Any]:
        """What this component itself learned, apart from its children; plain JSON. Empty where nothing is learned."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Put back what `own_state` gave."""

    def state_dict(self) -> dict[str, Any]:
        """Own state and the children's, plain JSON."""
        state: dict[str, Any] = {k: _value_to_plain_json(v) for k, v in self.own_state().items()}
        children = {name: child.state_dict() for name, child in self.nested_components().items()}
        children = {name: s for name, s in children.items() if s}
        if children:
            state["children"] = children
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`.

        Raises:
            InputError: if the state names a child that this component does not have.
        """
        children = self.nested_components()
        for name, child_state in state.get("children", {}).items():
            if name not in children:
                raise InputError(
                    f"the state has a part {name!r} that a {self.type!r} with this configuration does not have"
                )
            children[name].load_state_dict(child_state)
        self.load_own_state({k: v for k, v in state.items() if k != "children"})


def from_config(config: dict[str, Any]) -> Any:
    """The component that `Component.config` described.

    Raises:
        InputError: for an unknown ``type`` or a setting that the type does not have; for ``module:Class``, if it cannot
            be imported or is no component.
    """
    if not isinstance(config, dict) or "type" not in config:
        raise InputError(f"a component's configuration must be an object with 'type', not {str(config)[:80]!r}")
    kind = config["type"]
    settings = {k: _value_from_plain_json(v) for k, v in config.items() if k != "type"}
    if kind in _FORMER:
        return _FORMER[kind](settings)
    cls = _find_component_class(kind)
    names = {f.name for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    unknown = sorted(set(settings) - names)
    if unknown:
        raise InputError(f"{kind!r} has no setting {unknown[0]!r}; it has: {', '.join(sorted(names)) or 'none'}")
    _check_nested_components(cls, settings)
    try:
        return cls(**settings)
    except TypeError as e:
        raise InputError(f"{kind!r} cannot be built from {settings}: {e}") from None


def _find_component_class(kind: Any) -> type[Component]:
    if isinstance(kind, str) and ":" in kind:
        cls = import_named_object(kind)
        if not (isinstance(cls, type) and issubclass(cls, Component)):
            raise InputError(f"{kind!r} is no class of baselines, kernels or features, but {str(cls)[:80]}")
        _check_dataclass(cls)
        return cls
    if kind not in _REGISTRY:
        raise InputError(
            f"unknown type {kind!r}; known: {', '.join(sorted(_REGISTRY))}, and module:Class for one of your own"
        )
    return _REGISTRY[kind]


def _check_dataclass(cls: type[Component]) -> None:
    if not dataclasses.is_dataclass(cls):
        raise InputError(f"{cls.__name__} must be a dataclass, its fields its settings: write @dataclass above it")


def _check_nested_components(cls: type[Component], settings: dict[str, Any]) -> None:
    """A kernel where a kernel belongs, a feature where a feature does: otherwise a damaged file fails much later, in
    `predict`."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a user's class that names types from inside a function
        return
    for name, value in settings.items():
        hint = hints.get(name)
        several = typing.get_origin(hint) is collections.abc.Sequence
        wanted = typing.get_args(hint)[0] if several else hint
        if not (isinstance(wanted, type) and issubclass(wanted, Component)):
            continue
        if several and not isinstance(value, list | tuple):
            raise InputError(
                f"{name!r} of a {cls.type!r} must be a list of {wanted.__name__}s, not {str(value)[:80]!r}"
            )
        for part in value if several else [value]:
            if not isinstance(part, wanted):
                given = repr(part.type) if isinstance(part, Component) else repr(str(part)[:80])
                raise InputError(f"{name!r} of a {cls.type!r} must be a {wanted.__name__}, not {given}")


def registered_types() -> dict[str, type[Component]]:
    """Every registered type by name (a copy)."""
    return dict(_REGISTRY)


def _value_to_plain_json(value: Any) -> Any:
    if isinstance(value, Component):
        return value.config()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_value_to_plain_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _value_to_plain_json(v) for k, v in value.items()}
    return value


def _value_from_plain_json(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return from_config(value)
    if isinstance(value, list):
        return [_value_from_plain_json(v) for v in value]
    return value
