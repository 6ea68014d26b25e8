"""A baseline of experts: each is scored in the shadow by its squared advantages on *past* batches, and the best mixture
plays.

``E[A^2] = s2 + MSE(b)`` (docs/mathematics.md, "Effective batch size"), so ordinary single-rollout steps rank baselines
and, through the mean products of their advantages, their mixtures. The batch being judged is never read: weights for a
step come from the steps before. The leave-one-out mean is always among the experts and plays alone before anything was
seen. Old steps are discounted, so the mixture follows a policy whose difficulty drifts.

Source: Wolpert 1992, Breiman 1996 (stacking on a simplex); Cesa-Bianchi & Lugosi 2006, chapters 3 and 5 (exponential
weights, fixed share).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from rollonce.arrays import as_float64_array
from rollonce.baselines.base import Baseline, copy_without_history
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.kernel import KernelBaseline, LeaveOneOut
from rollonce.baselines.regressor import Ridge
from rollonce.baselines.self_tuning import SelfTuning
from rollonce.baselines.stacking import exponential_weights_step, fit_stacking_weights
from rollonce.baselines.tags import Tags
from rollonce.component import register
from rollonce.errors import InputError
from rollonce.features.base import tasks_from_prompts
from rollonce.kernels.base import BoolArray
from rollonce.rollouts import FloatArray, Tasks


def make_default_experts() -> list[Baseline]:
    """LOO in the batch and with a window, the published TF-IDF kernel, self-tuning Kriging with a window, and a ridge
    critic."""
    return [LeaveOneOut(), LeaveOneOut(window=512), KernelBaseline(), SelfTuning(window=512), Ridge()]


@register
@dataclass
class ExpertMixture(Baseline):
    """Mixes or picks experts by how well they did on past batches.

    Args:
        experts: Leave-one-out baselines of any kind (`BoostedTrees` too, where scikit-learn is at hand); a
            `LeaveOneOut` of the batch is put first if there is none. `make_default_experts` by default.
        rule: ``stacking``: the mixture with the least mean squared advantage over the discounted past; ``weights``:
            exponential weights with a fixed share; ``best``: the expert with the least discounted mean squared
            advantage, LOO until another beats it.
        discount: Weight of a step per step of age, for stacking and best; the memory is ``1 / (1 - discount)`` steps.
        pull: Of stacking towards LOO, in units of the noise of its estimate (the LOO loss times experts over effective
            rows).
        rate: Of exponential weights, in units of ``1 / (2 R^2)`` with R the largest absolute advantage seen; at 1 their
            regret is bounded (see `rollonce.baselines.stacking.exponential_weights_step`), more learns faster.
        share: Fixed share of exponential weights; how fast they can come back after a change.

    Each expert keeps its own rows of history. A history given to `predict` stands for all that was observed, and is
    played through.
    """

    type: ClassVar[str] = "experts"
    source: ClassVar[str] = "Wolpert 1992; Breiman 1996; Cesa-Bianchi & Lugosi 2006"
    experts: Sequence[Baseline] = ()
    rule: Literal["stacking", "weights", "best"] = "stacking"
    discount: float = 0.97
    pull: float = 1.0
    rate: float = 4.0
    share: float = 0.01
    _gram: FloatArray = field(init=False, repr=False)
    _weights: FloatArray = field(init=False, repr=False)
    _steps: float = field(default=0.0, init=False, repr=False)
    _rows: float = field(default=0.0, init=False, repr=False)
    _largest: float = field(default=0.0, init=False, repr=False)
    _given: dict[str, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.experts = list(self.experts) or make_default_experts()
        if not any(isinstance(e, LeaveOneOut) and e.window == 0 for e in self.experts):
            self.experts = [LeaveOneOut(), *self.experts]
        for e in self.experts:
            if not isinstance(e, Baseline) or not e.tags.leave_one_out or e.tags.needs_groups:
                what = e.label if isinstance(e, Baseline) else repr(e)
                raise InputError(
                    f"{what} cannot be an expert: it is not leave-one-out at one rollout a task; take its twin"
                )
        if self.rule not in ("stacking", "weights", "best"):
            raise InputError(f"experts rule must be stacking, weights or best, not {self.rule!r}")
        if not 0 < self.discount <= 1 or self.pull < 0 or not self.rate > 0 or not 0 <= self.share < 1:
            raise InputError("experts need discount in (0, 1], pull >= 0, rate above 0 and share in [0, 1)")
        self._home = next(i for i, e in enumerate(self.experts) if isinstance(e, LeaveOneOut) and e.window == 0)
        self._forget_past_errors()

    def _forget_past_errors(self) -> None:
        m = len(self.experts)
        self._gram, self._weights = np.zeros((m, m)), np.full(m, 1 / m)
        self._steps, self._rows, self._largest = 0.0, 0.0, 0.0

    @property
    def tags(self) -> Tags:
        each = [e.tags for e in self.experts]
        return Tags(
            shift_equivariant=all(t.shift_equivariant for t in each),
            scale_equivariant=all(t.scale_equivariant for t in each),
            neutral=all(t.neutral for t in each),
            needs_history=True,
            windowed=any(t.windowed for t in each),
            bounded_rewards=any(t.bounded_rewards for t in each),
            cost=max(t.cost for t in each),
        )

    def describe(self) -> str:
        """The rule and how many experts."""
        return f"{len(self.experts)} experts, {self.rule}"

    @property
    def mixture_shares_M(self) -> FloatArray:
        """The mixture that plays next (M,), in the order of ``experts``."""
        home = np.zeros(len(self.experts))
        home[self._home] = 1.0
        if self._rows <= 0:
            return home
        gram = self._gram / self._rows
        losses = np.diag(gram)
        if not losses[self._home] > 0:
            return home
        if self.rule == "weights":
            return self._weights
        if self.rule == "best":
            best = int(np.argmin(losses))
            home[self._home] = 0.0
            home[best if losses[best] < losses[self._home] else self._home] = 1.0
            return home
        noise = losses[self._home] * len(losses) / self._rows
        return fit_stacking_weights(gram, self.pull * noise, self._home)

    @property
    def expert_losses_M(self) -> FloatArray:
        """Discounted mean squared advantage of each expert on past batches (M,); NaN before the first."""
        return np.diag(self._gram) / self._rows if self._rows > 0 else np.full(len(self.experts), np.nan)

    def _predict_each_expert(self, batch: Batch) -> tuple[FloatArray, BoolArray]:
        """Every expert's b and whether it was its prior, (M, B) both."""
        b_MB, prior_MB = (
            np.empty((len(self.experts), len(batch))),
            np.zeros((len(self.experts), len(batch)), dtype=bool),
        )
        for m, e in enumerate(self.experts):
            prediction = e.predict(batch)
            b_MB[m], prior_MB[m] = prediction.baseline_B, prediction.only_prior_B
        return b_MB, prior_MB

    def predict(self, batch: Batch, history: History | None = None) -> Prediction:
        """The mixture's b (B,). An expert that has nothing to go by for a row leaves its share to the others."""
        if history is not None:
            return self._copy_after_history(history).predict(batch)
        b_MB, prior_MB = self._predict_each_expert(batch)
        a_MB = np.where(prior_MB, 0.0, np.maximum(self.mixture_shares_M, 1e-12)[:, None])
        total_B = a_MB.sum(axis=0)
        b_B = np.divide((a_MB * b_MB).sum(axis=0), total_B, out=np.full(len(batch), self.prior), where=total_B > 0)
        return Prediction.of(batch, b_B, np.asarray(total_B <= 0))

    def observe(self, batch: Batch) -> None:
        """Score every expert on the step as it stood before it, then let each observe it."""
        self._score_each_expert(batch)
        for e in self.experts:
            e.observe(batch)

    def _score_each_expert(self, batch: Batch) -> None:
        self._gram, self._rows = self._gram * self.discount, self._rows * self.discount
        self._steps += 1
        if len(batch) == 0:
            return
        b_MB, prior_MB = self._predict_each_expert(batch)
        known = ~prior_MB[self._home]
        # An expert without anything to go by is charged what LOO would have been: it would have left its share to it.
        b_MB = np.where(prior_MB, b_MB[self._home], b_MB)[:, known]
        errors_MB = batch.rewards_B[known] - b_MB
        n = int(known.sum())
        if n == 0:
            return
        self._gram = self._gram + errors_MB @ errors_MB.T
        self._rows += n
        self._largest = max(self._largest, float((errors_MB**2).max()))
        if self._largest > 0:
            eta = self.rate / (2 * self._largest)
            self._weights = exponential_weights_step(self._weights, (errors_MB**2).mean(axis=1), eta, self.share)

    def fit_rewards(
        self, tasks: Sequence[str] | Tasks, rewards: Sequence[float] | FloatArray, batch_size: int = 32
    ) -> Self:
        """Learn offline from one reward each of other tasks than those to be judged. Returns itself.

        Experts that learn offline are fitted on the first half; the second half is played through in batches, from
        which the mixture is learned; then those experts are fitted on all. The rows played do not stay as history.
        """
        tasks, y = tasks_from_prompts(tasks), as_float64_array(rewards)
        if y.shape != (len(tasks),) or not np.isfinite(y).all():
            raise InputError(
                f"fit_rewards needs one finite reward a task: {len(tasks)} tasks, rewards of shape {y.shape}"
            )
        learners: list[Any] = [e for e in self.experts if hasattr(e, "fit_rewards")]
        half = len(y) // 2 if learners else 0
        for e in learners:
            e.fit_rewards(tasks.take(np.arange(half)), y[:half])
        trial = copy_without_history(self)
        assert isinstance(trial, ExpertMixture)
        trial._forget_past_errors()
        for start in range(half, len(y), batch_size):
            at = np.arange(start, min(start + batch_size, len(y)))
            if len(at) > 1:
                trial.observe(Batch(tasks.take(at), y[at]))
        self._given = trial._evidence_to_state()
        self._restore_evidence(self._given)
        for e in learners:
            e.fit_rewards(tasks, y)
        return self

    def _copy_after_history(self, history: History) -> ExpertMixture:
        """A copy as it would be had it observed these rows and no others, a step for each age."""
        clone = copy_without_history(self)
        assert isinstance(clone, ExpertMixture)
        for age in range(int(history.ages_H.max(initial=0)), 0, -1):
            clone.observe(history.rebuild_batch_of_age(age))
        return clone

    def _evidence_to_state(self) -> dict[str, Any]:
        return {
            "gram": self._gram.tolist(),
            "weights": self._weights.tolist(),
            "steps": self._steps,
            "rows": self._rows,
            "largest": self._largest,
        }

    def _restore_evidence(self, evidence: dict[str, Any] | None) -> None:
        self._forget_past_errors()
        if evidence is None:
            return
        m = len(self.experts)
        gram, weights = np.asarray(evidence["gram"], np.float64), np.asarray(evidence["weights"], np.float64)
        if (
            gram.shape != (m, m)
            or weights.shape != (m,)
            or not (np.isfinite(gram).all() and np.isfinite(weights).all())
        ):
            raise InputError(f"a state of {m} experts needs a finite {m} x {m} matrix of products and as many weights")
        self._gram, self._weights = gram, weights
        self._steps, self._rows, self._largest = (float(evidence[k]) for k in ("steps", "rows", "largest"))

    def own_state(self) -> dict[str, Any]:
        """What the experts' errors were so far, and what `fit_rewards` had found."""
        state: dict[str, Any] = {"given": self._given} if self._given is not None else {}
        return state | (
            {"history": self._evidence_to_state()} if self._steps and self._evidence_to_state() != self._given else {}
        )

    def load_own_state(self, state: dict[str, Any]) -> None:
        self._given = state.get("given")
        self._restore_evidence(state.get("history", self._given))
