"""Scores in words: the sentence under a table, and numbers as people write them."""

from __future__ import annotations

import math
from typing import NamedTuple

from rollonce.scoring import Board, Estimate, Score


class Verdict(NamedTuple):
    """What a board says.

    Attributes:
        headline: One sentence.
        more: Sentences that belong to it.
        apart: True if the best baseline can be told apart from the LOO mean, False if not, None if that could not be
            known.
    """

    headline: str
    more: list[str]
    apart: bool | None


def format_number(value: float, digits: int = 2) -> str:
    """A number with so many decimals; ``-`` where there is none, a true minus sign otherwise."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


def format_interval(estimate: Estimate, digits: int = 2) -> str:
    """``[low, high]``, with as many decimals more as it takes to tell the ends apart; "" where there is none."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    digits = choose_decimals(estimate, digits)
    return f"[{format_number(estimate.low, digits)}, {format_number(estimate.high, digits)}]"


def choose_decimals(estimate: Estimate, digits: int = 2) -> int:
    """Decimals under which the ends of an interval differ, from ``digits`` to two more."""
    while digits < 4 and estimate.high > estimate.low and f"{estimate.low:.{digits}f}" == f"{estimate.high:.{digits}f}":
        digits += 1
    return digits


def format_with_interval(estimate: Estimate, digits: int = 2) -> str:
    """``1.05 [0.92, 1.19]``; with a decimal more where an end would round to 1 and hide on which side of it it lies."""
    while digits < 4 and any(v != 1 and f"{v:.{digits}f}" == f"{1:.{digits}f}" for v in (estimate.low, estimate.high)):
        digits += 1
    value = format_number(estimate.value, choose_decimals(estimate, digits))
    return f"{value} {format_interval(estimate, digits)}".strip()


def format_significant(estimate: Estimate) -> str:
    """Three significant digits with the interval: for s2, tau2, SNR."""

    def format_three_digits(value: float) -> str:
        return format_number(value) if not math.isfinite(value) else f"{value:.3g}".replace("-", "−")

    both = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    return format_three_digits(estimate.value) + (
        f" [{format_three_digits(estimate.low)}, {format_three_digits(estimate.high)}]" if both else ""
    )


def is_better_than_loo(score: Score) -> bool | None:
    """Whether a baseline's ratio to LOO lies above 1 with its whole interval; None where there is no interval."""
    if not math.isfinite(score.ratio.low):
        return None
    return score.ratio.low > 1


def describe_best_step(board: Board) -> list[str]:
    """Which baseline is predicted to make the best training step, and whether that is B_eff's choice; none where
    rollouts have no log-probabilities."""
    known = [s for s in board.scores if s.progress is not None and math.isfinite(s.progress.value)]
    if not known or board.loo is None:
        return []
    best = max(known, key=lambda s: s.progress.value if s.progress is not None else -math.inf)
    assert best.progress is not None
    assert best.equivalent_batch is not None
    exponent = board.settings.get("exponent")
    how = f"exponent {exponent:g}" if exponent is not None else "exponent not measured, so of 1 and 2 both"
    if best.label == board.loo.label:
        return [f"No baseline is predicted to make a better step than {best.label} ({how})."]
    size = format_with_interval(best.equivalent_batch, 0)
    if any(p.beyond_curve for p in board.steps[best.label]):  # read off a line that nothing was measured on
        size = f"more than {2 * board.batch_size}"
    first = (
        f"Best predicted step: {best.label}, {format_with_interval(best.progress)} times the progress of "
        f"{board.loo.label}, as with a batch of {size} instead of {board.batch_size} ({how})."
    )
    same = board.best.label == best.label
    second = "B_eff has the same first." if same else f"B_eff has another first: {board.best.label}."
    return [first, second]


def make_board_verdict(board: Board) -> Verdict:
    """The best baseline of a board in a sentence, and whether it can be told apart from the LOO mean."""
    if len(set(board.difficulty)) == 1 and not board.moments.s2.value > 0:  # single rollouts have no s2
        return Verdict("All rewards are equal: no baseline is better than another, nothing can be learned.", [], None)
    ranked = [s for s in board.scores if math.isfinite(s.ratio.value)]
    if not ranked or not board.difficulty:
        return Verdict("No baseline could be ranked: see the notes.", [], None)
    best, loo, size = ranked[0], board.loo, board.batch_size
    if board.moments.s2.value == 0:
        # A baseline without any error has no ratio (its E[A^2] is 0), so the errors themselves are compared.
        best = min((s for s in board.scores if math.isfinite(s.mse)), key=lambda s: s.mse, default=best)
        return Verdict(
            f"{capitalise_first(best.label)} errs least, but there is no sampling noise to hold that against: "
            "see the notes.",
            [],
            None,
        )
    level = f"B_eff {format_number(best.b_eff.value, 1)} of {size}" if math.isfinite(best.b_eff.value) else ""
    if loo is not None and best.ratio.value <= 1.0005:
        tail = f": {level}" if level else ""
        return Verdict(f"Nothing here does better than the plain leave-one-out mean of the batch{tail}.", [], False)
    ratio = format_with_interval(best.ratio)
    told = is_better_than_loo(best)
    more: list[str] = []
    if told is None:
        return Verdict(
            f"{capitalise_first(best.label)} is ahead, at {ratio} times the LOO mean{_put_in_parentheses(level)}; "
            "no interval was computed.",
            more,
            None,
        )
    winners = [s for s in ranked if is_better_than_loo(s)]
    if told:
        headline = f"{capitalise_first(best.label)} does best: {_end_with_comma(level)}{ratio} times the LOO mean."
        close = [s for s in ranked[1:] if s.ratio.high > best.ratio.low and is_better_than_loo(s)]
        if close:
            more.append(
                f"{len(close)} more beat LOO with intervals that overlap its own; the nearest is {close[0].label}."
            )
        return Verdict(headline, more, True)
    headline = (
        f"{capitalise_first(best.label)} is ahead at {ratio} times the LOO mean{_put_in_parentheses(level)}, "
        "but cannot be told apart from it."
    )
    if winners:
        more.append(
            f"What can be told apart from it: {winners[0].label}, "
            f"at {format_with_interval(winners[0].ratio)} times LOO."
        )
    else:
        more.append("No baseline here can be told apart from LOO at this number of tasks.")
    return Verdict(headline, more, False)


def _put_in_parentheses(level: str) -> str:
    return f" ({level})" if level else ""


def _end_with_comma(level: str) -> str:
    return f"{level}, " if level else ""


def capitalise_first(text: str) -> str:
    """The text with a capital first letter, unless its first word is spelt like TF-IDF or kNN."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.islower() else text


def moments_sentence(board: Board) -> str:
    """Tasks, rollouts and moments of a table on one line."""
    m = board.moments
    low, high = m.group_sizes
    sizes = f"{low}" if low == high else f"{low}-{high}"
    parts = [
        f"{m.n_tasks} tasks, {m.n_rollouts} rollouts ({sizes} a task)",
        f"mean reward {format_significant(m.mean)}",
    ]
    if math.isfinite(m.s2.value):
        parts += [
            f"s2 {format_significant(m.s2)}",
            f"tau2 {format_significant(m.tau2)}",
            f"SNR {format_significant(m.snr)}",
        ]
    return " · ".join(parts)
