"""The embedded policy's tokenizer: bytes, and the fixed phrases of its tasks and solutions as one token each.

Byte level, so every text round-trips, whatever its script; phrases, so that a question of reasoning-gym is a dozen
tokens rather than a hundred.
"""

from __future__ import annotations

from typing import Any

from embedded_steps import CLOSINGS, HASTE, JOINTS, OPENINGS, REMARKS, TERMS

PAD, EOS, REPLY, BOS = "<|pad|>", "<|eos|>", "<|reply|>", "<|bos|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    + REPLY
    + "{{ message['content'] }}"
    + EOS
    + "{% else %}"
    + BOS
    + "{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}" + REPLY + "{% endif %}"
)

PROMPT_PHRASES = (
    "State the final answer to the following arithmetic problem: ",
    "Solve the following multiplication: ",
    ". Give only the result as your final answer.",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
    'How many times does the letter "',
    '" appear in the text: "',
    "Spell this word backward (example: sun -> nus): ",
    "Find the value of ",
    " in the equation: ",
    "Solve for ",
    "Determine the value of ",
    " that satisfies: ",
    "Sort these numbers in ",
    "ascending order: ",
    "descending order: ",
    "\nPlease follow the instruction below:\n## 1. Let all your answers be a list of numbers. Instead of reporting "
    "your answer as -69, -13, 1, 7, 11, 43, 59, 61, use ['-69', '-13', '1', '7', '11', '43', '59', '61'] instead\n## "
    "2. Convert all numbers in the square brackets as strings. For example, ['-69', '-13', '1', '7', '11', '43', '59', "
    "'61']\n",
    "Keep all numbers ",
    "Remove all numbers ",
    "smaller than ",
    "larger than ",
    " in this list: ",
    "\nReturn the new list in the same format.",
    "Your task is to count how many legs there are in total when given a list of animals.\n\n"
    "Now, how many legs are there in total if you have ",
    "How many 1 bits are there in the binary representation of the number ",
)
SYMBOLS = (" + ", " - ", " * ", " = ", "['", "', '", "']", "[]", ".0", ", ")


def _animals() -> list[str]:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    return sorted(ANIMALS)


def build_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` with bytes, phrases and a chat template (a user's text, then ``<|reply|>``)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([PAD, BOS, REPLY, EOS, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([PAD, BOS, REPLY, EOS])
    phrases = dict.fromkeys((*PROMPT_PHRASES, *OPENINGS, *JOINTS, *REMARKS, *CLOSINGS, *HASTE, *TERMS, *SYMBOLS))
    inner.add_tokens([AddedToken(p, normalized=False) for p in phrases if len(p) > 1])
    # A single letter's word ("ant") must not be cut out of a longer one ("elephant").
    inner.add_tokens([AddedToken(a, normalized=False, single_word=True) for a in _animals()])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
