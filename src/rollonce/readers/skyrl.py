"""SkyRL's evaluation dumps: ``dumped_evals/global_step_<N>_evals/<data_source>.jsonl`` (skyrl 0.4.0,
train/utils/trainer_utils.py).

``score`` is the generator's reward: a number, or one a token, which is summed. ``aggregated_results.jsonl`` beside them
is no rollout file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rollonce.readers.base import Format, Row
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe

_STEP = re.compile(r"global_step_(\d+)")


class SkyRl(Format):
    """SkyRL evaluation dumps."""

    name = "skyrl"
    uses = frozenset({"reward"})

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._step: int | None = None

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``input_prompt``, ``output_response`` and ``score``."""
        return probe.kind == "jsonl" and probe.has_all_keys("input_prompt", "output_response", "score")

    def prepare_for_file(self, probe: Probe) -> None:
        """The training step in the path."""
        match = _STEP.search(str(probe.path))
        self._step = int(match.group(1)) if match else None

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        score = self.read_named_reward(record, "score")
        yield Row(record["input_prompt"], sum(score) if isinstance(score, list) else score, step=self._step)
