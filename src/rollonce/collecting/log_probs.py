"""Log-probabilities of responses from a server: whether they are asked for, and what the server's are of.

What engines return for ``logprobs`` (late 2026; read in transformers' source, in a fork of vLLM, in excerpts about the
others): vLLM the log-probabilities at temperature 1, before top-k and top-p, unless it is started with
``--logprobs-mode processed_logprobs``; SGLang those after the temperature, unless ``SGLANG_RETURN_ORIGINAL_LOGPROB`` is
set; llama.cpp those at temperature 1; ``transformers serve`` none. So only at temperature 1 is it known, whatever the
engine, that they are of the distribution sampled from (but for a top-k or top-p of the server's own).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rollonce.collecting.settings import CollectSettings

_NONE = "the column log_prob is left out: "


class ServerLogProbs:
    """What is asked of a server, and the sum over the tokens of an answer.

    Args:
        settings: ``log_probs``, ``temperature`` and ``api``.
        note: The provenance; ``log_prob`` in it says what the column is, or why it is left out.
        say: Takes a sentence for the user.
    """

    def __init__(self, settings: CollectSettings, note: dict[str, Any], say: Callable[[str], None]) -> None:
        self._settings, self._note, self._say = settings, note, say
        if settings.log_probs == "on" and str(note.get("log_prob", "")).startswith(_NONE):
            del note["log_prob"]  # another try
        self._known = "log_prob" in note
        self.wanted = settings.log_probs != "off" and not str(note.get("log_prob", "")).startswith(_NONE)
        if self.wanted and settings.log_probs == "auto" and settings.temperature != 1:
            self._leave_out_from_now_on(
                f"at temperature {settings.temperature:g} some servers return log-probabilities at temperature 1; give "
                "--log-probs on if yours are taken after the temperature"
            )

    def build_request_fields(self) -> dict[str, Any]:
        """What a request holds to ask for them."""
        return {"logprobs": True if self._settings.api == "chat" else 1} if self.wanted else {}

    def handle_field_refusal(self, said: str) -> None:
        """The server takes no such field."""
        if self.wanted:
            self._leave_out_from_now_on(f"the server refuses log-probabilities ({said})")

    def read_answer_log_prob(self, choice: Mapping[str, Any], tokens: int | None) -> float | None:
        """The sum of one answer's log-probabilities; None where there are none, or they are not of its tokens.

        Args:
            choice: The answer's ``choices[0]``.
            tokens: How many tokens the server says that the response has.
        """
        if not self.wanted:
            return None
        values = _parse_token_log_probs(choice.get("logprobs"))
        if values is None and not self._known:
            self._leave_out_from_now_on("the server returns no log-probabilities")
        if not values:
            return None
        if tokens is not None and len(values) not in (tokens, tokens - 1):
            if not self._known:
                self._leave_out_from_now_on(f"the server returns log-probabilities of {len(values)} of {tokens} tokens")
            return None
        lacks_end = tokens == len(values) + 1
        if not self._known or lacks_end:
            self._known = True
            tokens_meant = "the response's tokens without the last" if lacks_end else "the response's tokens"
            self._note["log_prob"] = (
                f"natural logarithm, summed over {tokens_meant}, as the server returns it: at temperature "
                f"{self._settings.temperature:g}, before any top-k or top-p"
            )
        return math.fsum(values)

    def _leave_out_from_now_on(self, why: str) -> None:
        self.wanted = False
        if not self._known:
            self._known = True
            self._note["log_prob"] = _NONE + why
            self._say(_NONE + why)


def _parse_token_log_probs(logprobs: Any) -> list[float] | None:
    """The list of a chat answer (``content``) or of a completion (``token_logprobs``); None where there is neither."""
    if not isinstance(logprobs, Mapping):
        return None
    content, plain = logprobs.get("content"), logprobs.get("token_logprobs")
    if isinstance(content, list):
        values = [token.get("logprob") if isinstance(token, Mapping) else None for token in content]
    elif isinstance(plain, list):
        values = plain
    else:
        return None
    # vLLM writes -9999 for what it does not know.
    usable = all(isinstance(v, int | float) and -9999 < v <= 1e-3 for v in values)
    return [float(v) for v in values if v is not None] if usable else None
