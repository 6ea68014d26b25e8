"""Result files that are one JSON document without prompts: EvalPlus and AutomationBench.

EvalPlus (evalplus/evaluate.py, 0.3.1): ``{"date", "hash", "eval": {task_id: [{base_status, plus_status, ...}, ...]}}``.
A sample counts as passed when it passes the base and the extra tests (``reward="base"``: the base tests alone).

AutomationBench (``auto-bench --export-json``): ``{"meta", "summary", "tasks": [{name, score, passed, messages,
...}]}``, one rollout a task; give the exports of several runs of one model. The reward is ``score``, the share of
assertions met (``reward="passed"``: all of them).

The prompts are joined from the benchmark's own file by ``task_id`` (HumanEvalPlus.jsonl, MbppPlus.jsonl);
AutomationBench exports that keep their ``messages`` need no join. ``join="none"`` says that there are no prompts: each
task's id then stands for its prompt, which is enough for LOO, trackers and oracles, and meaningless to any kernel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Format, Options, Reject, Row, keys_of, kind_of
from rollonce.readers.join import NO_PROMPTS, Join
from rollonce.readers.jsonl import read_document
from rollonce.readers.probe import Probe
from rollonce.rollouts import render_messages


class _Document(Format):
    streams = False

    def start(self, path: Path, options: Options) -> None:
        """The join file, once."""
        if options.join is not None and options.join != NO_PROMPTS and "join" not in options.state:
            options.state["join"] = Join(options.join, ("task_id", "name"))
        options.state["run"] = str(path)

    def records(self, path: Path, options: Options, reject: Reject) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """The results, numbered from 1."""
        look: Probe | None = options.state.get("probe")
        document = look.document if look is not None and look.document is not None else read_document(path)
        if not isinstance(document, dict):
            raise InputError(f"not a result file of {self.name}: {kind_of(document)}", file=path)
        try:
            records = list(self.results(document))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise InputError(f"not a result file of {self.name}; {keys_of(document)}", file=path) from None
        yield range(1, len(records) + 1), records

    @abstractmethod
    def results(self, document: dict[str, Any]) -> Iterable[Any]:
        """The results in a file, one a rollout or task."""

    def prompt(self, task: str, options: Options) -> Any:
        if options.join == NO_PROMPTS:
            return task
        if "join" not in options.state:
            raise InputError(
                f"{self.name} results hold no prompts; join the benchmark's own file by task_id (join=, --join: rows "
                f"with 'task_id' and 'prompt'), or say join={NO_PROMPTS!r} if baselines that read no prompt are enough"
            )
        return options.state["join"].find({"task_id": task, "name": task}).prompt


class EvalPlus(_Document):
    """EvalPlus results."""

    name = "evalplus"
    what = "EvalPlus: *_eval_results.json, with the dataset file as join"

    def sniff(self, probe: Probe) -> bool:
        """``hash`` and ``eval`` of lists of results with ``base_status``."""
        if not probe.has("hash", "eval") or not isinstance(probe.record["eval"], dict):
            return False
        first = next(iter(probe.record["eval"].values()), None)
        return isinstance(first, list) and (not first or "base_status" in first[0])

    def results(self, document: dict[str, Any]) -> Iterable[Any]:
        """Every sample of every task, with its position in the task's list."""
        for task, samples in document["eval"].items():
            for i, sample in enumerate(samples):
                yield {**sample, "task_id": task, "position": i}

    def rows(self, record: Any, options: Options) -> Iterable[Row]:
        """One sample."""
        base, plus = record["base_status"], record.get("plus_status")
        if options.reward not in (None, "base", "plus"):
            raise InputError(f"reward={options.reward!r}: EvalPlus has 'base' and 'plus'")
        if plus is None and options.reward == "plus":
            raise InputError("no plus_status: this was run with base_only; say reward='base'")
        passed = base == "pass" and (plus == "pass" or plus is None or options.reward == "base")
        task = record["task_id"]
        yield Row(self.prompt(task, options), passed, task, f"{options.state['run']}#{record['position']}")


class AutomationBench(_Document):
    """AutomationBench exports."""

    name = "automationbench"
    what = "AutomationBench: auto-bench --export-json"

    def sniff(self, probe: Probe) -> bool:
        """``meta``, ``summary`` and ``tasks`` with names and scores."""
        if not probe.has("meta", "summary", "tasks") or not isinstance(probe.record["tasks"], list):
            return False
        first = next(iter(probe.record["tasks"]), None)
        return first is None or (isinstance(first, dict) and {"name", "score", "passed"} <= set(first))

    def results(self, document: dict[str, Any]) -> Iterable[Any]:
        """The tasks."""
        return document["tasks"]

    def rows(self, record: Any, options: Options) -> Iterable[Row]:
        """One task's rollout."""
        before = []
        for message in record.get("messages") or []:
            if message.get("role") == "assistant":
                break
            before.append(message)
        prompt = render_messages(before) if before else self.prompt(record["name"], options)
        reward = record[options.reward or "score"]
        yield Row(prompt, reward, record["name"], options.state["run"], record.get("output_tokens"))
