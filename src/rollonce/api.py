"""What a notebook or a script starts with: ``rollonce.read`` and ``rollonce.score``.

>>> import rollonce as ro
>>> table = ro.read([{"prompt": f"{n} + 1?", "reward": float(n % 3 > i)} for n in range(12) for i in range(2)])
>>> board = ro.score(table, batch_size=4, quick=True)
>>> board.best.baseline.label in {row.label for row in board}
True
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from rollonce import datasets
from rollonce.baselines import Baseline
from rollonce.boards import BoardSettings, baseline_of_board_row, make_baseline_board
from rollonce.errors import InputError, MissingExtraError
from rollonce.readers import read_rollouts
from rollonce.readers.memory import convert_source_to_rows, read_rows_in_memory
from rollonce.readers.options import ReadOptions
from rollonce.reports.board_rows import make_board_records, render_board_html, render_board_markdown
from rollonce.reports.decision import Decision, decide_on_board, format_trainer_call
from rollonce.reports.table import select_top_rows
from rollonce.reports.words import format_with_interval
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, Score
from rollonce.scoring.exponent import read_surprisal_exponent
from rollonce.scoring.rows import find_rows_by_name

__all__ = ["Ranking", "Row", "read", "score"]


def read(source: Any, *, name: str | None = None, **options: Unpack[ReadOptions]) -> Rollouts:
    """Rollouts from wherever they are, as one table.

    Args:
        source: Files, directories or globs (one or several, `read_rollouts`); the name of a set that comes with
            rollonce; or rows in memory, one rollout each: a data frame of pandas or polars, an Arrow table or whatever
            has Arrow's C stream (DuckDB), a dataset of the hub, a list of dictionaries.
        name: What to call the set.
        **options: As `read_rollouts` has them: ``prompt_key``, ``reward_key``, ``columns`` ...

    Raises:
        InputError: for anything that cannot be read, naming the file and line, or the row.
    """
    if isinstance(source, Rollouts):
        return source
    rows = convert_source_to_rows(source)
    if rows is not None:
        if not rows:
            raise InputError("no rows to read")
        return read_rows_in_memory(rows, name=name or "rollouts", **options)
    if isinstance(source, str) and not options and not os.path.exists(source) and source.isidentifier():
        return datasets.load(source)
    if not isinstance(source, str | os.PathLike | Sequence):
        raise InputError(
            f"rollouts are read from files, a data frame, an Arrow table or a list of dictionaries, not from "
            f"{type(source).__name__}"
        )
    return read_rollouts(source, name=name, **options)


def score(
    source: Any,
    *,
    batch_size: int = 32,
    window: int = 512,
    baselines: Sequence[Any] = (),
    only: Sequence[str] = (),
    quick: bool = False,
    n_batches: int = 2000,
    resamples: int = 100,
    held_out: float = 0.0,
    exponent: float | str | os.PathLike[str] | None = None,
    rho: float | None = None,
    seed: int = 0,
    **options: Unpack[ReadOptions],
) -> Ranking:
    """Rank baselines on rollouts: the board that ``rollonce score`` prints.

    Args:
        source: A table, or anything that `read` takes (with its ``options``).
        batch_size: Rollouts in a step, one per task.
        window: Rows of earlier steps for the baselines that keep any.
        baselines: More to put on the board: baselines or kernels (a fitted one is scored as it was fitted), classes of
            them, functions, files, names, or ``module:name``.
        only: Only the rows of these names, or whose labels contain them (and the LOO mean).
        quick: A first look: fewer batches and resamples, and only what is fitted on prompts alone.
        n_batches, resamples: Batches behind each value, and resamples of the tasks behind each interval.
        held_out: Score only this share of the tasks, with features fitted on the others.
        exponent: Of the surprisal: a number, or what `rollonce noise --save` wrote.
        rho: The between-task over the within-task gradient variance, if it was measured; for the decision.
        seed: Same seed, same board.

    Raises:
        InputError: for what cannot be read or scored.
    """
    table = read(source, **options)
    settings = BoardSettings(
        batch_size=batch_size,
        window=window,
        n_batches=n_batches,
        resamples=resamples,
        seed=seed,
        held_out=held_out,
        given=tuple(baselines),
        exponent=read_surprisal_exponent(str(exponent)) if exponent is not None else None,
        only=(only,) if isinstance(only, str) else tuple(only),
        quick=quick,
    )
    return Ranking(make_baseline_board(table, settings), table, settings, rho)


class Row:
    """A baseline on a board: its `Score` (``row.ratio``, ``row.b_eff`` and the other fields), and itself."""

    def __init__(self, ranking: Ranking, score: Score) -> None:
        self.score = score
        self._ranking = ranking
        self._baseline: Baseline | None = None

    @property
    def baseline(self) -> Baseline:
        """The baseline, fitted on all tasks of the board's table: ready for `Baseline.save` and for a trainer.

        Raises:
            InputError: for what no trainer can ask (the oracle, trackers).
        """
        if self._baseline is None:
            ranking = self._ranking
            command = f"rollonce.score({ranking.table.name!r})"
            self._baseline = baseline_of_board_row(
                ranking.board, ranking.table, ranking.settings, self.score.label, command
            )
        return self._baseline

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "score":
            raise AttributeError(name)
        return getattr(self.score, name)

    def __repr__(self) -> str:
        return f"Row({self.score.label!r}, {format_with_interval(self.score.ratio)} x LOO)"


class Ranking:
    """A board and the table that it was made from. A sequence of rows, the best first; ``ranking["tfidf"]`` is the row
    of a name or label.

    Attributes:
        board: The figures, see `rollonce.scoring.Board`.
        table: The rollouts.
        settings: How it was computed.
    """

    def __init__(self, board: Board, table: Rollouts, settings: BoardSettings, rho: float | None = None) -> None:
        self.board, self.table, self.settings, self._rho = board, table, settings, rho
        self._rows = [Row(self, score) for score in board.scores]

    @property
    def best(self) -> Row:
        """The best row."""
        return self._rows[0]

    @property
    def decision(self) -> Decision:
        """Whether one rollout per task is enough here, and what to do next."""
        decision = decide_on_board(self.board, "", rho=self._rho)
        if "--save-best" in decision.next_step:
            step = 'board.best.baseline.save("baseline.json"); then ' + format_trainer_call("baseline.json")
            decision = decision._replace(next_step=step)
        return decision

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __getitem__(self, which: int | str) -> Row:
        if isinstance(which, int):
            return self._rows[which]
        labels = {row.label for row in find_rows_by_name(which, [])} if which not in self._all_row_labels else {which}
        for row in [*self._rows, *(Row(self, score) for score in self.board.apart)]:
            if row.score.label in labels:
                return row
        raise InputError(f"the board has no row {which!r}; it has {', '.join(self._all_row_labels)}")

    @property
    def _all_row_labels(self) -> list[str]:
        return [score.label for score in [*self.board.scores, *self.board.apart]]

    def to_frame(self) -> Any:
        """A data frame of pandas, one line per baseline.

        Raises:
            MissingExtraError: without pandas.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("to_frame()", "pandas", "") from None
        return pd.DataFrame(make_board_records(self.board))

    def to_markdown(self) -> str:
        """The board as Markdown, with its notes and the decision."""
        return render_board_markdown(self.board, self.decision)

    def save_report(self, path: str | os.PathLike[str]) -> Path:
        """Write the page that ``rollonce score --report`` writes; returns its path."""
        from rollonce.reports.page import write_board_page

        write_board_page(str(path), [self.board], f"rollonce.score({self.table.name!r})", [self.decision])
        return Path(path)

    def _repr_html_(self) -> str:
        return render_board_html(
            self.board, self.decision, select_top_rows(self.board.scores, self.board.settings.get("given", ()))
        )

    def __repr__(self) -> str:
        rows = f"{len(self)} baselines" if len(self) != 1 else "1 baseline"
        best = f", best {self.best.label}, {format_with_interval(self.best.ratio)} x LOO" if self._rows else ""
        return f"Ranking({self.table.name!r}, batches of {self.board.batch_size}, {rows}{best})"
