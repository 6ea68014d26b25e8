"""An audit in the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollonce.testing.audit import CheckResult


def print_audit_results(
    console: Console, label: str, results: Sequence[CheckResult], provenance: dict[str, Any] | None
) -> None:
    """One line per check, and which of them failed."""
    failed = [r.name.replace("_", " ") for r in results if not r.passed]
    console.print(Text(label, style="bold"))
    for line in format_provenance_lines(provenance):
        console.print(Text(line, style="dim"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for result in results:
        passed = Text("pass", style="green") if result.passed else Text("FAIL", style="bold red")
        table.add_row(passed, Text(result.name.replace("_", " ")), Text(result.message))
    console.print(table)
    if failed:
        console.print(Text(f"{len(failed)} of {len(results)} checks failed: {', '.join(failed)}", style="bold red"))
    else:
        console.print(Text(f"All {len(results)} checks hold.", style="green"))


def make_audit_json(
    source: str, label: str, results: Sequence[CheckResult], provenance: dict[str, Any] | None
) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "baseline": source,
        "label": label,
        "passed": all(r.passed for r in results),
        "checks": list(results),
        "provenance": provenance or {},
    }


def format_provenance_lines(provenance: dict[str, Any] | None) -> list[str]:
    """What a baseline file says of where it comes from, one line per entry."""
    return [f"{key}: {_format_short_value(value)}" for key, value in (provenance or {}).items()]


def _format_short_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_short_value, value[:8])) + (
            f" ... ({len(value)} in all)" if len(value) > 8 else ""
        )
    if isinstance(value, dict):
        return ", ".join(f"{key}={_format_short_value(inner)}" for key, inner in list(value.items())[:12])
    return str(value)
