"""The parts of prime-rl that the adapter touches: the real ones where prime-rl is installed, else a stand-in.

The stand-in follows prime-rl 559b447 (``orchestrator/algo/{__init__,base,grpo,routing}.py`` and
``configs/orchestrator.py``) and the verifiers that it pins, a60a606 (``v1/{episode,trace,graph,task}.py``), name by
name. ``run_real.sh prime_rl`` runs the same tests against the real ones.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fake_modules import installed, module, without

REAL = installed("prime_rl") and installed("verifiers")
TOY_TASKS = """
import verifiers.v1 as vf

class ToyTaskset(vf.Taskset):
    def load(self):
        return []

__all__ = ["ToyTaskset"]
"""


# ---------------------------------------------------------------------- the stand-in


@dataclass
class Message:
    role: str
    content: str

    def model_dump(self, exclude_none: bool = False) -> dict[str, Any]:
        return {"role": self.role, "content": self.content}


@dataclass
class MessageNode:
    """v1/graph.py: ``logprobs`` and ``advantages`` have one number per True in ``mask``."""

    parent: int | None
    message: Any
    sampled: bool = False
    token_ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] | None = None


@dataclass
class Trace:
    """v1/trace.py; its ``reward`` is the weighted sum of ``rewards``."""

    task: Any
    agent: Any
    nodes: list[MessageNode]
    reward: float
    ok: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def has_error(self) -> bool:
        return not self.ok


def _iter_trainable_traces(episodes):
    for episode in episodes:
        for trace in episode.traces:
            if trace.has_error or not trace.agent.trainable:
                continue
            if any(any(node.mask) for node in trace.nodes):
                yield episode, trace


def _assign_advantages(trace, values):
    for node in trace.nodes:
        if any(node.mask):
            node.advantages = [float(values)] * sum(node.mask)


class _Algorithm:
    action_loss_type = "rl"

    def __init__(self, config, policy_pool):
        self.policy_pool, self.connected_pools = policy_pool, []

    async def score_group(self, episodes):
        pass

    async def finalize_group(self, episodes):
        await self.score_group(episodes)


class _GRPO(_Algorithm):
    def __init__(self, config, policy_pool):
        super().__init__(config, policy_pool)
        self.length_penalty = config.length_penalty

    async def score_group(self, episodes):
        traces = [trace for _, trace in _iter_trainable_traces(episodes)]
        mean = sum(trace.reward for trace in traces) / len(traces)
        for trace in traces:
            _assign_advantages(trace, trace.reward - mean)


def _stand_in(monkeypatch: Any) -> SimpleNamespace:
    without(monkeypatch, "prime_rl")
    monkeypatch.delitem(sys.modules, "prime_rl")
    classes = {"grpo": _GRPO, "rae": _Algorithm}
    algo = module(
        monkeypatch,
        "prime_rl.orchestrator.algo",
        Algorithm=_Algorithm,
        ALGORITHM_CLASSES=classes,
        assign_advantages=_assign_advantages,
        build_algorithm=lambda config, policy_pool: classes[config.type](config, policy_pool),
    )
    base = module(monkeypatch, "prime_rl.orchestrator.algo.base", iter_trainable_traces=_iter_trainable_traces)

    def episode(nodes, reward, *, task, agent, ok, source):
        data = SimpleNamespace(**{"prompt": None, "system_prompt": None, **task.pop("data")})
        trace = Trace(
            SimpleNamespace(data=data, **task),
            SimpleNamespace(**agent),
            [MessageNode(**{**n, "message": Message(**n["message"])}) for n in nodes],
            reward,
            ok,
        )
        return SimpleNamespace(traces=[trace], env=SimpleNamespace(id="toy", name=source))

    def config(out, sources, changes):
        made = [
            {"ratio": 1.0, "group_size": 1, "curriculum": None, "resolved_name": s.pop("name"), **s} for s in sources
        ]
        for s in made:
            s["algo"] = SimpleNamespace(**{"type": "grpo", "length_penalty": None, **(s.get("algo") or {})})
            if s["curriculum"]:
                s["curriculum"] = SimpleNamespace(
                    gates={k: SimpleNamespace(**g) for k, g in s["curriculum"]["gates"].items()}
                )
        train = SimpleNamespace(
            source=[SimpleNamespace(**s) for s in made],
            filter_zero_advantages=changes.pop("filter_zero_advantages", True),
        )
        return SimpleNamespace(**{"train": train, "output_dir": out, "batch_size": 128, "resume": None, **changes})

    return SimpleNamespace(algo=algo, base=base, episode=episode, config=config)


# ---------------------------------------------------------------------- the real one


def _real(monkeypatch: Any, folder: Any) -> SimpleNamespace:
    import verifiers.v1 as vf
    from prime_rl.configs.orchestrator import OrchestratorConfig
    from prime_rl.orchestrator import algo
    from prime_rl.orchestrator.algo import base
    from verifiers.v1.graph import MessageNode as Node
    from verifiers.v1.types import AssistantMessage, UserMessage

    (folder / "rollonce_toy.py").write_text(TOY_TASKS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(algo, "ALGORITHM_CLASSES", dict(algo.ALGORITHM_CLASSES))
    kinds = {"user": UserMessage, "assistant": AssistantMessage}

    def episode(nodes, reward, *, task, agent, ok, source):
        task = vf.TraceTask(type="Task", data=vf.WireTaskData(idx=0, **task.pop("data")), **task)
        trace = vf.Trace(
            task=task,
            agent=vf.AgentInfo(config=vf.AgentConfig(), **agent),
            nodes=[
                Node(**{**n, "message": kinds[n["message"]["role"]](content=n["message"]["content"])}) for n in nodes
            ],
            rewards={"r": {"score": reward}},
            ok=ok,
        )
        work = vf.TrainWorkInfo(step=1, policy=None)
        return vf.Episode(
            env=vf.EnvInfo(id="toy", name=source),
            task=task,
            traces=[trace],
            ok=ok,
            group=vf.GroupInfo(id=uuid.uuid4().hex),
            run=vf.TrainRunInfo(id="run", work=work),
        )

    def config(out, sources, changes):
        train = {"source": [{"env": {"taskset": {"id": "rollonce-toy"}}, **s} for s in sources]}
        if "filter_zero_advantages" in changes:
            train["filter_zero_advantages"] = changes.pop("filter_zero_advantages")
        settings = {"model": {"name": "Qwen/Qwen3-0.6B"}, "train": train, "output_dir": str(out), **changes}
        return OrchestratorConfig.model_validate(settings)

    return SimpleNamespace(algo=algo, base=base, episode=episode, config=config)


class PrimeRl:
    """Builds what the adapter is handed, from real or stand-in classes."""

    def __init__(self, monkeypatch: Any, folder: Any) -> None:
        self.folder = folder
        self._parts = _real(monkeypatch, folder) if REAL else _stand_in(monkeypatch)
        self.algo = self._parts.algo

    def config(self, *sources: dict[str, Any], **changes: Any) -> Any:
        """An ``OrchestratorConfig`` with ``filter_zero_advantages`` off; one source named math by default."""
        changes = {"filter_zero_advantages": False, **changes}
        return self._parts.config(self.folder, [dict(s) for s in sources or [{"name": "math"}]], changes)

    def episode(
        self,
        prompt: str | None,
        reward: float,
        *,
        source: str = "math",
        key: str | None = None,
        ok: bool = True,
        agent: str = "agent",
        trainable: bool = True,
        log_probs: tuple[float, ...] = (-0.5, -0.25),
        opening: str = "user message",
        **data: Any,
    ) -> Any:
        """An episode of one agent with two turns, a node's tokens partly template: 1 + n - 1 sampled tokens in all."""
        first, rest = list(log_probs[:1]), list(log_probs[1:])
        nodes = [
            node(None, "user", opening, [1, 2], [False, False]),
            node(0, "assistant", "first", [3, 4], [False, True], first),
            node(1, "user", "go on", [5], [False]),
            node(2, "assistant", "second", [6] * len(rest), [True] * len(rest), rest),
        ]
        return self._parts.episode(
            nodes,
            reward,
            task={"data": {"prompt": prompt, **data}, "key": key},
            agent={"name": agent, "trainable": trainable},
            ok=ok,
            source=source,
        )


def node(parent, role, content, token_ids, mask, logprobs=()):
    """The fields of one ``MessageNode``."""
    return {
        "parent": parent,
        "message": {"role": role, "content": content},
        "sampled": role == "assistant",
        "token_ids": token_ids,
        "mask": mask,
        "logprobs": list(logprobs),
    }


def advantages_of(episode: Any) -> list[list[float] | None]:
    """What was assigned to each node of an episode's traces."""
    return [node.advantages for trace in episode.traces for node in trace.nodes]
