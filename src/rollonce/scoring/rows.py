"""The rows of a board by their names: some of them only, a quick choice, and one of them fitted for a file."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence

import numpy as np

from rollonce.baselines import Baseline
from rollonce.baselines.catalogue import default_board_baselines, known_baseline_names, named_baseline
from rollonce.baselines.tags import Cost
from rollonce.errors import InputError
from rollonce.rollouts import Rollouts
from rollonce.scoring.crossfit import draw_rollout_per_task, learn_from_rewards
from rollonce.scoring.step_prediction import UNMEASURED


def choose_board_rows(
    rollouts: Rollouts,
    window: int,
    only: Sequence[str] = (),
    quick: bool = False,
    exponent: float | None = None,
) -> list[Baseline]:
    """The baselines of a board, unfitted.

    Args:
        rollouts: The table. Declared columns of its tasks become baselines of their own; where it has
            log-probabilities, norm-weighted ones are among the rows.
        window: Rows of earlier steps for the windowed ones.
        only: Names, as `rollonce baselines` lists them, or parts of labels; all rows without any.
        quick: Leave out what takes a fit for every batch or fold: boosted trees and what is cross-fitted.
        exponent: Of the surprisal, where it was measured.

    Raises:
        InputError: for a name that means nothing, with the nearest ones.
    """
    rows = default_board_baselines(rollouts.tasks, window, norm_weighted_exponent(rollouts, exponent))
    if only:
        rows = list({row.label: row for name in only for row in find_rows_by_name(name, rows)}.values())
    if quick:
        rows = [row for row in rows if row.tags.cost < Cost.MODEL_FIT and not hasattr(row, "fit_rewards")]
    return rows


def norm_weighted_exponent(rollouts: Rollouts, measured: float | None) -> float | None:
    """The exponent of the surprisal for norm-weighted rows: the measured one, or that of tokens whose scores add up.
    None without log-probabilities."""
    if rollouts.log_probs_R is None:
        return None
    return max(UNMEASURED) if measured is None else measured


def find_rows_by_name(name: str, rows: Sequence[Baseline]) -> list[Baseline]:
    """The rows of this label; or the baseline of this name (`rollonce.baselines.catalogue`), which need not be among
    them; or the rows whose label contains it, whatever the case.

    Raises:
        InputError: if there is none, with the nearest ones.
    """
    matching = [row for row in rows if row.label == name]
    if matching:
        return matching
    with contextlib.suppress(InputError):
        return [named_baseline(name)]
    matching = [row for row in rows if name.casefold() in row.label.casefold()]
    if matching:
        return matching
    names = list(dict.fromkeys([*known_baseline_names(), *(row.label for row in rows)]))
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "rollonce baselines lists the names"
    raise InputError(f"no baseline {name!r}; {hint}")


def fit_row_for_saving(rollouts: Rollouts, label: str, rows: Sequence[Baseline], seed: int = 0) -> Baseline:
    """A row of a board, fitted on the whole table, ready for ``Baseline.save``.

    Prompts are fitted as they are on the board. What learns from rewards learns from one random rollout per task, as
    it would in training (on the board it learned from other tasks' alone).

    Args:
        rollouts: The table.
        label: As on the board, or a name that only one row has.
        rows: What was on the board, unfitted; a baseline read from a file is among them as it was fitted.
        seed: Of the rollouts that are drawn.

    Raises:
        InputError: for a name that several rows have, or none; and for the oracle, which no trainer can ask.
    """
    matching = [row for row in rows if row.label == label] or find_rows_by_name(label, rows)
    if len(matching) > 1:
        raise InputError(f"{label!r} is the name of several rows: {', '.join(row.label for row in matching)}")
    row = matching[0]
    if row.tags.needs_repeats:
        raise InputError(
            f"{row.label} needs the same task again, or extra rollouts, and is not saved; take another row"
        )
    row.fit(rollouts.tasks)
    if hasattr(row, "fit_rewards"):
        every_N = np.arange(rollouts.n_tasks)
        learn_from_rewards(
            row, rollouts, every_N, *draw_rollout_per_task(rollouts, np.random.default_rng([seed, 7, 0]))
        )
    return row
