"""``examples/modal_gsm8k.py::spindle`` on a real server: the code path that Modal would take, through the stand-in for
its runner, with a container preempted in the middle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from server import TinkerServer
from test_a_run import gsm8k, small

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))
from modal_stand_in import load_example, read_records

__all__ = ["gsm8k"]  # a fixture


@pytest.mark.slow
def test_spindle_goes_on_after_a_preemption_to_its_verdict(
    server: TinkerServer,
    model: Path,
    gsm8k: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = load_example(monkeypatch, tmp_path)
    document = json.loads(small(model, tmp_path).read_text())
    document["rollonce"] |= {"tasks": f"gsm8k:{gsm8k}", "renderer": None}
    spec = tmp_path / "small.spec.json"
    spec.write_text(json.dumps(document))
    # What the Modal secret puts into the container's environment; the key is in the environment already.
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    killed: list[list[str]] = []
    kept = tmp_path / "store" / "spindle-small"

    def preempt() -> bool:
        pointer = kept / "current"
        if killed or not pointer.is_file():
            return False
        stages = [r["stage"] for r in read_records(kept / pointer.read_text() / "run")]
        if "calibration" in stages:
            killed.append(stages)
        return bool(killed)

    module.on_service.preempt = preempt
    with pytest.raises(SystemExit) as ended:
        module.app.entrypoints["spindle"](renderer="role_colon", spec=str(spec), yes=True, price="0.05,0.15,0.15")
    said = capsys.readouterr().out
    assert ended.value.code == 0, said
    assert "tokens on the service: at most $" in said
    assert module.on_service.containers == 2
    run = kept / (kept / "current").read_text() / "run"
    stages = [r["stage"] for r in read_records(run)]
    assert stages[: len(killed[0])] == killed[0]
    assert stages[-1] == "decision"
    assert len(set(stages)) == len(stages)  # nothing was done twice
    recorded = read_records(run)[0]["data"]["settings"]
    assert (recorded["engine"], recorded["renderer"]) == ("cookbook", "role_colon")
