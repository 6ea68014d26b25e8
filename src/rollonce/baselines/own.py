"""Baselines that are not in the catalogue: a user's ``module:name``, and what installed packages offer.

A package offers baselines by entry points of the group ``rollonce.baselines``; their names then go wherever a name of
the catalogue does::

    [project.entry-points."rollonce.baselines"]
    number_count = "mypackage.kernels:NumberCount"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from rollonce.arrays import as_float64_array
from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.kernel import KernelBaseline
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.importing import import_name_of_object, import_named_object
from rollonce.kernels.base import Kernel

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rollonce.baselines"
OF_RESPONSES = ("response_lengths", "responses", "completions")


@register
@dataclass
class FunctionBaseline(Baseline):
    """``function(batch) -> b``, ``function(prompts, rewards) -> b``, or one that names more of what a step knows.

    Args:
        function: A function of one argument (a `Batch`), of two (prompts, a list of B texts, and rewards, (B,)
            float64), or of any of ``prompts``, ``rewards``, ``task_ids`` and ``log_probs`` ((B,), or None) by name; or
            its ``module:name``.

    It promises ``leave_one_out`` and nothing else.

    Raises:
        InputError: for a function whose arguments are none of these, or that cannot be imported.
    """

    type: ClassVar[str] = "function"
    argument_names: ClassVar[tuple[str, ...]] = ("batch", "prompts", "rewards", "task_ids", "log_probs")
    function: Any

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            self.function = import_named_object(self.function)
        if not callable(self.function):
            raise InputError(f"a function was expected, not {str(self.function)[:80]!r}")
        self._arguments = self._arguments_to_pass(self.function)

    @property
    def tags(self) -> Tags:
        """Leave-one-out; the rest is not asked of a plain function."""
        return Tags(shift_equivariant=False, scale_equivariant=False, neutral=False)

    def describe(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def config(self) -> dict[str, Any]:
        """The function by its name.

        Raises:
            InputError: for one without a name to import it by.
        """
        name = import_name_of_object(self.function)
        if name is None:
            raise InputError(
                f"{self.describe()} cannot be saved: a file names a function as module:name, so it has to be in a "
                "module, not in the script that is run or inside another function"
            )
        return {"type": self.type, "function": name}

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """What the function returns, as float64 (B,).

        Raises:
            InputError: if that is not B numbers.
        """
        known = self._arguments_by_name(batch)
        positional = [known[what] for name, what in self._arguments if not name]
        out = self.function(*positional, **{name: known[what] for name, what in self._arguments if name})
        try:
            b = as_float64_array(out)
        except (TypeError, ValueError):
            raise InputError(f"{self.label} returned {type(out).__name__} that is not {len(batch)} numbers") from None
        if b.shape != (len(batch),):
            raise InputError(
                f"{self.label} returned an array of shape {b.shape} for a batch of {len(batch)}; one number per "
                "rollout is needed"
            )
        return Prediction.of(batch, b)

    def _arguments_by_name(self, batch: Batch) -> dict[str, Any]:
        """What the function may ask for, by name; arrays are copies."""
        rewards = batch.rewards_B.copy()
        log_probs = None if batch.log_probs_B is None else batch.log_probs_B.copy()
        return {
            "batch": Batch(batch.tasks, rewards, None, log_probs),
            "prompts": batch.tasks.prompts,
            "rewards": rewards,
            "task_ids": [str(t) for t in batch.tasks.task_ids],
            "log_probs": log_probs,
        }

    @classmethod
    def _arguments_to_pass(cls, function: Callable[..., Any]) -> list[tuple[str, str]]:
        """(keyword or "" for by position, what to pass) of each argument."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return [("", "prompts"), ("", "rewards")]
        names = cls.argument_names
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        optional = [
            p for p in parameters if p.default is not p.empty and p.name in names and p.kind != p.POSITIONAL_ONLY
        ]
        extra = [(p.name, p.name) for p in optional]
        if all(p.name in names and p.kind != p.POSITIONAL_ONLY for p in required):
            return [(p.name, p.name) for p in required] + extra
        if refused := [p.name for p in required if p.name in OF_RESPONSES]:
            raise InputError(
                f"{getattr(function, '__qualname__', function)} asks for {refused[0]}, and a baseline may not read "
                "responses; only rollonce check hands them out, to see whether anything moves"
            )
        if all(p.kind in by_position for p in required) and 1 <= len(required) <= 2:
            return [("", "batch")] if len(required) == 1 else [("", "prompts"), ("", "rewards"), *extra]
        raise InputError(
            f"{getattr(function, '__qualname__', function)} takes {', '.join(p.name for p in required)}; a baseline "
            f"function takes (batch), (prompts, rewards), or any of {', '.join(names[1:])} by name"
        )


def baseline_from_object(
    value: Any, name: str = "", of_function: type[FunctionBaseline] = FunctionBaseline
) -> Baseline:
    """A baseline from what a user has: a `Baseline` or a `Kernel`, a class of one, a function without arguments that
    makes one, or a plain function (`FunctionBaseline`).

    Args:
        value: The object.
        name: What it is called in messages.
        of_function: What to make of a plain function.

    Raises:
        InputError: for anything else.
    """
    name = name or str(value)[:80]
    if isinstance(value, type) and issubclass(value, Baseline | Kernel):
        try:
            value = value()
        except TypeError as error:
            raise InputError(f"{name} cannot be made without arguments ({error}); give its settings defaults") from None
    elif callable(value) and not isinstance(value, Baseline | Kernel):
        if not _takes_no_arguments(value):
            return of_function(value)
        made = value()
        if not isinstance(made, Baseline | Kernel):
            raise InputError(f"{name} takes no arguments, so it should make a baseline; it gave {type(made).__name__}")
        value = made
    if isinstance(value, Kernel):
        value = KernelBaseline(value)
    if not isinstance(value, Baseline):
        raise InputError(
            f"{name} is {_with_indefinite_article(type(value).__name__)}; "
            "a baseline, a kernel, a class of one or a function is needed"
        )
    return value


def imported_baseline(name: str) -> Baseline:
    """The baseline that ``module:name`` names, see `baseline_from_object`.

    Raises:
        InputError: if it cannot be imported, or is no baseline.
    """
    return baseline_from_object(import_named_object(name), name)


@cache
def offered_baselines() -> dict[str, EntryPoint]:
    """The baselines that installed packages offer, by name."""
    from importlib.metadata import entry_points  # a hundredth of a second that few need

    return {entry.name: entry for entry in sorted(entry_points(group=GROUP))}


def load_offered_baseline(name: str) -> Baseline:
    """A baseline that an installed package offers.

    Raises:
        InputError: if its module cannot be imported, or it is no baseline.
        KeyError: if no package offers it.
    """
    entry = offered_baselines()[name]
    try:
        return imported_baseline(entry.value)
    except InputError as error:
        package = entry.dist.name if entry.dist else "a package"
        raise InputError(f"the baseline {name!r} that {package} offers: {error.message}") from None


def _with_indefinite_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _takes_no_arguments(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters) and not any(
        p.name in ("batch", "prompts", "rewards") for p in parameters
    )
