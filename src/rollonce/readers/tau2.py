"""tau2-bench results: one document with ``tasks`` and ``simulations``.

Its prompt is what sets one task apart from another before the rollout: the ticket where the task has one, else the
user's scenario (which the agent does not see, the user simulator does), else the description.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Format, Row
from rollonce.readers.jsonl import Reject, Tell
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe


class Tau2(Format):
    name = "tau2-bench"
    streams = False
    whole_file = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._prompts: dict[str, str] = {}

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``tasks`` with ids and ``simulations`` with ``reward_info``."""
        if not probe.has_all_keys("tasks", "simulations"):
            return False
        return "id" in probe.record["tasks"][0] and {"task_id", "reward_info"} <= set(probe.record["simulations"][0])

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        return ((probe.parsed_document.get("info") or {}).get("agent_info") or {}).get("llm")

    def read_record_blocks(
        self, probe: Probe, reject: Reject, tell: Tell | None = None
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """The simulations, numbered from 1."""
        document = probe.parsed_document
        self._prompts = {str(task["id"]): _choose_task_prompt(task) for task in document["tasks"]}
        yield range(1, len(document["simulations"]) + 1), document["simulations"]

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        if not record["reward_info"]:
            raise InputError("this simulation was not scored; skip_bad_rows passes over such rows")
        task = str(record["task_id"])
        yield Row(self._prompts.get(task, task), record["reward_info"]["reward"], task, record.get("trial"))


def _choose_task_prompt(task: dict[str, Any]) -> str:
    for key in ("ticket", "user_scenario", "description"):
        if task.get(key):
            return task[key] if isinstance(task[key], str) else json.dumps(task[key], ensure_ascii=False)
    return str(task["id"])
