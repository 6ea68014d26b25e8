"""What is known before a rollout, as text: the names that a column may have, chat messages as one prompt, and when two
prompts are one task."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rollonce.errors import InputError

# What is only known once a rollout has run. A column named so is refused as a feature: using it would bias the
# gradient.
_AFTER_THE_ROLLOUT = re.compile(
    r"(?:^|_)(?:reward|rewards|score|scores|return|returns|advantage|advantages|response|responses|completion|completions|output|outputs"
    r"|correct|passed|pass|success|solved|grade|graded|judge|finish|stop_reason|truncated|num_turns|n_turns|tokens_out|length|lengths|len|tokens"
    r"|log_?p(?:rob)?s?|surprisals?|perplexity|entropy"
    r"|answer_given|prediction|predictions)(?:$|_)",
    re.IGNORECASE,
)
_BEFORE_THE_ROLLOUT = re.compile(
    r"^(?:prompt|question|problem|input|task|reference|code|context)_(?:length|len|chars|words|tokens)$", re.IGNORECASE
)


def check_column_name(name: str) -> str:
    """Refuse a feature column whose name says that it is known only after the rollout.

    Raises:
        InputError: for names like ``reward``, ``response_length`` or ``num_tokens``. ``prompt_length`` and its like are
            fine.
    """
    if _AFTER_THE_ROLLOUT.search(name) and not _BEFORE_THE_ROLLOUT.match(name):
        raise InputError(
            f"column {name!r} is named like something known only after the rollout, and a baseline that reads it "
            "biases the gradient; declare columns known before the rollout (family, level, source, prompt_length "
            "...), or rename it if it truly is one"
        )
    return name


def normalise_prompt(prompt: str) -> str:
    """The form under which two prompts count as one task: Unicode NFKC, case folded, white space collapsed."""
    return " ".join(unicodedata.normalize("NFKC", prompt).casefold().split())


def render_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """Chat messages as text, the one way used everywhere: ``role: content`` blocks joined by a blank line.

    A single user message is just its content, so a chat-formatted and a plain log of the same task agree. Content given
    as a list of parts keeps the text parts and writes ``[image]`` and the like for others; tool calls in a message are
    left out (they come after the prompt). Of the items without a role that OpenAI's Responses API puts between
    messages, calls and their outputs are written as the assistant's and the tool's, reasoning is left out.

    Raises:
        InputError: if something in the list is not a message.
    """
    blocks: list[tuple[str, str]] = []
    for message in messages:
        if isinstance(message, Mapping) and "role" not in message and isinstance(message.get("type"), str):
            blocks += _render_response_item(message)
            continue
        if not isinstance(message, Mapping) or "role" not in message:
            raise InputError(
                f"a prompt given as a list must hold messages with 'role' and 'content', not {str(message)[:80]!r}"
            )
        content = message.get("content")
        if content is None:
            text = ""
        elif isinstance(content, str):
            text = content
        elif isinstance(content, Sequence):
            text = "".join(p if isinstance(p, str) else p.get("text", f"[{p.get('type', 'part')}]") for p in content)
        else:
            raise InputError(f"message content must be text or a list of parts, not {type(content).__name__}")
        blocks.append((str(message["role"]), text))
    if len(blocks) == 1 and blocks[0][0] == "user":
        return blocks[0][1]
    return "\n\n".join(f"{role}: {text}" for role, text in blocks)


def _render_response_item(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    kind = item["type"]
    if kind == "reasoning":
        return []
    if kind.endswith("_call"):
        return [("assistant", f"{item.get('name', kind)}({item.get('arguments', '')})")]
    if kind.endswith("_output"):
        output = item.get("output", "")
        return [("tool", output if isinstance(output, str) else f"[{kind}]")]
    return [("assistant", f"[{kind}]")]
