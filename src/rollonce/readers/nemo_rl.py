"""NeMo-RL's training data logs: ``<log_dir>/train_data_step<N>.jsonl`` (algorithms/grpo.py, log_batched_dict_as_jsonl
of utils/logger.py).

The logger cuts its batch into slices of one, so every value comes wrapped in a list of one. ``content`` is the list of
a conversation's messages; the first is the prompt. With dynamic sampling ``rewards`` is the unfiltered batch and
``filtered_rewards`` belongs to the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Format, Row
from rollonce.readers.log_probs import sum_token_log_probs
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe

_STEP = re.compile(r"train_data_step(\d+)")


class NemoRl(Format):
    """NeMo-RL training data logs."""

    name = "nemo-rl"
    uses = frozenset({"reward"})

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._step: int | None = None

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``content`` and ``rewards`` with ``input_lengths`` or ``token_loss_mask``."""
        return (
            probe.kind == "jsonl"
            and probe.has_all_keys("content", "rewards")
            and not probe.has_none_of_keys("input_lengths", "token_loss_mask")
        )

    def prepare_for_file(self, probe: Probe) -> None:
        """The step in the file's name."""
        match = _STEP.search(probe.path.name)
        self._step = int(match.group(1)) if match else None

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        content = _unwrap_single_value(record["content"])
        if not isinstance(content, list) or len(content) < 2:
            raise InputError("'content' is not a list of messages, so prompt and response cannot be told apart")
        reward = _unwrap_single_value(
            self.read_named_reward(record, "filtered_rewards" if "filtered_rewards" in record else "rewards")
        )
        mask = _unwrap_single_value(record["token_loss_mask"]) if "token_loss_mask" in record else None
        length = sum(mask) if mask is not None else None
        yield Row(content[0], reward, length=length, step=self._step, log_prob=_sum_sampled_log_probs(record, mask))


def _sum_sampled_log_probs(record: dict[str, Any], mask: list[float] | None) -> float | None:
    """``generation_logprobs`` has one number for each token of the sequence, 0 where nothing was sampled."""
    if "generation_logprobs" not in record:
        return None
    log_probs = _unwrap_single_value(record["generation_logprobs"])
    if mask is not None:
        log_probs = [log_prob for log_prob, sampled in zip(log_probs, mask, strict=False) if sampled]
    return sum_token_log_probs(log_probs)[0]


def _unwrap_single_value(value: Any) -> Any:
    """The one element of a slice of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
