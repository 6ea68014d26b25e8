"""Result files without prompts: EvalPlus, HumanEval and AutomationBench.

EvalPlus (evalplus/evaluate.py, 0.3.1): ``{"date", "hash", "eval": {task_id: [{base_status, plus_status, ...}, ...]}}``;
before 0.2 ``{task_id: {"nfiles", "base": [[status, details], ...], "plus": [...]}}``. A sample counts as passed when it
passes the base and the extra tests (``reward="base"``: the base tests alone).

HumanEval (human_eval/evaluation.py): one sample per line with ``passed``.

AutomationBench (``auto-bench --export-json``): ``{"meta", "summary", "tasks": [{name, score, passed, messages,
...}]}``, one rollout per task; give the exports of several runs of one model. The reward is ``score``, the share of
assertions met (``reward="passed"``: all of them).

The prompts are joined from the benchmark's own file by ``task_id`` (HumanEvalPlus.jsonl, MbppPlus.jsonl);
AutomationBench exports that keep their ``messages`` need no join. ``join="none"`` says that there are no prompts: each
task's id then stands for its prompt, which is enough for LOO, trackers and oracles, and meaningless to any kernel.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rollonce.errors import InputError
from rollonce.prompts import render_messages
from rollonce.readers.base import Format, Row
from rollonce.readers.join import NO_PROMPTS, Join
from rollonce.readers.jsonl import Reject, Tell
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe
from rollonce.readers.values import describe_record_keys, describe_value_kind

_PASSED = ("pass", "success")  # from 0.2 on; before
_MODEL_AND_TEMPERATURE = re.compile(r"^.+_temp_\d+(?:\.\d+)?")


class _WithoutPrompts(Format):
    """Results that name their tasks; the prompts come from a join file."""

    uses = frozenset({"reward", "join"})

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._join: Join | None = None
        self._run = ""

    def prepare_for_file(self, probe: Probe) -> None:
        if self.options.join is not None and self.options.join != NO_PROMPTS and self._join is None:
            self._join = Join(self.options.join, ("task_id", "name"))
        self._run = str(probe.path)

    def find_task_prompt(self, task: str) -> Any:
        """The prompt of a task.

        Raises:
            InputError: if there is no join file, or none for this task in it.
        """
        if self.options.join == NO_PROMPTS:
            return task
        if self._join is None:
            raise InputError(
                f"{self.name} results hold no prompts; join the benchmark's own file by task_id (join=, --join: rows "
                f"with 'task_id' and 'prompt'), or say join={NO_PROMPTS!r} if baselines that read no prompt are enough"
            )
        return self._join.find_joined_task({"task_id": task, "name": task}).prompt


class _Document(_WithoutPrompts):
    streams = False

    def read_record_blocks(
        self, probe: Probe, reject: Reject, tell: Tell | None = None
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """The results, numbered from 1."""
        document = probe.parsed_document
        if not isinstance(document, dict):
            raise InputError(f"not a result file of {self.name}: {describe_value_kind(document)}", file=probe.path)
        try:
            records = list(self.extract_document_results(document))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise InputError(
                f"not a result file of {self.name}; {describe_record_keys(document)}", file=probe.path
            ) from None
        yield range(1, len(records) + 1), records

    @abstractmethod
    def extract_document_results(self, document: dict[str, Any]) -> Iterable[Any]:
        """The results in a file, one per rollout or task."""


class EvalPlus(_Document):
    name = "evalplus"
    whole_file = True

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``hash`` and ``eval`` of lists of results with ``base_status``, or before 0.2 of ``base`` and ``plus``."""
        if not probe.has_all_keys("hash", "eval") or not isinstance(probe.record["eval"], dict):
            return False
        first = next(iter(probe.record["eval"].values()), None)
        if isinstance(first, dict):
            return isinstance(first.get("base"), list)
        return isinstance(first, list) and (not first or "base_status" in first[0])

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        """EvalPlus names its files (before 0.3: their folder) by model and temperature."""
        for name in (probe.path.name, probe.path.absolute().parent.name):
            match = _MODEL_AND_TEMPERATURE.match(name)
            if match:
                return match.group(0)
        return None

    def extract_document_results(self, document: dict[str, Any]) -> Iterable[Any]:
        """Every sample of every task, with its position in the task's list."""
        for task, samples in document["eval"].items():
            if isinstance(samples, dict):  # before 0.2: a list of [status, details] for each kind of test
                plus = samples.get("plus") or [None] * len(samples["base"])
                samples = [
                    {"base_status": b[0], "plus_status": p[0] if p else None}
                    for b, p in zip(samples["base"], plus, strict=True)
                ]
            for i, sample in enumerate(samples):
                yield {**sample, "task_id": task, "position": i}

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        base, plus = record["base_status"], record.get("plus_status")
        if self.options.reward not in (None, "base", "plus"):
            raise InputError(f"reward={self.options.reward!r}: EvalPlus has 'base' and 'plus'")
        if plus is None and self.options.reward == "plus":
            raise InputError("no plus_status: this was run with base_only; say reward='base'")
        passed = base in _PASSED and (plus in _PASSED or plus is None or self.options.reward == "base")
        task = record["task_id"]
        yield Row(self.find_task_prompt(task), passed, task, f"{self._run}#{record['position']}")


class HumanEval(_WithoutPrompts):
    """HumanEval's ``<samples>.jsonl_results.jsonl`` (human_eval/evaluation.py): one sample per line."""

    name = "humaneval"
    whole_file = True

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``task_id``, ``completion``, ``result`` and ``passed``, and no prompt."""
        return (
            probe.kind == "jsonl"
            and probe.has_all_keys("task_id", "completion", "result", "passed")
            and probe.has_none_of_keys("prompt")
        )

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        task = record["task_id"]
        yield Row(self.find_task_prompt(task), self.read_named_reward(record, "passed"), task)


class AutomationBench(_Document):
    """AutomationBench exports."""

    name = "automationbench"

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        """The model in the export's own description."""
        return probe.parsed_document["meta"].get("model")

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``meta``, ``summary`` and ``tasks`` with names and scores."""
        if not probe.has_all_keys("meta", "summary", "tasks") or not isinstance(probe.record["tasks"], list):
            return False
        first = next(iter(probe.record["tasks"]), None)
        return first is None or (isinstance(first, dict) and {"name", "score", "passed"} <= set(first))

    def extract_document_results(self, document: dict[str, Any]) -> Iterable[Any]:
        return document["tasks"]

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        before = []
        for message in record.get("messages") or []:
            if message.get("role") == "assistant":
                break
            before.append(message)
        prompt = render_messages(before) if before else self.find_task_prompt(record["name"])
        reward = self.read_named_reward(record, "score")
        yield Row(prompt, reward, record["name"], self._run, record.get("output_tokens"))
