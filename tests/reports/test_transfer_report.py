"""The matrix of kernels x sets: the letters, the marks of certainty, and the heat map's colours."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

from rich.console import Console

from rollonce.reports.transfer import choose_ratio_colour, draw_transfer_heat_map, print_transfer_matrix
from rollonce.scoring import Estimate
from rollonce.tuning.transfer import Cell, TransferResult

SVG = "{http://www.w3.org/2000/svg}"
RESULT = TransferResult(
    ["sums & <more>", "puzzles"],
    {
        "tuned on sums & <more>": [
            Cell(Estimate(1.2, 1.1, 1.3), "a", True),
            Cell(Estimate(0.75, 0.7, 0.8), "a", False),
        ],
        "LOO mean": [Cell(Estimate(1.0, 1.0, 1.0), "b", False), Cell(Estimate(1.0, 1.0, 1.0), "b", False)],
    },
    ["A sentence."],
)


def test_the_table_marks_what_is_certain() -> None:
    console = Console(file=io.StringIO(), width=80)
    print_transfer_matrix(console, RESULT)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[:2] == ["A  sums & <more>", "B  puzzles"]
    assert ["tuned", "on", "A", "1.20+c", "0.75-", "0.95"] in [line.split() for line in lines]  # sqrt(1.2 x 0.75)
    assert "A sentence." in lines


def test_the_heat_map_is_xml_with_a_cell_for_each_ratio() -> None:
    root = ET.fromstring(draw_transfer_heat_map(RESULT))
    texts = {t.text: t for t in root.iter(f"{SVG}text")}
    assert "sums & <more>" in texts
    assert [texts[ratio].get("font-weight") for ratio in ("1.20", "0.75", "1.00")] == ["bold", "bold", "normal"]
    fills = [r.get("fill") for r in root.iter(f"{SVG}rect") if r.get("stroke")]
    assert fills == [
        choose_ratio_colour(1.2),
        choose_ratio_colour(0.75),
        choose_ratio_colour(1.0),
        choose_ratio_colour(1.0),
    ]
    for part in root.iter(f"{SVG}text"):  # nothing is drawn outside the picture
        assert 0 <= float(part.get("x", "0")) <= float(root.get("width", "0"))


def test_colours_are_symmetric_in_the_logarithm() -> None:
    assert choose_ratio_colour(1.0) == "#ffffff"
    assert choose_ratio_colour(1.25) == choose_ratio_colour(9.0) == "#2166ac"
    assert choose_ratio_colour(0.8) == choose_ratio_colour(0.1) == "#b2182b"
    assert choose_ratio_colour(float("nan")) == "#dddddd"
