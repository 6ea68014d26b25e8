"""Measured gradient noise as one HTML page, in the manner of the board's: no scripts, no fonts, no requests."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from rollonce import __version__
from rollonce.files import write_whole_file
from rollonce.noise.progress import LOO
from rollonce.noise.report import Lag
from rollonce.noise.session import Measurement
from rollonce.reports import svg
from rollonce.reports.html import make_page_environment
from rollonce.reports.noise import describe_lag_effects, make_approximation_rows, make_noise_verdict
from rollonce.reports.progress import (
    describe_exponents,
    describe_loo_curve,
    describe_measurement,
    describe_trust_in_norms,
    format_equivalent_batch,
    format_noise_estimate,
    make_progress_verdict,
)
from rollonce.scoring import Estimate


def write_noise_page(
    path: str, measured: Measurement, command: str, lagged: Measurement | None = None, lag: Lag | None = None
) -> None:
    """Render the page and write it, whole or not at all.

    Raises:
        InputError: if it cannot be written.
    """
    environment = make_page_environment()
    report, gradients, progress = measured.noise, measured.gradients, measured.progress
    scale = svg.make_ratio_scale([e for r in report.rows for e in (r.ratio, r.predicted)])
    rows = [
        (
            r,
            _draw_bar_with_ring(r.ratio, r.predicted, scale),
            format_noise_estimate(r.ratio),
            f"{r.predicted.value:.2f}",
            format_noise_estimate(r.gap),
        )
        for r in report.rows
    ]
    groups = [
        (
            g,
            _draw_bar_with_ring(g.ratio, g.predicted, scale),
            format_noise_estimate(g.ratio),
            format_noise_estimate(g.predicted),
            format_noise_estimate(g.ratio_none),
        )
        for g in report.groups
    ]
    late = lagged.noise.rows if lagged else []
    page = environment.get_template("noise.html").render(
        report=report,
        gradients=gradients,
        headline=make_progress_verdict(progress, report) if progress else make_noise_verdict(report),
        verdict=[
            describe_trust_in_norms(report.approximations.norm_top_share),
            *(make_noise_verdict(report) if progress else []),  # without progress it is the headline
        ],
        progress=_make_progress_section(measured),
        rows=rows,
        groups=groups,
        approximations=make_approximation_rows(report, gradients.on_policy),
        lag_lines=describe_lag_effects(lag, lagged.gradients.on_policy)
        if lag is not None and lagged is not None
        else [],
        lagged_rows=[
            (r.label, format_noise_estimate(r.ratio), f"{r.predicted.value:.2f}", format_noise_estimate(r.gap))
            for r in late
        ],
        notes=[*(progress.notes if progress else []), *report.notes],
        axis=svg.draw_scale_axis(scale),
        one=scale.position_in_percent(1.0),
        command=command,
        version=__version__,
    )
    write_whole_file(path, page)


def _make_progress_section(measured: Measurement) -> dict[str, Any] | None:
    """The table of progress: equivalent batches over B as intervals, what B_eff says of them as rings."""
    progress, noise = measured.progress, measured.noise
    if progress is None:
        return None
    b = progress.batch_size
    b_eff = {r.label: 1 / r.predicted.value for r in noise.rows if r.predicted.value > 0}
    relative = [Estimate(*(x / b for x in r.equivalent_batch)) for r in progress.rows]
    promised = [Estimate(v, v, v) if (v := b_eff.get(r.label)) else _UNKNOWN for r in progress.rows]
    scale = svg.make_ratio_scale([e for e in (*relative, *promised) if math.isfinite(e.value)])
    return {
        "axis": svg.draw_scale_axis(scale),
        "one": scale.position_in_percent(1.0),
        "rows": [
            (
                r,
                _draw_bar_with_ring(measured_ratio, ring, scale, more_is_better=True)
                if math.isfinite(measured_ratio.value)
                else "",
                "1" if r.label == LOO else format_noise_estimate(r.progress),
                format_equivalent_batch(r),
                f"{b * ring.value:.1f}" if math.isfinite(ring.value) else "-",
            )
            for r, measured_ratio, ring in zip(progress.rows, relative, promised, strict=True)
        ],
        "how": [describe_measurement(progress), describe_loo_curve(progress), *describe_exponents(measured.exponents)],
    }


_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def _draw_bar_with_ring(
    measured: Estimate, predicted: Estimate, scale: svg.Scale, *, more_is_better: bool = False
) -> Markup:
    """The measured interval, and the prediction as a ring."""
    above, below = ("won", "lost") if more_is_better else ("lost", "won")
    kind = below if measured.high < 1 else above if measured.low > 1 else "even"
    bar = svg.draw_interval_bar(measured, scale, kind)
    if not math.isfinite(predicted.value) or scale.is_value_outside(predicted.value):
        return bar
    ring = Markup('<circle class="ring" cx="{}%" cy="11" r="5.5"/></svg>').format(
        f"{scale.position_in_percent(predicted.value):.2f}"
    )
    return bar.replace(Markup("</svg>"), ring) if bar else bar
