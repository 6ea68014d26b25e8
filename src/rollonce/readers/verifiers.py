"""verifiers and prime-rl.

* ``traces.jsonl`` of verifiers 0.4 (v1/utils/trace_store.py): one *episode* a line, with the traces of its agents. The
  rollouts are the traces of trainable agents (``filter=`` names one agent); the reward is the sum of score x weight
  over a trace's rewards, as ``Trace.reward`` has it.
* ``results.jsonl`` of verifiers before 0.4 (utils/save_utils.py): one rollout a line.
* prime-rl: the same records, one file a training step (``rollouts/step_<N>/train_rollouts.jsonl``: a trace or a legacy
  rollout a line), or episodes that say which training step they were run for.

A rollout that ended in an error before it was scored is a bad row: its 0 (or its missing reward) is not the policy's
    doing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from rollonce.errors import InputError
from rollonce.prompts import render_messages
from rollonce.readers.base import Format, Row
from rollonce.readers.log_probs import sum_log_probs_over_calls
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe
from rollonce.readers.values import describe_record_keys

_STEP = re.compile(r"(?:^|[/\\])step_(\d+)(?:[/\\])")


class Verifiers(Format):
    """verifiers 0.4 traces.jsonl."""

    name = "verifiers"
    uses = frozenset({"reward", "split", "filter"})
    whole_file = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._step: int | None = None
        self._split_of_file: str | None = None

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """An episode (task and traces) or a bare trace (task, rewards, nodes)."""
        if probe.kind != "jsonl" or not probe.has_all_keys("task") or not isinstance(probe.record["task"], dict):
            return False
        return isinstance(probe.record.get("traces"), list) or isinstance(probe.record.get("rewards"), dict)

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        """The model in the evaluation's own metadata beside the file."""
        return _read_metadata_beside(probe).get("model")

    def prepare_for_file(self, probe: Probe) -> None:
        """The training step that prime-rl puts into the path."""
        match = _STEP.search(str(probe.path))
        self._step = int(match.group(1)) if match else None
        name = probe.path.name
        self._split_of_file = "train" if name.startswith("train_") else "eval" if name.startswith("eval_") else None

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        """The rollouts of an episode's trainable agents."""
        if "traces" not in record:
            yield from self._parse_trace_rows(record, {})
            return
        if not record["traces"]:
            raise InputError(
                f"the episode has no trace ({_describe_last_error(record)}); skip_bad_rows passes over such rows"
            )
        for trace in record["traces"]:
            yield from self._parse_trace_rows(trace, record)

    def _parse_trace_rows(self, trace: dict[str, Any], episode: dict[str, Any]) -> Iterable[Row]:
        agent = trace.get("agent") or {}
        if self.options.filter is not None and agent.get("name", "agent") != self.options.filter:
            self.n_filtered += 1
            self.splits.add(f"the agent {agent.get('name', 'agent')}")
            return
        if self.options.filter is None and agent.get("trainable") is False:
            return
        work = ((episode.get("run") or {}).get("work")) or {}
        if self.options.split is not None and self.options.split != (work.get("type") or self._split_of_file):
            self.n_filtered += 1
            return
        task = trace.get("task") or episode["task"]
        data = task.get("data", task)
        ours = (trace.get("info") or {}).get("prime_rl") or {}
        env = (episode.get("env") or {}).get("id") or ours.get("env_name") or ""
        key = task.get("key") or task.get("hash")
        step = work.get("step", ours.get("step", self._step))
        log_prob, n_tokens = sum_log_probs_over_calls(
            _select_sampled_log_probs(n) for n in trace.get("nodes") or () if n.get("sampled")
        )
        yield Row(
            render_task_prompt(data, trace),
            _read_trace_reward(trace, self.options.reward),
            f"{env}/{key}" if key and env else key,
            trace.get("id"),
            trace.get("num_output_tokens", n_tokens),
            step,
            log_prob,
        )


class PrimeRl(Verifiers):
    """prime-rl's saved rollouts."""

    name = "prime-rl"
    whole_file = False

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """verifiers' records (0.4 or older) in a step's directory, or that say which training step they were run
        for."""
        in_step = _STEP.search(str(probe.path)) is not None
        if probe.kind == "jsonl" and probe.has_all_keys("example_id", "prompt", "reward"):
            return in_step and "rollouts" in probe.path.name
        if not super().is_file_of_format(probe):
            return False
        record = probe.record
        return in_step or (record.get("run") or {}).get("type") == "train" or "prime_rl" in (record.get("info") or {})

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        """A trace or a legacy rollout."""
        if "example_id" in record:
            if self.options.filter is not None:
                raise InputError(
                    "filter= (--filter) does nothing for rows of verifiers before 0.4, which name no agent; leave it "
                    "out"
                )
            if self.options.split not in (None, self._split_of_file):
                self.n_filtered += 1
                return
            yield parse_legacy_row(record, self.options.reward)._replace(step=self._step)
        else:
            yield from super().parse_rollout_rows(record)


class VerifiersLegacy(Format):
    """verifiers before 0.4: results.jsonl, and the environment's name from metadata.json beside it."""

    name = "verifiers-legacy"
    uses = frozenset({"reward"})
    whole_file = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._environment: str | None = None

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``example_id``, ``prompt``, ``completion`` and ``reward``."""
        return probe.kind == "jsonl" and probe.has_all_keys("example_id", "prompt", "completion", "reward")

    def prepare_for_file(self, probe: Probe) -> None:
        """The environment's name, so that example 0 of one environment is not example 0 of another."""
        self._environment = _read_metadata_beside(probe).get("env_id")

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        """The model in the evaluation's metadata."""
        return _read_metadata_beside(probe).get("model")

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        yield parse_legacy_row(record, self.options.reward, self._environment)


def _read_metadata_beside(probe: Probe) -> dict[str, Any]:
    beside = probe.path.with_name("metadata.json")
    try:
        metadata = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    except (ValueError, OSError):
        metadata = {}
    return metadata if isinstance(metadata, dict) else {}


def parse_legacy_row(record: dict[str, Any], reward_name: str | None, environment: str | None = None) -> Row:
    """A rollout as verifiers before 0.4 wrote it."""
    if record.get("error"):
        raise InputError(
            f"this rollout ended in an error ({str(record['error'])[:80]}); skip_bad_rows passes over such rows"
        )
    environment = environment or (record.get("task") if isinstance(record.get("task"), str) else None)
    task = record["example_id"]
    reward = record["reward"]
    if reward_name is not None:
        rewards = {**(record.get("metrics") or {}), **record}
        if reward_name not in rewards:
            raise InputError(f"no reward {reward_name!r} (--reward) in this row; {describe_record_keys(rewards)}")
        reward = rewards[reward_name]
    usage = record.get("token_usage") or {}
    log_prob, n_tokens = sum_log_probs_over_calls(
        (turn.get("tokens") or {}).get("completion_logprobs") for turn in record.get("trajectory") or ()
    )
    return Row(
        record["prompt"],
        reward,
        f"{environment}/{task}" if environment and task is not None else task,
        length=usage.get("output_tokens", n_tokens),
        log_prob=log_prob,
    )


def render_task_prompt(data: dict[str, Any], trace: dict[str, Any]) -> str:
    """The prompt of a task's data, its system prompt before it; without one, what the model saw before its first turn
    in the trace.

    Raises:
        InputError: there is neither.
    """
    prompt, system = data.get("prompt"), data.get("system_prompt")
    if (
        prompt is None
    ):  # the user of the environment opens the conversation: whatever the model saw before its first turn
        messages = []
        for node in trace.get("nodes") or []:
            if node.get("sampled"):
                break
            messages.append(node["message"])
        if not messages:
            raise InputError("neither task.data.prompt nor a message before the first sampled one")
        return render_messages(messages)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return render_messages([{"role": "system", "content": system}, *messages] if system else messages)


def _select_sampled_log_probs(node: dict[str, Any]) -> Any:
    """The log-probabilities of a node's sampled tokens; where there is one for each token, its mask says which."""
    log_probs, mask = node.get("logprobs"), node.get("mask")
    if log_probs and mask and len(log_probs) == len(mask):
        return [log_prob for log_prob, sampled in zip(log_probs, mask, strict=True) if sampled]
    return log_probs


def _read_trace_reward(trace: dict[str, Any], name: str | None) -> float:
    rewards = trace.get("rewards") or {}
    if name is not None:
        if name not in rewards:
            raise InputError(f"no reward {name!r} in this trace; it has {', '.join(rewards) or 'none'}")
        rewards = {name: rewards[name]}
    scored = [r for r in rewards.values() if r is not None]
    if not scored:
        raise InputError(
            f"this trace was not scored ({_describe_last_error(trace)}); skip_bad_rows passes over such rows"
        )
    if name is not None:
        return scored[0]["score"] if isinstance(scored[0], dict) else scored[0]
    # Traces of early 0.4 versions (and prime-rl's wire traces) hold plain numbers.
    return sum(r["score"] * r.get("weight", 1.0) if isinstance(r, dict) else r for r in scored)


def _describe_last_error(record: dict[str, Any]) -> str:
    errors = record.get("errors") or []
    return (
        f"{errors[-1].get('type')}: {str(errors[-1].get('message'))[:80]}"
        if errors
        else "no reward in it, no error either"
    )
