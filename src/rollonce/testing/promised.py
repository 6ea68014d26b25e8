"""What a baseline promises by its tags, held to it."""

from __future__ import annotations

import numpy as np

from rollonce.baselines.base import Baseline, LinearSmoother
from rollonce.baselines.batch import Batch, History
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray
from rollonce.testing.samples import permute_rollouts, replace_rewards
from rollonce.testing.subject import Failed, Subject, first_difference


def leave_one_out(s: Subject) -> str:
    """Changing r_i never changes b_i, directly or through anything fitted on the batch."""
    bounded = s.template.tags.bounded_rewards
    for state, baseline in s.iterate_audit_states():
        for kind in (0, 1, 0, 1):
            batch = s.samples.draw_rollout_batch(kind)
            prediction = baseline.predict(batch)
            straight, scaled = prediction.baseline_B, prediction.advantages_B
            for i in range(len(batch)):
                old = batch.rewards_B[i]
                others = np.delete(batch.rewards_B, i)
                changes = [1.0 - old, others.max(), others.min()] if bounded else [1.0 - old, others.max(), 40.0, -7.5]
                for new in changes:
                    if new == old:
                        continue
                    rewards = batch.rewards_B.copy()
                    rewards[i] = new
                    moved = baseline.predict(replace_rewards(batch, rewards)).baseline_B
                    if first_difference(straight[i : i + 1], moved[i : i + 1], rewards) is not None:
                        raise Failed(
                            f"the own reward leaks: changing rollout {i}'s from {old:.4g} to {new:.4g} moved its own "
                            f"baseline from {straight[i]:.6g} to {moved[i]:.6g} ({state})"
                        )
            if (i := first_difference(scaled, batch.rewards_B - straight)) is not None:
                raise Failed(
                    f"advantages_B has {scaled[i]:.6g} for rollout {i}, "
                    f"where r - b is {batch.rewards_B[i] - straight[i]:.6g}: "
                    "whatever it multiplies by is of this batch; declare self_inclusive if that holds the own reward"
                )
    return "no rollout's reward moves its own b"


def declared(s: Subject) -> str:
    """It is leave-one-out, or says that it is not."""
    t = s.template.tags
    if not t.leave_one_out and not t.self_inclusive:
        raise Failed(
            "it promises neither leave_one_out nor self_inclusive: a baseline that sees its own reward must say so and "
            "name its twin"
        )
    if t.leave_one_out and t.self_inclusive:
        raise Failed("it promises both leave_one_out and self_inclusive; they exclude each other")
    return "it says whether it is leave-one-out or self-inclusive"


def shift_equivariant(s: Subject) -> str:
    """Adding c to all rewards adds c to b."""
    shifts = (0.25,) if s.template.tags.bounded_rewards else (0.25, -3.0)
    return _check_equivariance(s, [(lambda r, c=c: r + c, f"adding {c:g} to all rewards adds it to b") for c in shifts])


def scale_equivariant(s: Subject) -> str:
    """Multiplying all rewards by c > 0 multiplies b by c."""
    scales = (0.5,) if s.template.tags.bounded_rewards else (0.5, 8.0)
    return _check_equivariance(
        s, [(lambda r, c=c: r * c, f"multiplying all rewards by {c:g} does so with b") for c in scales]
    )


def _check_equivariance(s: Subject, maps: list) -> str:
    half = lambda b: replace_rewards(b, b.rewards_B / 2)  # noqa: E731  (room for a shift within [0, 1])
    past = [half(b) for b in s.observed_batches] if s.remembers_earlier_steps else []
    for map_, claim in maps:
        for steps in (past, []) if past else ([],):
            plain = s.copy_after_batches(steps)
            moved = s.copy_after_batches([replace_rewards(b, map_(b.rewards_B)) for b in steps])
            for kind in (0, 1):
                batch = half(s.samples.draw_rollout_batch(kind))
                before = plain.predict(batch)
                want, prior = map_(before.baseline_B), before.only_prior_B
                got = moved.predict(replace_rewards(batch, map_(batch.rewards_B))).baseline_B
                if (i := first_difference(np.where(prior, 0.0, want), np.where(prior, 0.0, got))) is not None:
                    raise Failed(
                        f"it promises that {claim}, but b_{i} became {got[i]:.6g} instead of {want[i]:.6g} after "
                        f"{len(steps)} steps"
                    )
    return maps[0][1]


def neutral(s: Subject) -> str:
    """Identical prompts give the leave-one-out mean of whatever rows were visible."""
    # A self-inclusive baseline differs from its twin by the own share; the twin's own tags hold it to this.
    baseline = s.make_fresh_copy()
    batch = s.samples.batch_of_identical_prompts()
    visible = batch.rewards_B
    _check_is_loo_mean(baseline.predict(batch).baseline_B, visible, len(batch), "")
    if s.remembers_earlier_steps and baseline.keep_rows and getattr(baseline, "decay", 1.0) == 1.0:
        past = [_copy_with_rewards(batch, s.samples.draw_unequal_rewards(len(batch), k)) for k in range(3)]
        baseline = s.copy_after_batches(past)
        window = np.concatenate([b.rewards_B for b in past])[-baseline.keep_rows :]
        _check_is_loo_mean(
            baseline.predict(batch).baseline_B,
            np.concatenate([visible, window]),
            len(batch),
            f" and a window of {len(window)}",
        )
    return "identical prompts give the leave-one-out mean of what was visible"


def _copy_with_rewards(batch: Batch, rewards: FloatArray) -> Batch:
    return replace_rewards(permute_rollouts(batch, np.arange(len(batch))), rewards)


def _check_is_loo_mean(b: FloatArray, visible: FloatArray, n: int, what: str) -> None:
    want = (visible.sum() - visible[:n]) / (len(visible) - 1)
    if (i := first_difference(b, want)) is not None:
        raise Failed(
            f"{n} identical prompts{what} should give the leave-one-out mean {want[i]:.6g}, but b_{i} = {b[i]:.6g}"
        )


def needs_groups(s: Subject) -> str:
    """A group of one is refused with a clear error, not given zeros."""
    batch = s.samples.draw_rollout_batch()
    alone = permute_rollouts(batch, np.unique(np.asarray(batch.tasks.task_ids, dtype=str), return_index=True)[1])
    try:
        b = s.make_fresh_copy().predict(alone).baseline_B
    except InputError:
        return "one rollout a task is refused with an error"
    raise Failed(
        f"it needs groups, but one rollout a task gave b_0 = {b[0]:.6g} instead of an InputError: its advantages would "
        "silently be zero"
    )


def needs_repeats(s: Subject) -> str:
    """What it learned of a task in earlier steps shows when the task comes again (an oracle learned it beforehand)."""
    if hasattr(s.template, "means"):
        return "it knows the means of tasks beforehand"
    batch = s.samples.draw_rollout_batch()
    low, high = (
        s.copy_after_batches([replace_rewards(batch, np.full(len(batch), r))] * 3).predict(batch).baseline_B
        for r in (0.0, 1.0)
    )
    if not (high > low).all():
        i = int(np.flatnonzero(~(high > low))[0])
        raise Failed(
            f"it needs repeats, but task {i} seen three times with reward 1 has b = {high[i]:.6g}, and with reward 0 "
            f"{low[i]:.6g}"
        )
    return "a task's earlier rewards move its baseline"


def bounded_rewards(s: Subject) -> str:
    """Rewards outside [0, 1] are refused, and b stays inside."""
    batch = s.samples.draw_rollout_batch(1)
    for bad in (-0.5, 1.5):
        rewards = batch.rewards_B.copy()
        rewards[0] = bad
        baseline = s.make_fresh_copy()
        try:
            baseline.predict(replace_rewards(batch, rewards))
            baseline.observe(replace_rewards(batch, rewards))
        except InputError:
            continue
        raise Failed(f"it promises bounded_rewards but took a reward of {bad:g} without an InputError")
    for state, baseline in s.iterate_audit_states():
        b = baseline.predict(s.samples.draw_rollout_batch()).baseline_B
        if b.min() < 0 or b.max() > 1:
            raise Failed(f"it promises bounded_rewards but gave b = {b.max() if b.max() > 1 else b.min():.6g} {state}")
    return "rewards outside [0, 1] are refused and b stays inside"


def self_inclusive(s: Subject) -> str:
    """Its advantage is its leave-one-out twin's times a factor that is the same for the whole batch (or group), or
    given by the lengths alone."""
    baseline, twin = s.make_fresh_copy(), s.make_fresh_copy().twin()
    if twin.tags.self_inclusive or not twin.tags.leave_one_out:
        raise Failed("it is self-inclusive but names no leave-one-out twin; override twin()")
    twin.fit(s.samples.all_drawable_tasks())
    if s.template.tags.uses_lengths:
        return _check_factor_of_lengths(s, baseline, twin)
    factors: list[float] = []
    rescales = False
    for kind in (0, 1, 0, 1):
        batch = s.samples.draw_rollout_batch(kind)
        prediction = baseline.predict(batch)
        a, a_twin = prediction.advantages_B, twin.predict(batch).advantages_B
        rescales = rescales or first_difference(a, batch.rewards_B - prediction.baseline_B) is not None
        groups = [str(t) for t in batch.tasks.task_ids] if s.template.tags.needs_groups else ["batch"] * len(batch)
        for group in sorted(set(groups)):
            at = np.flatnonzero((np.asarray(groups) == group) & (np.abs(a_twin) > 1e-9))
            if not len(at):
                continue
            f = a[at] / a_twin[at]
            if (i := first_difference(f, np.full(len(f), f[0]))) is not None:
                raise Failed(
                    f"its advantage should be its twin's ({twin.label}) times one factor, "
                    f"but rollout {at[0]} has {f[0]:.6g} and rollout {at[i]} {f[i]:.6g}: "
                    "the direction of the gradient changes with the own reward"
                )
            factors.append(float(f[0]))
    constant = not factors or first_difference(np.asarray(factors), np.full(len(factors), factors[0])) is None
    if not constant and not rescales:
        raise Failed(
            f"it does not rescale, but on batches of one size its factor to its twin ({twin.label}) went from "
            f"{min(factors):.6g} to {max(factors):.6g}"
        )
    if constant and factors:
        return f"its advantage is {factors[0]:.6g} times that of its leave-one-out twin ({twin.label})"
    return (
        f"its advantage is that of its twin ({twin.label}) times a factor of the batch ({min(factors):.4g} to "
        f"{max(factors):.4g} here), which depends on the own reward: slightly biased by definition"
    )


def _check_factor_of_lengths(s: Subject, baseline: Baseline, twin: Baseline) -> str:
    for kind in (0, 1, 0, 1):
        batch = s.samples.draw_rollout_batch(kind)
        factors_B = np.full(len(batch), np.nan)
        for k in range(4):
            other = replace_rewards(batch, s.samples.draw_unequal_rewards(len(batch), kind + k))
            a, a_twin = baseline.predict(other).advantages_B, twin.predict(other).advantages_B
            at = np.flatnonzero(np.abs(a_twin) > 1e-9)
            f = a[at] / a_twin[at]
            known = np.isfinite(factors_B[at])
            if (i := first_difference(f[known], factors_B[at][known])) is not None or (f < 0).any() or (f > 1).any():
                i = int(at[known][i]) if i is not None else int(at[np.flatnonzero((f < 0) | (f > 1))[0]])
                raise Failed(
                    f"its advantage should be its twin's ({twin.label}) times a share of the lengths, but other "
                    f"rewards changed rollout {i}'s factor, or it is outside [0, 1]"
                )
            factors_B[at] = f
    return f"its advantage is that of its twin ({twin.label}) times one less the own share of the lengths"


def weights(s: Subject) -> str:
    """Rows sum to 1, the own weight is 0, W r is predict, and W does not depend on the rewards."""
    for state, baseline in s.iterate_audit_states():
        assert isinstance(baseline, LinearSmoother)
        _check_weight_matrix(s, baseline, s.samples.draw_rollout_batch(), state)
        if not s.template.tags.needs_groups:
            _check_weight_matrix(
                s, baseline, s.samples.batch_with_prompts(s.samples.prompts[:1]), f"{state}, for a batch of one"
            )
    return "weights sum to 1, leave the own rollout out and give predict"


def _check_weight_matrix(s: Subject, baseline: LinearSmoother, batch: Batch, state: str) -> None:
    w, prediction = baseline.weights(batch), baseline.predict(batch)
    b, seen = prediction.baseline_B, ~prediction.only_prior_B
    past = baseline.history.keep_newest_rows(baseline.window).rewards_H
    n = len(batch)
    if w.shape != (n, n + len(past)):
        raise Failed(f"weights have shape {w.shape} {state}; ({n}, {n + len(past)}) was expected: batch, then window")
    if (own := np.abs(np.diagonal(w)).max()) != 0:
        raise Failed(f"the largest own weight is {own:.3g} {state}; it must be exactly 0")
    if (i := first_difference(w.sum(axis=1)[seen], np.ones(int(seen.sum())))) is not None:
        raise Failed(f"a row of weights sums to {w.sum(axis=1)[seen][i]:.9g} {state}")
    if (i := first_difference((w @ np.concatenate([batch.rewards_B, past]))[seen], b[seen])) is not None:
        raise Failed(f"weights @ rewards is not what predict gives in row {i} {state}")
    other = baseline.weights(replace_rewards(batch, s.samples.draw_unequal_rewards(n, 1)))
    if not np.array_equal(w, other):
        raise Failed(f"the weights changed with the batch's rewards {state}: something is fitted on the batch itself")


def history(s: Subject) -> str:
    """Earlier steps count only where the tags say so; rows given as an argument count as observed ones do, and are left
    alone."""
    if not s.remembers_earlier_steps:
        baseline = s.make_fresh_copy()
        batch = s.samples.draw_rollout_batch()
        before = baseline.predict(batch).baseline_B
        baseline.observe(s.samples.draw_rollout_batch(1))
        if (i := first_difference(before, baseline.predict(batch).baseline_B)) is not None:
            raise Failed(
                f"observing a batch moved b_{i}, but no tag says that earlier steps count (windowed, needs_history, "
                "needs_repeats)"
            )
        return "earlier steps do not count"
    t = s.template.tags
    if not (t.windowed or t.needs_history or t.needs_repeats):
        raise Failed(f"it keeps {s.template.keep_rows} rows of history, but no tag says so (windowed)")
    given = History.before_first_step()
    for past in s.observed_batches:
        given = given.with_batch_appended(past)
    rewards, prompts = given.rewards_H.copy(), given.tasks.prompts
    batch = s.samples.draw_rollout_batch()
    lived = s.copy_with_history()
    state = lived.state_dict()
    for baseline in (s.make_fresh_copy(), lived):
        got = baseline.predict(batch, given).baseline_B
        if not np.isfinite(got).all():
            raise Failed("history given as an argument gave a b that is not finite")
    if not np.array_equal(rewards, given.rewards_H) or prompts != given.tasks.prompts:
        raise Failed("predict changed the history that it was given")
    if lived.state_dict() != state:
        raise Failed("predict with history given as an argument changed the baseline's own")
    if (
        s.is_linear_smoother
        and (
            i := first_difference(
                s.make_fresh_copy().predict(batch, given).baseline_B, s.copy_with_history().predict(batch).baseline_B
            )
        )
        is not None
    ):
        raise Failed(f"the same rows count differently when given as an argument than when observed (row {i})")
    none = s.copy_with_history().predict(batch, History.before_first_step()).baseline_B
    if (i := first_difference(none, s.make_fresh_copy().predict(batch).baseline_B)) is not None:
        raise Failed(f"an empty history given as an argument is not the same as having observed nothing (row {i})")
    return "observed rows and rows given as an argument count alike"
