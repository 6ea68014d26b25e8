"""How a prompt becomes tokens for a service that takes tokens alone: the renderer is always named, never guessed from
the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollonce.errors import InputError, MissingExtraError


@dataclass(frozen=True)
class Renderer:
    """Prompt text to token ids, and what ends a response.

    Attributes:
        name: For records.
        encode: Text to the ids that the model continues.
        stop: Token ids, or strings, at which a response ends.
    """

    name: str
    encode: Callable[[str], Sequence[int]]
    stop: Sequence[int] | Sequence[str]


def make_prompt_renderer(name: str, tokenizer: Any, *, system: str | None = None) -> Renderer:
    """One of the renderers there are.

    Args:
        name: ``text``: the prompt's own tokens, with the special ones that the tokenizer puts around a text. ``chat``:
            the tokenizer's chat template with the prompt as the user's message. ``cookbook:NAME``: tinker-cookbook's
            renderer NAME (role_colon, qwen3 ...).
        tokenizer: A transformers tokenizer.
        system: A system message, for the last two.

    Raises:
        InputError: no such renderer, or the tokenizer has no chat template, or names no end-of-sequence token.
    """
    kind, _, cookbook = name.partition(":")
    if kind == "cookbook" and cookbook:
        return _make_cookbook_renderer(name, cookbook, tokenizer, system)
    eos = tokenizer.eos_token_id
    if name not in ("text", "chat"):
        raise InputError(f"no renderer {name!r}: text, chat, or cookbook:NAME (say cookbook:role_colon)")
    if eos is None:
        raise InputError("the tokenizer names no end-of-sequence token, so no rollout of this model could ever end")
    if name == "text":
        if system is not None:
            raise InputError(
                "the renderer text has no place for a system message; use chat, or put it into the prompt template"
            )
        return Renderer(name, lambda prompt: tokenizer(prompt)["input_ids"], [int(eos)])
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("the tokenizer has no chat template; use the renderer text, or cookbook:NAME")
    before = [] if system is None else [{"role": "system", "content": system}]

    def encode_chat_prompt(prompt: str) -> Sequence[int]:
        text = tokenizer.apply_chat_template(
            [*before, {"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        # The template writes the special tokens itself; adding them again would double the first.
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    return Renderer(name, encode_chat_prompt, [int(eos)])


def _make_cookbook_renderer(name: str, cookbook: str, tokenizer: Any, system: str | None) -> Renderer:
    try:
        from tinker_cookbook import renderers  # type: ignore
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the renderer {name}", error.name or "tinker-cookbook", "tinker") from error
    try:
        renderer = renderers.get_renderer(cookbook, tokenizer=tokenizer)
    except (ValueError, KeyError) as error:
        raise InputError(f"tinker-cookbook has no renderer {cookbook!r}: {str(error).splitlines()[0]}") from error
    before = [] if system is None else [{"role": "system", "content": system}]

    def encode_with_cookbook(prompt: str) -> Sequence[int]:
        return renderer.build_generation_prompt([*before, {"role": "user", "content": prompt}]).to_ints()

    return Renderer(name, encode_with_cookbook, list(renderer.get_stop_sequences()))


def load_tokenizer(source: str | Path, *, local_only: bool = True) -> Any:
    """A transformers tokenizer from a directory or hub id.

    Raises:
        InputError: nothing loadable there.
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError("a tokenizer", error.name or "transformers", "tinker") from error
    try:
        return AutoTokenizer.from_pretrained(str(source), local_files_only=local_only)
    except (OSError, ValueError) as error:
        raise InputError(f"no tokenizer can be loaded from {str(source)!r}: {str(error).splitlines()[0]}") from error


def explain_missing_renderer(model: str) -> str:
    """The sentence where none was named, with those that the cookbook has for the model, or its family."""
    known: list[str] = []
    try:
        from tinker_cookbook import model_info  # type: ignore[import-not-found]

        known = list(model_info.get_recommended_renderer_names(model))
    except (ImportError, AttributeError, KeyError, ValueError):
        family = model.rpartition("/")[2].partition("-")[0].lower().replace(".", "_")
        known = [f"{family}_disable_thinking", family] if family.startswith("qwen3") else []
    some = f" ({', '.join(known)} of tinker-cookbook's, say)" if known else ""
    return (
        f"no renderer is named for {model!r}: give --renderer NAME{some}. None is chosen for you: with thinking on, "
        "most answers are cut off at the registered max_tokens, with thinking off the model answers at once, and that "
        "decides this experiment"
    )
