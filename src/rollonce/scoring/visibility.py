"""What a row may see while it is scored. This is the only place that says it.

* **Batch**: a row sees every row but those of its own task's *id* (its position in the table). Two ids that share a
  prompt are two honest rollouts there, as they would be in training. In a bootstrap resample copies of a task are so
  hidden from each other.
* **Window**: a row sees every row but those with its own normalised *prompt*. A window is drawn from other tasks, and
  a twin there would leak the difficulty that only a repeated task can know.
* **Logs** (`rollonce.scoring.watch`): rows with its own normalised prompt are hidden in batch and window alike, since
  repeats in a log are groups.

Where one prompt stands for many tasks whose ids differ (`Tasks.ids_tell_apart`), the id takes the prompt's place.

`rollonce.scoring.closed_form` compiles the first two into its loop; a test holds that equal to
`make_visibility_blocks`.
"""

from __future__ import annotations

import numpy as np

from rollonce.kernels.base import BoolArray
from rollonce.rollouts import IntArray, Tasks


def make_visibility_blocks(prompt_key_N: IntArray, columns_KM: IntArray, n_rows: int) -> BoolArray:
    """Whether row i of a batch may use column j (K, B, M).

    Args:
        prompt_key_N: A number for each task, equal where normalised prompts are equal (`Tasks.prompt_keys`).
        columns_KM: Tasks that each batch can see: its own ``n_rows`` first, then the window.
        n_rows: B.
    """
    rows_KB1 = columns_KM[:, :n_rows, None]
    visible_KBM = rows_KB1 != columns_KM[:, None, :]
    visible_KBM[:, :, n_rows:] &= prompt_key_N[rows_KB1] != prompt_key_N[columns_KM[:, None, n_rows:]]
    return visible_KBM


def window_visible_to_all(prompt_key_N: IntArray, rows_B: IntArray, window_H: IntArray) -> BoolArray:
    """Which rows of the window every row of the batch may see (H,): for baselines that are asked for a batch at once,
    with one history for all of its rows."""
    if not len(window_H):
        return np.zeros(0, dtype=bool)
    return ~np.isin(prompt_key_N[window_H], prompt_key_N[rows_B])


def places_of_first_copies(rows_B: IntArray) -> IntArray:
    """Places of the first copy of each task, in order: what of a resample can stand in one batch without seeing a copy
    of itself."""
    return np.sort(np.unique(rows_B, return_index=True)[1])


def prompt_keys_of_log(batch: Tasks, window: Tasks) -> tuple[IntArray, IntArray]:
    """Numbers for the rows of a step (B,) and of its window (H,), equal where one is a sibling of the other: such rows
    are hidden from each other."""
    codes: dict[str, int] = {}
    key_M = np.array([codes.setdefault(name, len(codes)) for name in (*batch.identities, *window.identities)], np.int64)
    return key_M[: len(batch)], key_M[len(batch) :]
