"""TRL's completion logs: ``<output_dir>/completions/completions_<step>.parquet`` (``log_completions=True``; GRPO
trainer, 1.16.0).

Columns, in this order: step, prompt, completion, one a reward function, whatever reward functions log by ``log_extra``,
advantage. The reward is the sum of the reward functions' columns; TRL's ``reward_weights`` are not in the file. Nothing
tells a reward column from a
numeric extra one, so where there are extras name the reward: ``reward="correctness"`` or, for a sum,
    ``reward="correctness,format"``.

TRL logs its last generation batch whenever it logs metrics, so with several optimizer steps a batch the same rollouts
are written again under a later step; a file that repeats the one before it is passed over.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Format, Row
from rollonce.readers.jsonl import Reject, Tell
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe
from rollonce.readers.tabular import read_parquet_blocks

_NUMBER = re.compile(r"^(double|float|halffloat|u?int\d+|bool|null)$")


class Trl(Format):
    """TRL completions parquet."""

    name = "trl"
    uses = frozenset({"reward"})
    streams = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._rewards: list[str] = []
        self._digest_before = b""

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """A parquet file with step, prompt, completion and advantage."""
        return probe.kind == "parquet" and probe.has_all_keys("step", "prompt", "completion", "advantage")

    def prepare_for_file(self, probe: Probe) -> None:
        """Which columns are rewards."""
        columns = list(probe.record or {})
        if "completion" not in columns or "advantage" not in columns:
            raise InputError(
                "a TRL completions file has the columns step, prompt, completion, rewards ..., advantage",
                file=probe.path,
            )
        between = columns[columns.index("completion") + 1 : columns.index("advantage")]
        numbers = [c for c in between if _NUMBER.match(probe.record[c])]
        wanted = [c.strip() for c in self.options.reward.split(",")] if self.options.reward else numbers
        missing = [c for c in wanted if c not in columns]
        if missing or not wanted:
            raise InputError(
                f"no reward column {missing[0] if missing else ''!r}; the reward columns are "
                f"{', '.join(numbers) or 'none'}",
                file=probe.path,
            )
        self._rewards = wanted

    def read_record_blocks(
        self, probe: Probe, reject: Reject, tell: Tell | None = None
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """The rows, unless the file repeats the one before it."""
        blocks = list(read_parquet_blocks(probe.path))
        digest = hashlib.sha1(usedforsecurity=False)
        for _, records in blocks:
            for r in records:
                digest.update(repr((r.get("prompt"), r.get("completion"), [r.get(c) for c in self._rewards])).encode())
        if self._digest_before == digest.digest():
            return iter(())
        self._digest_before = digest.digest()
        return iter(blocks)

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        """One rollout; a reward function that gave None (NaN in the file) for it does not count, as in TRL."""
        values = [record[c] for c in self._rewards]
        scored = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
        if not scored:
            raise InputError(f"no reward function scored this rollout ({', '.join(self._rewards)} are all null)")
        yield Row(record["prompt"], sum(scored), step=record["step"])
