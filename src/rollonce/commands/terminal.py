"""What every command prints with: results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Annotated, Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from tyro.conf import arg

from rollonce.files import convert_to_plain_json

Flag = Annotated[bool, arg(help_behavior_hint="")]
"""A switch that is off unless given; "(default: False)" behind each would say nothing."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command line handles it; rich would exit with 1, which means a failed check here


def results_console() -> Console:
    """The console of results; no colour where it is no terminal, 80 columns wide where nothing says otherwise."""
    return _Console(file=sys.stdout, highlight=False, soft_wrap=False)


def print_remark(text: str) -> None:
    """A line on stderr, beside the results."""
    print(text, file=sys.stderr, flush=True)


def print_json_document(value: Any) -> None:
    """One JSON document on stdout, NaN as null. ASCII escapes, so that no encoding of the terminal can break it."""
    sys.stdout.write(json.dumps(convert_to_plain_json(value), indent=1, allow_nan=False) + "\n")


def command_as_typed(verb: str, words: list[str] | None = None) -> str:
    """The command as it was typed, for the page to say how it was made."""
    typed = sys.argv[1:] if words is None else words
    return shlex.join(["rollonce", *typed]) if typed[:1] == [verb] else f"rollonce {verb} ..."


class Bars:
    """Progress on stderr: bars in a terminal, once a second has gone by; elsewhere one line every ten seconds.

    What was computed so far can stand above the bars (`show_above_bars`); it goes with them at the end, when results
    are printed.

    >>> with Bars() as bars:
    ...     bars.report_progress("reading", "bytes", 5, 10)
    """

    def __init__(self, delay: float = 1.0, every: float = 10.0) -> None:
        self._start = self._said = time.monotonic()
        self._delay, self._every = delay, every
        self._console = Console(file=sys.stderr)
        self._progress: _Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._so_far: RenderableType | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def stderr_console(self) -> Console:
        return self._console

    def report_progress(self, name: str, what: str, done: int, total: int) -> None:
        """``done`` of ``total``, now at ``what``, of the job called ``name``."""
        if not self._console.is_terminal:
            if time.monotonic() - self._said >= self._every:
                self._said = time.monotonic()
                print_remark(f"{name}: {done} of {total}" + (f", {what}" if what else ""))
            return
        if time.monotonic() - self._start < self._delay:
            return
        if self._progress is None:
            columns = (
                TextColumn("{task.description:<30.30}", markup=False),
                BarColumn(bar_width=14),
                MofNCompleteColumn() if total < 100_000 else TextColumn("{task.percentage:>3.0f}%"),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[what]:.20}", markup=False),
            )
            self._progress = _Progress(*columns, console=self._console, transient=True)
            self._progress.above = self._so_far
            self._progress.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, what=what)
        self._progress.update(self._tasks[name], completed=done, total=total, what=what)

    def show_above_bars(self, so_far: RenderableType) -> None:
        """What there is so far, above the bars of a terminal."""
        self._so_far = so_far
        if self._progress is not None:
            self._progress.above = so_far


class _Progress(Progress):
    above: RenderableType | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.above is not None:
            yield self.above
        yield from super().get_renderables()
