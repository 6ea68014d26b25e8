"""A comparison of arms in words: sentences that claim no more than the intervals do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rollonce.comparison import Analysis, Difference
from rollonce.reports.words import format_number
from rollonce.scoring import Estimate

ALPHA = 0.05


class ComparisonVerdict(NamedTuple):
    """What a comparison says: one sentence, and those that belong to it."""

    headline: str
    more: list[str]


def format_percent(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{format_number(100 * value, digits)}%"


def format_signed_points(value: float, digits: int = 1) -> str:
    text = format_number(100 * value, digits)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def format_points_with_interval(estimate: Estimate) -> str:
    """``+1.2 points [−0.4, +2.8]``."""
    return f"{format_signed_points(estimate.value)} points {format_points_interval(estimate)}".strip()


def format_points_interval(estimate: Estimate) -> str:
    """``[−0.4, +2.8]`` in points; "" where there is no interval."""
    if not math.isfinite(estimate.low):
        return ""
    return f"[{format_signed_points(estimate.low)}, {format_signed_points(estimate.high)}]"


def format_percent_interval(estimate: Estimate) -> str:
    """``[41.0, 47.3]`` in per cent."""
    return (
        f"[{format_number(100 * estimate.low, 1)}, {format_number(100 * estimate.high, 1)}]"
        if math.isfinite(estimate.low)
        else ""
    )


def format_seconds(value: float) -> str:
    """Seconds as people write them."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "not reached"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def format_rollout_count(value: float) -> str:
    """A count of rollouts; "not reached" for infinity."""
    return "not reached" if math.isinf(value) else "-" if math.isnan(value) else f"{value:,.0f}"


def format_learning_rate(value: float) -> str:
    """A learning rate: ``2e-4``."""
    if math.isnan(value):
        return "-"
    text = f"{value:.2g}" if 1e-2 <= value < 1000 else f"{value:.1e}".replace(".0e", "e")
    return text.replace("e-0", "e-").replace("e+0", "e")


def classify_difference(difference: Difference, mode: str = "sampled") -> str:
    """``better``, ``worse``, ``even`` (no difference could be shown) or ``unknown`` (no interval), by Holm's p and the
    interval."""
    crossed = difference.final[mode]
    if crossed.why_no_interval:
        return "unknown"
    if difference.p_holm[mode] < ALPHA:
        return "better" if crossed.estimate.value > 0 else "worse"
    return "even"


def make_comparison_verdict(analysis: Analysis) -> ComparisonVerdict:
    """The comparison in words. Arms are told apart from the reference only, never ranked among themselves."""
    mode, others = analysis.modes[0], analysis.differences
    if not others:
        arm = analysis.arms[0]
        level = arm.final[mode].estimate
        what = f"One arm, {arm.name}: {format_percent(level.value)} {format_percent_interval(level)}".strip()
        return ComparisonVerdict(what + ", nothing to compare it with.", _make_further_sentences(analysis))
    groups = {
        kind: [d for d in others if classify_difference(d, mode) == kind]
        for kind in ("better", "worse", "even", "unknown")
    }
    reference, n_seeds = analysis.reference, sorted({d.final[mode].n_seeds for d in others})
    runs = f"{n_seeds[0]} seeds" if len(n_seeds) == 1 else f"{n_seeds[0]} to {n_seeds[-1]} seeds"
    reasons = {d.final[mode].why_no_interval for d in others}
    if reasons == {"one seed"}:
        return ComparisonVerdict(
            "One seed per arm cannot tell arms apart: what another seed would have given is not known.",
            _make_further_sentences(analysis),
        )
    if reasons == {"one item"}:
        return ComparisonVerdict(
            "One item cannot tell arms apart: what another item would have given is not known.",
            _make_further_sentences(analysis),
        )
    if len(groups["unknown"]) == len(others):
        return ComparisonVerdict(
            f"Nothing can be said of differences to {reference}.", _make_further_sentences(analysis, unknown=others)
        )
    parts = []
    for kind, word in (("better", "above"), ("worse", "below")):
        if groups[kind]:
            parts.append(
                f"{_join_names_with_and([_name_with_points(d, mode) for d in groups[kind]])} ended {word} {reference}"
            )
    if not parts:
        names = (
            _join_names_with_and([d.arm for d in groups["even"]])
            if len(groups["even"]) < 4
            else f"any of {len(groups['even'])} arms"
        )
        headline = f"No difference to {reference} could be shown for {names}, with {runs} each."
        return ComparisonVerdict(headline, _make_further_sentences(analysis, groups["even"], groups["unknown"]))
    headline = "; ".join(parts) + "."
    if groups["even"]:
        rest = (
            _join_names_with_and([d.arm for d in groups["even"]])
            if len(groups["even"]) < 4
            else f"the other {len(groups['even'])} arms"
        )
        headline += f" No difference could be shown for {rest}."
    return ComparisonVerdict(headline, _make_further_sentences(analysis, groups["even"], groups["unknown"]))


def _name_with_points(difference: Difference, mode: str) -> str:
    return f"{difference.arm} ({format_signed_points(difference.final[mode].estimate.value)} points)"


def _make_further_sentences(
    analysis: Analysis, even: Sequence[Difference] = (), unknown: Sequence[Difference] = ()
) -> list[str]:
    out = seeds_sentences(analysis, even) + _unknown_sentences(analysis, unknown)
    if (n := len(analysis.differences)) > 1:
        out.append(
            f"{n} arms are compared with {analysis.reference}: a difference is called one if p < .05 after Holm's "
            f"correction; which difference would have shown, and how many seeds one takes, is for p < .05 / {n}; each "
            "interval is a 95% interval. The others are not compared with each other: --reference NAME does that."
        )
    slower = [a for a in analysis.arms if a.times.shares["critic"] > 0.005]
    for arm in slower:
        ratio = arm.times.ratio
        relative = (
            f"; a rollout costs {format_number(ratio.value)} times {analysis.reference}'s"
            if math.isfinite(ratio.value)
            else ""
        )
        clock = "CPU" if analysis.clock == "cpu" else "wall-clock"
        out.append(
            f"{arm.name} spends {format_percent(arm.times.shares['critic'], 0)} of its {clock} time "
            f"on its critic{relative}."
        )
    collapsed = [a for a in analysis.arms if a.n_collapsed]
    if collapsed:
        out.append(
            "Collapsed: "
            + _join_names_with_and([f"{a.n_collapsed} of {len(a.seeds)} runs of {a.name}" for a in collapsed])
            + "."
        )
    if analysis.left_out:
        arms = sorted({x.arm for x in analysis.left_out})
        n = len(analysis.left_out)
        out.append(f"{n} run{'s' if n > 1 else ''} could not be used ({_join_names_with_and(arms)}): see below.")
    return out


def seeds_sentences(analysis: Analysis, even: Sequence[Difference]) -> list[str]:
    """What could not be shown, what is still possible, and what it would take to know; arms with the same answer
    together."""
    mode, wanted = analysis.modes[0], analysis.settings.difference
    d = format_number(100 * wanted, 1).removesuffix(".0")
    unit = "1 point" if d == "1" else f"{d} points"
    grouped: dict[str, list[str]] = {}
    for difference in even:
        crossed, needed = difference.final[mode], difference.seeds_needed
        if needed is None:
            what = (
                f"no number of seeds would tell a difference of {unit} on these {analysis.n_items} items: more items "
                "are needed"
            )
        elif needed <= crossed.n_seeds:
            what = f"a true difference of {unit} would most likely have shown"
        else:
            what = f"about {needed} seeds per arm would be needed to tell a difference of {unit}"
        name = f"{difference.arm} {format_points_with_interval(crossed.estimate)}"
        if crossed.p < ALPHA:
            name += f" (apart from {analysis.reference} if it were the only arm, not among {len(analysis.differences)})"
        grouped.setdefault(what, []).append(name)
    return [f"{'; '.join(names)}: {what}." for what, names in grouped.items()]


def _unknown_sentences(analysis: Analysis, unknown: Sequence[Difference]) -> list[str]:
    """Arms without a verdict, and why; a table in which nothing varies shows neither a difference nor that there is
    none."""
    why = {
        "one seed": "one seed, so there is no interval and no verdict",
        "one item": "one item, so there is no interval and no verdict",
        "no spread": (
            "the same with every seed and item, so nothing is known of what others would have given, and there is no "
            "verdict"
        ),
    }
    grouped: dict[str, list[str]] = {}
    for d in unknown:
        crossed = d.final[analysis.modes[0]]
        grouped.setdefault(why[crossed.why_no_interval], []).append(
            f"{d.arm} {format_signed_points(crossed.estimate.value)} points"
        )
    return [f"{'; '.join(names)}: {what}." for what, names in grouped.items()]


def shadow_sentence(analysis: Analysis) -> str:
    """Which shadow baselines predict better than LOO in this training, in a sentence; "" without any."""
    known = {k: v for k, v in analysis.shadow.items() if math.isfinite(v.value)}
    if not known:
        return ""
    better = [f"{k} {format_number(v.value)}" for k, v in sorted(known.items(), key=lambda x: -x[1].value) if v.low > 1]
    worse = [f"{k} {format_number(v.value)}" for k, v in sorted(known.items(), key=lambda x: -x[1].value) if v.high < 1]
    parts = [f"larger than LOO's: {_join_names_with_and(better)}"] if better else []
    parts += [f"smaller: {_join_names_with_and(worse)}"] if worse else []
    return (
        "Effective batch size measured along the way, " + "; ".join(parts) + "."
        if parts
        else ("Effective batch sizes measured along the way cannot be told apart from LOO's.")
    )


def learning_rate_sentences(analysis: Analysis) -> list[str]:
    """Learning-rate robustness, a sentence an arm."""
    out = []
    n_compared = sum(c.against_reference is not None for c in analysis.rates)
    for curve in analysis.rates:
        n, total = sum(p.n_collapsed for p in curve.points), sum(p.n_runs for p in curve.points)
        chosen = next(p for p in curve.points if p.arm == curve.chosen)
        span = f"{format_learning_rate(curve.points[0].rate)} to {format_learning_rate(curve.points[-1].rate)}"
        what = f"{curve.base}: {len(curve.points)} rates from {span}, {n} of {total} runs collapsed; "
        what += f"shown at {format_learning_rate(chosen.rate)} ({curve.how})"
        against = curve.against_reference
        if against is not None and not against.why_no_interval:
            told = curve.p_holm < ALPHA
            word = ("above" if against.estimate.value > 0 else "below") if told else "no difference shown to"
            what += (
                f"; over all shared rates {format_points_with_interval(against.estimate)}, {word} {analysis.reference}"
            )
            if n_compared > 1:
                what += f" (Holm's correction over {n_compared} arms)"
        out.append(what + ".")
    return out


def describe_left_out_runs(analysis: Analysis) -> list[str]:
    """Runs that could not be used, those with the same reason together: ``grpo, seeds 1 and 2: has not been
    started``."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for x in analysis.left_out:
        grouped.setdefault((x.arm, x.reason), []).append(x.seed)
    return [
        f"{arm}, seed{'s' if len(seeds) > 1 else ''} {_join_names_with_and(seeds)}: {reason}"
        for (arm, reason), seeds in grouped.items()
    ]


def _join_names_with_and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
