"""Measured progress in words, in the terminal and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollonce.files import convert_to_plain_json
from rollonce.noise.exponent import SurprisalExponent
from rollonce.noise.progress import LOO, ProgressReport, ProgressRow
from rollonce.noise.report import NoiseReport
from rollonce.reports.labels import fit_label_to_console
from rollonce.scoring import Estimate

TRUSTED_TOP_SHARE = 0.2
"""Above this share of all squared gradient norms in one percent of the rollouts, means of them are not to be
trusted."""
CEILING = "ceiling"


def format_noise_estimate(e: Estimate, digits: int = 2) -> str:
    """``1.10 [1.02, 1.19]``; a dash where there is no value."""
    if not np.isfinite(e.value):
        return "-"
    if not np.isfinite(e.low):
        return f"{e.value:.{digits}f}"
    return f"{e.value:.{digits}f} [{e.low:.{digits}f}, {e.high:.{digits}f}]"


def make_progress_verdict(progress: ProgressReport, noise: NoiseReport) -> list[str]:
    """What a step feels here, and how far B_eff says it."""
    b = progress.batch_size
    usable = [r for r in progress.rows if not r.note.startswith(CEILING)]
    best = usable[0]
    surely = [r for r in usable if r.progress.low > 1]
    if best.label == LOO:
        out = [f"No baseline's step points better than that of the {LOO} here."]
    else:
        equivalent = f", as the {LOO} with {format_noise_estimate(best.equivalent_batch, 0)} rollouts instead of {b}"
        out = [
            f"Most progress per step: {best.label}, {format_noise_estimate(best.progress)} times that of the {LOO}"
            + (equivalent if np.isfinite(best.equivalent_batch.value) else "")
            + "."
        ]
        out.append(
            f"{len(surely)} of {len(usable) - 1} baselines are better than the {LOO} by more than their interval."
            if surely
            else "No interval excludes 1: more tasks or rollouts would tell."
        )
    agreement = compute_rank_agreement(progress, noise)
    if agreement is not None:
        out.append(
            f"B_eff puts the same baselines in an order whose rank correlation with this one is {agreement:.2f}."
        )
    return out


def compute_rank_agreement(progress: ProgressReport, noise: NoiseReport) -> float | None:
    """Spearman's correlation of measured progress with B_eff, over the baselines that have both; None below four."""
    b_eff = {r.label: -r.predicted.value for r in noise.rows}
    pairs = [
        (r.progress.value, b_eff[r.label])
        for r in progress.rows
        if r.label in b_eff and not r.note.startswith(CEILING) and np.isfinite(r.progress.value)
    ]
    if len(pairs) < 4:
        return None
    measured, promised = np.array(pairs).T
    value = float(np.asarray(scipy.stats.spearmanr(measured, promised))[0])
    return value if np.isfinite(value) else None


def make_progress_table(console: Console, progress: ProgressReport, noise: NoiseReport) -> Table:
    """Progress and equivalent batch of every contender, beside B_eff."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("baseline", overflow="fold", min_width=16)
    for name in ("progress / LOO", "equivalent batch", "B_eff"):
        table.add_column(name, justify="right", no_wrap=True)
    known = {r.label: r for r in noise.rows}
    for r in progress.rows:
        noise_row = known.get(r.label)
        table.add_row(
            Text(fit_label_to_console(console, r.label)),
            Text("1" if r.label == LOO else format_noise_estimate(r.progress), style=_choose_row_style(r)),
            Text(format_equivalent_batch(r)),
            Text(f"{noise_row.b_eff:.1f}" if noise_row else "-"),
        )
    return table


def format_equivalent_batch(row: ProgressRow) -> str:
    """The equivalent batch; a star where it lies beyond the sizes that were measured."""
    if row.label == LOO:
        return f"{row.equivalent_batch.value:.0f}"
    return format_noise_estimate(row.equivalent_batch, 0) + ("*" if row.beyond_curve else "")


def describe_loo_curve(progress: ProgressReport) -> str:
    """LOO's progress by batch size, in a sentence."""
    parts = [f"{size}: {e.value:.2f}" for size, e in progress.curve]
    return f"{LOO} by batch size, progress over that at {progress.batch_size}: {', '.join(parts)}."


def describe_exponents(exponents: list[SurprisalExponent]) -> list[str]:
    """What the surprisal says of gradient norms, a sentence for each metric."""
    names = {"plain": "squared gradient norms", "adam": "squared norms in Adam's metric"}
    return [
        f"{names[e.metric][0].upper()}{names[e.metric][1:]} grow as the surprisal to the power "
        f"{format_noise_estimate(e.exponent)}; correlation of logarithms {e.correlation:.2f}, rest {e.rest:.2f} of "
        f"{e.total:.2f}; left between rollouts above and below the mean reward "
        f"{format_noise_estimate(e.right_over_wrong)} nats, so that between those the power is "
        f"{format_noise_estimate(e.between_rewards)}."
        for e in exponents
    ]


def describe_measurement(progress: ProgressReport) -> str:
    """The optimizer and the amount of work behind the table."""
    clipped = f"; {progress.clipped_share:.0%} of its batches were clipped" if progress.clipped_share else ""
    return (
        f"Steps of {progress.optimizer.describe_in_words()}{clipped}; {progress.n_steps:,} steps on "
        f"{progress.n_coordinates:,} of {progress.n_parameters:,} parameters, {progress.n_tasks} tasks. "
        "Equivalent batch: where LOO makes the same progress (* beyond the sizes measured). "
        "B_eff counts squared errors of rewards, not of gradients."
    )


def describe_trust_in_norms(top_share: float) -> str:
    """How far means of squared norms can be trusted."""
    words = f"One percent of the rollouts carries {top_share:.0%} of all squared gradient norms"
    return words + (
        f": more than {TRUSTED_TOP_SHARE:.0%}, so these means are not to be trusted."
        if top_share > TRUSTED_TOP_SHARE
        else "."
    )


def make_progress_json(progress: ProgressReport) -> dict[str, Any]:
    """Everything but the rows, as plain JSON."""
    document = convert_to_plain_json(progress._replace(rows=[]))
    document.pop("rows")
    document["curve"] = [{"batch_size": size, **convert_to_plain_json(e)} for size, e in progress.curve]
    return document


def merge_baseline_rows(progress: ProgressReport | None, noise: NoiseReport) -> list[dict[str, Any]]:
    """One row per baseline with ``progress`` and ``equivalent_batch``, and what the arithmetic noise says of it; null
    where one of the two was not measured."""
    missing = {"value": None, "low": None, "high": None}
    noise_rows = {r.label: convert_to_plain_json(r) for r in noise.rows}
    if progress is None:
        return [row | {"progress": missing, "equivalent_batch": missing} for row in noise_rows.values()]
    empty = dict.fromkeys(noise.rows[0]._fields) if noise.rows else {}
    rows = []
    for row in progress.rows:
        own = noise_rows.pop(row.label, None)
        rows.append(
            (own or empty)
            | {k: v for k, v in convert_to_plain_json(row).items() if own is None or k not in own or k == "note"}
        )
        if own is not None and own.get("note"):
            rows[-1]["note"] = "; ".join(dict.fromkeys(filter(None, (own["note"], row.note))))
    rows += [row | {"progress": missing, "equivalent_batch": missing} for row in noise_rows.values()]
    return rows


def _choose_row_style(row: ProgressRow) -> str:
    if row.label == LOO:
        return ""
    return "green" if row.progress.low > 1 else "red" if row.progress.high < 1 else ""


__all__ = [
    "TRUSTED_TOP_SHARE",
    "compute_rank_agreement",
    "describe_exponents",
    "describe_loo_curve",
    "describe_measurement",
    "describe_trust_in_norms",
    "format_equivalent_batch",
    "format_noise_estimate",
    "make_progress_json",
    "make_progress_table",
    "make_progress_verdict",
    "merge_baseline_rows",
]
