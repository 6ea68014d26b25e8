"""What every trainer's adapter calls: a step's prompts and rewards in, advantages out, history kept.

    hook = AdvantageHook("baseline.json")
    result = hook.advantages(prompts, rewards)      # training step: predicts, then lets the rows join the history
    hook.state_dict()                               # goes into the trainer's checkpoint

Shapes: ``_N`` rows as the trainer has them, ``_R`` rollouts.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rollonce.baselines import Baseline, Batch, LeaveOneOut, LinearSmoother, Prediction
from rollonce.baselines.base import find_nested_features
from rollonce.baselines.batch import log_probs_from_state, log_probs_to_state
from rollonce.baselines.plain import scale_by_std as over_std
from rollonce.component import Component, from_config, registered_types
from rollonce.errors import InputError
from rollonce.files import write_whole_file
from rollonce.integrations.notices import Notices
from rollonce.integrations.rows import (
    RolloutReward,
    Rows,
    depends_on_prompts,
    find_needed_columns,
    make_rollout_rows,
    render_prompt_text,
)
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, Tasks
from rollonce.rounding import estimate_rounding_size, rewards_are_equal

STATE_VERSION = 1


class AdvantageResult(NamedTuple):
    """A step's advantages, one number for each row of the trainer's batch; 0 for rows that were dropped.

    Attributes:
        advantages_N: ``r - b``, scaled or whitened where asked for (N,) float64; exactly 0 where only rounding was
            left.
        baseline_N: ``b`` (N,).
        loo_mean_N: What the plain leave-one-out mean of the same rollouts would have been, for comparison; in history
            mode the running mean of past rewards (N,).
        used_prior_N: Rows that had nothing to go by and got the declared prior, or the running mean in history mode
            (N,) bool.
        rows: The rollouts behind the rows.
        metrics: Numbers worth logging, by name.
    """

    advantages_N: FloatArray
    baseline_N: FloatArray
    loo_mean_N: FloatArray
    used_prior_N: BoolArray
    rows: Rows
    metrics: dict[str, float]


class AdvantageHook:
    """A baseline inside a trainer. The baseline given is copied; ``hook.baseline`` is the one that learns, and
    ``hook.notices`` what warns.

    Args:
        baseline: A fitted baseline, or the file that ``rollonce tune`` or `Baseline.save` wrote.
        whiten: Subtract the mean of the step's advantages and divide by their deviation. Off: both read the own reward.
        scale_by_std: Divide by the deviation of the step's rewards; zeros where all are equal. Off, for the same
            reason.
        history_mode: For trainers that score before the batch is complete. Each rollout is judged from past rollouts
            alone; where the baseline has none to go by, by the running mean of past rewards, and the very first by 0.
        history_window: Rows of history for smoothers that have no window of their own, in history mode.
        step_rows: In history mode, how many rollouts make a step, after which they join the history together.
        group_size: Rollouts of a task in a batch; None where it varies. At 1 a task that repeats is warned of, and a
            baseline that needs groups refused.
        warn_after: Steps without any effect of the kernel after which that is warned of.
        warn: Whether to warn at all; an adapter says so on one rank only.

    Raises:
        InputError: if the file is no baseline file, or the baseline cannot do what is asked.
    """

    def __init__(
        self,
        baseline: Baseline | str | os.PathLike[str],
        *,
        whiten: bool = False,
        scale_by_std: bool = False,
        history_mode: bool = False,
        history_window: int = 512,
        step_rows: int = 32,
        group_size: int | None = 1,
        warn_after: int = 20,
        warn: bool = True,
    ) -> None:
        self.baseline = copy.deepcopy(baseline) if isinstance(baseline, Baseline) else Baseline.load(baseline)
        self.whiten, self.scale_by_std, self.history_mode = whiten, scale_by_std, history_mode
        self.group_size, self.step_rows = group_size, step_rows
        self.notices = Notices(group_size=group_size, history_mode=history_mode, warn_after=warn_after, enabled=warn)
        label, tags = self.baseline.label, self.baseline.tags
        if whiten and scale_by_std:
            raise InputError("whiten and scale_by_std both divide by a deviation; ask for one of them")
        if tags.needs_groups and group_size == 1:
            raise InputError(
                f"{label} needs several rollouts of a task in a batch; set the trainer's group size above 1 and pass "
                "group_size"
            )
        if history_mode and (tags.needs_groups or tags.self_inclusive):
            raise InputError(
                f"{label} is a mean of the batch itself and this trainer never shows the batch; take a baseline with "
                "history"
            )
        if step_rows < 1 or history_window < 1 or warn_after < 1:
            raise InputError("step_rows, history_window and warn_after must be at least 1")
        if history_mode:
            _set_missing_windows(self.baseline, history_window)
        self._fitted = _is_already_fitted(self.baseline)
        self._pending: list[Batch] = []
        self._past = (0, 0.0)  # rewards observed: how many, and their sum
        self._steps = 0

    @property
    def columns_needed(self) -> list[str]:
        """The dataset columns that the baseline reads; pass these."""
        return find_needed_columns(self.baseline)

    @property
    def uses_log_probs(self) -> bool:
        """Whether the baseline reads the rollouts' log-probabilities; pass ``log_probs`` then."""
        return self.baseline.tags.uses_log_probs

    @property
    def steps(self) -> int:
        """Training steps observed."""
        return self._steps

    @property
    def rows_waiting(self) -> int:
        """History mode: rollouts that have not joined the history yet."""
        return sum(map(len, self._pending))

    def fit(
        self, prompts: Sequence[Any], columns: Mapping[str, Sequence[Any]] | None = None, *, again: bool = False
    ) -> bool:
        """Fit a baseline that was never fitted (vocabulary, scales) on prompts, say those of the training set; no
        rewards.

        Args:
            prompts: Texts or chat messages.
            columns: Those of `columns_needed`.
            again: Also where the baseline brings a fit of its own.

        Returns:
            Whether it was fitted now.
        """
        if self._fitted and not again:
            return False
        self.baseline.fit(Tasks([render_prompt_text(p) for p in prompts], None, columns))
        self._fitted = True
        return True

    def advantages(
        self,
        prompts: Sequence[Any] | None,
        rewards: Sequence[float | None] | FloatArray,
        *,
        task_ids: Sequence[Any] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        keep: Sequence[bool] | BoolArray | None = None,
        rollout_ids: Sequence[Any] | None = None,
        rollout_reward: RolloutReward = "same",
        log_probs: Sequence[float | None] | FloatArray | None = None,
        ungraded: Literal["refuse", "drop"] = "refuse",
        training: bool = True,
    ) -> AdvantageResult:
        """Advantages of one step's rollouts; afterwards they join the history.

        Args:
            prompts, rewards, task_ids, columns, keep, rollout_ids, rollout_reward, log_probs, ungraded: See
                `rollonce.integrations.rows.make_rollout_rows`.
            training: False judges without learning anything: evaluation, logging, a trial call.

        Raises:
            InputError: as `make_rollout_rows`; if the baseline needs a fit and has none; if it reads prompts that the
                trainer does not give.
        """
        if prompts is None and depends_on_prompts(self.baseline):
            raise InputError(
                f"{self.baseline.label} reads the prompts, which this trainer's hook does not have; "
                "use one that does not (loo)"
            )
        rows = make_rollout_rows(
            prompts,
            rewards,
            task_ids=task_ids,
            columns=columns,
            keep=keep,
            rollout_ids=rollout_ids,
            rollout_reward=rollout_reward,
            log_probs=log_probs,
            ungraded=ungraded,
        )
        batch = rows.batch
        judged = self._judge_from_the_past(batch) if self.history_mode else self.baseline.predict(batch)
        b_R, a_R, prior_R = judged.baseline_B, judged.advantages_B, judged.only_prior_B
        loo_R = (
            np.full(len(batch), self._mean_past_reward())
            if self.history_mode
            else LeaveOneOut().predict(batch).baseline_B
        )
        if self.scale_by_std:
            a_R = over_std(a_R, batch.rewards_B)
        elif self.whiten and len(a_R):
            a_R = over_std(a_R - a_R.mean(), batch.rewards_B, spread_of=a_R)
        # Rounding is no signal: an optimiser that normalises its step (Muon, Lion) would make a full step of 1e-16.
        size = max(1.0, float(np.abs(batch.rewards_B).max(initial=0.0)))
        constant = rewards_are_equal(batch.rewards_B)
        a_R[np.abs(a_R) <= max(1e-12 * size, estimate_rounding_size(batch.rewards_B) if constant else 0.0)] = 0.0
        metrics = _make_step_metrics(batch, b_R, loo_R, prior_R, int((~rows.kept_N).sum()))
        if training and len(batch):
            has_tasks = prompts is not None or task_ids is not None
            self.notices.check_training_step(self.baseline, batch, b_R, loo_R, has_tasks=has_tasks)
            self._observe_training_step(batch)
        return AdvantageResult(
            rows.spread_over_rows(a_R),
            rows.spread_over_rows(b_R),
            rows.spread_over_rows(loo_R),
            rows.spread_over_rows(prior_R.astype(np.float64)) > 0,
            rows,
            metrics,
        )

    def _judge_from_the_past(self, batch: Batch) -> Prediction:
        """Each rollout as a batch of its own, so that nothing else of this step is seen; rollouts of a task are alike
        to the past."""
        b_R, prior_R = np.empty(len(batch)), np.zeros(len(batch), dtype=bool)
        known: dict[Any, int] = {}
        names = batch.tasks.column_names
        columns = [batch.tasks.column(c) for c in names]
        for i, prompt in enumerate(batch.tasks.prompts):
            first = known.setdefault((prompt, str(batch.tasks.task_ids[i]), *(str(c[i]) for c in columns)), i)
            if first != i:
                b_R[i], prior_R[i] = b_R[first], prior_R[first]
                continue
            alone = Batch(batch.tasks.take([i]).detached(), np.zeros(1))
            judged = self.baseline.predict(alone)
            prior_R[i] = judged.only_prior_B[0]
            b_R[i] = self._mean_past_reward() if prior_R[i] else judged.baseline_B[0]
        return Prediction.of(batch, b_R, prior_R)

    def _mean_past_reward(self) -> float:
        n, total = self._past
        return total / n if n else 0.0

    def _observe_training_step(self, batch: Batch) -> None:
        self._past = (self._past[0] + len(batch), self._past[1] + float(batch.rewards_B.sum()))
        self._steps += 1
        if not self.history_mode:
            self.baseline.observe(batch)
            return
        self._pending.append(batch)
        if self.rows_waiting >= self.step_rows:
            self.end_step()

    def end_step(self) -> None:
        """History mode: let the rollouts that wait join the history now, for trainers that know when a step ends."""
        if self._pending:
            self.baseline.observe(Batch.concatenate_batches(self._pending))
            self._pending = []

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Everything learned so far as plain JSON: the baseline's fit and history, rows that wait, running mean,
        counters."""
        return {
            "version": STATE_VERSION,
            "config": self.baseline.config(),
            "baseline": self.baseline.state_dict(),
            "pending": [_batch_to_state_dict(b) for b in self._pending],
            "past": list(self._past),
            "steps": self._steps,
            "idle_steps": self.notices.idle_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` left off.

        Raises:
            InputError: if it was another version's, or another baseline's.
        """
        if state.get("version") != STATE_VERSION:
            raise InputError(
                f"advantage state of version {state.get('version')!r}; this rollonce reads version {STATE_VERSION}"
            )
        if not _has_same_settings(state["config"], self.baseline):
            raise InputError(
                f"the checkpoint's history is of another baseline ({state['config'].get('type')!r}, or other settings "
                f"of it) than {self.baseline.label}; resume with the one that it was trained with"
            )
        self.baseline.load_state_dict(dict(state["baseline"]))
        self._fitted = _is_already_fitted(self.baseline)
        self._pending = [_batch_from_state_dict(b) for b in state["pending"]]
        self._past = (int(state["past"][0]), float(state["past"][1]))
        self._steps, self.notices.idle_steps = int(state["steps"]), int(state["idle_steps"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` as one JSON file, whole or not at all; a folder that is missing is made."""
        write_whole_file(path, json.dumps(self.state_dict(), allow_nan=False), make_parents=True)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what `save` wrote.

        Raises:
            InputError: if there is no such file, or it is not one of ours.
        """
        try:
            state = json.loads(Path(path).read_text(encoding="utf-8"))
            self.load_state_dict(state)
        except FileNotFoundError:
            raise InputError(
                "no history to resume from: the checkpoint was not written by this trainer", file=path
            ) from None
        except InputError as e:
            raise InputError(e.message, file=path) from None
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise InputError(f"a damaged advantage state ({type(e).__name__}: {e})", file=path) from None


def _make_step_metrics(
    batch: Batch, b_R: FloatArray, loo_R: FloatArray, prior_R: BoolArray, dropped: int
) -> dict[str, float]:
    """Of the rollouts that count. The two mean squares are those of unscaled advantages: their ratio ranks the baseline
    against LOO."""
    out = {"rows": float(len(batch)), "rows_dropped": float(dropped)}
    if len(batch):
        out |= {
            "reward": float(batch.rewards_B.mean()),
            "baseline": float(b_R.mean()),
            "baseline_std": float(b_R.std()),
            "prior_share": float(prior_R.mean()),
            "squared_advantage": float(((batch.rewards_B - b_R) ** 2).mean()),
            "squared_advantage_loo": float(((batch.rewards_B - loo_R) ** 2).mean()),
        }
    return out


def _is_already_fitted(baseline: Baseline) -> bool:
    """Whether there is nothing to fit, or its state differs from that of one just made from its settings."""
    if not find_nested_features(baseline) or registered_types().get(baseline.type) is not type(baseline):
        return True
    return baseline.state_dict() != from_config(baseline.config()).state_dict()


def _set_missing_windows(component: Component, window: int) -> None:
    """A window for every smoother that has none: without one it would see nothing in history mode."""
    children = component.nested_components().values()
    for child in children:
        _set_missing_windows(child, window)
    if isinstance(component, LinearSmoother) and component.window == 0:
        component.window = max([c.window for c in children if isinstance(c, LinearSmoother)], default=window)


def _has_same_settings(config: dict[str, Any], baseline: Baseline) -> bool:
    """Whether a checkpoint's configuration, perhaps an older version's with fewer settings, builds this baseline."""
    try:
        return config == json.loads(json.dumps(baseline.config())) or from_config(config).config() == baseline.config()
    except InputError:
        return False


def _batch_to_state_dict(batch: Batch) -> dict[str, Any]:
    return {
        "prompts": batch.tasks.prompts,
        "task_ids": [str(t) for t in batch.tasks.task_ids],
        "columns": {c: batch.tasks.column(c).tolist() for c in batch.tasks.column_names},
        "rewards": batch.rewards_B.tolist(),
        "log_probs": log_probs_to_state(batch.log_probs_B),
    }


def _batch_from_state_dict(state: Mapping[str, Any]) -> Batch:
    rewards = np.asarray(state["rewards"], np.float64)
    tasks = Tasks(state["prompts"], state["task_ids"], state["columns"])
    return Batch(tasks, rewards, log_probs_B=log_probs_from_state(state.get("log_probs"), len(rewards)))
