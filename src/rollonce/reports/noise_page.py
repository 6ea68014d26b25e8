"""Measured gradient noise as one HTML page, in the manner of the board's: no scripts, no fonts, no requests."""

from __future__ import annotations

import math

from markupsafe import Markup

from rollonce import __version__
from rollonce.files import write_whole_file
from rollonce.noise.gradients import ScoreGradients
from rollonce.noise.report import Lag, NoiseReport
from rollonce.reports import svg
from rollonce.reports.html import page_environment
from rollonce.reports.noise import approximation_rows, lag_lines, plain, verdict
from rollonce.scoring import Estimate


def write_noise_page(
    path: str,
    report: NoiseReport,
    gradients: ScoreGradients,
    command: str,
    lagged: NoiseReport | None = None,
    lagged_gradients: ScoreGradients | None = None,
    lag: Lag | None = None,
) -> None:
    """Render the page and write it, whole or not at all.

    Raises:
        InputError: if it cannot be written.
    """
    environment = page_environment()
    scale = svg.ratio_scale([e for r in report.rows for e in (r.ratio, r.predicted)])
    rows = [
        (r, _bar(r.ratio, r.predicted, scale), plain(r.ratio), f"{r.predicted.value:.2f}", plain(r.gap))
        for r in report.rows
    ]
    groups = [
        (g, _bar(g.ratio, g.predicted, scale), plain(g.ratio), plain(g.predicted), plain(g.ratio_none))
        for g in report.groups
    ]
    page = environment.get_template("noise.html").render(
        report=report,
        gradients=gradients,
        verdict=verdict(report),
        rows=rows,
        groups=groups,
        approximations=approximation_rows(report, gradients.on_policy),
        lag_lines=lag_lines(lag, lagged_gradients.on_policy)
        if lag is not None and lagged_gradients is not None
        else [],
        lagged_rows=[(r.label, plain(r.ratio), f"{r.predicted.value:.2f}", plain(r.gap)) for r in lagged.rows]
        if lagged
        else [],
        axis=svg.axis(scale),
        one=scale.at(1.0),
        command=command,
        version=__version__,
    )
    write_whole_file(path, page)


def _bar(measured: Estimate, predicted: Estimate, scale: svg.Scale) -> Markup:
    """The measured interval, and the prediction as a ring."""
    kind = "won" if measured.high < 1 else "lost" if measured.low > 1 else "even"
    bar = svg.interval_bar(measured, scale, kind)
    if not math.isfinite(predicted.value) or scale.beyond(predicted.value):
        return bar
    ring = Markup('<circle class="ring" cx="{}%" cy="11" r="5.5"/></svg>').format(f"{scale.at(predicted.value):.2f}")
    return bar.replace(Markup("</svg>"), ring) if bar else bar
