"""examples/quickstart.ipynb runs from the first cell to the last, in an empty folder, and shows what it says."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def test_the_notebook_runs(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)  # kept without outputs, which would grow stale
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output["data"]
        for cell in book.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result"
    ]
    assert shown[0]["text/plain"].startswith("Rollouts('taubench_airline_gpt4o', ")
    assert "columns level" in shown[1]["text/plain"]
    assert "LOO mean" in shown[2]["text/html"]
    assert "<th>b_eff</th>" in shown[4]["text/html"]
    assert "leave_one_out" in shown[5]["text/plain"]
    assert json.loads((tmp_path / "baseline.json").read_text())["provenance"]["scored_on"] == "taubench_airline_gpt4o"
