"""A real verifiers environment (0.4) rolled out against the fake server. Skipped without verifiers, or without uv for its programs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from fake_server import FakeServer, answer

from rollonce.collecting import Settings, collect
from rollonce.collecting.settings import seed_of
from rollonce.errors import InputError, MissingExtraError

ENVIRONMENT = """
import verifiers.v1 as vf

__all__ = ["SmallSums"]


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data, vf.State]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        return float(str(trace.last_message.content).endswith(" " + self.data.answer))


class SmallSums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        return [Sum(Data(prompt=f"{a} + {a * a} =", answer=str(a + a * a)), self.config.task) for a in range(8)]
"""


def test_without_verifiers_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    for name in [m for m in sys.modules if m.startswith("verifiers.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match="needs the package verifiers"):
        collect(Settings("m", "verifiers:x", str(tmp_path / "o.jsonl"), url="http://127.0.0.1:9/v1"))


@pytest.fixture
def small_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("verifiers.v1")
    if shutil.which("uv") is None:
        pytest.skip("verifiers runs its programs with uv")
    (tmp_path / "small_sums_rollonce.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "verifiers:small-sums-rollonce"


def test_rollouts_and_rewards_are_the_environments(small_sums, tmp_path):
    with FakeServer(models=["m"], trouble=lambda k, body: (400, {}, {"error": "stop"}) if k >= 9 else None) as server:
        settings = Settings(
            "m", small_sums, str(tmp_path / "o.jsonl"), n_tasks=5, n_rollouts=3, url=server.url, concurrency=2, max_tokens=16
        )
        with pytest.raises(InputError, match="refuses the request"):
            collect(settings)
        server.trouble = None
        n = Path(settings.out + ".part").read_bytes().count(b"\n")
        assert 7 <= n <= 9
        assert collect(settings).added == 15 - n
    rows = [json.loads(line) for line in Path(settings.out).read_text().splitlines()]
    assert len({(r["task_id"], r["rollout_id"]) for r in rows}) == 15
    for r in rows:
        a = int(r["prompt"].split()[0])
        said = answer(r["prompt"], seed_of(0, r["task_id"], r["rollout_id"]))
        assert r["response"] == said
        assert r["reward"] == 2.0 * said.endswith(f" {a + a * a}")
        assert r["task_id"].startswith("small-sums-rollonce/")
        assert r["response_length"] == 3
    assert {r["reward"] for r in rows} == {0.0, 2.0}
    assert server.most_at_once <= 2
    body = server.requests[0][1]
    assert body["temperature"] == 1.0
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 16


def test_too_few_tasks_and_unknown_names(small_sums, tmp_path):
    with pytest.raises(InputError, match=r"64 tasks asked for, but small-sums-rollonce has only 8: ask for --tasks 8"):
        collect(Settings("m", small_sums, str(tmp_path / "o.jsonl"), url="http://127.0.0.1:9/v1"))
    with pytest.raises(InputError, match=r"'no-such-thing' cannot be loaded"):
        collect(Settings("m", "verifiers:no-such-thing", str(tmp_path / "o.jsonl"), url="http://127.0.0.1:9/v1"))
