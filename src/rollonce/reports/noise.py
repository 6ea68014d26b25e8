"""Measured gradient noise as a table in the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollonce.noise.gradients import OnPolicy, ScoreGradients
from rollonce.noise.report import Lag, NoiseReport, NoiseRow
from rollonce.scoring import Estimate


def print_noise(
    console: Console,
    report: NoiseReport,
    gradients: ScoreGradients,
    lagged: NoiseReport | None = None,
    lagged_gradients: ScoreGradients | None = None,
    lag: Lag | None = None,
) -> None:
    """Headline, baselines, groups, approximations, and the lagged sampler where there is one."""
    r = report
    console.print()
    console.print(
        Text("gradient noise", style="bold"),
        Text(f"  batches of {r.batch_size}, {r.n_tasks} tasks x {r.group_size}", style="dim"),
    )
    for sentence in verdict(r):
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
    console.print(_rows(r.rows, lagged))
    if any(row.scored_as for row in r.rows):
        console.print(Text("* counts its own reward; measured as its leave-one-out twin", style="dim"))
    console.print(
        Text(
            "noise: trace of the batch gradient's covariance over that of LOO, below 1 is better. predicted: E[A^2] "
            "over LOO's, what B_eff says. off by: noise over predicted. of it, norms: the part that comes from score "
            "norms going with advantages. B_eff meas.: B times the oracle's noise over its own.",
            style="dim",
        )
    )
    if r.groups:
        console.print()
        console.print(
            Text(
                f"Groups of G at the same {r.batch_size} rollouts (RLOO; GRPO without std is the same up to its "
                "scale; without: no baseline at all):",
                style="dim",
            )
        )
        console.print(_groups(r))
    console.print()
    console.print(Text("The derivation's approximations, at the LOO mean", style="bold"))
    console.print(_approximations(r, gradients.on_policy))
    if lagged is not None and lagged_gradients is not None and lag is not None:
        console.print()
        console.print(Text("Rollouts of the lagged policy", style="bold"))
        for line in lag_lines(lag, lagged_gradients.on_policy):
            console.print(Text(line))
    for i, note in enumerate(r.notes):
        console.print(Padding(Text(f"Note: {note}", style="yellow"), (1 if i == 0 else 0, 0, 0, 0)))


def verdict(report: NoiseReport) -> list[str]:
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
    top = report.approximations.norm_top_share
    if top > 0.2:
        out.append(
            f"A hundredth of the rollouts carries {top:.0%} of all squared gradient norms: a few decide, and intervals "
            "may be too short."
        )
    if report.winner == report.predicted_winner:
        out.append(f"Least noise that can be had: {report.winner}, as predicted.")
    else:
        out.append(f"Least noise that can be had: {report.winner}; predicted: {report.predicted_winner}.")
    return out


def lag_lines(lag: Lag, ratio: OnPolicy) -> list[str]:
    """What the lag did, a sentence each."""
    return [
        f"Log-probabilities differ by {ratio.mean_abs_log_ratio:.3g} nats a token in the mean (largest "
        f"{ratio.max_abs_log_ratio:.3g}); a trajectory's has sd {ratio.rollout_log_ratio_sd:.3g}, so its weights are "
        f"worth {ratio.effective_share:.0%} of the rollouts.",
        f"Noise of LOO is {lag.noise:.2f} times that on-policy; "
        + (
            f"the true gradient keeps its direction by a cosine of {plain(lag.cosine)}."
            if np.isfinite(lag.cosine.value)
            else (
                "whether the true gradient keeps its direction cannot be told, for it is lost in the noise: more tasks "
                "or rollouts."
            )
        ),
    ]


def plain(e: Estimate, digits: int = 2) -> str:
    """A value with its interval."""
    if not np.isfinite(e.value):
        return "-"
    if not np.isfinite(e.low):
        return f"{e.value:.{digits}f}"
    return f"{e.value:.{digits}f} [{e.low:.{digits}f}, {e.high:.{digits}f}]"


def _rows(rows: Sequence[NoiseRow], lagged: NoiseReport | None) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("baseline", overflow="fold", min_width=16)
    for name in ("noise", "predicted", "off by"):
        table.add_column(name, justify="right", no_wrap=name != "predicted")
    table.add_column("norms", justify="right")
    table.add_column("B_eff", justify="right")
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
            Text(r.label + ("*" if r.scored_as else "")),
            Text("1" if exact else plain(r.ratio), style=style),
            Text(f"{r.predicted.value:.2f}"),
            Text("1" if exact else plain(r.gap), style=off),
            Text(f"{r.norm_to_loo.value:.2f}"),
            Text(f"{r.b_eff:.1f}"),
            Text(f"{r.b_eff_measured.value:.1f}" if np.isfinite(r.b_eff_measured.value) else "-"),
        ]
        if lagged:
            other = others.get(r.label)
            cells += [
                Text(f"{other.ratio.value:.2f}" if other else "-"),
                Text(f"{other.predicted.value:.2f}" if other else "-"),
            ]
        table.add_row(*cells)
    return table


def _groups(report: NoiseReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("G", "tasks", "noise", "predicted", "without", "dead groups"):
        table.add_column(name, justify="right")
    for g in report.groups:
        dead = f"{g.dead:.0%}" if np.isfinite(g.dead) else "-"
        table.add_row(
            f"{g.group_size}", f"{g.tasks_per_step:g}", plain(g.ratio), plain(g.predicted), plain(g.ratio_none), dead
        )
    return table


def approximation_rows(report: NoiseReport, ratio: OnPolicy) -> list[tuple[str, str, str]]:
    """(what is assumed, what was measured, how to read it)."""
    a = report.approximations
    rows = [
        ("rollouts do not covary", plain(a.cross, 4), "share of the noise; 0 if it holds"),
        ("score norm and advantage unrelated", plain(a.norm), "E[A^2 |g|^2] / (E[A^2] E[|g|^2]); 1 if it holds"),
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
            plain(a.signal, 4),
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
            ("between tasks over within (rho)", plain(a.rho, 3), "decides between one rollout per task and groups")
        )
    if np.isfinite(a.denominator_cv):
        meaning = "sd over mean: left out by one denominator for all batches"
        rows.append(("token count of a batch", f"{a.denominator_cv:.1%}", meaning))
    return rows


def _approximations(report: NoiseReport, ratio: OnPolicy) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", style="dim")
    for row in approximation_rows(report, ratio):
        table.add_row(*(Text(cell) for cell in row))
    return table


def noise_json(report: NoiseReport, gradients: ScoreGradients, lag: Lag | None = None) -> dict[str, Any]:
    """Everything that ``--json`` prints."""
    out = report._asdict() | {
        "verdict": verdict(report),
        "winner": report.winner,
        "predicted_winner": report.predicted_winner,
        "gradients": {k: getattr(gradients, k) for k in ("n_parameters", "buckets", "sketch_error", "on_policy")},
    }
    return out | ({"lag": lag} if lag is not None else {})
