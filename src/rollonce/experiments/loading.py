"""Reading a specification as it is: fields that we do not know are kept and listed, wrong ones named with their path.

What was expected and what was found is said of each, and of values that contradict each other.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from rollonce.errors import InputError
from rollonce.experiments.files import compute_json_digest
from rollonce.experiments.spec import GATE_METRICS, UNRESOLVED, Spec, compute_metric_span

STRICT = (
    "activation_gate",
    "arms",
    "budget",
    "correctness_preflight",
    "decision_rule",
    "generation_audit",
    "optimizer",
    "preflight",
    "restoration_preflight",
    "rollonce",
)
"""Sections in which an unknown field is refused: a safeguard whose name is misspelt guards nothing."""


@dataclass(frozen=True)
class LoadedSpec:
    """A specification and the file it came from.

    Attributes:
        path: The file.
        raw: The document as read.
        spec: The same, typed.
        sha256: Of the document's canonical JSON: layout does not count, everything else does.
        unknown: Paths of fields that we do not know. They are kept, have no effect, and stand among the deviations; in
            the sections of `STRICT` they are refused.
        unresolved: Paths of fields written ``UNRESOLVED: ...``, with their text.
    """

    path: Path
    raw: dict[str, Any]
    spec: Spec
    sha256: str
    unknown: list[str]
    unresolved: dict[str, str]


def load_specification(path: str | Path) -> LoadedSpec:
    """Read and check a specification.

    Raises:
        InputError: no such file, no JSON, a repeated key, or fields that are wrong: all of them, each with its path.
    """
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text: {error.reason}", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    try:
        raw = json.loads(text, object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_json_constants)
    except json.JSONDecodeError as error:
        raise InputError(f"is no JSON: {error.msg}", file=path, line=error.lineno) from None
    except InputError as error:
        raise InputError(error.message, file=path) from None
    if not isinstance(raw, dict):
        raise InputError(f"a specification is a JSON object, not {type(raw).__name__}", file=path)
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        problems = [_format_field_error(e) for e in error.errors()]
    else:
        unknown = list(_find_unknown_fields(spec))
        problems = [said for field in unknown if (said := _explain_unknown_field(field))]
        problems += [f"{where}: {what}" for where, what in _find_contradictions(spec)]
        if not problems:
            return LoadedSpec(
                path,
                raw,
                spec,
                compute_json_digest(raw),
                [field.path for field in unknown],
                dict(_find_unresolved_fields(raw)),
            )
    head = "one field is wrong" if len(problems) == 1 else f"{len(problems)} fields are wrong"
    raise InputError(head + ":\n  " + "\n  ".join(problems), file=path)


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise InputError(f"the key {key!r} stands twice in one object; which of the two holds cannot be known")
        out[key] = value
    return out


def _refuse_json_constants(name: str) -> Any:
    raise InputError(f"holds {name}, which is no JSON number")


def _format_field_error(error: Any) -> str:
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    if error["type"] == "missing":
        return f"{where}: missing"
    found = json.dumps(error["input"], ensure_ascii=False, default=str)
    found = found if len(found) <= 60 else found[:57] + "..."
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{where}: {message.replace('input should be', 'expected')}; found {found}"


def _find_contradictions(spec: Spec) -> Iterator[tuple[str, str]]:
    """What is wrong between fields."""
    names = [a.name for a in spec.arms]
    for i, arm in enumerate(spec.arms):
        at = f"arms[{i}]"
        if names.index(arm.name) != i:
            yield f"{at}.name", f"{arm.name!r} stands twice; arms need names of their own"
        if arm.rollouts != spec.batch_size:
            rollouts = f"group_size {arm.group_size} x groups_per_batch {arm.groups_per_batch} = {arm.rollouts}"
            yield at, f"{rollouts} rollouts per step, but batch_size is {spec.batch_size}"
        if arm.steps != spec.steps:
            yield f"{at}.steps", f"expected the specification's steps, {spec.steps}; found {arm.steps}"
        if arm.lr != spec.optimizer.lr and spec.rollonce.selection is None:
            yield f"{at}.lr", f"expected optimizer.lr, {spec.optimizer.lr:g}; found {arm.lr:g}"
        if arm.advantage == "group_mean" and arm.group_size < 2:
            yield (
                f"{at}.group_size",
                "expected at least 2 with advantage group_mean: a group of one has advantage 0 always; found 1",
            )
    for i, check in enumerate(spec.activation_gate.checks):
        at = f"activation_gate.checks[{i}]"
        if check.metric not in GATE_METRICS:
            yield f"{at}.metric", f"expected one of {', '.join(GATE_METRICS)}; found {check.metric!r}"
        if check.min is None and check.max is None:
            yield at, "expected min, max or both; found neither, so it can never fail"
        elif check.min is not None and check.max is not None and check.min > check.max:
            yield at, f"expected min <= max; found {check.min:g} > {check.max:g}, which nothing passes"
    rule = spec.decision_rule
    if sorted(set(rule.seeds)) != sorted({a.seed for a in spec.arms}) or len(set(rule.seeds)) > 1:
        yield (
            "decision_rule.seeds",
            f"expected the one seed that all arms share; found {rule.seeds}, arms {[a.seed for a in spec.arms]}",
        )
    selection = spec.rollonce.selection
    if selection is not None:
        yield from _find_selection_problems(spec, names)
    groups = selection.groups if selection is not None else {}
    known = {*(groups or names), "baseline", "treatment"}
    if spec.experiment_features.get("adaptive_selection", False) and selection is None:
        yield "experiment_features.adaptive_selection", "expected false: there is no rollonce.selection"
    if len({c.id for c in rule.criteria}) < len(rule.criteria):
        yield "decision_rule.criteria", "two criteria have one id"
    for i, c in enumerate(rule.criteria):
        at = f"decision_rule.criteria[{i}]"
        if not c.bounds[0] < c.bounds[1]:
            yield f"{at}.bounds", f"expected [low, high] with low < high; found {c.bounds}"
        odd = sorted(set(c.weights) - known)
        if odd:
            yield f"{at}.weights", f"expected names of arms, or baseline and treatment; found {odd[0]!r}"
        if not any(c.weights.values()):
            yield f"{at}.weights", "expected at least one weight that is not 0"
        elif c.bounds[0] < c.bounds[1]:
            low, high = compute_metric_span(c)
            if not low < c.margin < high:
                yield (
                    f"{at}.margin",
                    f"expected a number between the difference's bounds, {low:g} and {high:g}; found {c.margin:g}",
                )
    for role, name in (spec.rollonce.roles or {}).items():
        if name not in (groups or names):
            what = "a group of rollonce.selection" if groups else "an arm"
            yield f"rollonce.roles.{role}", f"expected the name of {what}; found {name!r}"
    for i, group in enumerate(spec.restoration_preflight.groups):
        for k, start in enumerate(group.arms):
            at = f"restoration_preflight.groups[{i}].arms[{k}]"
            if start.name not in names:
                yield f"{at}.name", f"expected the name of an arm; found {start.name!r}"
                continue
            arm, sent = spec.find_arm_by_name(start.name), start.optimizer_config
            pairs = (("learning_rate", arm.lr), ("seed", arm.seed), ("lora_rank", spec.lora_rank))
            for key, wanted in pairs:
                if getattr(sent, key) != wanted:
                    yield (
                        f"{at}.optimizer_config.{key}",
                        f"expected {wanted}, as elsewhere in the file; found {getattr(sent, key)}",
                    )


def _find_selection_problems(spec: Spec, names: list[str]) -> Iterator[tuple[str, str]]:
    selection = spec.rollonce.selection
    assert selection is not None
    chosen = [name for arms in selection.groups.values() for name in arms]
    if sorted(chosen) != sorted(names):
        yield "rollonce.selection.groups", f"expected every arm in one group; found {chosen}, arms {names}"
        return
    for group, members in selection.groups.items():
        arms = [spec.find_arm_by_name(name) for name in members]
        if len({(a.advantage, a.group_size, a.groups_per_batch, a.seed, a.steps) for a in arms}) > 1:
            yield f"rollonce.selection.groups.{group}", "its arms may differ in name and learning rate alone"
        if len({a.lr for a in arms}) < len(arms):
            yield f"rollonce.selection.groups.{group}", "two of its arms have the same learning rate"
    if not spec.experiment_features.get("adaptive_selection", False):
        yield "experiment_features.adaptive_selection", "expected true beside rollonce.selection"


class UnknownField(NamedTuple):
    """A field that we do not know, and the names that there are beside it."""

    path: str
    known: list[str]


def _find_unknown_fields(part: BaseModel, at: str = "") -> Iterator[UnknownField]:
    for name in part.model_extra or {}:
        yield UnknownField(f"{at}{name}", list(type(part).model_fields))
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _find_unknown_fields(value, f"{at}{name}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _find_unknown_fields(item, f"{at}{name}[{i}].")


def _explain_unknown_field(field: UnknownField) -> str | None:
    """Why this unknown field cannot stay; None if it can."""
    section = field.path.partition(".")[0].partition("[")[0]
    name = field.path.rpartition(".")[2]
    near = difflib.get_close_matches(name, field.known, n=1, cutoff=0.7 if section in STRICT else 0.85)
    if section not in STRICT and not near:
        return None
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(field.known)}"
    return f"{field.path}: no such field, so it would guard nothing; {hint}"


def _find_unresolved_fields(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for k, v in value.items():
            yield from _find_unresolved_fields(v, f"{at}.{k}" if at else k)
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from _find_unresolved_fields(v, f"{at}[{i}]")
    elif isinstance(value, str) and value.startswith(UNRESOLVED):
        yield at, value
