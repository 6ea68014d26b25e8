"""Whether a run could start, where hubs and services are silent: an answer in bounded time, in a sentence. (Keys,
services and renderers of a real server: tests/tinker/test_check.py.)"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from experiment_fakes import SEED_SPEC

import rollonce
from rollonce.cli import main
from rollonce.errors import InputError
from rollonce.experiments import readiness
from rollonce.experiments.derive import derive_settings
from rollonce.experiments.loading import load_specification
from rollonce.experiments.readiness import Readiness
from rollonce.policies.tinker_service import ServiceError, TinkerService


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port of this machine that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


def test_a_hub_that_does_not_answer_is_given_up_and_named() -> None:
    waiting = threading.Event()
    found = readiness._ask_within_seconds("tokenizer", 0.2, lambda: str(waiting.wait(60)), "the hub")
    waiting.set()
    assert found == ("tokenizer", False, "the hub did not answer within 0.2 s")


def test_where_no_hub_is_its_clients_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would try for minutes, in this process and in the recipe's."""
    for name in ("HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    readiness.go_offline_without_hub(seconds=5.0)
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("error", [OSError("no route"), ValueError("of its own"), RuntimeError("a\nb")])
def test_whatever_a_client_raises_is_an_answer(error: Exception) -> None:
    def work() -> str:
        raise error

    found = readiness._ask_within_seconds("data", 5.0, work, "the hub")
    assert not found.ready
    assert str(error).splitlines()[0] in found.sentence


def test_a_service_that_is_silent_is_given_up_within_its_seconds(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--check`` and ``run`` give it `readiness.SERVICE_S` seconds, of ten that the documents promise."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    assert readiness.SERVICE_S < 10
    service = TinkerService(f"http://127.0.0.1:{silent_port}", connect_s=1.0)
    with pytest.raises(ServiceError, match=r"no Tinker-compatible service at .* \(tried for 1 s\)"):
        service.supported_models()


def test_what_is_missing_stops_a_run_before_anything_is_recorded_as_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = ["run", str(SEED_SPEC), "--gsm8k", str(tmp_path), "--out", str(tmp_path / "r")]
    assert main(run) == 2
    said = capsys.readouterr().err
    assert "this run cannot start yet" in said
    for what in ("key: ", "renderer: ", "data: ", "holds neither train.jsonl nor train.jsonl.gz"):
        assert what in said
    records = [json.loads(line) for line in (tmp_path / "r/records.jsonl").read_text().splitlines()]
    assert [r["stage"] for r in records] == ["start"]


def test_a_directory_under_home_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~/model``, as the run itself takes it."""
    pytest.importorskip("transformers")
    policies = Path(rollonce.__file__).parent / "policies"
    (folder,) = {file.parent for file in policies.rglob("tokenizer.json")}
    (tmp_path / "model").symlink_to(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(readiness._load_tokenizer_lightly("~/model")) == len(readiness._load_tokenizer_lightly(str(folder)))


def test_no_renderer_is_chosen_silently() -> None:
    settings = derive_settings(load_specification(SEED_SPEC).spec)
    assert settings.renderer is None
    with pytest.raises(InputError, match="no renderer is named for 'Qwen/Qwen3") as caught:
        readiness._check_renderer(settings, tokenizer=None)
    assert "with thinking on, most answers are cut off" in str(caught.value)


def test_service_tokenizer_and_data_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until all three were asked; one after the other would break the barrier."""
    all_asked = threading.Barrier(3, timeout=30)

    def ask(what: str) -> list[Readiness]:
        all_asked.wait()
        return [Readiness(what, True, "asked")]

    monkeypatch.setattr(readiness, "go_offline_without_hub", lambda: None)
    monkeypatch.setattr(readiness, "_check_service_key", lambda: "there is one")
    for name, what in (("_ask_service", "service"), ("_ask_for_tokens", "tokenizer"), ("_check_task_data", "data")):
        monkeypatch.setattr(readiness, name, lambda _, what=what: ask(what))
    found = readiness.check_readiness(derive_settings(load_specification(SEED_SPEC).spec))
    assert [r.what for r in found] == ["key", "service", "tokenizer", "data"]
    assert all(r.ready for r in found)


_CHECK_AND_TELL = """
import json, sys
from rollonce.cli import main
code = main(sys.argv[1:])
heavy = [m for m in ("torch", "transformers", "datasets", "tinker", "scipy", "numba") if m in sys.modules]
print(json.dumps([code, heavy]))
"""


def test_what_is_not_there_is_said_without_heavy_imports(tmp_path: Path) -> None:
    """No key, no hub, no renderer: torch, transformers and datasets take longer to import than the answers."""
    done = subprocess.run(
        [sys.executable, "-c", _CHECK_AND_TELL, "run", str(SEED_SPEC), "--check"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "TINKER_API_KEY": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    code, heavy = json.loads(done.stdout.splitlines()[-1])
    assert code == 2
    assert heavy == []
    assert "tokenizer: NO, " in done.stdout
    assert "data: NO, " in done.stdout
