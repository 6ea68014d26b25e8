"""What was probably not meant, said once: the warnings of an `AdvantageHook`."""

from __future__ import annotations

import warnings

import numpy as np

from rollonce.baselines import Baseline, Batch, FlashReinforce, LeaveOneOut, LinearSmoother
from rollonce.rollouts import FloatArray
from rollonce.rounding import rewards_are_equal


class AdvantageWarning(UserWarning):
    """Training goes on, but does not do what was probably meant."""


class Notices:
    """Looks at each training step, and warns of each thing once.

    Args:
        group_size, history_mode, warn_after: See `rollonce.integrations.AdvantageHook`.
        enabled: Whether to warn at all; an adapter switches it off on all ranks but one.
    """

    def __init__(self, *, group_size: int | None, history_mode: bool, warn_after: int, enabled: bool) -> None:
        self.enabled = enabled
        self.idle_steps = 0
        """Steps in a row in which the baseline was nothing but the leave-one-out mean."""
        self._group_size, self._history_mode, self._warn_after = group_size, history_mode, warn_after
        self._said: set[str] = set()

    def check_training_step(
        self, baseline: Baseline, batch: Batch, b_R: FloatArray, loo_R: FloatArray, *, has_tasks: bool
    ) -> None:
        """Warn of what this step shows.

        Args:
            baseline: The one at work, before it observes the step.
            batch: The step's rollouts (R).
            b_R, loo_R: Its baseline, and the leave-one-out mean in its place.
            has_tasks: False where the trainer has neither prompts nor ids, so that no repeat can be seen.
        """
        size = max(1.0, float(np.abs(batch.rewards_B).max()))
        constant = not self._history_mode and rewards_are_equal(batch.rewards_B)
        if constant and len(batch) > 1:
            self._warn_of_constant_rewards(batch)
        if self._group_size == 1 and has_tasks:
            self._warn_of_repeated_tasks(batch)
        if baseline.tags.uses_log_probs and (batch.log_probs_B is None or np.isnan(batch.log_probs_B).all()):
            self._warn_of_missing_log_probs(baseline)
        if not constant and not isinstance(baseline, LeaveOneOut | FlashReinforce):
            self._count_idle_steps(baseline, batch, b_R, loo_R, tolerance=1e-9 * size)

    def _warn_of_constant_rewards(self, batch: Batch) -> None:
        self._warn_once_per_kind(
            "constant",
            f"all {len(batch)} rewards of this step are {batch.rewards_B[0]:g}: there is nothing to learn from it. "
            "Tasks too easy or too hard, or a reward function that fails silently",
        )

    def _warn_of_repeated_tasks(self, batch: Batch) -> None:
        names = [str(t) for t in batch.tasks.task_ids]
        ids, counts = np.unique(names, return_counts=True)
        if counts.max() > 1:
            k = int(counts.argmax())
            prompt = batch.tasks.prompts[names.index(str(ids[k]))]
            self._warn_once_per_kind(
                "repeat",
                f"task {str(ids[k])!r} ({prompt[:60]!r}) comes {counts[k]} times in a step meant to have one "
                "rollout per task: check the sampler and the data set for duplicates, or pass group_size",
            )

    def _warn_of_missing_log_probs(self, baseline: Baseline) -> None:
        self._warn_once_per_kind(
            "log_probs",
            f"{baseline.label} weights rollouts by their log-probabilities, and this step came without any: it works "
            "in its plain form, as if all gradients were equally large",
        )

    def _count_idle_steps(
        self, baseline: Baseline, batch: Batch, b_R: FloatArray, loo_R: FloatArray, *, tolerance: float
    ) -> None:
        plain = [] if self._history_mode else [loo_R]
        if isinstance(baseline, LinearSmoother) and baseline.window and len(baseline.history):
            windowed = LeaveOneOut(window=baseline.window, decay=baseline.decay)
            seen = Batch(batch.tasks.take([0]).detached(), np.zeros(1)) if self._history_mode else batch
            plain.append(windowed.predict(seen, baseline.history).baseline_B)
        idle = any(bool((np.abs(b_R - other) <= tolerance).all()) for other in plain)
        self.idle_steps = self.idle_steps + 1 if idle else 0
        if self.idle_steps >= self._warn_after:
            self._warn_once_per_kind(
                "idle",
                f"for {self.idle_steps} steps {baseline.label} has been nothing but the leave-one-out mean: its "
                "features do not tell these tasks apart, or it has not seen enough yet. rollonce watch shows whether "
                "another would",
            )

    def _warn_once_per_kind(self, kind: str, message: str) -> None:
        if self.enabled and kind not in self._said:
            self._said.add(kind)
            warnings.warn(message, AdvantageWarning, stacklevel=5)  # the line that called hook.advantages
