"""NeMo Gym's collected rollouts (``ng_collect_rollouts``): one rollout per line, with the request that began it
(``responses_create_params``), the policy's response, the reward, and ``_ng_task_index`` and ``_ng_rollout_index``.

The request is OpenAI's Responses API: its input is text or a list of items. The model server adds
``generation_log_probs`` to the response's output items where it returns token data for training.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollonce.prompts import render_messages
from rollonce.readers.base import Format, Row
from rollonce.readers.log_probs import sum_log_probs_over_calls
from rollonce.readers.probe import Probe


class NemoGym(Format):
    name = "nemo-gym"
    uses = frozenset({"reward"})

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``responses_create_params`` with an input, and ``reward``."""
        return (
            probe.kind == "jsonl"
            and probe.has_all_keys("responses_create_params", "reward")
            and "input" in probe.record["responses_create_params"]
        )

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        request, response = record["responses_create_params"], record.get("response") or {}
        prompt = request["input"]
        if request.get("instructions"):
            items = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            prompt = render_messages([{"role": "system", "content": request["instructions"]}, *items])
        log_prob, n_tokens = sum_log_probs_over_calls(
            item["generation_log_probs"] for item in response.get("output") or () if "generation_log_probs" in item
        )
        yield Row(
            prompt,
            self.read_named_reward(record, "reward"),
            record.get("_ng_task_index"),
            record.get("_ng_rollout_index"),
            (response.get("usage") or {}).get("output_tokens", n_tokens),
            log_prob=log_prob,
        )
