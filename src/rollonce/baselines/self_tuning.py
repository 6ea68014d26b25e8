"""A baseline that tunes itself: Kriging whose variance shares are fitted on single rollouts of *past* steps or of other
tasks.

Task means have covariance ``sum_k pi_k K_k`` and rewards add noise of share ``pi_0`` (`rollonce.baselines.evidence`).
Several *experts*, each a few kernels, are fitted by penalised marginal likelihood and their shares averaged: one
Kriging with the average covariance, steadier than any of them. No repeated rollouts are needed, and never the batch
being judged: in a trainer the shares are refitted in `observe`, on earlier steps; offline by `fit_rewards`, on other
tasks. Before there is enough to learn from, where all rewards are equal, or where the prompts do not differ, it is the
leave-one-out mean.

Source: Rasmussen & Williams 2006, sections 2.7, 5.4.1 and 5.4.2; Krige 1951.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from rollonce.arrays import as_float64_array
from rollonce.baselines.base import LinearSmoother
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.bernoulli_noise import bernoulli_noise_factors
from rollonce.baselines.covariance_stream import CovarianceStream
from rollonce.baselines.evidence import JITTER, fit_variance_shares
from rollonce.baselines.kernel_library import make_kernels_and_experts
from rollonce.baselines.kriging_solver import (
    EXACT_UP_TO,
    add_noise_to_variances,
    solve_kriging_weights,
    table_is_worth_it,
)
from rollonce.baselines.sharing import fit_features_once, pool_equal_states, restore_pooled_states
from rollonce.baselines.tags import Cost, Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import tasks_from_prompts
from rollonce.kernels import Kernel
from rollonce.kernels.base import BoolArray, look_up_pair_blocks
from rollonce.rollouts import FloatArray, IntArray, Tasks

_SPREAD_ROWS = 512


@register
@dataclass
class SelfTuning(LinearSmoother):
    """Kriging that fits its own variance shares by marginal likelihood, on rewards of past steps or other tasks.

    Args:
        kernels: Covariances between tasks; a library for any prompts by default (`make_kernels_and_experts`).
        experts: For each expert the positions of its kernels; one expert with all of them where only kernels are given.
        max_rows: Rewards that a fit uses (the newest). A fit on 500 takes about a second, on 1,000 a few.
        min_rows: Below this many rows of past rewards it stays the leave-one-out mean.
        refit_every: Steps between refits in `observe` (and after steps 1, 2, 4, 8 ... before the first of them); 0
            keeps what `fit_rewards` gave.
        alpha, alpha_noise: Of the Dirichlet prior on the shares.
        noise: ``constant``, or ``bernoulli``: a row's noise is in proportion to ``p (1 - p)`` with p its mean reward as
            predicted from the rewards of earlier steps (never of the batch), shrunk by half to their mean. For rewards
            in [0, 1].
        window, decay: See `LinearSmoother`; a row of age a has its noise divided by ``decay ** a``.

    ``observe`` keeps ``max(window, max_rows)`` rows. Exact up to 2,048 visible rows; of a longer window the newest that
    fit are used.
    A history given to `predict` stands for all that was observed: shares are fitted on it as `observe` would have.

    >>> prompts = [f"count to {n}" for n in range(8)] + [f"prove lemma {n}" for n in range(8)]
    >>> baseline = SelfTuning(min_rows=8).fit(prompts).fit_rewards(prompts, [1.0] * 7 + [0.0] * 9)
    >>> b = baseline.predict(Batch.of(prompts, [1.0] * 8 + [0.0] * 8)).baseline_B
    >>> bool(b[:8].min() > 0.5 > b[8:].max())
    True
    """

    type: ClassVar[str] = "self_tuning"
    source: ClassVar[str] = "Rasmussen & Williams 2006, 5.4; Patterson & Thompson 1971"
    kernels: Sequence[Kernel] = ()
    experts: Sequence[Sequence[int]] = ()
    max_rows: int = 500
    min_rows: int = 32
    refit_every: int = 4
    alpha: float = 0.1
    alpha_noise: float = 1.5
    noise: Literal["constant", "bernoulli"] = "constant"
    spread_K: FloatArray = field(default_factory=lambda: np.zeros(0), init=False, repr=False)
    _given: FloatArray | None = field(default=None, init=False, repr=False)
    _learned: FloatArray | None = field(default=None, init=False, repr=False)
    _steps: int = field(default=0, init=False, repr=False)
    _table: tuple[Tasks, FloatArray] | None = field(default=None, init=False, repr=False, compare=False)
    _stream: CovarianceStream | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kernels:
            self.kernels, defaults = make_kernels_and_experts()
            self.experts = self.experts or defaults
        self.experts = [[int(k) for k in e] for e in (self.experts or [range(len(self.kernels))])]
        if any(not e or min(e) < 0 or max(e) >= len(self.kernels) for e in self.experts):
            raise InputError(
                f"self_tuning experts must each name kernels 0 to {len(self.kernels) - 1}, not {self.experts}"
            )
        if (
            self.max_rows < 2
            or self.min_rows < 2
            or self.refit_every < 0
            or not (self.alpha > 0 and self.alpha_noise > 0)
        ):
            raise InputError(
                "self_tuning needs max_rows and min_rows of at least 2, refit_every >= 0, and alpha and alpha_noise "
                "above 0"
            )
        if self.noise not in ("constant", "bernoulli"):
            raise InputError(f"self_tuning noise must be 'constant' or 'bernoulli', not {self.noise!r}")

    @property
    def tags(self) -> Tags:
        """As every smoother; it learns from history. With Bernoulli noise weights depend on the past rewards' level."""
        plain = self.noise == "constant"
        return Tags(
            shift_equivariant=plain,
            scale_equivariant=plain,
            neutral=plain,
            windowed=self.window > 0,
            needs_history=self.refit_every > 0,
            cost=Cost.SOLVE,
        )

    def describe(self) -> str:
        return self.describe_with_settings("self-tuning")

    @property
    def variance_shares_K1(self) -> FloatArray:
        """Shares of variance in use, a share a kernel and the noise last (K + 1,); all noise before anything was
        learned."""
        shares = self._learned if self._learned is not None else self._given
        return shares if shares is not None else np.append(np.zeros(len(self.kernels)), 1.0)

    def fit_tasks(self, tasks: Tasks) -> None:
        """Fit features on prompts, and measure how much each kernel varies over them; one that does not is left out
        from then on."""
        usable = fit_features_once(self.kernels, tasks)
        sample = tasks
        if len(tasks) > _SPREAD_ROWS:
            sample = tasks.take(np.linspace(0, len(tasks) - 1, _SPREAD_ROWS).astype(np.int64))
        every = np.arange(len(sample))[None]
        spread = []
        for kernel, fine in zip(self.kernels, usable, strict=True):
            c = kernel.compute_covariance(sample, every, every)[0] if fine and len(sample) else np.zeros((1, 1))
            spread.append(float(np.trace(c) / len(c) - c.mean()))
        self.spread_K = np.array(spread)
        self._given = self._learned = self._table = self._stream = None

    def fit_rewards(self, tasks: Sequence[str] | Tasks, rewards: Sequence[float] | FloatArray) -> Self:
        """Fit the shares on one reward each of other tasks than those to be judged. Returns itself.

        Args:
            tasks: N tasks (or their prompts); of more than ``max_rows`` an evenly spaced part is used.
            rewards: N rewards.

        Raises:
            InputError: if the numbers differ, a reward is not finite, or `fit` was not called.
        """
        tasks = tasks_from_prompts(tasks)
        y = as_float64_array(rewards)
        if y.shape != (len(tasks),) or not np.isfinite(y).all():
            raise InputError(
                f"fit_rewards needs one finite reward a task: {len(tasks)} tasks, rewards of shape {y.shape}"
            )
        if len(y) > self.max_rows:
            at = np.linspace(0, len(y) - 1, self.max_rows).astype(np.int64)
            tasks, y = tasks.take(at), y[at]
        every = np.arange(len(y))[None]
        self._given = self._fit_expert_shares(y, lambda k: self.kernels[k].compute_covariance(tasks, every, every)[0])
        self._learned = self._table = None
        return self

    def _fit_shares_to_rows(self, stream: CovarianceStream, rows: History) -> FloatArray | None:
        """Shares (K + 1,) from the newest rows of the stream, these."""
        tables = (
            dict(zip(self._varying_kernels, stream.covariances_by_kernel(len(rows)), strict=True))
            if len(rows) >= self.min_rows
            else {}
        )
        return self._fit_expert_shares(rows.rewards_H, tables.__getitem__)

    def _fit_expert_shares(self, y: FloatArray, covariance: Callable[[int], FloatArray]) -> FloatArray | None:
        """Shares (K + 1,) from rewards (n,) and the covariance (n, n) of their tasks by kernel; None where there is too
        little to learn from."""
        self._check_is_fitted()
        if len(y) < self.min_rows or not y.std() > 1e-9 * max(1.0, float(np.abs(y).max())):
            return None
        # Rounded, so that adding a constant to all rewards changes not even the last bit of the fit.
        y = np.round((y - y.mean()) / y.std(), 9)
        needed = sorted({k for e in self.experts for k in e if k in self._varying_kernels})
        tables = {k: covariance(k) / self.spread_K[k] for k in needed}
        total = np.zeros(len(self.kernels) + 1)
        for expert in self.experts:
            at = [k for k in dict.fromkeys(expert) if k in tables]
            if at:
                total[[*at, -1]] += fit_variance_shares(
                    np.stack([tables[k] for k in at]), y, self.alpha, self.alpha_noise
                )
            else:
                total[-1] += 1.0
        return total / total.sum()

    def _check_is_fitted(self) -> None:
        if not len(self.spread_K):
            raise InputError("this self_tuning baseline was not fitted; call fit(prompts) first (or load a saved one)")

    # ------------------------------------------------------------------ the stream

    def observe(self, batch: Batch) -> None:
        """Keep the rows, and refit the shares every ``refit_every`` steps on the newest ``max_rows`` of them."""
        if not self.refit_every and not self.window:
            return
        keep = max(self.window, self.max_rows if self.refit_every else 0)
        stream = self._covariance_stream_so_far() if self.window else None
        self._history = self._all_observed_rows.with_batch_appended(batch, keep)
        if stream is not None:
            stream.append_step_rows(batch.tasks, min(keep, EXACT_UP_TO))
            stream.seen = self._history.tasks
        self._steps += 1
        if self._step_of_last_refit(self._steps) == self._steps > 0:
            rows = self._history.keep_newest_rows(self.max_rows)
            self._learned, self._table = (
                self._fit_shares_to_rows(self._make_covariance_stream(rows) if stream is None else stream, rows),
                None,
            )

    @property
    def _varying_kernels(self) -> list[int]:
        """Kernels that vary over the prompts fitted."""
        return np.flatnonzero(self.spread_K > 1e-9).tolist()

    def _make_covariance_stream(self, rows: History) -> CovarianceStream:
        stream = CovarianceStream([self.kernels[k] for k in self._varying_kernels])
        if len(rows):
            rows = rows.keep_newest_rows(EXACT_UP_TO)
            stream.append_step_rows(rows.tasks, len(rows))
        return stream

    def _covariance_stream_so_far(self) -> CovarianceStream:
        """The covariances of the rows kept; from the rows themselves where there are none yet, as after loading."""
        self._check_is_fitted()
        stream = self._stream
        if (
            stream is None
            or not stream.has_unchanged_features()
            or (len(stream) and stream.seen is not self._all_observed_rows.tasks)
        ):
            stream = self._stream = self._make_covariance_stream(self._all_observed_rows)
            stream.seen = self._all_observed_rows.tasks
        return stream

    def _step_of_last_refit(self, steps: int) -> int:
        """The step of the newest refit after this many: multiples of ``refit_every``, and powers of two before the
        first; 0 for none."""
        if not self.refit_every or steps < 1:
            return 0
        if steps >= self.refit_every:
            return steps - steps % self.refit_every
        return 1 << (steps.bit_length() - 1)

    @property
    def _all_observed_rows(self) -> History:
        return self._history if self._history is not None else History.before_first_step()

    @property
    def history(self) -> History:
        """The newest ``window`` rows observed, newest last; rows that only the fit uses are kept beside them."""
        return self._all_observed_rows.keep_newest_rows(self.window)

    def _copy_after_history(self, history: History) -> SelfTuning:
        """A copy as it would be had it observed these rows and no others."""
        clone = copy.copy(self)
        clone._learned = clone._table = clone._stream = None
        if self.refit_every and len(history):
            steps = int(history.ages_H.max())
            behind = steps - self._step_of_last_refit(steps)
            at = np.flatnonzero(history.ages_H > behind)[-self.max_rows :]
            rows = history.rows_at_positions(at)
            clone._learned = clone._fit_shares_to_rows(clone._make_covariance_stream(rows), rows)
        clone._history = history
        return clone

    def weights(self, batch: Batch, history: History | None = None) -> FloatArray:
        """Weights (B, B + H) over the batch and the newest ``window`` rows of history, oldest first. ``W[i, i]`` is
        0."""
        return (
            super().weights(batch)
            if history is None
            else self._copy_after_history(history)._weights_with_window(batch, history.keep_newest_rows(self.window))
        )

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """``W r`` (B,); the declared prior where a row sees nothing. With a history given, shares are fitted on it for
        this call."""
        if history is None:
            return super().predict(batch)
        return self._copy_after_history(history).predict(batch)

    # ------------------------------------------------------------------ weights

    def reward_covariance(self, tasks: Tasks, columns_KM: IntArray, ages_M: IntArray | None = None) -> FloatArray:
        """C (K, M, M): covariance of the visible rewards, noise included, in units of their total variance."""
        ages_M = np.zeros(columns_KM.shape[1], np.int64) if ages_M is None else ages_M
        return add_noise_to_variances(self._covariance_of_means(tasks, columns_KM), self.noise_of_columns(ages_M))

    def _covariance_of_means(self, tasks: Tasks, columns_KM: IntArray) -> FloatArray:
        if self._table is not None and self._table[0] is tasks:
            return look_up_pair_blocks(self._table[1], columns_KM, columns_KM)
        return self._sum_of_covariances(tasks, columns_KM)

    def covariance_of_all(self, tasks: Tasks) -> FloatArray:
        """Covariance of the task means (N, N), in units of the rewards' variance; kept for these tasks."""
        self._check_is_fitted()
        if self._table is None or self._table[0] is not tasks:
            self._table = (tasks, self._sum_of_covariances(tasks, np.arange(len(tasks))[None])[0])
        return self._table[1]

    def noise_of_columns(self, ages_M: IntArray) -> FloatArray:
        """What a reward of each age adds to its own variance (M,)."""
        # A row with 1e12 times the noise counts for nothing already; more would only overflow.
        return self.variance_shares_K1[-1] * np.exp(np.minimum(-np.log(self.decay) * ages_M, np.log(1e12))) + JITTER

    def _sum_of_covariances(self, tasks: Tasks, columns_KM: IntArray) -> FloatArray:
        c = np.zeros((*columns_KM.shape, columns_KM.shape[1]))
        for kernel, share, spread in zip(self.kernels, self.variance_shares_K1, self.spread_K, strict=False):
            if share > 1e-6 and spread > 1e-9:
                c += share / spread * kernel.compute_covariance(tasks, columns_KM, columns_KM)
        return c

    def smoothing_weights(
        self, tasks: Tasks, columns_KM: IntArray, n_rows: int, visible_KBM: BoolArray, ages_M: IntArray
    ) -> FloatArray:
        """(K, B, M), see `LinearSmoother.compute_weight_blocks`. Blocks in a row that see the same tasks share one
        solve."""
        self._check_is_fitted()
        if table_is_worth_it(tasks, columns_KM):
            self.covariance_of_all(tasks)
        return solve_kriging_weights(
            lambda columns_KM: self._covariance_of_means(tasks, columns_KM),
            self.noise_of_columns(ages_M),
            columns_KM,
            n_rows,
            visible_KBM,
        )

    def _weights_with_window(self, batch: Batch, window: History) -> FloatArray:
        if not self.window or not len(batch):
            return super()._weights_with_window(batch, window)
        n, m = len(batch), len(batch) + min(len(window), EXACT_UP_TO - len(batch))
        seen = window.keep_newest_rows(m - n)
        varying = self._varying_kernels
        shares = np.where(self.variance_shares_K1[varying] > 1e-6, self.variance_shares_K1[varying], 0.0)
        c_MM = self._covariance_stream_so_far().visible_covariance(batch.tasks, m - n, shares / self.spread_K[varying])
        noise_M = self.noise_of_columns(np.concatenate([np.zeros(n, np.int64), seen.ages_H]))
        if self.noise == "bernoulli" and len(seen):
            noise_M = noise_M + self.variance_shares_K1[-1] * (
                bernoulli_noise_factors(c_MM, noise_M, seen.rewards_H) - 1
            )
        visible_BM = ~np.eye(n, n + len(window), dtype=bool)
        w_BM = np.zeros(visible_BM.shape)
        at = np.concatenate([np.arange(n), np.arange(n + len(window) - len(seen), n + len(window))])
        w_BM[:, at] = solve_kriging_weights(
            lambda columns_KM: look_up_pair_blocks(c_MM, columns_KM, columns_KM),
            noise_M,
            np.arange(m)[None],
            n,
            visible_BM[None, :, at],
        )[0]
        ages_M = np.concatenate([np.zeros(n, np.int64), window.ages_H])
        return self._shrink_towards_loo(w_BM[None], visible_BM[None], ages_M)[0]

    # ------------------------------------------------------------------ state

    def own_state(self) -> dict[str, Any]:
        """Spread of the kernels, shares given, and under ``history`` the rows with what was learned from them."""
        state: dict[str, Any] = {"spread": self.spread_K} if len(self.spread_K) else {}
        if self._given is not None:
            state["shares"] = self._given
        if self._steps:
            state["history"] = {
                "rows": self._all_observed_rows.to_json_state(),
                "steps": self._steps,
                "shares": self._learned,
            }
        return state

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Restore it.

        Raises:
            InputError: if numbers of shares and kernels differ, or one is not finite.
        """
        past = state.get("history", {})
        self.spread_K = np.asarray(state.get("spread", []), np.float64)
        self._given, self._learned = (
            self._validated_shares(state.get("shares")),
            self._validated_shares(past.get("shares")),
        )
        if len(self.spread_K) not in (0, len(self.kernels)) or not np.isfinite(self.spread_K).all():
            raise InputError(f"a state of {len(self.kernels)} kernels needs as many finite spreads")
        rows = past.get("rows", past if "prompts" in past else None)  # the latter from a former ``shrunk`` around it
        self._history = None if rows is None else History.from_json_state(rows)
        self._steps, self._table, self._stream = int(past.get("steps", 0)), None, None

    def state_dict(self) -> dict[str, Any]:
        """As of every component, with what equal features of several kernels learned written once."""
        return pool_equal_states(super().state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(restore_pooled_states(self._without_former_shrunk(state)))

    def _validated_shares(self, shares: Sequence[float] | None) -> FloatArray | None:
        if shares is None:
            return None
        array = np.asarray(shares, np.float64)
        if (
            array.shape != (len(self.kernels) + 1,)
            or not np.isfinite(array).all()
            or array.min() < 0
            or not array[-1] > 0
        ):
            raise InputError(
                f"shares of {len(self.kernels)} kernels and noise must be that many numbers >= 0, with noise above 0"
            )
        return array
