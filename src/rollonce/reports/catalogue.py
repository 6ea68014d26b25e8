"""The list of named baselines, in the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rollonce.baselines.catalogue import Entry


class CatalogueRow(NamedTuple):
    """One named baseline as it is listed.

    Attributes:
        name: In configurations and specifications.
        label: In tables.
        python: Its class in `rollonce.baselines`.
        formula, source: As the catalogue has them.
        windows: Whether there is a form with a window: ``no``, ``yes`` or ``always``.
        published_example: Whether the post gives a form of it as an example of GS1.
    """

    name: str
    label: str
    python: str
    formula: str
    source: str
    windows: str
    published_example: bool


def make_catalogue_rows(entries: Sequence[Entry]) -> list[CatalogueRow]:
    """The list, in the catalogue's order."""
    windows = {"batch": "no", "both": "yes", "history": "always"}
    return [
        CatalogueRow(
            name=entry.name,
            label=entry.label_in_tables,
            python=entry.baseline_class.__name__,
            formula=entry.formula,
            source=entry.cited_source,
            windows=windows[entry.forms],
            published_example=entry.published_example is not None,
        )
        for entry in entries
    ]


def print_catalogue(
    console: Console, entries: Sequence[Entry], aliases: Mapping[str, str], offered: Mapping[str, str]
) -> None:
    """A name with its class on one line, formula and source under it; then what installed packages offer, name ->
    ``module:name``."""
    for row in make_catalogue_rows(entries):
        marks = [row.python]
        if row.windows == "yes":
            marks.append(f"also {row.name}_window")
        if row.published_example:
            marks.append("the post's example of GS1")
        console.print(Text.assemble((row.name, "bold"), ("  " + ", ".join(marks), "dim")))
        console.print(Padding(Text(f"b = {row.formula}"), (0, 0, 0, 4)))
        if row.source:
            console.print(Padding(Text(row.source, style="dim"), (0, 0, 0, 4)))
    for name, place in offered.items():
        console.print(Text.assemble((name, "bold"), (f"  {place}, from an installed package", "dim")))
    console.print()
    console.print(Text("r: rewards, w: weights, p: features known before the rollout, j: other rollouts.", style="dim"))
    others = ", ".join(f"{alias} = {name}" for alias, name in aliases.items())
    console.print(Text(f"Older names that go on working: {others}.", style="dim"))
