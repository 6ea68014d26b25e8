"""The rows of a board elsewhere than in a terminal: as records for CSV and data frames, as Markdown, as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from rollonce.reports.columns import COLUMNS, CSV_FIELDS, STEP_COLUMNS, select_known_columns
from rollonce.reports.decision import B_EFF_SAYS, Decision
from rollonce.reports.labels import is_published_example
from rollonce.reports.words import format_with_interval, is_better_than_loo, make_board_verdict, moments_sentence
from rollonce.scoring import Board, Score


def make_board_records(board: Board) -> list[dict[str, Any]]:
    """One record with `CSV_FIELDS` for each baseline, in the order of the board; ``rank`` is None for what stands apart
    (``needs`` says why), unknown figures are NaN."""
    ranked: list[tuple[int | None, Score]] = [*enumerate(board.scores, 1), *((None, s) for s in board.apart)]
    return [_make_board_record(board, rank, score) for rank, score in ranked]


def render_board_markdown(board: Board, decision: Decision | None = None) -> str:
    """Headline, moments, a table of all rows, notes and the decision."""
    words = make_board_verdict(board)
    columns = select_known_columns([*board.scores, *board.apart])
    table = [["baseline", *(column.meaning for column in columns)]]
    table += [
        [
            _escape_marked_label(score),
            *(format_with_interval(column.get_score_estimate(score), column.digits or 2) for column in columns),
        ]
        for score in [*board.scores, *board.apart]
    ]
    lines = [
        _format_markdown_row(table[0]),
        _format_markdown_row(["---", *["---:"] * len(columns)]),
        *map(_format_markdown_row, table[1:]),
    ]
    marks = [
        sentence
        for sentence, is_there in (
            ("\\* counts its own reward; scored as its leave-one-out twin.", any(s.scored_as for s in board.scores)),
            ("† needs the same task again, or extra rollouts: a ceiling, not a choice.", bool(board.apart)),
            (
                "\\+ an example of GS1 as it was published.",
                any(is_published_example(s.label) for s in board.scores),
            ),
        )
        if is_there
    ]
    parts = [
        f"## {_escape_markdown(board.name)}, batches of {board.batch_size}",
        " ".join([words.headline, *words.more]),
        moments_sentence(board),
        "\n".join(lines),
        "  \n".join(marks),
        "\n".join(f"- {_escape_markdown(note)}" for note in [*board.notes, B_EFF_SAYS]),
    ]
    if decision is not None:
        answer = f"{decision.answer.capitalize()}, because {decision.because}."
        parts.append(f"**Is one rollout per task enough here?** {answer}")
        parts.append(f"**Next:** `{decision.next_step}`")
    return "\n\n".join(part for part in parts if part) + "\n"


def render_board_html(board: Board, decision: Decision, rows: Sequence[Score]) -> str:
    """Headline, these rows and the decision, for a notebook: colours of the notebook's own theme."""
    columns = select_known_columns([*board.scores, *board.apart])
    heads = Markup("").join(Markup("<th>{}</th>").format(column.meaning) for column in columns)
    body = []
    for score in rows:
        weight = "bold" if is_better_than_loo(score) else "normal"
        cells = Markup("").join(
            Markup('<td style="font-weight:{}">{}</td>').format(
                weight, format_with_interval(c.get_score_estimate(score), c.digits or 2)
            )
            for c in columns
        )
        label = Markup('<td style="text-align:left">{}</td>').format(_format_marked_label(score))
        body.append(Markup("<tr>{}{}</tr>").format(label, cells))
    hidden = len(board.scores) - len(rows)
    more = Markup("<p><small>{} more rows: to_frame() has them.</small></p>").format(hidden) if hidden > 0 else ""
    words = make_board_verdict(board)
    return str(
        Markup(
            "<div><p><b>{}</b>, batches of {}<br>{}<br><small>{}</small></p>"
            '<table><thead><tr><th style="text-align:left">baseline</th>{}</tr></thead><tbody>{}</tbody></table>{}'
            "<p><b>Is one rollout per task enough here?</b> {}, because {}.</p></div>"
        ).format(
            board.name,
            board.batch_size,
            " ".join([words.headline, *words.more]),
            moments_sentence(board),
            heads,
            Markup("").join(body),
            more,
            decision.answer.capitalize(),
            decision.because,
        )
    )


def _make_board_record(board: Board, rank: int | None, score: Score) -> dict[str, Any]:
    moments = board.moments
    beside = {
        "set": board.name,
        "batch_size": board.batch_size,
        "rank": rank,
        "baseline": score.label,
        **{
            f"{column.field}{end}": value
            for column in (*COLUMNS, *STEP_COLUMNS)
            for end, value in zip(("", "_low", "_high"), column.get_score_estimate(score), strict=True)
        },
        "n_tasks": moments.n_tasks,
        "n_rollouts": moments.n_rollouts,
        "snr": moments.snr.value,
    }
    return {name: beside[name] if name in beside else getattr(score, name) for name in CSV_FIELDS}


def _format_marked_label(score: Score) -> str:
    marks = (
        ("*" if score.scored_as else "")
        + ("+" if is_published_example(score.label) else "")
        + ("†" if score.needs else "")
    )
    return score.label + marks


def _escape_marked_label(score: Score) -> str:
    return _escape_markdown(_format_marked_label(score))


def _escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, within a table too."""
    for character in ("\\", "*", "_", "|", "`", "<", "+"):
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def _format_markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def format_csv_value(value: Any) -> Any:
    """Empty where there is no value."""
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
