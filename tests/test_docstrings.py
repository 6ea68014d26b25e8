"""The examples in docstrings run, and print what stands there."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import rollonce

ROOT = Path(rollonce.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(("rollonce", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if any(">>> " in line and "+SKIP" not in line for line in path.read_text(encoding="utf-8").splitlines())
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(name))
    assert tried.failed == 0
    assert tried.attempted > 0
