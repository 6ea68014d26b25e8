"""A real verifiers environment (0.4) rolled out against the fake server. Skipped without verifiers, or without uv for
its programs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_server import FakeServer, answer

from rollonce.collecting import CollectSettings, collect_rollouts
from rollonce.collecting.environment import EnvironmentAsker
from rollonce.collecting.settings import Sampled, seed_of_rollout
from rollonce.errors import InputError, MissingExtraError
from rollonce.readers.options import Options
from rollonce.readers.verifiers import Verifiers

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
        collect_rollouts(CollectSettings("m", "verifiers:x", str(tmp_path / "o.jsonl"), url="http://127.0.0.1:9/v1"))


def episode_of(finish: str, reward: float | None) -> SimpleNamespace:
    """What verifiers hands back for one call, in the fields that are read; ``reward`` None: it was not scored."""
    message = SimpleNamespace(content="So the answer is 4")
    trace = SimpleNamespace(
        calls=[SimpleNamespace(finish_reason="tool_calls"), SimpleNamespace(finish_reason=finish)],
        nodes=[SimpleNamespace(sampled=True, message=message)],
        num_input_tokens=7,
        num_output_tokens=16,
    )
    rewards = {} if reward is None else {"right": {"score": reward, "weight": 2.0}}
    plain = {
        "task": {"data": {"prompt": "2 + 2 ="}, "key": "a"},
        "traces": [{"rewards": rewards, "nodes": [], "id": "x"}],
    }
    return SimpleNamespace(traces=[trace], model_dump=lambda mode: plain)


@pytest.mark.parametrize("reward", [1.0, None])
def test_a_rollout_that_meets_the_limit_earns_nothing(reward):
    # Without verifiers: the asker's reading of an episode needs none of it.
    asker = EnvironmentAsker.__new__(EnvironmentAsker)
    asker.note, asker._reader = {}, Verifiers(Options())
    assert asker._sampled_of_episode(episode_of("stop", 1.0)) == Sampled("So the answer is 4", 7, 16, reward=2.0)
    cut = asker._sampled_of_episode(episode_of("length", reward))
    assert cut == Sampled("So the answer is 4", 7, 16, truncated=True, reward=0.0, failure="truncated")


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
        settings = CollectSettings(
            "m",
            small_sums,
            str(tmp_path / "o.jsonl"),
            n_tasks=5,
            n_rollouts=3,
            url=server.url,
            concurrency=2,
            max_tokens=16,
        )
        with pytest.raises(InputError, match="refuses the request"):
            collect_rollouts(settings)
        server.trouble = None
        n = Path(settings.out + ".part").read_bytes().count(b"\n")
        assert 7 <= n <= 9
        assert collect_rollouts(settings).added == 15 - n
    rows = [json.loads(line) for line in Path(settings.out).read_text().splitlines()]
    assert len({(r["task_id"], r["rollout_id"]) for r in rows}) == 15
    for r in rows:
        a = int(r["prompt"].split()[0])
        said = answer(r["prompt"], seed_of_rollout(0, r["task_id"], r["rollout_id"]))
        assert r["response"] == said
        assert r["reward"] == 2.0 * said.endswith(f" {a + a * a}")
        assert r["task_id"].startswith("small-sums-rollonce/")
        assert r["response_tokens"] == 3
    assert {r["reward"] for r in rows} == {0.0, 2.0}
    assert server.most_at_once <= 2
    body = server.requests[0][1]
    assert body["temperature"] == 1.0
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 16


def test_too_few_tasks_and_unknown_names(small_sums, tmp_path):
    with pytest.raises(InputError, match=r"64 tasks asked for, but small-sums-rollonce has only 8: ask for --tasks 8"):
        collect_rollouts(CollectSettings("m", small_sums, str(tmp_path / "o.jsonl"), url="http://127.0.0.1:9/v1"))
    with pytest.raises(InputError, match=r"'no-such-thing' cannot be loaded"):
        collect_rollouts(
            CollectSettings("m", "verifiers:no-such-thing", str(tmp_path / "o.jsonl"), url="http://127.0.0.1:9/v1")
        )
