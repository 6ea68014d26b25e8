"""A small task file whose answers the fake server knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollonce.collecting import CollectSettings


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between attempts are noted and not waited for."""
    import asyncio

    waited: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, result: Any = None) -> Any:
        waited.append(seconds)
        return await real(0, result)

    monkeypatch.setattr("rollonce.collecting.endpoint.asyncio.sleep", sleep)
    return waited


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """Twenty-four sums with their answers, in a column whether they are large."""
    file = tmp_path / "sums.jsonl"
    lines = [
        {
            "id": f"s{a}",
            "prompt": f"{a} + {a * a} =",
            "reference": str(a + a * a),
            "size": "large" if a > 11 else "small",
        }
        for a in range(24)
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in lines))
    return file


@pytest.fixture
def ask(sums: Path, tmp_path: Path) -> Any:
    """``ask(url, **changes)``: settings for six sums, four rollouts of each."""

    def settings(url: str | None, **changes: Any) -> CollectSettings:
        usual: dict[str, Any] = {
            "policy": "fake-model",
            "tasks_from": f"jsonl:{sums}",
            "out": str(tmp_path / "out.jsonl"),
            "n_tasks": 6,
            "n_rollouts": 4,
            "url": url,
            "split": "all",
            "grader": "numeric_exact",
            "columns": ("size",),
            "max_tokens": 16,
        }
        return CollectSettings(**(usual | changes))

    return settings
