"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli_helpers import Ran

from rollonce.cli import main


@pytest.fixture
def rollonce(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``rollonce("score", path)``: exit code, stdout and stderr."""

    def run(*argv: object) -> Ran:
        capsys.readouterr()
        code = main([str(a) for a in argv])
        return Ran(code, *capsys.readouterr())

    return run
