"""The tokenizer loses nothing, and other libraries can load it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")
pytest.importorskip("reasoning_gym")

from embedded_tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()


def _round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "héllo wörld",
        "日本語 🙂",
        "  two  spaces\n\ttabs ",
        "ant elephant want",
        "2 × 2 × 3",
        "\x00\x7f",
        "so , . ; 's n't",
    ],
)
def test_round_trip(text):
    assert _round_trip(TOKENIZER, text) == text


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_round_trip_of_anything(text):
    assert _round_trip(TOKENIZER, text) == text


def test_phrases_are_one_token_and_animals_are_whole_words():
    assert (
        len(
            TOKENIZER("State the final answer to the following arithmetic problem: ", add_special_tokens=False)[
                "input_ids"
            ]
        )
        == 1
    )
    assert len(TOKENIZER("elephant", add_special_tokens=False)["input_ids"]) == 1
    assert len(TOKENIZER("want", add_special_tokens=False)["input_ids"]) == 4


def test_special_tokens_and_chat_template():
    text = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}],
        tokenize=False,
        add_generation_prompt=False,
    )
    assert text == "<|bos|>2 + 2<|reply|>4<|eos|>"
    assert len({TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id}) == 3
    assert TOKENIZER.padding_side == "left"


def test_saved_and_loaded_by_auto_tokenizer(tmp_path):
    from transformers import AutoTokenizer

    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in (
        "State the final answer to the following arithmetic problem: 57 + 87 =",
        "日本 want ant",
        "<|bos|>a<|eos|>",
    ):
        assert again(text)["input_ids"] == TOKENIZER(text)["input_ids"]
        assert _round_trip(again, text) == text
    assert again.chat_template == TOKENIZER.chat_template
    assert (again.pad_token, again.eos_token, len(again)) == (TOKENIZER.pad_token, TOKENIZER.eos_token, len(TOKENIZER))
