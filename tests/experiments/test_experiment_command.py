"""``rollonce run``: what it prints, its exit codes, and the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from experiment_fakes import SEED_SPEC, FakeEngine, small_spec

from rollonce.cli import main
from rollonce.experiments import engines, gates, stages
from rollonce.experiments.records import locked


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gates, "N_BATCHES", 50)
    monkeypatch.setattr(gates, "RESAMPLES", 0)
    monkeypatch.setattr(engines, "make_engine", FakeEngine)
    monkeypatch.chdir(tmp_path)


def small(tmp_path: Path, **changes: object) -> str:
    path = tmp_path / "small.spec.json"
    path.write_text(json.dumps(small_spec(**changes)))
    return str(path)


def test_the_requests_file_passes_check_and_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(SEED_SPEC), "--check"]) == 0
    said = capsys.readouterr().out
    assert "half-width 0.0748" in said
    assert "observed at least 2.5 points better (net +33 items)" in said
    # 64 x 8; 2 x 3 x 32 + 100; 2 x 60 x 32; 2 x 1319
    assert "512 calibration + 292 pilot + 3,840 training + 2,638 evaluation rollouts" in said
    assert "correctness_preflight.paths[0].baseline_revision" in said
    assert "max_tokens: 512 (from command)" in said
    assert list(tmp_path.iterdir()) == []


def test_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(SEED_SPEC), "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"]["training"] == 3840
    assert found["unknown_fields"] == []


def test_exit_codes_are_0_for_a_verdict_1_for_a_gate_2_for_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", small(tmp_path), "--out", "good"]) == 0
    assert capsys.readouterr().out.startswith("Inconclusive: a difference of")
    assert main(["run", small(tmp_path, **{"activation_gate.checks.0.min": 9.0}), "--out", "gate"]) == 1
    assert "activation gate, offline" in capsys.readouterr().out
    assert main(["run", small(tmp_path, **{"activation_gate.checks.0.min": 8.0}), "--out", "gate"]) == 2
    assert "cannot be changed any more" in capsys.readouterr().err
    assert main(["run", small(tmp_path, **{"arms.0.lr": 7.0})]) == 2
    assert main(["run", "nowhere.json"]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_two_runs_on_one_directory_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path / "run"):
        assert main(["run", small(tmp_path), "--out", "run"]) == 2
    assert "a run is at work in this directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"), [("--gsm8k", "the tasks of this specification are"), ("--base-url", "runs on this machine")]
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", small(tmp_path), option, "somewhere"]) == 2
    assert said in capsys.readouterr().err


def test_a_full_run_on_tinker_without_the_cookbook_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollonce.experiments import pins

    monkeypatch.setattr(pins, "package_pin", lambda name: None)
    document = small_spec(**{"rollonce.engine": "cookbook"})
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    assert main(["run", str(path), "--out", "t"]) == 2
    assert "baseline_revision: tinker-cookbook is not installed" in capsys.readouterr().err


class Page(HTMLParser):
    """Tags balance, nothing is loaded from elsewhere, and the text is there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(k in ("src", "href") and v and v.startswith(("http", "//")) for k, v in attrs)
        if tag not in ("meta", "link", "line", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_and_markdown_hold_what_the_records_hold(tmp_path: Path) -> None:
    assert main(["run", small(tmp_path), "--out", "run"]) == 0
    html, text = (tmp_path / "run" / name for name in ("report.html", "report.md"))
    page = Page(html.read_text())
    assert page.open == []
    shown = re.sub(r"\s+", " ", " ".join(page.words))
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    decision = next(r for r in records if r["stage"] == "decision")["data"]
    interval = decision["criteria"][0]["hoeffding"]
    for where in (shown, text.read_text()):
        assert decision["sentence"] in where
        assert f"{interval['low']:+.4f}, {interval['high']:+.4f}" in where
        assert decision["caveat"] in where
        for record in records:
            assert record["stage"] in where
            assert record["hash"][:12] in where
        for check in small_spec()["activation_gate"]["checks"]:
            assert check["metric"] in where
        for arm in ("grpo_g8", "gs1_tfidf_g1"):
            accuracy = next(r for r in records if r["stage"] == f"evaluation:{arm}")["data"]["accuracy"]
            assert f"{accuracy:.4f}" in where
        assert "fake grpo_g8" in where
    assert html.read_text().count('class="figure"') == 5


def test_a_stopped_run_has_a_page_too(tmp_path: Path) -> None:
    assert main(["run", small(tmp_path, **{"activation_gate.checks.0.min": 9.0}), "--out", "run"]) == 1
    page = Page((tmp_path / "run/report.html").read_text())
    shown = " ".join(page.words)
    assert "stopped" in shown
    assert ">= 9 was registered" in shown
    assert "failed" in shown


def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    path = tmp_path / "x.spec.json"
    path.write_text(json.dumps(small_spec() | {"title": "<script>alert(1)</script>"}))
    assert main(["run", str(path), "--out", "run"]) == 0
    assert "<script>" not in (tmp_path / "run/report.html").read_text()


def test_the_real_preflight_is_not_replaced_here() -> None:
    assert stages.run_preflight.__module__ == "rollonce.experiments.preflight"
