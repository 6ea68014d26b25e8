"""What a decision rule can see, before any GPU time is spent.

Two policies are graded on the same n items: ``D_i`` in [-1, 1] (range R = 2; for 0/1 grades -1, 0 or 1). The treatment
passes if the lower end of the 1 - alpha interval on ``E[D]`` lies above the margin. Half-widths, each side with alpha /
2:

    Hoeffding            R sqrt(ln(2 / alpha) / (2 n))
    empirical Bernstein  sqrt(2 V ln(4 / alpha) / n) + 7 R ln(4 / alpha) / (3 (n - 1))
    normal               z sqrt(V / n), approximate: no guarantee at any n

Sources: Hoeffding 1963 (the rule of docs/mathematics.md, "The decision rule"); Maurer and Pontil 2009, theorem 4.

V is the variance of the differences: with a share q of items graded differently, ``q - d^2``. Hoeffding's does not need
    it.
"""

from __future__ import annotations

from statistics import NormalDist  # scipy.stats takes a second to import, for this one quantile
from typing import NamedTuple

import numpy as np

from rollonce.errors import InputError

RULES = ("hoeffding", "bernstein", "normal")
RANGE = 2.0


class Power(NamedTuple):
    """One rule at one design.

    Attributes:
        rule: ``hoeffding``, ``bernstein`` or ``normal``.
        smallest: The smallest observed mean difference that passes; above 1 nothing can.
        smallest_items: The same in items: a net gain of so many of n (0/1 grades).
        n_needed: Items so that the true difference passes with the wanted chance; None if it never does.
    """

    rule: str
    smallest: float
    smallest_items: int
    n_needed: int | None


def interval_half_width(rule: str, n: int, alpha: float, variance: float, *, span: float = RANGE) -> float:
    """Half-width of the interval on a mean of n differences whose bounds lie ``span`` apart (2 for differences in [-1,
    1])."""
    if rule == "hoeffding":
        return float(span * np.sqrt(np.log(2 / alpha) / (2 * n)))
    if rule == "bernstein":
        log = np.log(4 / alpha)
        return float(np.sqrt(2 * variance * log / n) + 7 * span * log / (3 * (n - 1)))
    return float(-NormalDist().inv_cdf(alpha / 2) * np.sqrt(variance / n))  # the lower tail: 1 - alpha / 2 may be 1


def smallest_passing(rule: str, n: int, alpha: float, margin: float, discordance: float) -> float:
    """The smallest observed difference d with ``d - half_width > margin``.

    >>> round(smallest_passing("hoeffding", 1319, 0.05, -0.05, 0.2), 4)
    0.0248
    """
    if rule == "hoeffding":
        return margin + interval_half_width(rule, n, alpha, 0.0)
    low, high = margin, max(1.0, margin + interval_half_width(rule, n, alpha, 1.0))  # d - width(d) rises with d
    for _ in range(200):
        d = (low + high) / 2
        if d - interval_half_width(rule, n, alpha, _variance_of_difference(discordance, d)) > margin:
            high = d
        else:
            low = d
    return high


def items_needed_to_pass(
    rule: str, true: float, alpha: float, margin: float, discordance: float, power: float
) -> int | None:
    """The least n at which a true difference passes with at least this chance (normal approximation of the observed
    mean).

    None if the true difference is not above the margin.
    """
    if true <= margin:
        return None
    z, v = NormalDist().inv_cdf(power), _variance_of_difference(discordance, true)

    def passes_with_items(n: int) -> bool:
        return true - z * np.sqrt(v / n) - interval_half_width(rule, n, alpha, v) > margin

    high = 4
    while not passes_with_items(high):
        high *= 2
        if high > 1 << 40:
            return None
    low = high // 2 if high > 4 else 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes_with_items(middle) else (middle, high)
    return high


def tabulate_rule_power(
    n: int,
    alpha: float = 0.05,
    margin: float = 0.0,
    *,
    true: float | None = None,
    discordance: float = 0.2,
    power: float = 0.8,
) -> list[Power]:
    """All rules at one design.

    Args:
        n: Items.
        alpha: Two-sided level.
        margin: What the interval must lie above; below 0 for "not worse by more than".
        true: A true difference to find ``n_needed`` for.
        discordance: Share of items that the two policies are graded differently on: an assumption until measured.
        power: The wanted chance to pass.

    Raises:
        InputError: for settings that make no sense.
    """
    if n < 2:
        raise InputError(f"the number of items must be at least 2, not {n}")
    for name, value in (("alpha", alpha), ("discordance", discordance), ("target power", power)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, not {value:g}")
    if not -1 < margin < 1 or (true is not None and not -1 <= true <= 1):
        raise InputError(f"margin and true difference are differences of means in (-1, 1), not {margin:g} and {true}")
    out = []
    for rule in RULES:
        d = smallest_passing(rule, n, alpha, margin, discordance)
        needed = None if true is None else items_needed_to_pass(rule, true, alpha, margin, discordance, power)
        out.append(Power(rule, d, int(np.floor(d * n + 1e-9)) + 1, needed))
    return out


def _variance_of_difference(discordance: float, d: float) -> float:
    return max(max(discordance, abs(d)) - d * d, 0.0)  # a difference of d needs at least |d| of the items to differ
