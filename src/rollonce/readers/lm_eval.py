"""lm-evaluation-harness: ``samples_<task>_<date>.jsonl`` (``--log_samples``), one file a run, several seeded runs
together.

A file has one score a document and filter, so G repeats are G runs (``--seed``); keep the few-shot seed fixed, so that
a document's prompt is the same in all of them. Repeats inside one run (``repeats:`` in the task's configuration) are
scored together, not one by one: refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Format, Row
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe

_NAME = re.compile(r"^samples_(.+)_\d{4}-\d\d-\d\dT[\d.:-]+\.jsonl")


class LmEval(Format):
    """lm-evaluation-harness samples."""

    name = "lm-eval"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._run = self._task = ""
        self._filter = options.filter

    @classmethod
    def sniff(cls, probe: Probe) -> bool:
        """``doc_id``, ``doc_hash`` and ``resps``."""
        return probe.kind == "jsonl" and probe.has("doc_id", "doc_hash", "resps", "arguments")

    def start(self, probe: Probe) -> None:
        """A run is a file; its task is in the name."""
        match = _NAME.match(probe.path.name)
        self._task = match.group(1) if match else ""
        self._run = str(probe.path)

    def rows(self, record: Any) -> Iterable[Row]:
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
            return
        resps = record["resps"]
        if resps and isinstance(resps[0], list) and len(resps[0]) > 1:
            raise InputError(
                f"this document has {len(resps[0])} repeats inside one run, which lm-eval scores together, not one by "
                "one; run it once a seed with repeats: 1 (--seed 1, 2, ...) and give all the files"
            )
        metrics = record.get("metrics") or [k for k in ("exact_match", "acc", "pass@1") if k in record]
        name = self.options.reward or (metrics[0] if len(metrics) == 1 else None)
        if name is None:
            raise InputError(f"several metrics ({', '.join(metrics)}); name one with reward= (--reward)")
        if name not in record:
            raise InputError(f"no metric {name!r}; this file has {', '.join(metrics)}")
        prompt = record["arguments"]["gen_args_0"]["arg_0"]
        document = record["doc_hash"]
        yield Row(prompt, record[name], f"{self._task}/{document}" if self._task else document, self._run)
