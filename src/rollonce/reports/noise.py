"""Measured gradient noise as a table in the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollonce.files import convert_to_plain_json
from rollonce.noise.gradients import OnPolicy
from rollonce.noise.report import Lag, NoiseReport, NoiseRow
from rollonce.noise.session import Measurement
from rollonce.reports.labels import fit_label_to_console
from rollonce.reports.progress import (
    TRUSTED_TOP_SHARE,
    compute_rank_agreement,
    describe_exponents,
    describe_loo_curve,
    describe_measurement,
    describe_trust_in_norms,
    format_noise_estimate,
    make_progress_json,
    make_progress_table,
    make_progress_verdict,
    merge_baseline_rows,
)

_WIDTH_OF_ALL_COLUMNS = 100


def print_noise_report(
    console: Console, measured: Measurement, lagged: Measurement | None = None, lag: Lag | None = None
) -> None:
    """Progress first; then the arithmetic noise, groups, approximations, and the lagged sampler where there is one."""
    r, gradients = measured.noise, measured.gradients
    console.print()
    console.print(
        Text("what a step feels", style="bold"),
        Text(f"  batches of {r.batch_size}, {r.n_tasks} tasks x {r.group_size}", style="dim"),
    )
    if measured.progress is not None:
        for sentence in make_progress_verdict(measured.progress, r):
            console.print(Text(sentence))
        console.print()
        console.print(make_progress_table(console, measured.progress, r))
        console.print(Text(describe_measurement(measured.progress), style="dim"))
        console.print(Text(describe_loo_curve(measured.progress), style="dim"))
    if measured.exponents:
        console.print()
    for line in describe_exponents(measured.exponents):
        console.print(Text(line))
    console.print()
    console.print(Text("Arithmetic noise of the gradient", style="bold"))
    top = r.approximations.norm_top_share
    console.print(Text(describe_trust_in_norms(top), style="yellow" if top > TRUSTED_TOP_SHARE else ""))
    for sentence in make_noise_verdict(r):
        console.print(Text(sentence))
    console.print(
        Text(
            f"mean reward {r.mean_reward:.3f}, s2 {r.s2:.3g}; {gradients.n_parameters:,} parameters"
            + (
                f", gradients kept as {gradients.buckets:,} numbers (error of |g|^2 {gradients.sketch_error:.1%})"
                if gradients.buckets
                else ""
            ),
            style="dim",
        )
    )
    console.print()
    console.print(make_noise_table(console, r.rows, lagged.noise if lagged else None))
    if any(row.scored_as for row in r.rows):
        console.print(Text("* counts its own reward; measured as its leave-one-out twin", style="dim"))
    console.print(
        Text(
            "noise: trace of the batch gradient's covariance over that of LOO, below 1 is less. predicted: E[A^2] "
            "over LOO's, what B_eff says. off by: noise over predicted."
            + (
                " norms: the part of it that comes from score norms going with advantages. B_eff meas.: B times the "
                "oracle's noise over its own."
                if console.width >= _WIDTH_OF_ALL_COLUMNS
                else ""
            ),
            style="dim",
        )
    )
    if r.groups:
        console.print()
        console.print(
            Text(
                f"Groups of G at the same {r.batch_size} rollouts (RLOO; GRPO without std is the same up to its "
                "scale):",
                style="dim",
            )
        )
        console.print(_make_group_table(r))
    console.print()
    console.print(Text("The derivation's approximations, at the LOO mean", style="bold"))
    console.print(_make_approximation_table(r, gradients.on_policy))
    if lagged is not None and lag is not None:
        console.print()
        console.print(Text("Rollouts of the lagged policy", style="bold"))
        for line in describe_lag_effects(lag, lagged.gradients.on_policy):
            console.print(Text(line))
    notes = [*(measured.progress.notes if measured.progress else []), *r.notes]
    for i, note in enumerate(notes):
        console.print(Padding(Text(f"Note: {note}", style="yellow"), (1 if i == 0 else 0, 0, 0, 0)))


def make_noise_verdict(report: NoiseReport) -> list[str]:
    """How far B_eff predicts here, in words."""
    rows = [r for r in report.rows if not r.scored_as and r.label != "LOO mean"]
    off = [r for r in rows if r.gap.low > 1 or r.gap.high < 1]
    size = float(np.exp(np.median([abs(np.log(r.gap.value)) for r in rows if r.gap.value > 0]))) - 1 if rows else 0.0
    logs = np.array(
        [
            [np.log(r.ratio.value), np.log(r.predicted.value)]
            for r in rows
            if r.ratio.value > 0 and r.predicted.value > 0
        ]
    )
    together = float(np.corrcoef(logs.T)[0, 1]) if len(logs) > 2 and (logs.std(axis=0) > 0).all() else np.nan
    out = [
        f"B_eff is off by {size:.0%} in the median of {len(rows)} baselines; for {len(off)} the 95% interval excludes "
        "agreement."
        + (f" Correlation of log noise with its prediction: {together:.2f}." if np.isfinite(together) else "")
    ]
    if report.winner == report.predicted_winner:
        out.append(f"Least noise that can be had: {report.winner}, as predicted.")
    else:
        out.append(f"Least noise that can be had: {report.winner}; predicted: {report.predicted_winner}.")
    return out


def describe_lag_effects(lag: Lag, ratio: OnPolicy) -> list[str]:
    """What the lag did, a sentence each."""
    return [
        f"Log-probabilities differ by {ratio.mean_abs_log_ratio:.3g} nats a token in the mean (largest "
        f"{ratio.max_abs_log_ratio:.3g}); a trajectory's has sd {ratio.rollout_log_ratio_sd:.3g}, so its weights are "
        f"worth {ratio.effective_share:.0%} of the rollouts.",
        f"Noise of LOO is {lag.noise:.2f} times that on-policy; "
        + (
            f"the true gradient keeps its direction by a cosine of {format_noise_estimate(lag.cosine)}."
            if np.isfinite(lag.cosine.value)
            else (
                "whether the true gradient keeps its direction cannot be told, for it is lost in the noise: more tasks "
                "or rollouts."
            )
        ),
    ]


def make_noise_table(console: Console, rows: Sequence[NoiseRow], lagged: NoiseReport | None) -> Table:
    """A line per baseline; where there is little room short labels, and no columns that explain the others."""
    all_columns = console.width >= _WIDTH_OF_ALL_COLUMNS
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("baseline", overflow="fold", min_width=16)
    for name in ("noise", "predicted", "off by"):
        table.add_column(name, justify="right", no_wrap=name != "predicted")
    if all_columns:
        table.add_column("norms", justify="right")
    table.add_column("B_eff", justify="right")
    if all_columns:
        table.add_column("meas.", justify="right")
    others = {r.label: r for r in lagged.rows} if lagged else {}
    if lagged:
        table.add_column("lagged", justify="right")
        table.add_column("pred.", justify="right")
    for r in rows:
        exact = r.ratio.low == r.ratio.high
        style = "" if exact else "green" if r.ratio.high < 1 else "red" if r.ratio.low > 1 else ""
        off = "yellow" if not exact and (r.gap.low > 1 or r.gap.high < 1) else ""
        cells = [
            Text(fit_label_to_console(console, r.label) + ("*" if r.scored_as else "")),
            Text("1" if exact else format_noise_estimate(r.ratio), style=style),
            Text(f"{r.predicted.value:.2f}"),
            Text("1" if exact else format_noise_estimate(r.gap), style=off),
            *([Text(f"{r.norm_to_loo.value:.2f}")] if all_columns else []),
            Text(f"{r.b_eff:.1f}"),
        ]
        if all_columns:
            cells.append(Text(f"{r.b_eff_measured.value:.1f}" if np.isfinite(r.b_eff_measured.value) else "-"))
        if lagged:
            other = others.get(r.label)
            cells += [
                Text(f"{other.ratio.value:.2f}" if other else "-"),
                Text(f"{other.predicted.value:.2f}" if other else "-"),
            ]
        table.add_row(*cells)
    return table


def _make_group_table(report: NoiseReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("G", "tasks", "noise", "predicted", "without", "dead groups"):
        table.add_column(name, justify="right")
    for g in report.groups:
        dead = f"{g.dead:.0%}" if np.isfinite(g.dead) else "-"
        table.add_row(
            f"{g.group_size}",
            f"{g.tasks_per_step:g}",
            format_noise_estimate(g.ratio),
            format_noise_estimate(g.predicted),
            format_noise_estimate(g.ratio_none),
            dead,
        )
    return table


def make_approximation_rows(report: NoiseReport, ratio: OnPolicy) -> list[tuple[str, str, str]]:
    """(what is assumed, what was measured, how to read it)."""
    a = report.approximations
    rows = [
        ("rollouts do not covary", format_noise_estimate(a.cross, 4), "share of the noise; 0 if it holds"),
        (
            "score norm and advantage unrelated",
            format_noise_estimate(a.norm),
            "E[A^2 |g|^2] / (E[A^2] E[|g|^2]); 1 if it holds",
        ),
        (
            "  |g|^2 above over below the mean reward",
            f"{a.norm_good_to_bad:.2f}",
            f"correlation with reward {a.norm_reward_correlation:.2f}",
        ),
        (
            "  share of |g|^2 in 1% of the rollouts",
            f"{a.norm_top_share:.0%}",
            "1% if all are alike; large: a few rollouts decide",
        ),
        (
            "noise far above signal",
            format_noise_estimate(a.signal, 4),
            f"|true gradient|^2 over the noise of {report.batch_size} rollouts; 0 if it holds",
        ),
        (
            "on-policy",
            f"{ratio.mean_abs_log_ratio:.1e}",
            f"|log ratio| a token; largest {ratio.max_abs_log_ratio:.1e}; 0 if it holds",
        ),
    ]
    if np.isfinite(a.rho.value):
        rows.append(
            (
                "between tasks over within (rho)",
                format_noise_estimate(a.rho, 3),
                "decides between one rollout per task and groups",
            )
        )
    if np.isfinite(a.denominator_cv):
        meaning = "sd over mean: left out by one denominator for all batches"
        rows.append(("token count of a batch", f"{a.denominator_cv:.1%}", meaning))
    return rows


def _make_approximation_table(report: NoiseReport, ratio: OnPolicy) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", style="dim")
    for row in make_approximation_rows(report, ratio):
        table.add_row(*(Text(cell) for cell in row))
    return table


def make_noise_json(measured: Measurement, lag: Lag | None = None) -> dict[str, Any]:
    """Everything as plain JSON; what is not finite is null. Every row has ``progress`` and ``equivalent_batch``."""
    report, gradients = measured.noise, measured.gradients
    document = convert_to_plain_json(report) | {
        "rows": merge_baseline_rows(measured.progress, report),
        "verdict": make_noise_verdict(report),
        "winner": report.winner,
        "predicted_winner": report.predicted_winner,
        "gradients": {
            k: convert_to_plain_json(getattr(gradients, k))
            for k in ("n_parameters", "buckets", "sketch_error", "on_policy")
        },
        "exponents": {e.metric: convert_to_plain_json(e) for e in measured.exponents},
    }
    if measured.progress is not None:
        document["progress"] = make_progress_json(measured.progress)
        document["verdict"] = make_progress_verdict(measured.progress, report) + document["verdict"]
        document["rank_correlation_with_b_eff"] = compute_rank_agreement(measured.progress, report)
    return document | ({"lag": convert_to_plain_json(lag)} if lag is not None else {})
