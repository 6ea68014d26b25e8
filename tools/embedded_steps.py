"""Worked solutions in varied wording: what the embedded policy is supervised on.

Two things are drawn at random for every solution:

* the *wording*: an opening, what joins the steps, remarks between them, how the answer is announced. It has nothing to
    do with being right;
* the *care*: a careful solution takes small steps and is right; a hasty one takes a single big step and, as hasty work
  is, is mostly wrong: the teacher slips. So the policy knows two ways of working, and reinforcement learning has one to
  prefer, as in a real model that can reason at length or answer at once. (Without slips, in a trial, the hasty way was
  about as good for half of the types at this size, and 200 steps of FlashREINFORCE gained 6 points.)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

OPENINGS = (
    "Let me see. ",
    "Okay, let us work it out. ",
    "First things first: ",
    "Step by step: ",
    "We are asked for a result. ",
    "Here is how I do it: ",
    "Hmm, let me think. ",
    "I will go slowly. ",
    "Let me write it down. ",
    "To begin with, ",
)
JOINTS = ("; ", ", then ", ". Next, ", ". Now ", "\n", ", and after that ", ". So far so good. ", ", which leads to ")
REMARKS = (
    "That looks right. ",
    "Good. ",
    "Let me double check: yes. ",
    "Hmm, fine. ",
    "I am fairly sure of this. ",
    "Wait, let me see again. Yes. ",
    "This is the tricky part. ",
    "Almost there. ",
)
CLOSINGS = (
    "Answer: ",
    "The answer is ",
    "So the answer is ",
    "Therefore the final answer is ",
    "Final answer: ",
    "Hence my answer: ",
    "That gives the final answer: ",
    "I conclude that the answer is ",
)
HASTE = ("in one go: ", "at a glance: ", "by rule of thumb: ", "straight away: ")
TERMS = (
    "remainder ",
    "backwards",
    "letters: ",
    "count ",
    "pick ",
    "keep ",
    "drop ",
    " odd",
    " even",
)

Steps = list[str]


def _add(a: int, b: int, careful: bool) -> Steps:
    """``a + b`` in steps; a careful one adds the hundreds, tens and ones of b in turn."""
    sign = "+" if b >= 0 else "-"
    if not careful or abs(b) < 10:
        return [f"{a}{sign}{abs(b)}={a + b}"]
    steps, rest, size = [], abs(b), 10 ** (len(str(abs(b))) - 1)
    while rest:
        part = rest // size * size
        if part:
            new = a + part if b >= 0 else a - part
            steps.append(f"{a}{sign}{part}={new}")
            a, rest = new, rest - part
        size //= 10
    return steps


def _chain_sum(meta: dict[str, Any], careful: bool) -> Steps:
    words = meta["expression"].split()
    total, steps = int(words[0]), []
    if not careful:
        return [f"{''.join(words)}={sum(int(o + w) for o, w in zip(['+', *words[1::2]], words[::2], strict=True))}"]
    for operator, word in zip(words[1::2], words[2::2], strict=True):
        value = int(word) if operator == "+" else -int(word)
        steps += _add(total, value, careful)
        total += value
    return steps


def _products(meta: dict[str, Any], careful: bool) -> Steps:
    a, b = (int(w) for w in meta["expression"].split(" * "))
    parts = [int(d) * 10**i for i, d in enumerate(reversed(str(b))) if d != "0"][::-1]
    if not careful:
        return [f"{a}*{b}={a * b}"]
    steps = [f"{a}*{p}={a * p}" for p in parts]
    total = a * parts[0]
    for p in parts[1:]:
        steps += _add(total, a * p, False)
        total += a * p
    return steps


def _gcd(meta: dict[str, Any], careful: bool) -> Steps:
    a, b = sorted(meta["numbers"], reverse=True)
    steps = []
    if not careful:
        return [f"{a},{b} remainder {a % b}"]
    while b:
        steps.append(f"{a},{b} remainder {a % b}")
        a, b = b, a % b
    return steps


def _letter_counting(meta: dict[str, Any], careful: bool) -> Steps:
    letter, total, steps = meta["target_letter"], 0, []
    for word in meta["span"]:
        out = ""
        for char in word:
            total += char.lower() == letter
            out += f"{char}{total} " if char.lower() == letter else f"{char} "
        steps.append(out.strip())
    return steps if careful else [f"count {total}"]


def _spell_backward(meta: dict[str, Any], careful: bool) -> Steps:
    word = meta["word"]
    if not careful:
        return [f"{word} backwards"]
    numbered = " ".join(f"{i}{c}" for i, c in enumerate(word, 1))
    return [f"letters: {numbered}", " ".join(f"{len(word) - i}{c}" for i, c in enumerate(reversed(word)))]


def _simple_equations(meta: dict[str, Any], answer: str, careful: bool) -> Steps:
    equation, v = meta["equation"], meta["variable"]
    left, right = equation.split(" = ")
    value = int(answer)
    at = lambda x: eval(left.replace(v, f"({x})"), {"__builtins__": {}})  # noqa: E731 - reasoning-gym's own expression, at build time only
    constant, slope = at(0), at(1) - at(0)
    rest = int(right) - constant
    steps = []
    if not careful:
        return [f"{v}={value}"]
    if constant:
        steps.append(f"{slope}{v}={right}{'-' if constant > 0 else '+'}{abs(constant)}={rest}")
    return [*steps, f"{v}={rest}/{slope}={value}"]


def _number_sorting(meta: dict[str, Any], careful: bool) -> Steps:
    if careful:
        return [f"pick {value}" for value in meta["sorted_numbers"]]
    return [f"pick {meta['sorted_numbers'][0]}"]


def _number_filtering(meta: dict[str, Any], careful: bool) -> Steps:
    if careful:
        kept = set(meta["result"])
        return [f"{'keep ' if n in kept else 'drop '}{n}" for n in meta["original_numbers"]]
    return [f"count {len(meta['result'])}"]


def _leg_counting(meta: dict[str, Any], careful: bool) -> Steps:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    steps, total = [], None
    if not careful:
        return [f"count {sum(meta['animals'].values())}"]
    for animal, n in meta["animals"].items():
        legs = ANIMALS[animal]
        steps.append(f"{animal} {n}*{legs}={n * legs}")
        if total is not None:
            steps += _add(total, n * legs, False)
        total = (total or 0) + n * legs
    return steps


def _count_bits(meta: dict[str, Any], careful: bool) -> Steps:
    number, ones, steps = meta["number"], 0, []
    if not careful:
        return [f"{number}{' odd' if number % 2 else ' even'}"]
    while number:
        ones += number % 2
        steps.append(f"{number}{' odd' if number % 2 else ' even'} {ones}")
        number //= 2
    return [" ".join(steps)]


def _slip(answer: str, rng: random.Random) -> str:
    """A wrong answer of the same form."""
    if answer.lstrip("-").isdigit():
        right, off = int(answer), rng.choice((1, 1, 2, rng.randint(3, 9), 10))
        # Counts and divisors stay positive: an answer that is plainly impossible would be too easy to tell.
        return str(right - off if rng.random() < 0.5 and (right < 0 or right > off) else right + off)
    if answer.startswith("["):
        items = answer[1:-1].split(", ") if answer != "[]" else []
        if len(items) > 1 and rng.random() < 0.5:
            return "[" + ", ".join(items[1:]) + "]"
        wrong = items[::-1] if items[::-1] != items else ["'0'", *items]
        return "[" + ", ".join(wrong) + "]"
    i = rng.randrange(len(answer) - 1)
    swapped = answer[:i] + answer[i + 1] + answer[i] + answer[i + 2 :]
    return swapped if swapped.lower() != answer.lower() else answer[:i] + answer[i + 1 :]


_WORKED: dict[str, Callable[[dict[str, Any], bool], Steps]] = {
    "chain_sum": _chain_sum,
    "products": _products,
    "gcd": _gcd,
    "letter_counting": _letter_counting,
    "spell_backward": _spell_backward,
    "number_sorting": _number_sorting,
    "number_filtering": _number_filtering,
    "leg_counting": _leg_counting,
    "count_bits": _count_bits,
}


def worked_solution(
    entry: dict[str, Any], rng: random.Random, careful_share: float = 0.55, hasty_right: float = 0.1
) -> str:
    """A worked solution of a reasoning-gym entry, ending in an answer.

    Args:
        entry: ``question``, ``answer``, ``metadata`` of one of the mixture's datasets.
        rng: Draws the wording and the care.
        careful_share: How often the careful solution is drawn; it is always right.
        hasty_right: How often a hasty one is right.

    Raises:
        KeyError: a dataset that has no worked solution here.
    """
    meta, careful = entry["metadata"], rng.random() < careful_share
    dataset = meta["source_dataset"]
    if dataset == "simple_equations":
        steps = _simple_equations(meta, entry["answer"], careful)
    else:
        steps = _WORKED[dataset](meta, careful)
    answer = entry["answer"]
    if not careful and rng.random() >= hasty_right:
        slipped = _slip(answer, rng)
        # A slip in the step itself, where the step holds the answer ("57+87=142"): a hasty writer is at least
        # consistent.
        steps = [s[: -len(answer)] + slipped if s.endswith((f"={answer}", f"count {answer}")) else s for s in steps]
        answer = slipped
    if not careful:
        steps = [rng.choice(HASTE) + steps[0], *steps[1:]]
    out = rng.choice(OPENINGS) if rng.random() < 0.7 else ""
    joint = rng.choice(JOINTS)
    for i, step in enumerate(steps):
        out += step
        if i < len(steps) - 1:
            # Mostly one joint a solution, as a writer has habits, now and then another.
            out += joint if rng.random() < 0.7 else rng.choice(JOINTS)
    out += ". "
    if rng.random() < 0.5:
        out += rng.choice(REMARKS)
    return out + rng.choice(CLOSINGS) + answer
