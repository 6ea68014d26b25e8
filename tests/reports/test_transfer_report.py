"""The matrix of kernels x sets: the letters, the marks of certainty, and the heat map's colours."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

from rich.console import Console

from rollonce.reports.transfer import colour, print_transfer, transfer_svg
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
    print_transfer(console, RESULT)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[:2] == ["A  sums & <more>", "B  puzzles"]
    assert ["tuned", "on", "A", "1.20+c", "0.75-", "0.95"] in [line.split() for line in lines]  # sqrt(1.2 x 0.75)
    assert "A sentence." in lines


def test_the_heat_map_is_xml_with_a_cell_for_each_ratio() -> None:
    root = ET.fromstring(transfer_svg(RESULT))
    texts = {t.text: t for t in root.iter(f"{SVG}text")}
    assert "sums & <more>" in texts
    assert [texts[ratio].get("font-weight") for ratio in ("1.20", "0.75", "1.00")] == ["bold", "bold", "normal"]
    fills = [r.get("fill") for r in root.iter(f"{SVG}rect") if r.get("stroke")]
    assert fills == [colour(1.2), colour(0.75), colour(1.0), colour(1.0)]
    for part in root.iter(f"{SVG}text"):  # nothing is drawn outside the picture
        assert 0 <= float(part.get("x", "0")) <= float(root.get("width", "0"))


def test_colours_are_symmetric_in_the_logarithm() -> None:
    assert colour(1.0) == "#ffffff"
    assert colour(1.25) == colour(9.0) == "#2166ac"
    assert colour(0.8) == colour(0.1) == "#b2182b"
    assert colour(float("nan")) == "#dddddd"
