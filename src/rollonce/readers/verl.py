"""verl's rollout dumps: ``<trainer.rollout_data_dir>/<step>.jsonl`` (and ``validation_data_dir``), one file a step.

Written by ``_write_generations`` (verl 0.9.1, trainer/ppo/ray_trainer.py and trainer/ppo/v1/trainer_base.py): input,
output, gts, score,
step, and whatever the reward function reports. The task is the ``input``: verl's uid is drawn anew for each batch, and
in the dump of the v1 trainer it is ``{uid}_{session}_{output}``, one a row. Rows of one session are one rollout: its
first input and its last score count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rollonce.readers.base import Format, Row
from rollonce.readers.probe import Probe

# The name of the sampler's log-probabilities in verl's batches. verl's own dumps leave them out; a reward function that
# returns them, one list per rollout, adds them to the dump.
_LOG_PROBS = "rollout_log_probs"
_SESSION = re.compile(r"^(.+_\d+)_(\d+)$")


class Verl(Format):
    name = "verl"
    uses = frozenset({"reward"})

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``input``, ``output``, ``score``, and ``gts``."""
        return probe.kind == "jsonl" and probe.has_all_keys("input", "output", "score", "gts")

    def find_shared_rollout_key(self, record: Any) -> str | None:
        """The session that a row belongs to, where the dump has sessions."""
        match = _SESSION.match(str(record.get("uid", ""))) if isinstance(record, dict) else None
        return match.group(1) if match else None

    def merge_rollout_rows(self, first: Any, last: Any) -> Any:
        """Several outputs of one session: the prompt that it began with, the score that it ended with."""
        outputs = (first.get(_LOG_PROBS), last.get(_LOG_PROBS))
        log_probs = None if None in outputs else [token for tokens in outputs for token in tokens]
        return {**last, "input": first["input"], _LOG_PROBS: log_probs}

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        yield Row(
            record["input"],
            self.read_named_reward(record, "score"),
            rollout=self.find_shared_rollout_key(record),
            step=record.get("step"),
            log_prob=record.get(_LOG_PROBS),
        )
