"""``rollonce run``: what it prints, its exit codes, and the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from experiment_fakes import SEED_SPEC, FakeEngine, small_spec

from rollonce.cli import main
from rollonce.experiments import engines, gates
from rollonce.experiments.records import locked_directory
from rollonce.experiments.stages import before_spending


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gates, "N_BATCHES", 50)
    monkeypatch.setattr(gates, "RESAMPLES", 0)
    monkeypatch.setattr(engines, "make_experiment_engine", FakeEngine)
    monkeypatch.chdir(tmp_path)
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def small(tmp_path: Path, **changes: object) -> str:
    path = tmp_path / "small.spec.json"
    path.write_text(json.dumps(small_spec(**changes)))
    return str(path)


def test_the_requests_file_passes_check_and_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is there in this test: no key, no renderer, no hub. It is said, and the exit code is 2, not 1."""
    assert main(["run", str(SEED_SPEC), "--check"]) == 2
    said = capsys.readouterr().out
    assert "half-width 0.0748" in said
    assert "observed at least 2.5 points better (net +33 items)" in said
    # 64 x 8; 2 x 3 x 32 + 100; 2 x 60 x 32; 2 x 1319
    assert "10 probe + 512 calibration + 292 pilot + 3,840 training + 2,638 evaluation rollouts" in said
    assert "correctness_preflight.paths[0].baseline_revision" in said
    assert "max_tokens: 512 (from command: 'python -m tinker_cookbook" in said
    assert list(tmp_path.iterdir()) == []
    assert "at most $1.37" in said
    assert (
        "renderer: NO, no renderer is named for 'Qwen/Qwen3.5-2B': give --renderer NAME" in said
        or "not installed" in said
    )
    assert "It cannot start yet" in said


def test_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(SEED_SPEC), "--check", "--json"]) == 2
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
    with locked_directory(tmp_path / "run"):
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

    monkeypatch.setattr(pins, "make_package_pin", lambda name: None)
    tasks = {"rollonce.tasks": "gsm8k:nowhere", "generation_audit.answer_comparison": "numeric_exact"}
    document = small_spec(**{"rollonce.engine": "cookbook", **tasks})
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
    assert before_spending.run_correctness_preflight.__module__ == "rollonce.experiments.preflight"


def test_ci_installs_what_the_docs_tell_a_user_to_install() -> None:
    """The client's environment of `make test-tinker` is that of the docs, and pytest; nothing by name."""
    root = Path(__file__).parents[2]
    for page in ("docs/tinker.md", "docs/experiments.md"):
        assert "pip install 'rollonce[tinker]'" in (root / page).read_text()
    lines = [line.strip() for line in (root / "tests/tinker/ci.sh").read_text().splitlines()]
    into_the_client = [x for x in lines if x.startswith("pip ") and "--target" not in x]
    assert into_the_client == [
        "pip --constraint constraints.txt --editable '.[tinker]'",
        "pip --constraint constraints.txt pytest pytest-xdist",
    ]


def test_a_fault_of_the_program_is_not_a_failed_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("the engine has a fault")

    monkeypatch.setattr(engines, "make_experiment_engine", broken)
    assert main(["run", small(tmp_path), "--out", "run"]) == 70
    assert "a fault of the program" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1,2", "a,b,c", "-1,1,1", "inf,1,1"])
def test_a_price_is_three_numbers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(SEED_SPEC), "--check", "--price", text]) == 2
    assert "--price takes PREFILL,SAMPLE,TRAIN" in capsys.readouterr().err


def test_dollars_are_tokens_times_prices() -> None:
    """By hand: 7,292 rollouts read at most 512 and sample at most 512 tokens each, 4,042 of them are trained on with
    1,024; at 1, 10 and 100 dollars per million."""
    from rollonce.experiments.derive import derive_settings
    from rollonce.experiments.loading import load_specification
    from rollonce.experiments.plan import estimate_largest_cost
    from rollonce.experiments.prices import parse_token_price

    loaded = load_specification(SEED_SPEC)
    cost = estimate_largest_cost(loaded, derive_settings(loaded.spec), parse_token_price("1,10,100"))
    rollouts = 10 + 512 + 292 + 3840 + 2638
    trained = 10 + 192 + 3840
    wanted = (rollouts * 512 * 1 + rollouts * 512 * 10 + trained * 1024 * 100) / 1e6
    assert cost.max_dollars == pytest.approx(wanted)
