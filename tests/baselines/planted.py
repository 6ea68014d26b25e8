"""Baselines that break the contract, one way each: the audit must find every one. Also some that keep it in unusual
ways."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from rollonce.baselines import Baseline, Batch, KernelBaseline, LeaveOneOut, LinearSmoother, Prediction, Tags
from rollonce.kernels import Rbf

RELAXED = Tags(shift_equivariant=False, scale_equivariant=False, neutral=False)


def loo(r):
    return (r.sum() - r) / (len(r) - 1) if len(r) > 1 else np.zeros(len(r))


def surprisals(batch):
    """Weights above 0 from -log p; 1 where it is unknown."""
    return np.ones(len(batch)) if batch.log_probs_B is None else 1.0 - np.nan_to_num(batch.log_probs_B)


@dataclass
class Planted(Baseline):
    """Base: a leave-one-out mean without history; not registered, so it cannot be loaded."""

    @property
    def tags(self) -> Tags:
        return RELAXED

    def predict(self, batch, history=None):
        b = self.b(batch) if len(batch) > 1 else np.zeros(len(batch))
        return Prediction.of(batch, b, np.full(len(batch), len(batch) <= 1))

    def b(self, batch):
        return loo(batch.rewards_B)


class OwnReward(Planted):
    """A hundredth of the own reward."""

    def b(self, batch):
        return 0.99 * loo(batch.rewards_B) + 0.01 * batch.rewards_B


class OwnRewardWhenHigh(Planted):
    """Sees the own reward only if it is the largest of the batch."""

    def b(self, batch):
        r = batch.rewards_B
        return np.where(r > np.sort(r)[-2] + 1e-12, loo(r) + 0.05 * r, loo(r))


class ScaleFittedOnTheBatch(Planted):
    """Leaves out the own reward, but chooses how far to shrink by the squared error on this very batch."""

    def b(self, batch):
        r = batch.rewards_B
        x = np.array([float(len(p)) for p in batch.tasks.prompts])
        x = (x - x.mean()) / (x.std() + 1e-9)
        slope = (x @ (r - r.mean())) / (x @ x + 1)  # holds every reward, the own one too
        return loo(r) + slope * x


@dataclass
class LengthScaleFittedOnTheBatch(Planted):
    """The weights leave the own row out, but the kernel's width was the best of three on this batch: a discrete
    leak."""

    def b(self, batch):
        options = [KernelBaseline(Rbf(length_scale=s)) for s in (0.05, 0.5, 5.0)]
        each = [o.predict(batch).baseline_B for o in options]
        return each[int(np.argmin([((batch.rewards_B - b) ** 2).sum() for b in each]))]


@dataclass
class WeightsFittedOnTheBatch(LinearSmoother):
    """A linear smoother whose weights move with the batch's rewards."""

    _spread: float = field(default=0.0, init=False)

    def predict(self, batch, history=None):
        self._spread = float(np.ptp(batch.rewards_B)) if len(batch) else 0.0
        return super().predict(batch, history)

    def weights(self, batch, history=None):
        self._spread = float(np.ptp(batch.rewards_B)) if len(batch) else 0.0
        return super().weights(batch, history)

    def smoothing_weights(self, tasks, columns_KM, n_rows, visible_KBM, ages_M):
        w = np.where(visible_KBM, 1.0 + self._spread * np.arange(columns_KM.shape[1]) / columns_KM.shape[1], 0.0)
        total = w.sum(-1, keepdims=True)
        return np.divide(w, total, out=np.zeros_like(w), where=total > 0)


class PredictAlsoObserves(Planted):
    """Adds the batch to a running mean before it looks at it."""

    seen: ClassVar[list] = []

    def b(self, batch):
        self.__dict__.setdefault("mine", []).extend(batch.rewards_B)
        return np.full(len(batch), np.mean(self.__dict__["mine"]))


class RunningMeanInPredict(Planted):
    """Leave-one-out, but predict keeps the rewards for next time."""

    def b(self, batch):
        kept = self.__dict__.setdefault("mine", [])
        out = np.full(len(batch), np.mean(kept) if kept else 0.0)
        kept.extend(batch.rewards_B)
        return out


class ResponseLength(Planted):
    """Regresses on the length of the response."""

    def b(self, batch):
        n = batch.response_lengths_B
        return loo(batch.rewards_B) if n is None else loo(batch.rewards_B) + 1e-4 * (n - n.mean())


class OwnSurprisal(Planted):
    """Knows that long-winded answers are wrong."""

    def b(self, batch):
        own = 0.0 if batch.log_probs_B is None else 1e-5 * np.nan_to_num(batch.log_probs_B)
        return loo(batch.rewards_B) + own


class WeightedByAllSurprisals(Planted):
    """Leaves the own reward out of the sum, but not the own surprisal out of what the sum is divided by."""

    def b(self, batch):
        r, w = batch.rewards_B, surprisals(batch)
        return (w @ r - w * r) / w.sum()


class SlopeFittedOnAllSurprisals(Planted):
    """b reads only prompts and the others' rewards, but its slope was fitted with every row's surprisal as weight."""

    def b(self, batch):
        r, w = batch.rewards_B, surprisals(batch)
        x = np.array([float(len(p)) for p in batch.tasks.prompts])
        x = (x - x.mean()) / (x.std() + 1e-9)
        return loo(r) + 1e-3 * (w @ x**2) / w.sum() * x


class WeightedByTheOthersSurprisals(Planted):
    """Nothing wrong here: each row is weighed by its surprisal in the baselines of the others alone."""

    def b(self, batch):
        r, w = batch.rewards_B, surprisals(batch)
        w_BB = np.tile(w, (len(r), 1))
        np.fill_diagonal(w_BB, 0.0)
        return w_BB @ r / w_BB.sum(axis=1)


class Order(Planted):
    """The mean of the rollouts before this one."""

    def b(self, batch):
        r = batch.rewards_B
        return np.concatenate([[0.0], np.cumsum(r)[:-1] / np.arange(1, len(r))])


class PositionOnly(Planted):
    """Leave-one-out plus a little of the row's number."""

    def b(self, batch):
        return loo(batch.rewards_B) + 1e-3 * np.arange(len(batch))


class OwnRewardAlone(Planted):
    """``b = r`` for a batch of one."""

    def predict(self, batch, history=None):
        b = loo(batch.rewards_B) if len(batch) != 1 else batch.rewards_B.copy()
        return Prediction.of(batch, b, np.full(len(batch), len(batch) <= 1))


class NotFlagged(Planted):
    """Gives the prior to a batch of one without saying so."""

    @property
    def tags(self):
        return Tags(neutral=False)

    def predict(self, batch, history=None):
        return Prediction.of(batch, loo(batch.rewards_B) if len(batch) > 1 else np.zeros(len(batch)))


class RandomNumbers(Planted):
    """A new draw at each call."""

    def b(self, batch):
        return loo(batch.rewards_B) + 1e-3 * np.random.default_rng().normal(size=len(batch))


class WritesRewards(Planted):
    """Centres the trainer's own array."""

    def b(self, batch):
        out = loo(batch.rewards_B)
        batch.rewards_B[:] -= batch.rewards_B.mean()
        return out


class NanOnEmpty(Planted):
    """Divides by the number of words."""

    def b(self, batch):
        n = np.array([len(p.split()) for p in batch.tasks.prompts], dtype=np.float64)
        with np.errstate(all="ignore"):
            return loo(batch.rewards_B) + 0 * (1 / n)


class NanOnEqual(Planted):
    """Divides by the deviation of the rewards."""

    def b(self, batch):
        with np.errstate(all="ignore"):
            return loo(batch.rewards_B) / batch.rewards_B.std()


class WrongTags(Planted):
    """Half of the mean follows no shift; claims to."""

    @property
    def tags(self):
        return replace(RELAXED, shift_equivariant=True, scale_equivariant=True, neutral=True)

    def b(self, batch):
        return 0.5 * loo(batch.rewards_B)


class Squares(Planted):
    """Follows no scale; claims to."""

    @property
    def tags(self):
        return replace(RELAXED, scale_equivariant=True)

    def b(self, batch):
        return loo(batch.rewards_B**2)


class WhitenedInSecret(Planted):
    """Its b is clean, but its advantages are divided by the deviation of the batch."""

    def predict(self, batch, history=None):
        clean = super().predict(batch, history)
        deviation = batch.rewards_B.std() if len(batch) else 0.0
        return replace(clean, advantages_B=clean.advantages_B / (deviation + 1e-6))


class NeitherNor(Planted):
    """Includes the own reward and promises nothing."""

    @property
    def tags(self):
        return replace(RELAXED, leave_one_out=False)

    def b(self, batch):
        return np.full(len(batch), batch.rewards_B.mean())


class WrongTwin(Planted):
    """Self-inclusive, but its advantage is no multiple of its twin's."""

    @property
    def tags(self):
        return replace(RELAXED, leave_one_out=False, self_inclusive=True)

    def b(self, batch):
        return 0.5 * batch.rewards_B + 0.5 * loo(batch.rewards_B) ** 2

    def twin(self):
        return LeaveOneOut()


class NoTwin(Planted):
    """Self-inclusive, and names itself as its twin."""

    @property
    def tags(self):
        return replace(RELAXED, leave_one_out=False, self_inclusive=True)

    def b(self, batch):
        return np.full(len(batch), batch.rewards_B.mean())


class HiddenHistory(Planted):
    """Remembers in observe without a tag that says so."""

    def b(self, batch):
        return loo(batch.rewards_B) + self.__dict__.get("shift", 0.0)

    def observe(self, batch):
        self.__dict__["shift"] = float(batch.rewards_B.mean())


class SilentZeros(Planted):
    """A group mean that takes a single rollout without a word."""

    @property
    def tags(self):
        return replace(RELAXED, needs_groups=True)

    def b(self, batch):
        ids = np.asarray(batch.tasks.task_ids, dtype=str)
        return np.array(
            [
                batch.rewards_B[(ids == t) & (np.arange(len(ids)) != i)].mean() if (ids == t).sum() > 1 else 0.0
                for i, t in enumerate(ids)
            ]
        )


class Unbounded(Planted):
    """Promises rewards in [0, 1] and takes any."""

    @property
    def tags(self):
        return replace(RELAXED, bounded_rewards=True)


PLANTED = {
    OwnReward: {"leave_one_out"},
    OwnRewardWhenHigh: {"leave_one_out"},
    ScaleFittedOnTheBatch: {"leave_one_out"},
    LengthScaleFittedOnTheBatch: {"leave_one_out"},
    WeightsFittedOnTheBatch: {"leave_one_out", "weights", "order"},
    PredictAlsoObserves: {"leave_one_out", "no_side_effects"},
    RunningMeanInPredict: {"no_side_effects"},
    ResponseLength: {"response_length"},
    OwnSurprisal: {"own_log_prob"},
    WeightedByAllSurprisals: {"own_log_prob"},
    SlopeFittedOnAllSurprisals: {"own_log_prob"},
    Order: {"order"},
    PositionOnly: {"order"},
    OwnRewardAlone: {"batch_of_one"},
    NotFlagged: {"batch_of_one"},
    RandomNumbers: {"no_side_effects", "repeatable"},
    WritesRewards: {"no_side_effects"},
    NanOnEmpty: {"odd_prompts"},
    NanOnEqual: {"equal_rewards"},
    WrongTags: {"shift_equivariant", "neutral", "equal_rewards"},
    Squares: {"scale_equivariant"},
    WhitenedInSecret: {"leave_one_out"},
    NeitherNor: {"declared"},
    WrongTwin: {"self_inclusive"},
    NoTwin: {"self_inclusive"},
    HiddenHistory: {"history"},
    SilentZeros: {"needs_groups"},
    Unbounded: {"bounded_rewards"},
}


def batch_of(n: int) -> Batch:
    return Batch.of([f"p {i}" for i in range(n)], np.linspace(0, 1, n))
