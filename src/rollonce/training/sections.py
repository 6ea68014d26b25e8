"""What every table of a configuration file is: typed keys, no unknown ones, and errors that say where and what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollonce.errors import InputError

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A table of the file: no unknown keys, nothing infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=Section)


def validate_section(model: type[S], data: Any, where: str | Path = "the configuration") -> S:
    """``data`` as a ``model``.

    Raises:
        InputError: naming ``where``, the key, what was found and what was expected.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = []
        for e in error.errors():
            key = ".".join(str(part) for part in e["loc"])
            message = e["msg"].removeprefix("Value error, ")
            if e["type"] == "extra_forbidden":
                message = f"no such key{_suggest_near_key(model, e['loc'])}"
            elif e["type"] == "missing":
                message = "is missing"
            elif e["type"] != "value_error":
                message = f"{message[0].lower()}{message[1:]}, not {e['input']!r}"
            lines.append(f"{key}: {message}" if key else message)
        raise InputError("; ".join(dict.fromkeys(lines)), file=where) from None


def _suggest_near_key(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    import difflib

    current: Any = model
    for part in location[:-1]:
        annotation = current.model_fields[part].annotation if part in getattr(current, "model_fields", {}) else None
        options = [annotation, *getattr(annotation, "__args__", ())]
        found = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if found:
            current = found[0]
    names = list(current.model_fields)
    near = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
