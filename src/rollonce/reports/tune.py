"""What a tuning came to, in the terminal."""

from __future__ import annotations

import math

from rich.console import Console

from rollonce.scoring import Score
from rollonce.tuning.tune import TuneResult

CURVE_LINES = 10


def print_tuning_result(console: Console, result: TuneResult) -> None:
    """The chosen baseline, what it is worth on tasks that the search never saw, and how easy it was to find."""
    console.print(format_tuning_result(result), soft_wrap=True, markup=False)


def format_tuning_result(result: TuneResult) -> str:
    """The same as text."""
    settings, reported = result.settings, result.judged.score
    if result.cross_fitted:
        reported_on = "cross-fitted, every task judged by a search that never saw it"
    else:
        reported_on = f"{result.counts.get('report')} tasks that the search never saw"
    unknown = " (unknown without repeated rollouts)" if math.isnan(reported.b_eff.value) else ""
    window = f"   window {reported.window}" if reported.window else ""
    trials = f"{result.n_trials} trials"
    blocks = [
        [
            f"{result.name}: {settings['n_tasks']} tasks, {settings['n_rollouts']} rollouts, B = {result.batch_size}",
        ],
        [
            f"chosen     {result.baseline.label}",
            *([f"best trial {result.best_trial}"] if result.best_trial != result.baseline.label else []),
        ],
        [
            "B_eff relative to the in-batch LOO mean"
            if reported.progress is None
            else "predicted progress of a training step relative to the in-batch LOO mean",
            f"  tuned     {result.tuned:.3f}   best of {trials} on the tune part: optimistic",
            f"  chosen    {result.chosen:.3f}   best finalist on the choose part "
            f"({result.chosen_z:+.1f} standard errors over LOO)",
            f"  reported  {result.reported:.3f}   {reported_on}",
            f"  optimism  {result.optimism:+.3f}   tuned minus reported",
        ],
        [
            f"reported B_eff{unknown}",
            f"  tuned baseline    {reported.b_eff:.3g}{window}",
            f"  LOO mean          {result.judged.loo.b_eff:.3g}",
            f"  published TF-IDF  {result.judged.published.b_eff:.3g}",
            f"  tuned over published TF-IDF, paired: {result.judged.over_published:.3f}",
            *([f"  tuned over LOO: {reported.ratio:.3f}"] if reported.progress is not None else []),
            *_self_tuning_lines(result.judged.self_tuning),
        ],
        [
            f"How easy it was: best so far on the tune part ({trials}, {result.seconds_of_trials:.1f} s)",
            *_search_curve_lines(result.curve),
            *(
                [f"  95% of the final gain after {result.trials_for_95} trials"]
                if result.trials_for_95 is not None
                else []
            ),
            *_importance_lines(result.importances),
        ],
        ["Chosen in each fold:", *(f"  {label}" for label in result.fold_labels)] if result.fold_labels else [],
        [f"Note: {note}" for note in result.notes],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _self_tuning_lines(score: Score | None) -> list[str]:
    if score is None:
        return []
    window = f", window {score.window}" if score.window else ""
    return [
        f"  self-tuning{window}, without a search, on the same tasks: {score.b_eff:.3g}, {score.ratio:.3f} times LOO"
    ]


def _search_curve_lines(curve: list[tuple[int, float, float]]) -> list[str]:
    if not curve:
        return []
    low, high = min(best for _, _, best in curve), max(best for _, _, best in curve)
    if len(curve) > CURVE_LINES:
        kept = {round(i * (len(curve) - 1) / (CURVE_LINES - 1)) for i in range(CURVE_LINES)}
        curve = [point for i, point in enumerate(curve) if i in kept]
    lines = []
    for trials, seconds, best in curve:
        bar = "#" * round(1 + 24 * (best - low) / (high - low)) if high > low else "#"
        lines.append(f"  after {trials:>5} trials, {seconds:7.1f} s   {best:.3f} {bar}")
    return lines


def _importance_lines(importances: dict[str, dict[str, float]]) -> list[str]:
    lines = []
    for label, shares in importances.items():
        top = sorted(shares.items(), key=lambda item: -item[1])[:5]
        listed = ", ".join(f"{name} {share:.0%}" for name, share in top if share >= 0.005)
        lines.append(f"What mattered ({label}): {listed}")
    return lines
