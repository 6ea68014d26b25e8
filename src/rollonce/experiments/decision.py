"""The verdict: paired Hoeffding as registered, simultaneous over criteria. What stands beside it decides nothing.

An item that one arm never answered may have had any grade within the bounds. The interval then reaches from the lower
end with the worst of them to the upper end with the best: neither "validated" nor "failed" can come from a stall.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from rollonce.errors import InputError
from rollonce.experiments.intervals import (
    Interval,
    McNemar,
    betting_interval,
    empirical_bernstein_interval,
    exact_mcnemar_test,
    hoeffding_interval,
)
from rollonce.experiments.spec import Criterion, DecisionRule, compute_metric_span
from rollonce.rollouts import FloatArray
from rollonce.tuning.power import interval_half_width

Verdict = Literal["validated", "failed", "inconclusive"]
CAVEAT = (
    "The interval is over evaluation items, conditional on these checkpoints: one seed per arm. It says nothing of how "
    "much another seed of the same arm would differ."
)


class CriterionResult(NamedTuple):
    """One criterion.

    Attributes:
        id, margin: As registered.
        alpha: Its share of the rule's alpha (Bonferroni).
        n: Items.
        means: Metric's mean by weight key, over the items that were answered.
        unanswered: Items that an arm never answered; the intervals hold whatever their grades were.
        hoeffding: The interval that decides.
        bernstein, betting: Beside it: valid, tighter, not deciding.
        mcnemar: Beside it, for two arms graded 0/1; None else.
        verdict: Of this criterion.
        sentence: In words, with what would have been needed.
    """

    id: str
    margin: float
    alpha: float
    n: int
    means: dict[str, float]
    unanswered: int
    hoeffding: Interval
    bernstein: Interval
    betting: Interval
    mcnemar: McNemar | None
    verdict: Verdict
    sentence: str


class Decision(NamedTuple):
    """The verdict over all criteria: validated if all are, failed if any is, else inconclusive."""

    verdict: Verdict
    sentence: str
    criteria: list[CriterionResult]
    caveat: str

    def to_dict(self) -> dict[str, Any]:
        criteria = []
        for c in self.criteria:
            row = c._asdict()
            for key in ("hoeffding", "bernstein", "betting", "mcnemar"):
                row[key] = None if row[key] is None else row[key]._asdict()
            criteria.append(row)
        return {"verdict": self.verdict, "sentence": self.sentence, "criteria": criteria, "caveat": self.caveat}


def decide_verdict(rule: DecisionRule, grades: Mapping[str, FloatArray]) -> Decision:
    """Apply the rule.

    Args:
        rule: As registered.
        grades: The metric of each item, by the weights' keys, items in one order (n,); NaN where it was never answered.

    Raises:
        InputError: arms graded on different numbers of items, or a grade outside the registered bounds.
    """
    alpha = rule.alpha / len(rule.criteria)
    found = [_judge_criterion(c, alpha, grades) for c in rule.criteria]
    verdicts = {c.verdict for c in found}
    verdict: Verdict = (
        "failed" if "failed" in verdicts else "validated" if verdicts == {"validated"} else "inconclusive"
    )
    sentence = (
        found[0].sentence
        if len(found) == 1
        else f"{verdict.capitalize()}, over {len(found)} simultaneous criteria. "
        + " ".join(f"{c.id}: {c.sentence}" for c in found)
    )
    lost = max(c.unanswered for c in found)
    if lost:
        sentence += f" {lost} items were never answered by an arm; the interval holds whatever their grades were."
    return Decision(verdict, sentence, found, CAVEAT)


def _judge_criterion(c: Criterion, alpha: float, grades: Mapping[str, FloatArray]) -> CriterionResult:
    used = {key: np.asarray(grades[key], dtype=np.float64) for key, weight in c.weights.items() if weight}
    sizes = {key: len(g) for key, g in used.items()}
    if len(set(sizes.values())) != 1:
        raise InputError(f"a paired comparison needs the same items in every arm, but they have {sizes}")
    for key, g in used.items():
        bad = g[(g < c.bounds[0]) | (g > c.bounds[1]) | np.isinf(g)]
        if len(bad):
            raise InputError(
                f"the criterion {c.id!r} was registered for a metric in {c.bounds}, but {key} has a grade of {bad[0]:g}"
            )
    worst, best = _bound_item_differences(c, used)
    d = (worst + best) / 2
    low, high = compute_metric_span(c)
    interval = Interval(
        float(d.mean()),
        hoeffding_interval(worst, low, high, alpha).low,
        hoeffding_interval(best, low, high, alpha).high,
    )
    unanswered = int((worst != best).sum())
    verdict: Verdict = (
        "validated" if interval.low > c.margin else "failed" if interval.high < c.margin else "inconclusive"
    )
    pair = [key for key, w in c.weights.items() if w]
    test = None
    if len(pair) == 2 and unanswered == 0 and all(set(np.unique(used[k])) <= {0.0, 1.0} for k in pair):
        up, down = sorted(pair, key=lambda k: -c.weights[k])
        test = exact_mcnemar_test(used[up], used[down])
    return CriterionResult(
        id=c.id,
        margin=c.margin,
        alpha=alpha,
        n=len(d),
        means={key: float(np.nanmean(g)) for key, g in used.items()},
        unanswered=unanswered,
        hoeffding=interval,
        bernstein=_make_outer_interval(empirical_bernstein_interval, worst, best, low=low, high=high, alpha=alpha),
        betting=_make_outer_interval(betting_interval, worst, best, low=low, high=high, alpha=alpha),
        mcnemar=test,
        verdict=verdict,
        sentence=_verdict_sentence(verdict, c, interval, n=len(d), alpha=alpha, width=high - low),
    )


def _bound_item_differences(c: Criterion, used: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """``sum of weight x grade`` of each item (n,), with what was never answered at its worst and at its best."""
    n = len(next(iter(used.values())))
    worst, best = np.zeros(n), np.zeros(n)
    for key, g in used.items():
        weight = c.weights[key]
        ends = sorted((weight * c.bounds[0], weight * c.bounds[1]))
        worst += np.where(np.isnan(g), ends[0], weight * g)
        best += np.where(np.isnan(g), ends[1], weight * g)
    return worst, best


def _make_outer_interval(
    method: Callable[[FloatArray, float, float, float], Interval],
    worst: FloatArray,
    best: FloatArray,
    *,
    low: float,
    high: float,
    alpha: float,
) -> Interval:
    below, above = method(worst, low, high, alpha), method(best, low, high, alpha)
    return Interval((below.value + above.value) / 2, below.low, above.high)


def _verdict_sentence(verdict: Verdict, c: Criterion, i: Interval, *, n: int, alpha: float, width: float) -> str:
    said = (
        f"a difference of {i.value:+.4f} with the {1 - alpha:.4g} interval [{i.low:+.4f}, {i.high:+.4f}] over {n} items"
    )
    if verdict == "validated":
        return f"Validated: {said}, whose lower end lies above the margin {c.margin:+g}."
    half = interval_half_width("hoeffding", n, alpha, 0.0, span=width)
    needed = c.margin + half
    most = compute_metric_span(c)[1]
    needs = (
        f"an observed difference above {needed:+.4f} was needed"
        if needed < most
        else f"no observed difference could have passed at {n} items (it would have to exceed {needed:+.4f})"
    )
    if verdict == "failed":
        return f"Failed: {said}, whose upper end lies below the margin {c.margin:+g}; {needs}."
    more = ""
    if i.value > c.margin:
        items = math.floor(width**2 * math.log(2 / alpha) / (2 * (i.value - c.margin) ** 2)) + 1
        more = f", or {items} items at the difference observed"
    return f"Inconclusive: {said} holds the margin {c.margin:+g}; {needs}{more}."


def power_statement(rule: DecisionRule, n: int) -> list[str]:
    """What the design can pass, before anything is spent: one sentence per criterion."""
    alpha = rule.alpha / len(rule.criteria)
    out = []
    for c in rule.criteria:
        low, high = compute_metric_span(c)
        half = interval_half_width("hoeffding", n, alpha, 0.0, span=high - low)
        needed = c.margin + half
        text = f"{c.id}: {n} items, half-width {half:.4f} at alpha {alpha:.4g}; "
        if needed >= high:
            text += (
                f"it can never validate (a difference above {needed:+.4f} would be needed, and {high:+g} is the "
                "largest there is)."
            )
        else:
            items = math.floor(needed * n + 1e-9) + 1
            if needed >= 0:
                text += (
                    f"it validates only if the treatment is observed at least {100 * needed:.1f} points better (net "
                    f"{items:+d} items)."
                )
            else:
                text += (
                    f"it validates unless the treatment is observed {-100 * needed:.1f} points worse, or more (net "
                    f"{items - 1:+d} items)."
                )
            if c.margin < 0 <= needed:
                text += " Being exactly as good will end inconclusive."
        out.append(text)
    return out
