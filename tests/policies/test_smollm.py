"""SmolLM2's tokenizer from its GGUF file: a file of that shape made on the spot, held against the tokenizer that it
describes."""

from __future__ import annotations

import pytest

gguf = pytest.importorskip("gguf")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from rollonce.errors import InputError  # noqa: E402
from smollm2 import convert, tokenizer_of  # noqa: E402

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
TEXTS = ["What is 13 + 407?\nNow", "  two  spaces, naïve café 数", "x=12345; y", "<|im_start|>user\nhi<|im_end|>\n"]


@pytest.fixture(scope="module")
def trained():
    """A small byte-level BPE as SmolLM2's is made: digits alone, no prefix space."""
    built = tokenizers.Tokenizer(tokenizers.models.BPE())
    built.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    built.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(["What is the sum of the spaces and the naïve café? Now what is it, user?"] * 20, trainer)
    return built


def write(path, trained, *, model="gpt2", pre="smollm"):
    import json

    state = json.loads(trained.to_str())
    vocabulary = sorted(state["model"]["vocab"], key=state["model"]["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in vocabulary])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_it_reads_text_as_the_tokenizer_in_the_file_does(tmp_path, trained):
    tokenizer = tokenizer_of(write(tmp_path / "x.gguf", trained))
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert ids == trained.encode(text).ids
        assert tokenizer.decode(ids) == text
    assert [tokenizer.decode([i]) for i in tokenizer("12345")["input_ids"]] == list("12345")
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said == "<|im_start|>user\nhi<|im_end|>\n"
    assert tokenizer.decode(tokenizer(said)["input_ids"], skip_special_tokens=True) == "user\nhi\n"


def test_saved_and_read_again_by_transformers_it_is_the_same(tmp_path, trained):
    from transformers import AutoTokenizer

    tokenizer_of(write(tmp_path / "x.gguf", trained)).save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [again(t)["input_ids"] for t in TEXTS] == [trained.encode(t).ids for t in TEXTS]
    assert (again.eos_token_id, again.chat_template) == (2, TEMPLATE)


def test_another_kind_of_tokenizer_is_refused(tmp_path, trained):
    with pytest.raises(InputError, match=r"'llama', 'default'; only SmolLM's byte-level BPE"):
        tokenizer_of(write(tmp_path / "x.gguf", trained, model="llama", pre="default"))
    with pytest.raises(InputError, match="no such file"):
        convert(tmp_path / "out", tmp_path / "missing.gguf")
