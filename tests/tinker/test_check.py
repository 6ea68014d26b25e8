"""``rollonce run --check`` where services, keys and models are not what the run needs: sentences, within seconds."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy import FaultyProxy
from server import TinkerServer

from rollonce.cli import main
from rollonce.policies import tinker_service

SPEC = Path(__file__).parents[2] / "specs" / "local_twin.spec.json"


@pytest.fixture
def spec(tmp_path: Path, model: Path) -> Path:
    """The local twin on a service."""
    document: dict[str, Any] = json.loads(SPEC.read_text())
    document["base_model"] = str(model)
    document["rollonce"] |= {"engine": "tinker", "max_tokens": 8}
    path = tmp_path / "t.spec.json"
    path.write_text(json.dumps(document))
    return path


def checked(spec: Path, url: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["run", str(spec), "--check", "--base-url", url, "--renderer", "chat"])
    return code, capsys.readouterr().out


def test_everything_is_there(spec: Path, server: TinkerServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(spec, server.url, capsys)
    assert code == 0, said
    assert f"service: {server.url} answers, takes the key, and has the model" in said


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A port of this machine that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("silent", [False, True])
def test_an_unreachable_service_is_given_up_after_ten_seconds(
    spec: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    silent_url: str,
    silent: bool,
) -> None:
    """Nobody listens at the first, and nothing at all comes back from the second. The tries are counted, not the wall
    clock, which a busy machine stretches."""
    url = silent_url if silent else "http://127.0.0.1:9"
    asked: list[float] = []
    real = tinker_service.TinkerService.health_check_trouble

    def counted(self: Any, timeout: float = 5.0) -> str | None:
        asked.append(timeout)
        return real(self, timeout)

    monkeypatch.setattr(tinker_service.TinkerService, "health_check_trouble", counted)
    code, said = checked(spec, url, capsys)
    assert code == 2
    assert "service: NO, " in said
    assert len(asked) <= 8
    assert all(t <= 5.0 for t in asked)


@pytest.mark.parametrize(("value", "words"), [(None, "set TINKER_API_KEY"), ("sk-123456", "does not start with tml-")])
def test_no_key_or_one_of_another_shape(
    spec: Path,
    server: TinkerServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: Any,
    words: str,
) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    if value is not None:
        monkeypatch.setenv("TINKER_API_KEY", value)
    code, said = checked(spec, server.url, capsys)
    assert code == 2
    assert "key: NO, " in said
    assert words in said
    assert "123456" not in said


def test_a_key_that_is_refused(spec: Path, server: TinkerServer, capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyProxy(server.url) as proxy:
        proxy.fail("get_server_capabilities", 401)
        code, said = checked(spec, proxy.url, capsys)
    assert code == 2
    assert "refuses the key in TINKER_API_KEY (401)" in said


def test_a_service_without_the_model(spec: Path, server: TinkerServer, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(spec.read_text())
    document["rollonce"]["policy"] = "Qwen/Qwen3.5-2B"
    spec.write_text(json.dumps(document))
    code, said = checked(spec, server.url, capsys)
    assert code == 2
    assert "does not have 'Qwen/Qwen3.5-2B'; it has " in said


def test_a_run_stops_before_it_records_that_anything_was_spent(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["run", str(spec), "--base-url", "http://127.0.0.1:9", "--renderer", "chat", "--out", str(tmp_path / "r")]
    )
    assert code == 2
    assert "this run cannot start yet" in capsys.readouterr().err
    stages = [json.loads(line)["stage"] for line in (tmp_path / "r" / "records.jsonl").read_text().splitlines()]
    assert stages == ["start"]
