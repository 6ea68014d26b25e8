"""Kernels x sets: the matrix in the terminal, and as a heat map."""

from __future__ import annotations

import math
import string

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from rollonce.tuning.transfer import Cell, TransferResult, geometric_mean_of_ratios

FULL_COLOUR = math.log(1.25)
"""Ratios of 0.8 and 1.25 and beyond have the full colour."""
_CELL_WIDTH, _CELL_HEIGHT, _TOP, _BOTTOM, _FONT = 76, 26, 130, 46, 12
_GAIN, _LOSS = (33, 102, 172), (178, 24, 43)


def print_transfer_matrix(console: Console, result: TransferResult) -> None:
    """The matrix with a letter for each set, and one sentence per row."""
    letters = [
        string.ascii_uppercase[i] if i < len(string.ascii_uppercase) else str(i) for i in range(len(result.columns))
    ]
    for letter, name in zip(letters, result.columns, strict=True):
        console.print(f"{letter}  {name}", markup=False)
    tuned_on = {f"tuned on {name}": f"tuned on {letter}" for letter, name in zip(letters, result.columns, strict=True)}
    table = Table(box=None, pad_edge=False)
    table.add_column("ratio to LOO")
    for heading in (*letters, "mean"):
        table.add_column(heading, justify="right")
    for name, cells in result.rows.items():
        table.add_row(
            tuned_on.get(name, name), *map(format_ratio_cell, cells), f"{geometric_mean_of_ratios(cells):.2f}"
        )
    console.print()
    console.print(table)
    console.print("+ / -: the 95% interval lies above / below 1.  c: cross-fitted.", markup=False)
    console.print()
    for sentence in result.sentences:
        console.print(sentence, markup=False, soft_wrap=True)


def format_ratio_cell(cell: Cell) -> str:
    """``1.12+c``: the ratio, ``+`` or ``-`` where its interval excludes 1, ``c`` where it is cross-fitted."""
    sign = "+" if cell.ratio.low > 1 else "-" if cell.ratio.high < 1 else ""
    return f"{cell.ratio.value:.2f}{sign}{'c' if cell.cross_fitted else ''}"


def draw_transfer_heat_map(result: TransferResult) -> str:
    """The heat map: blue where B_eff is above the LOO mean's, red where it is below, bold where that is certain."""
    left = 24 + 7 * max(map(len, result.rows))
    longest = max(map(len, result.columns))
    width = left + _CELL_WIDTH * len(result.columns) + round(5.2 * longest)
    height = _TOP + _CELL_HEIGHT * len(result.rows) + _BOTTOM
    parts = [
        _draw_svg_text(12, 18, "B_eff relative to the set's LOO mean (bold: the 95% interval excludes 1)", size=13),
    ]
    for j, name in enumerate(result.columns):
        x, y = left + _CELL_WIDTH * (j + 0.5), _TOP - 8
        parts.append(_draw_svg_text(x, y, name, turn=f"rotate(-35 {x:g} {y:g})"))
    for i, (name, cells) in enumerate(result.rows.items()):
        y = _TOP + _CELL_HEIGHT * i
        parts.append(_draw_svg_text(left - 8, y + 17, name, anchor="end"))
        for j, cell in enumerate(cells):
            parts.append(_draw_heat_map_cell(left + _CELL_WIDTH * j, y, cell))
    y = height - 26
    for j, ratio in enumerate((0.8, 0.9, 1.0, 1.1, 1.25)):
        x = left + 46 * j
        parts.append(
            Markup('<rect x="{}" y="{}" width="46" height="10" fill="{}"/>').format(x, y, choose_ratio_colour(ratio))
        )
        parts.append(_draw_svg_text(x + 23, y + 22, f"{ratio:g}", anchor="middle", size=10))
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" '
            'font-family="sans-serif"><title>Ratios to LOO of kernels on sets</title>'
            '<rect width="100%" height="100%" fill="white"/>{2}</svg>\n'
        ).format(width, height, Markup("\n").join(parts))
    )


def choose_ratio_colour(ratio: float) -> str:
    """White at 1, blue above, red below; grey where there is no ratio.

    >>> choose_ratio_colour(1.0), choose_ratio_colour(1.25), choose_ratio_colour(0.5)
    ('#ffffff', '#2166ac', '#b2182b')
    """
    if not ratio > 0:
        return "#dddddd"
    share = min(abs(math.log(ratio)) / FULL_COLOUR, 1.0)
    end = _GAIN if ratio > 1 else _LOSS
    return "#" + "".join(f"{round(255 + share * (part - 255)):02x}" for part in end)


def _draw_heat_map_cell(x: float, y: float, cell: Cell) -> Markup:
    ratio = cell.ratio
    certain = ratio.low > 1 or ratio.high < 1
    dark = ratio.value > 0 and abs(math.log(ratio.value)) > 0.6 * FULL_COLOUR
    box = Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}" stroke="white"/>').format(
        x, y, _CELL_WIDTH, _CELL_HEIGHT, choose_ratio_colour(ratio.value)
    )
    number = "-" if math.isnan(ratio.value) else f"{ratio.value:.2f}"
    return box + _draw_svg_text(
        x + _CELL_WIDTH / 2,
        y + 17,
        number,
        anchor="middle",
        fill="white" if dark else "black",
        weight="bold" if certain else "normal",
    )


def _draw_svg_text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    size: int = _FONT,
    fill: str = "black",
    weight: str = "normal",
    turn: str = "",
) -> Markup:
    turned = Markup(' transform="{}"').format(turn) if turn else ""
    return Markup(
        '<text x="{:g}" y="{:g}" text-anchor="{}" font-size="{}" fill="{}" font-weight="{}"{}>{}</text>'
    ).format(x, y, anchor, size, fill, weight, turned, content)
