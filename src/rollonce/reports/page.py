"""One HTML page with everything on it: no scripts, no fonts, no requests of any kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from rollonce import __version__
from rollonce.files import write_whole_file
from rollonce.reports import svg
from rollonce.reports.decision import B_EFF_SAYS, Decision, decide_on_board
from rollonce.reports.html import make_page_environment
from rollonce.reports.labels import is_published_example
from rollonce.reports.words import (
    capitalise_first,
    choose_decimals,
    format_interval,
    format_number,
    format_significant,
    make_board_verdict,
)
from rollonce.scoring import Board, Estimate, Score


class Row(NamedTuple):
    """A baseline's line in a plot; ``kind`` colours it: ``won``, ``lost`` or ``even``."""

    label: str
    remark: str
    kind: str
    level: Markup
    level_text: str
    level_interval: str
    ratio: Markup
    ratio_text: str
    ratio_interval: str


def write_board_page(
    path: str, boards: Sequence[Board], command: str, decisions: Sequence[Decision] | None = None
) -> None:
    """Render the page and write it, whole or not at all.

    Raises:
        InputError: if it cannot be written.
    """
    write_whole_file(path, render_board_page(boards, command, decisions))


def render_board_page(boards: Sequence[Board], command: str, decisions: Sequence[Decision] | None = None) -> str:
    """The page as text.

    Args:
        boards: One section each.
        command: What made it, shown at the end.
        decisions: What each board comes to; made here if they are not given.
    """
    environment = make_page_environment()
    environment.globals.update(
        number=format_number,
        significant=format_significant,
        interval=format_interval,
        precision=choose_decimals,
        capital=capitalise_first,
        math=math,
        min=min,
    )
    decisions = decisions or [decide_on_board(board, command) for board in boards]
    sections = [
        _make_board_section(i, board) | {"decision": decision}
        for i, (board, decision) in enumerate(zip(boards, decisions, strict=True))
    ]
    snrs = [board.moments.snr for board in boards]
    snr_scale = svg.make_logarithmic_scale(snrs)
    return environment.get_template("board.html").render(
        title=_make_page_title(boards),
        headline=_make_page_headline(boards),
        sections=sections,
        overview=_make_overview_rows(boards),
        matrix=_make_ratio_matrix(boards) if len(boards) > 1 else None,
        snr=[
            (board.name, section["id"], svg.draw_interval_bar(snr, snr_scale), format_significant(snr))
            for board, section, snr in zip(boards, sections, snrs, strict=True)
        ],
        snr_axis=svg.draw_scale_axis(snr_scale, -1),
        snr_one=svg.Scale.position_in_percent(snr_scale, 1.0) if not snr_scale.is_value_outside(1.0) else None,
        caveat=B_EFF_SAYS,
        command=command,
        version=__version__,
    )


def _make_page_title(boards: Sequence[Board]) -> str:
    return boards[0].name if len(boards) == 1 else f"Baselines on {len(boards)} sets of rollouts"


def _make_page_headline(boards: Sequence[Board]) -> str:
    if len(boards) == 1:
        return make_board_verdict(boards[0]).headline
    bests = [
        ratio for b in boards if (ratio := next((s.ratio for s in b.scores if math.isfinite(s.ratio.value)), None))
    ]
    if not bests:
        return "No baseline could be ranked on any of these sets: see their notes."
    told = sum(ratio.low > 1 for ratio in bests)
    low, high = (format_number(f(r.value for r in bests)) for f in (min, max))
    spread = f"{low} to {high}" if low != high else low
    on = (
        f"all {len(boards)} sets"
        if told == len(boards)
        else f"{told} of {len(boards)} sets"
        if told
        else "none of them"
    )
    return (
        f"The best baseline is worth {spread} times the plain leave-one-out mean; on {on} it can be told apart from it."
    )


def _make_board_section(i: int, board: Board) -> dict[str, Any]:
    levels = svg.make_level_scale(board.batch_size)
    ratios = svg.make_ratio_scale([s.ratio for s in board.scores])
    curves = {name: line for name, line in board.curve.items() if any(math.isfinite(v) for _, v in line)}
    return {
        "id": f"set-{i + 1}",
        "board": board,
        "verdict": make_board_verdict(board),
        "has_levels": any(math.isfinite(s.b_eff.value) for s in board.scores),
        "rows": [_make_baseline_row(s, levels, ratios) for s in board.scores],
        "apart": [_make_baseline_row(s, levels, ratios) for s in board.apart],
        "level_axis": svg.draw_scale_axis(levels, 1),
        "ratio_axis": svg.draw_scale_axis(ratios),
        "one": ratios.position_in_percent(1.0),
        "histogram": svg.draw_reward_histogram(board.difficulty) if board.difficulty else "",
        "curve": svg.draw_batch_size_curve(curves) if len(curves) > 1 else "",
        "curves": [_name_board_curve(name, board) for name in curves],
        "groups": [g for g in board.groups if math.isfinite(g.crossing)],
    }


def _name_board_curve(name: str, board: Board) -> str:
    if name == "perfect":
        return "B (every baseline's ceiling)"
    return f"{name} (best)" if board.scores and name == board.best.label else name


def _make_baseline_row(score: Score, levels: svg.Scale, ratios: svg.Scale) -> Row:
    kind = classify_ratio(score.ratio)
    return Row(
        label=score.label,
        remark=f"scored as {score.scored_as}" if score.scored_as else _remark_if_published(score.label),
        kind=kind,
        level=svg.draw_interval_bar(score.b_eff, levels, kind),
        level_text=format_number(score.b_eff.value, 1),
        level_interval=format_interval(score.b_eff, 1),
        ratio=svg.draw_interval_bar(score.ratio, ratios, kind),
        ratio_text=format_number(score.ratio.value, choose_decimals(score.ratio)),
        ratio_interval=format_interval(score.ratio),
    )


def _remark_if_published(label: str) -> str:
    return "published as an example of GS1" if is_published_example(label) else ""


def classify_ratio(ratio: Estimate) -> str:
    """``won`` or ``lost`` if the whole interval lies on one side of 1, else ``even``."""
    if not math.isfinite(ratio.low):
        return "even"
    return "won" if ratio.low > 1 else "lost" if ratio.high < 1 else "even"


def _make_overview_rows(boards: Sequence[Board]) -> list[dict[str, Any]]:
    bests = [next((s for s in b.scores if math.isfinite(s.ratio.value)), None) for b in boards]
    scale = svg.make_ratio_scale([s.ratio for s in bests if s is not None])
    out = []
    for i, (board, best) in enumerate(zip(boards, bests, strict=True)):
        words = make_board_verdict(board)
        out.append(
            {
                "id": f"set-{i + 1}",
                "board": board,
                "best": best,
                "apart": words.apart,
                "bar": svg.draw_interval_bar(best.ratio, scale, classify_ratio(best.ratio)) if best is not None else "",
                "one": scale.position_in_percent(1.0),
                "axis": svg.draw_scale_axis(scale),
            }
        )
    return out


def _make_ratio_matrix(boards: Sequence[Board]) -> dict[str, Any]:
    """Baselines x sets: ratios to LOO, baselines by their geometric mean over the sets that have them."""
    cells: dict[str, dict[int, Estimate]] = {}
    for k, board in enumerate(boards):
        for score in board.scores:
            if math.isfinite(score.ratio.value) and score.ratio.value > 0:
                cells.setdefault(score.label, {})[k] = score.ratio
    mean = {
        label: math.exp(sum(math.log(r.value) for r in ratios.values()) / len(ratios))
        for label, ratios in cells.items()
    }
    order = sorted(cells, key=lambda label: (len(cells[label]) < len(boards), -mean[label]))
    rows = []
    for label in order:
        row = []
        for k in range(len(boards)):
            ratio = cells[label].get(k)
            strength = 0.0 if ratio is None else min(abs(math.log(ratio.value)) / math.log(1.6), 1.0)
            row.append(
                (
                    ratio,
                    classify_ratio(ratio) if ratio else "",
                    f"{55 * strength:.0f}%",
                    "up" if ratio and ratio.value > 1 else "down",
                )
            )
        rows.append((label, row, mean[label] if len(cells[label]) == len(boards) else None))
    return {"names": [b.name for b in boards], "rows": rows}
