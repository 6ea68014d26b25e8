"""A line of a configuration -> tasks.

``embedded``, ``reasoning-gym:chain_sum(max_terms=3)*2 + gcd``, ``gsm8k:DIR``, ``math500:DIR``, ``jsonl:FILE``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollonce.errors import InputError
from rollonce.tasks.base import SPLITS, TaskSet, TaskSplits, split_of
from rollonce.tasks.embedded import embedded_tasks
from rollonce.tasks.jsonl import jsonl_tasks
from rollonce.tasks.maths import gsm8k_tasks, math500_tasks
from rollonce.tasks.reasoning_gym import ReasoningGymSource, reasoning_gym_tasks


@dataclass(frozen=True)
class TaskRequest:
    """What is asked of a source beside its place.

    Attributes:
        train, calibration, test: How many tasks; None is the source's own number (all there are, where it is a finite
            set).
        seed: Which tasks are drawn, and their order.
        grader: For ``jsonl``: the grader's name.
        columns: For ``jsonl``: keys declared as columns.
    """

    train: int | None = None
    calibration: int | None = None
    test: int | None = None
    seed: int = 0
    grader: str = "exact"
    columns: Sequence[str] = ()


Source = Callable[[str, TaskRequest], TaskSplits]


def parse_mixture(text: str) -> list[ReasoningGymSource]:
    """``chain_sum(min_terms=2, max_terms=3)*2 + gcd`` -> sources: a configuration in brackets, a weight after ``*``.

    Two entries of one dataset get the levels ``1``, ``2`` ... in their order.

    >>> [(s.dataset, dict(s.config), s.weight) for s in parse_mixture("chain_sum(max_terms=3)*2 + gcd")]
    [('chain_sum', {'max_terms': 3}, 2.0), ('gcd', {}, 1.0)]
    """
    wrong = InputError(
        f"{text!r} is no mixture of reasoning-gym datasets; write it as chain_sum(max_terms=3)*2 + gcd, values as in "
        "Python"
    )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise wrong from error
    found: list[tuple[str, dict[str, Any], float]] = []

    def visit(node: ast.expr, weight: float) -> None:
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                visit(left, weight)
                visit(right, weight)
            case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int() | float() as factor)):
                visit(left, weight * factor)
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if all(k.arg for k in keywords):
                found.append((name, {str(k.arg): ast.literal_eval(k.value) for k in keywords}, weight))
            case ast.Name(id=name):
                found.append((name, {}, weight))
            case _:
                raise wrong

    try:
        visit(tree, 1.0)
    except ValueError as error:
        raise wrong from error
    names = [name for name, _, _ in found]
    level = lambda i: str(names[: i + 1].count(names[i])) if names.count(names[i]) > 1 else ""  # noqa: E731
    return [
        ReasoningGymSource(name, config, float(weight), level=level(i))
        for i, (name, config, weight) in enumerate(found)
    ]


def _counts(request: TaskRequest, train: int, calibration: int, test: int) -> tuple[int, int, int]:
    """The numbers asked for, and these where none is."""
    return (
        train if request.train is None else request.train,
        calibration if request.calibration is None else request.calibration,
        test if request.test is None else request.test,
    )


def _cut(tasks: TaskSet, n: int | None, seed: int) -> TaskSet:
    """``n`` tasks drawn by the seed, in a drawn order; all of them, in theirs, if n is None."""
    if n is None:
        return tasks
    if n > len(tasks):
        raise InputError(f"{n} tasks of {tasks.name} asked for, but there are only {len(tasks)}")
    return tasks.take(np.random.default_rng([seed, len(tasks)]).permutation(len(tasks))[:n].tolist())


def _cut_all(splits: TaskSplits, request: TaskRequest) -> TaskSplits:
    wanted = (request.train, request.calibration, request.test)
    return TaskSplits(*(_cut(tasks, n, request.seed) for tasks, n in zip(splits, wanted, strict=True)))


def _embedded(place: str, request: TaskRequest) -> TaskSplits:
    if place:
        raise InputError(f"the source 'embedded' takes nothing after it, not {place!r}")
    train, calibration, test = _counts(request, 6000, 600, 900)
    return embedded_tasks(train=train, calibration=calibration, test=test, seed=request.seed)


def _reasoning_gym(place: str, request: TaskRequest) -> TaskSplits:
    train, calibration, test = _counts(request, 1024, 128, 256)
    return reasoning_gym_tasks(parse_mixture(place), train=train, calibration=calibration, test=test, seed=request.seed)


def _gsm8k(place: str, request: TaskRequest) -> TaskSplits:
    apart = 512 if request.calibration is None else request.calibration
    return _cut_all(gsm8k_tasks(_place("gsm8k", place), calibration=apart, seed=request.seed), request)


def _math500(place: str, request: TaskRequest) -> TaskSplits:
    splits = math500_tasks(_place("math500", place), calibration=request.calibration or 0, seed=request.seed)
    return _cut_all(splits, request)


def _place(source: str, place: str) -> str | None:
    if not place:
        raise InputError(f"say where {source} lies, as {source}:DIRECTORY, or ask for the hub with {source}:hub")
    return None if place == "hub" else place


def _jsonl(place: str, request: TaskRequest) -> TaskSplits:
    tasks = jsonl_tasks(place, grader=request.grader, columns=request.columns)
    parts = {
        split: TaskSet([t for t in tasks if split_of(t.prompt) == split], f"{tasks.name}/{split}") for split in SPLITS
    }
    return _cut_all(TaskSplits(**parts), request)


SOURCES: dict[str, Source] = {
    "embedded": _embedded,
    "reasoning-gym": _reasoning_gym,
    "gsm8k": _gsm8k,
    "math500": _math500,
    "jsonl": _jsonl,
}
"""By name; add your own as ``SOURCES["mine"] = function(place, request) -> TaskSplits``."""


def load_tasks(spec: str, request: TaskRequest | None = None, **options: Any) -> TaskSplits:
    """Train, calibration and test tasks that share no prompt.

    Args:
        spec: ``source`` or ``source:place``: ``embedded``; ``reasoning-gym:`` and a mixture (`parse_mixture`);
            ``gsm8k:DIR`` or ``gsm8k:hub``; ``math500:DIR`` or ``math500:hub``; ``jsonl:FILE`` (split by the hash of
            each prompt, `split_of`).
        request: How many tasks and which.
        **options: Fields of `TaskRequest`, instead of ``request``.

    Raises:
        InputError: an unknown source, or what the source says.
    """
    name, _, place = spec.partition(":")
    if name not in SOURCES:
        raise InputError(f"there is no source of tasks {name!r} (in {spec!r}); there are {', '.join(SOURCES)}")
    return SOURCES[name](place.strip(), request or TaskRequest(**options))
