"""``python verifiers_and_prime_rl.py`` with verifiers 0.4.0: episodes of its own classes, written by its own writer.

The second file holds episodes with the run information that prime-rl stamps on them (``Episode.record_run``).
"""

import shutil
from pathlib import Path

from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.episode import EnvInfo, Episode, GroupInfo, TrainRunInfo, TrainWorkInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import TaskData, task_key
from verifiers.v1.trace import AgentInfo, Error, ModelCall, Reward, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, Usage, UserMessage
from verifiers.v1.utils.trace_store import write_episode

OUT = Path(__file__).resolve().parents[1] / "fixtures"


def episode(name, data, rewards, tokens=7, ok=True, **more):
    """One rollout of one task."""
    task = TraceTask(type="Sum", data=data, key=task_key(data.model_dump(mode="json")))
    nodes = [
        MessageNode(message=UserMessage(content=str(data.prompt or "Hello, who are you?"))),
        MessageNode(message=AssistantMessage(content="2"), parent=0, sampled=True),
    ]
    calls = [ModelCall(node=1, usage=Usage(prompt_tokens=5, completion_tokens=tokens))]
    trace = Trace(
        id=name,
        task=task,
        agent=AgentInfo(config=AgentConfig()),
        nodes=nodes,
        calls=calls,
        rewards=rewards,
        ok=ok,
        is_completed=ok,
    )
    if not ok:
        trace.errors = [Error(type="SandboxError", message="the box died")]
    return Episode(id="e" + name, env=EnvInfo(id="sums"), task=task, traces=[trace], ok=ok, **more)


def main():
    one = TaskData(idx=0, prompt="1+1=?", system_prompt="Be brief.")
    two = TaskData(idx=1, prompt=[UserMessage(content="2+2=?")])
    opens = TaskData(idx=2)
    plain, weighted = {"right": Reward(score=1.0)}, {"right": Reward(score=1.0), "short": Reward(score=0.5, weight=0.2)}
    zero = {"right": Reward(score=0.0), "short": None}
    for folder in ("verifiers", "verifiers_errors", "prime_rl"):
        shutil.rmtree(OUT / folder, ignore_errors=True)
        (OUT / folder).mkdir()
    for e in (
        episode("a", one, weighted, tokens=7),
        episode("b", one, zero, tokens=9),
        episode("c", two, plain),
        episode("d", opens, zero),
    ):
        write_episode(OUT / "verifiers", e)
    write_episode(OUT / "verifiers_errors", episode("a", one, plain))
    write_episode(OUT / "verifiers_errors", episode("b", one, {"right": None}, ok=False))
    for step, (name, data, rewards) in enumerate((("a", one, plain), ("b", two, zero), ("c", one, zero)), start=4):
        e = episode(name, data, rewards, group=GroupInfo(id="g" + name))
        e.record_run(TrainRunInfo(id="run", work=TrainWorkInfo(step=step)))
        write_episode(OUT / "prime_rl", e)


main()
