"""Ranks baselines from ordinary training logs with one rollout per task: ``E[A^2] = s2 + MSE`` needs no repeats.

``r_i`` and ``b_i`` are independent given the task, so the ratio of two baselines' B_eff is the inverse ratio of their
mean squared advantages (docs/mathematics.md, "Effective batch size"). In logs with groups, or where a task comes
twice in a step, a row's siblings are hidden from it (`rollonce.scoring.visibility`): a sibling has similarity 1 and
would pass for skill.

Where the log has log-probabilities, the progress of each baseline's step is predicted as well
(`rollonce.scoring.step_prediction`), on the very batches that were trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rollonce.baselines import Baseline, Batch, LeaveOneOut
from rollonce.rollouts import FloatArray, Tasks
from rollonce.scoring.intervals import jackknife_standard_error, log_scale_interval
from rollonce.scoring.moments import Estimate
from rollonce.scoring.step_prediction import inverse_step_norms
from rollonce.scoring.visibility import prompt_keys_of_log


class WatchScore(NamedTuple):
    """One baseline over the steps seen so far.

    Attributes:
        label: What it is called.
        mean_squared_advantage: ``E[A^2]`` of the leave-one-out form.
        ratio: B_eff relative to the in-batch LOO mean, ``E[A_LOO^2] / E[A^2]``, with a jackknife interval over steps.
        recent: The same over the newest 20 steps.
        steps, rows: Counted.
        scored_as: Label of the leave-one-out twin that stood in, or "".
        progress: Of a training step over LOO's, predicted from log-probabilities, with a jackknife interval over steps;
            None without them or without an exponent.
    """

    label: str
    mean_squared_advantage: float
    ratio: Estimate
    recent: float
    steps: int
    rows: int
    scored_as: str
    progress: Estimate | None = None


class Watcher:
    """Shadow-scores baselines on a stream of steps; each sees past steps only through its own history.

    Args:
        baselines: Fitted baselines; the in-batch LOO mean is added. None may need groups.
        exponent: Of the surprisal, to predict progress from log-probabilities with; None predicts nothing.
    """

    def __init__(self, baselines: Sequence[Baseline], exponent: float | None = None) -> None:
        twins = [(b.label, b.twin()) for b in baselines if not b.tags.needs_groups]
        if not any(isinstance(t, LeaveOneOut) and not t.window and label == t.label for label, t in twins):
            twins.insert(0, (LeaveOneOut().label, LeaveOneOut()))
        self.baselines = twins
        self._loo = next(
            i for i, (label, t) in enumerate(twins) if isinstance(t, LeaveOneOut) and not t.window and label == t.label
        )
        self.exponent = exponent
        self._steps: list[tuple[FloatArray, FloatArray, int]] = []  # sums and inverse norms by baseline, rows

    def score_next_step(self, batch: Batch) -> None:
        """Score one step's rollouts, then let them join the histories. Steps in which no row sees another task are
        passed over."""
        keys = batch.tasks.prompt_keys
        sums, norms = np.zeros(len(self.baselines)), np.full(len(self.baselines), np.nan)
        log_probs_B = batch.log_probs_B
        predicts = self.exponent is not None and log_probs_B is not None and bool(np.isfinite(log_probs_B).all())
        counted = len(np.unique(keys)) > 1
        if counted:
            for k, (_, baseline) in enumerate(self.baselines):
                b = predict_without_siblings(baseline, batch)
                sums[k] = float(((batch.rewards_B - b) ** 2).sum())
                if predicts:
                    assert log_probs_B is not None
                    assert self.exponent is not None
                    surprisals = np.maximum(-log_probs_B, 0.0)[None]
                    norms[k] = inverse_step_norms((batch.rewards_B - b)[None], surprisals, self.exponent)[0]
        for _, baseline in self.baselines:
            baseline.observe(batch)
        if counted:
            self._steps.append((sums, norms, len(batch)))

    def rank_scores_so_far(self) -> list[WatchScore]:
        """Scores so far, best first. Empty before the first step."""
        if not self._steps:
            return []
        sums, known, rows = (np.array(part) for part in zip(*self._steps, strict=True))
        total = sums.sum(axis=0)
        n = len(rows)
        known = known[np.isfinite(known).all(axis=1)]
        out = []
        for k, (label, baseline) in enumerate(self.baselines):
            with np.errstate(divide="ignore", invalid="ignore"):
                log_rest = np.log(total[self._loo] - sums[:, self._loo]) - np.log(total[k] - sums[:, k])
                ratio = total[self._loo] / total[k]
                recent = sums[-20:, self._loo].sum() / sums[-20:, k].sum()
            se = jackknife_standard_error(log_rest) if n > 2 and np.isfinite(log_rest).all() else np.nan
            scored_as = baseline.label if baseline.label != label else ""
            out.append(
                WatchScore(
                    label,
                    total[k] / rows.sum(),
                    log_scale_interval(ratio, se, max(n - 1, 1)),
                    float(recent),
                    n,
                    int(rows.sum()),
                    scored_as,
                    _progress_over_steps(known, k, self._loo) if len(known) else None,
                )
            )
        return sorted(out, key=lambda s: s.mean_squared_advantage)


class GrowingWatcher:
    """A watcher of a log that is still written. The vocabulary is that of the prompts seen, so whenever these double
    everything is fitted and scored anew.

    Args:
        fitted_baselines: From tasks to the baselines fitted on them.
        exponent: See `Watcher`.
    """

    def __init__(self, fitted_baselines: Callable[[Tasks], Sequence[Baseline]], exponent: float | None = None) -> None:
        self.fitted_baselines, self.exponent = fitted_baselines, exponent
        self.steps: list[Batch] = []
        self._first_place: dict[str, tuple[Batch, int]] = {}
        self._watcher: Watcher | None = None
        self._fitted_on = 0

    @property
    def n_distinct_prompts(self) -> int:
        """Different prompts so far."""
        return len(self._first_place)

    def score_next_step(self, batch: Batch) -> None:
        """Score one more step. Where that is interrupted, the ranking stands as it did before the step."""
        for i, prompt in enumerate(batch.tasks.prompts):
            self._first_place.setdefault(prompt, (batch, i))
        if self._watcher is not None and self.n_distinct_prompts < 2 * self._fitted_on:
            self._watcher.score_next_step(batch)
        else:
            places = self._first_place.values()
            columns = {name: [b.tasks.column(name)[i] for b, i in places] for name in batch.tasks.column_names}
            tasks = Tasks(list(self._first_place), None, columns)
            watcher = Watcher(self.fitted_baselines(tasks), self.exponent)
            for step in (*self.steps, batch):
                watcher.score_next_step(step)
            self._watcher, self._fitted_on = watcher, len(tasks)
        self.steps.append(batch)

    def rank_scores_so_far(self) -> list[WatchScore]:
        """As `Watcher.rank_scores_so_far`."""
        return self._watcher.rank_scores_so_far() if self._watcher is not None else []


def _progress_over_steps(inverse_norms_SA: FloatArray, k: int, loo: int) -> Estimate:
    """Mean inverse norm of a baseline's steps over LOO's, with a jackknife interval over steps."""
    total = inverse_norms_SA.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = total[k] / total[loo]
        log_rest = np.log(total[k] - inverse_norms_SA[:, k]) - np.log(total[loo] - inverse_norms_SA[:, loo])
    n = len(inverse_norms_SA)
    se = jackknife_standard_error(log_rest) if n > 2 and np.isfinite(log_rest).all() else np.nan
    return log_scale_interval(ratio, se, max(n - 1, 1))


def predict_without_siblings(baseline: Baseline, batch: Batch) -> FloatArray:
    """b (B,) where a row sees no other row with its normalised prompt, in the batch or in the history."""
    history = baseline.history
    key_B, key_H = prompt_keys_of_log(batch.tasks, history.tasks)
    distinct, count = np.unique(key_B, return_counts=True)
    alone_B = ~np.isin(key_B, distinct[count > 1]) & ~np.isin(key_B, key_H)
    out = np.empty(len(batch))
    if alone_B.any():
        out[alone_B] = baseline.predict(batch).baseline_B[alone_B]
    for key in np.unique(key_B[~alone_B]):
        rest, keep = np.flatnonzero(key_B != key), np.flatnonzero(key_H != key)
        others = None
        if baseline.keep_rows:
            others = history.rows_at_positions(keep)
        for i in np.flatnonzero(key_B == key):
            at = np.concatenate([[i], rest])
            out[i] = baseline.predict(Batch(batch.tasks.take(at), batch.rewards_B[at]), others).baseline_B[0]
    return out
