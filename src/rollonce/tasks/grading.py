"""Graders: a response and a reference in, a reward out. Pure functions; time limits and failures are the sandbox's
business."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rollonce.errors import InputError, MissingExtraError
from rollonce.importing import import_named_object

_MARKER = re.compile(r"(?:####|(?:final\s+)?answer\s*(?:is\b\s*:?|:))[ \t]*", re.IGNORECASE)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d[\d,]*(?:\.\d+)?)?")


def _extract_last_boxed(text: str) -> str | None:
    r"""What the last ``\boxed{...}`` holds, braces balanced; None if there is none or it never closes."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for i in range(begin, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[begin:i]
    return None


def extract_final_answer(response: str) -> str:
    r"""The final answer of a response with reasoning.

    The last ``<answer>...</answer>``; else the last ``\boxed{...}``; else the rest of the line after the last ``####``,
    ``Answer:`` or ``answer is``; else the whole response. White space around it and one final full stop are dropped.

    >>> extract_final_answer("12 + 30 = 42. So the answer is 42.")
    '42'
    """
    tags = _TAG.findall(response)
    if tags:
        return tags[-1].strip()
    boxed = _extract_last_boxed(response)
    if boxed is not None:
        return boxed.strip()
    end = None
    for match in _MARKER.finditer(response):
        end = match.end()
    answer = response if end is None else response[end:].split("\n", 1)[0]
    answer = answer.strip()
    return answer[:-1].rstrip() if answer.endswith(".") and not answer.endswith("..") else answer


def _parse_last_number(text: str) -> Fraction | None:
    """The last number in a text as an exact fraction (thousands commas dropped), or None."""
    numbers = _NUMBER.findall(text.replace("$", ""))
    if not numbers:
        return None
    # 1e400 as a Fraction is a 400-digit integer: the pattern's three digits of exponent keep that harmless.
    top, _, bottom = numbers[-1].replace(",", "").replace(" ", "").partition("/")
    try:
        return Fraction(top) / Fraction(bottom or "1")
    except (ValueError, ZeroDivisionError):
        return None


def exact(response: str, reference: str) -> float:
    """1 if the extracted answer is the reference, white space around both aside."""
    return float(extract_final_answer(response) == reference.strip())


def contains(response: str, reference: str) -> float:
    """1 if the reference stands anywhere in the response, letter case aside. An empty reference is never contained."""
    needle = reference.strip().casefold()
    return float(bool(needle) and needle in response.casefold())


def numeric_exact(response: str, reference: str) -> float:
    """1 if the last number of the extracted answer equals the last number of the reference exactly.

    Thousands commas, a currency sign, ``42.0`` for ``42`` and ``1/2`` for ``0.5`` make no difference; a response
    without a number has reward 0.

    Raises:
        ValueError: if the *reference* holds no number: then the data is at fault, not the response.

    >>> numeric_exact("... so she pays 1,200 dollars. #### 1,200", "1200")
    1.0
    """
    target = _parse_last_number(extract_final_answer(reference))
    if target is None:
        raise ValueError(f"the reference {reference[:40]!r} holds no number")
    given = _parse_last_number(extract_final_answer(response))
    return float(given is not None and given == target)


def math_verify(response: str, reference: str) -> float:
    r"""1 if math-verify finds the response's answer equal to the reference (LaTeX or plain).

    Source: math-verify, https://github.com/huggingface/Math-Verify. Its own time limits need signals in the main
        thread; they are off here since
    the grading process has one for all graders.
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ImportError as error:
        raise MissingExtraError("the grader math_verify", "math-verify", "train") from error
    configs = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    # Without its own time limit, which sets signals and works in the main thread alone; ours is around all of this.
    no_limit: Any = None
    gold = parse(f"\\boxed{{{reference}}}", extraction_config=configs, parsing_timeout=no_limit)
    if not gold:
        raise ValueError(f"math-verify cannot read the reference {reference[:40]!r}")
    given = parse(response, extraction_config=configs, parsing_timeout=no_limit)
    return float(bool(verify(gold, given, timeout_seconds=None)))


# Linear in the length of a response and free of foreign code: these need no process of their own.
TRUSTED = frozenset({exact, contains, numeric_exact})
GRADERS: dict[str, Callable[[str, str], float]] = {
    "exact": exact,
    "contains": contains,
    "numeric_exact": numeric_exact,
    "math_verify": math_verify,
}


@dataclass(frozen=True)
class ImportedGrader:
    """``module:callable`` of the user, imported where it is run: in a grading process, which may have begun in another
    directory than the one that was current when the grader was named (``folder``)."""

    path: str
    folder: str = field(default_factory=os.getcwd)

    def warm_up(self) -> None:
        """Import it, outside any time limit."""
        import_named_object(self.path, self.folder)

    def __call__(self, response: str, reference: str) -> float:
        """The reward that the user's callable gives."""
        return import_named_object(self.path, self.folder)(response, reference)


def find_grader_by_name(name: str) -> Callable[[str, str], float]:
    """``exact``, ``numeric_exact``, ``math_verify``, ``contains``, or ``module:callable`` taking ``(response,
    reference)``.

    Raises:
        InputError: an unknown name, a module that cannot be imported, or one without that callable.
    """
    if name in GRADERS:
        return GRADERS[name]
    if ":" not in name:
        raise InputError(
            f"there is no grader {name!r}; give one of {', '.join(GRADERS)}, or module:callable for your own"
        )
    try:
        grader = import_named_object(name)
    except InputError as error:
        raise InputError(f"the grader {name!r}: {error.message}") from error
    if not callable(grader):
        raise InputError(f"the grader {name!r} is a {type(grader).__name__}, nothing that can be called")
    return ImportedGrader(name)
