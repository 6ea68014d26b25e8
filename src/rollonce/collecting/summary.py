"""What a finished collection says: moments, B_eff of the leave-one-out mean, and how many more tasks would halve its
interval."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from rollonce.collecting.settings import CollectSettings
from rollonce.collecting.store import Counts
from rollonce.rollouts import Rollouts
from rollonce.scoring import Estimate, Moments, Scorer, moments

_BATCH = 32
_HALVES = 8


class Summary(NamedTuple):
    """What a finished collection says about its tasks.

    Attributes:
        moments: Mean, s2, tau2, SNR.
        batch_size: B: 32, or all tasks where there are fewer.
        b_eff: Of the in-batch leave-one-out mean, with its interval over tasks.
        half_width: Half the width of that interval on the log scale; NaN where there is none.
        more_tasks: How many more tasks would halve it if it shrinks as 1 / sqrt(N): 3 N. None where there is no
            interval.
        halves: How much wider it is on half of these tasks (median over draws); sqrt(2) if it does shrink like that.
            NaN: too few tasks.
        same_text: Tasks whose responses are all the same text, of those with two or more rollouts.
    """

    moments: Moments
    batch_size: int
    b_eff: Estimate
    half_width: float
    more_tasks: int | None
    halves: float
    same_text: int


def summarise_collection(table: Rollouts, file: Path, *, seed: int = 0) -> Summary:
    """The summary of a table and the file it was read from.

    Args:
        table: At least two tasks.
        file: Where the responses are.
        seed: Of batches, resamples and halves.
    """
    n = table.n_tasks
    b = min(_BATCH, n)
    b_eff = _loo_effective_batch(table, b, seed)
    width = _half_width_on_log_scale(b_eff)
    return Summary(
        moments=moments(table, seed=seed),
        batch_size=b,
        b_eff=b_eff,
        half_width=width,
        more_tasks=3 * n if math.isfinite(width) and width > 0 else None,
        halves=_width_ratio_of_halves(table, seed) if math.isfinite(width) else math.nan,
        same_text=_count_same_texts(file),
    )


def _loo_effective_batch(table: Rollouts, batch_size: int, seed: int, batches: int = 2000) -> Estimate:
    from rollonce.baselines import LeaveOneOut

    if len(np.unique(table.tasks.prompt_keys)) == 1:
        return Estimate(math.nan, math.nan, math.nan)
    return Scorer(table, batch_size=batch_size, n_batches=batches, seed=seed).score_baseline(LeaveOneOut()).b_eff


def _half_width_on_log_scale(e: Estimate) -> float:
    return float(np.log(e.high / e.low) / 2) if math.isfinite(e.low) and e.low > 0 and e.high > e.low else math.nan


def _width_ratio_of_halves(table: Rollouts, seed: int) -> float:
    """Width on half of the tasks over width on all of them, both at a batch that half of them fill."""
    half = table.n_tasks // 2
    if half < 12:
        return math.nan
    b = min(_BATCH, half // 2)
    whole = _half_width_on_log_scale(_loo_effective_batch(table, b, seed, 500))
    rng = np.random.default_rng([seed, 11])
    widths = []
    for _ in range(_HALVES):
        pick = np.sort(rng.permutation(table.n_tasks)[:half])
        widths.append(_half_width_on_log_scale(_loo_effective_batch(table.select(pick), b, seed, 500)))
    known = [w for w in widths if math.isfinite(w)]
    return float(np.median(known) / whole) if whole > 0 and len(known) >= _HALVES // 2 else math.nan


def _count_same_texts(file: Path) -> int:
    texts: dict[str, set[str]] = {}
    count: dict[str, int] = {}
    for line in file.read_bytes().splitlines():
        r = orjson.loads(line)
        texts.setdefault(r["task_id"], set()).add(r["response"])
        count[r["task_id"]] = count.get(r["task_id"], 0) + 1
    return sum(count[t] > 1 and len(s) == 1 for t, s in texts.items())


class Cost(NamedTuple):
    """What the rollouts of a file took.

    Attributes:
        prompt_tokens, response_tokens: Sums over the rollouts whose tokens are known.
        seconds: Over all sessions.
        money: None where no price was given.
        unknown: Rollouts whose tokens the server did not report.
    """

    prompt_tokens: int
    response_tokens: int
    seconds: float
    money: float | None
    unknown: int


def compute_collection_cost(counts: Counts, settings: CollectSettings) -> Cost:
    """What the rollouts in the file cost: ``tokens x price / 1e6``. Requests that failed, or were under way at a kill,
    are not in it.

    >>> s = CollectSettings("m", "t", "o", price_in=1.0, price_out=4.0)
    >>> compute_collection_cost(Counts(prompt_tokens=2_000_000, response_tokens=500_000), s).money
    4.0
    """
    priced = settings.price_in is not None or settings.price_out is not None
    money = (
        counts.prompt_tokens * (settings.price_in or 0.0) + counts.response_tokens * (settings.price_out or 0.0)
    ) / 1e6
    return Cost(
        prompt_tokens=counts.prompt_tokens,
        response_tokens=counts.response_tokens,
        seconds=counts.seconds,
        money=money if priced else None,
        unknown=counts.unknown,
    )
