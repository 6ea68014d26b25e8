"""lm-evaluation-harness: ``samples_<task>_<date>.jsonl`` (``--log_samples``), one file per run, several seeded runs
together.

A file has one score per document and filter, so G repeats are G runs (``--seed``); keep the few-shot seed fixed, so
that a document's prompt is the same in all of them. Repeats inside one run (``repeats:`` in the task's configuration)
are scored together, not one by one: refused.

Three layouts of ``arguments`` are read: ``{"gen_args_0": {"arg_0": prompt, ...}}``; the same of a chat model behind an
API, whose prompt is a list with the chat as JSON text; and that of versions before 0.4.3, ``[[prompt, ...], ...]``,
which have neither document hashes nor the names of metrics and filters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Format, Row
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe

_NAME = re.compile(r"^samples_(.+)_\d{4}-\d\d-\d\dT[\d.:-]+\.jsonl")
_NO_METRIC = frozenset(
    {
        *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
        *("doc_hash", "prompt_hash", "target_hash", "schema_version"),
    }
)


class LmEval(Format):
    """lm-evaluation-harness samples."""

    name = "lm-eval"
    uses = frozenset({"reward", "filter"})

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._run = self._task = ""
        self._filter = options.filter

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``doc_id``, ``arguments``, ``resps`` and ``filtered_resps``."""
        return probe.kind == "jsonl" and probe.has_all_keys("doc_id", "arguments", "resps", "filtered_resps")

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        """The model of the results beside the samples; without them the folder, where its name is a model's."""
        for beside in sorted(probe.path.parent.glob("results_*.json")):
            try:
                results = json.loads(beside.read_text(encoding="utf-8"))
                return results.get("model_name") or results["config"]["model_args"]
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        folder = probe.path.absolute().parent.name
        return folder if "__" in folder.strip("_") else None  # lm-eval writes org/model as org__model

    def prepare_for_file(self, probe: Probe) -> None:
        """A run is a file; its task is in the name."""
        match = _NAME.match(probe.path.name)
        self._task = match.group(1) if match else ""
        self._run = str(probe.path)

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        """One document's score in one run."""
        filtered = record.get("filter", "none")
        if self._filter is None:
            self._filter = filtered
        if filtered != self._filter:
            if self.options.filter is None:
                raise InputError(
                    f"the samples were scored under several filters ({self._filter}, {filtered}); name one with "
                    "filter= (--filter)"
                )
            self.n_filtered += 1
            self.splits.add(filtered)
            return
        resps = record["resps"]
        if resps and isinstance(resps[0], list) and len(resps[0]) > 1:
            raise InputError(
                f"this document has {len(resps[0])} repeats inside one run, which lm-eval scores together, not one by "
                "one; run it once per seed with repeats: 1 (--seed 1, 2, ...) and give all the files"
            )
        metrics = record.get("metrics") or [
            k for k, v in record.items() if k not in _NO_METRIC and isinstance(v, int | float)
        ]
        name = self.options.reward or (metrics[0] if len(metrics) == 1 else None)
        if name is None:
            raise InputError(f"several metrics ({', '.join(metrics)}); name one with reward= (--reward)")
        if name not in record:
            raise InputError(f"no metric {name!r}; this file has {', '.join(metrics)}")
        document = record.get("doc_hash", record["doc_id"])
        task = f"{self._task}/{document}" if self._task else document
        yield Row(_extract_request_prompt(record["arguments"]), record[name], task, self._run)


def _extract_request_prompt(arguments: Any) -> Any:
    """The context of a document's first request."""
    prompt = arguments["gen_args_0"]["arg_0"] if isinstance(arguments, dict) else arguments[0][0]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]  # what lm-eval hands to an API: the chat as JSON, so that it can be hashed
        try:
            return json.loads(prompt) if prompt.startswith("[") else prompt
        except ValueError:
            return prompt
    return prompt
