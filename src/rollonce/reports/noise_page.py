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
from rollonce.reports.html import page_environment
from rollonce.reports.noise import approximation_rows, lag_lines, verdict
from rollonce.reports.progress import (
    curve_line,
    equivalent_words,
    exponent_lines,
    how_measured,
    progress_verdict,
    trust_line,
    with_interval,
)
from rollonce.scoring import Estimate


def write_noise_page(
    path: str, measured: Measurement, command: str, lagged: Measurement | None = None, lag: Lag | None = None
) -> None:
    """Render the page and write it, whole or not at all.

    Raises:
        InputError: if it cannot be written.
    """
    environment = page_environment()
    report, gradients, progress = measured.noise, measured.gradients, measured.progress
    scale = svg.ratio_scale([e for r in report.rows for e in (r.ratio, r.predicted)])
    rows = [
        (r, _bar(r.ratio, r.predicted, scale), with_interval(r.ratio), f"{r.predicted.value:.2f}", with_interval(r.gap))
        for r in report.rows
    ]
    groups = [
        (
            g,
            _bar(g.ratio, g.predicted, scale),
            with_interval(g.ratio),
            with_interval(g.predicted),
            with_interval(g.ratio_none),
        )
        for g in report.groups
    ]
    late = lagged.noise.rows if lagged else []
    page = environment.get_template("noise.html").render(
        report=report,
        gradients=gradients,
        headline=progress_verdict(progress, report) if progress else verdict(report),
        verdict=[trust_line(report.approximations.norm_top_share), *verdict(report)],
        progress=_progress(measured),
        rows=rows,
        groups=groups,
        approximations=approximation_rows(report, gradients.on_policy),
        lag_lines=lag_lines(lag, lagged.gradients.on_policy) if lag is not None and lagged is not None else [],
        lagged_rows=[(r.label, with_interval(r.ratio), f"{r.predicted.value:.2f}", with_interval(r.gap)) for r in late],
        notes=[*(progress.notes if progress else []), *report.notes],
        axis=svg.axis(scale),
        one=scale.at(1.0),
        command=command,
        version=__version__,
    )
    write_whole_file(path, page)


def _progress(measured: Measurement) -> dict[str, Any] | None:
    """The table of progress: equivalent batches over B as intervals, what B_eff says of them as rings."""
    progress, noise = measured.progress, measured.noise
    if progress is None:
        return None
    b = progress.batch_size
    b_eff = {r.label: 1 / r.predicted.value for r in noise.rows if r.predicted.value > 0}
    relative = [Estimate(*(x / b for x in r.equivalent_batch)) for r in progress.rows]
    promised = [Estimate(v, v, v) if (v := b_eff.get(r.label)) else _UNKNOWN for r in progress.rows]
    scale = svg.ratio_scale([e for e in (*relative, *promised) if math.isfinite(e.value)])
    return {
        "axis": svg.axis(scale),
        "one": scale.at(1.0),
        "rows": [
            (
                r,
                _bar(measured_ratio, ring, scale, more_is_better=True) if math.isfinite(measured_ratio.value) else "",
                "1" if r.label == LOO else with_interval(r.progress),
                equivalent_words(r),
                f"{b * ring.value:.1f}" if math.isfinite(ring.value) else "-",
            )
            for r, measured_ratio, ring in zip(progress.rows, relative, promised, strict=True)
        ],
        "how": [how_measured(progress), curve_line(progress), *exponent_lines(measured.exponents)],
    }


_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def _bar(measured: Estimate, predicted: Estimate, scale: svg.Scale, *, more_is_better: bool = False) -> Markup:
    """The measured interval, and the prediction as a ring."""
    above, below = ("won", "lost") if more_is_better else ("lost", "won")
    kind = below if measured.high < 1 else above if measured.low > 1 else "even"
    bar = svg.interval_bar(measured, scale, kind)
    if not math.isfinite(predicted.value) or scale.beyond(predicted.value):
        return bar
    ring = Markup('<circle class="ring" cx="{}%" cy="11" r="5.5"/></svg>').format(f"{scale.at(predicted.value):.2f}")
    return bar.replace(Markup("</svg>"), ring) if bar else bar
