"""What every baseline must do, whatever it promises: clean output, no side effects, the order of rows of no matter, bad
prompts, files."""

from __future__ import annotations

import copy
import dataclasses
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch, Prediction
from rollonce.errors import InputError
from rollonce.testing.callables import CallableBaseline
from rollonce.testing.samples import ODD_PROMPTS, permute_rollouts, replace_rewards
from rollonce.testing.subject import Failed, Subject, first_difference


def output(s: Subject) -> str:
    """b and advantages are float64 (B,) and finite, and only_prior_B says which rows had nothing to go by."""
    for state, baseline in s.iterate_audit_states():
        for kind in (0, 1):
            batch = s.samples.draw_rollout_batch(kind)
            said = _predict_and_check_finite(baseline, batch, f"an ordinary batch {state}")
            if (i := first_difference(baseline.advantages(batch), said.advantages_B)) is not None:
                raise Failed(
                    f"advantages() and predict(...).advantages_B differ for rollout {i} {state}: trainers read what "
                    "predict returns, so scaling belongs there"
                )
    return "it gives one finite float64 baseline and advantage per rollout"


def no_side_effects(s: Subject) -> str:
    """predict changes neither the batch, nor the baseline, nor its own next answer."""
    for state, baseline in s.iterate_audit_states():
        batch = s.samples.draw_rollout_batch()
        rewards, before = batch.rewards_B.copy(), json.dumps(baseline.state_dict(), default=str)
        first = baseline.predict(batch).baseline_B
        if not np.array_equal(rewards, batch.rewards_B) or (
            isinstance(baseline, CallableBaseline) and baseline.wrote_input
        ):
            raise Failed(f"predict wrote into the rewards that it was given ({state}); work on a copy")
        if json.dumps(baseline.state_dict(), default=str) != before:
            raise Failed(f"predict changed the baseline's state ({state}); only fit and observe may")
        kept = first.copy()
        baseline.predict(s.samples.draw_rollout_batch(1))
        again = baseline.predict(batch).baseline_B
        if not np.array_equal(kept, first):
            raise Failed(f"a later predict overwrote the array that an earlier one had returned ({state})")
        if (i := first_difference(kept, again)) is not None:
            raise Failed(
                f"the same batch gave b_{i} = {kept[i]:.6g} and then {again[i]:.6g} ({state}): "
                "predict keeps something between calls, or draws random numbers"
            )
    return "predict changes nothing and gives the same answer when asked again"


def repeatable(s: Subject) -> str:
    """Two copies given the same stream give the same bits."""
    past = s.observed_batches if s.remembers_earlier_steps else []
    one, two = s.copy_after_batches(past), s.copy_after_batches(past)
    batch = s.samples.draw_rollout_batch()
    a, b = one.predict(batch).baseline_B, two.predict(batch).baseline_B
    if not np.array_equal(a, b):
        i = int(np.flatnonzero(a != b)[0])
        raise Failed(f"two copies with the same settings, seed and stream differ: b_{i} is {a[i]!r} and {b[i]!r}")
    return "the same settings, seed and stream give the same bits"


def order(s: Subject) -> str:
    """Permuting the batch permutes b."""
    for state, baseline in s.iterate_audit_states():
        for kind in (0, 1):
            batch = s.samples.draw_rollout_batch(kind)
            straight = baseline.predict(batch).baseline_B
            n = len(batch)
            for perm in (np.arange(n)[::-1], np.roll(np.arange(n), 1), s.samples.rng.permutation(n)):
                moved = baseline.predict(permute_rollouts(batch, perm)).baseline_B
                if (i := first_difference(straight[perm], moved)) is not None:
                    raise Failed(
                        f"b depends on the order of the batch: rollout {perm[i]} had b = {straight[perm][i]:.6g}, and "
                        f"{moved[i]:.6g} once it was moved to place {i} ({state})"
                    )
    return "permuting the batch permutes b"


def batch_of_one(s: Subject) -> str:
    """Alone and without history there is only the prior, flagged; never the own reward."""
    tags = s.template.tags
    one = s.samples.batch_with_prompts(s.samples.prompts[:1]) if not tags.needs_groups else None
    if one is None:
        full = s.samples.draw_rollout_batch()
        alone = permute_rollouts(full, np.array([0]))
        try:
            b = s.make_fresh_copy().predict(alone).baseline_B
        except InputError:
            return "a single rollout of a task is refused, since it needs groups"
        raise Failed(f"it needs groups, but gave b = {b[0]:.6g} for a single rollout of a task instead of refusing it")
    answers, flags = [], []
    for r in (0.0, 1.0, 0.37):
        baseline = s.make_fresh_copy()
        said = _predict_and_check_finite(
            baseline, replace_rewards(one, np.array([r])), "a batch of one without history"
        )
        answers.append(float(said.baseline_B[0]))
        flags.append(bool(said.only_prior_B[0]))
    if answers[0] != answers[1] or answers[0] != answers[2]:
        raise Failed(
            f"a batch of one without history gave b = {answers[0]:.6g}, {answers[1]:.6g} and {answers[2]:.6g} for "
            "rewards 0, 1 and 0.37: there is nothing but the own reward to take that from"
        )
    if s.is_plain_function:
        return f"a batch of one gives {answers[0]:.6g} whatever its reward"
    if flags[0] and answers[0] != s.template.prior:
        raise Failed(
            f"a batch of one without history flagged its prior but gave {answers[0]:.6g}; the declared prior is "
            f"{s.template.prior:g}"
        )
    if not flags[0] and (tags.shift_equivariant or s.is_linear_smoother):
        raise Failed("a batch of one without history had nothing to go by, but only_prior_B does not say so")
    return f"a batch of one without history gives {'the prior ' if flags[0] else ''}{answers[0]:g} whatever its reward"


def empty_batch(s: Subject) -> str:
    """No rollouts, no numbers."""
    empty = permute_rollouts(s.samples.draw_rollout_batch(), np.zeros(0, np.int64))
    for state, baseline in s.iterate_audit_states():
        b = np.asarray(baseline.predict(empty).baseline_B)
        if b.shape != (0,):
            raise Failed(f"an empty batch gave an array of shape {b.shape} {state}; (0,) was expected")
    return "an empty batch gives no numbers and no error"


def equal_rewards(s: Subject) -> str:
    """All rewards equal: finite, and that value where b moves and scales with the rewards."""
    tags = s.template.tags
    for c in (0.0, 1.0, 0.3):
        baseline = s.make_fresh_copy()
        if s.remembers_earlier_steps:
            baseline = s.copy_after_batches([replace_rewards(b, np.full(len(b), c)) for b in s.observed_batches])
        batch = s.samples.draw_rollout_batch()
        batch = replace_rewards(batch, np.full(len(batch), c))
        said = _predict_and_check_finite(baseline, batch, f"a batch whose rewards are all {c:g}")
        b = said.baseline_B
        expected = np.where(said.only_prior_B, b, c)
        if tags.shift_equivariant and tags.scale_equivariant and (i := first_difference(b, expected)) is not None:
            raise Failed(f"all rewards were {c:g}, but b_{i} = {b[i]:.6g}")
    return "equal rewards give finite numbers" + (
        ", namely that reward" if tags.shift_equivariant and tags.scale_equivariant else ""
    )


def odd_prompts(s: Subject) -> str:
    """Empty, very long, unknown and non-ASCII prompts are finite, together and as the whole batch."""
    for state, baseline in s.iterate_audit_states():
        _predict_and_check_finite(
            baseline,
            s.samples.batch_with_prompts([*ODD_PROMPTS, *s.samples.prompts[:4]]),
            f"empty, very long and non-ASCII prompts {state}",
        )
    _predict_and_check_finite(s.make_fresh_copy(), s.samples.batch_with_prompts([""] * 5), "a batch of empty prompts")
    _predict_and_check_finite(
        s.make_fresh_copy(),
        s.samples.batch_with_prompts(["zzyzx", "qwxrtl", "vbnmgh", "kjhgfd"]),
        "prompts that share no known word",
    )
    if s.remembers_earlier_steps:
        baseline = s.copy_after_batches([s.samples.batch_with_prompts(ODD_PROMPTS)])
        _predict_and_check_finite(
            baseline, s.samples.draw_rollout_batch(), "a history of empty, very long and non-ASCII prompts"
        )
    return "empty, very long, unknown and non-ASCII prompts give finite numbers"


def saves(s: Subject) -> str:
    """A file, and a state put into a new object, give the same bits, now and some steps later."""
    for state, baseline in s.iterate_audit_states():
        if s.remembers_earlier_steps and state != "without history":
            baseline.observe(s.samples.batch_with_prompts(ODD_PROMPTS[:8]))
        future = [s.samples.draw_rollout_batch(kind) for kind in (0, 1, 0, 1, 1)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "baseline.json"
            baseline.save(path)
            text = path.read_text(encoding="utf-8")
            if not isinstance(json.loads(text), dict):
                raise Failed("save wrote something else than one JSON object")
            from_file = Baseline.load(path)
            if type(from_file) is not type(baseline):
                raise Failed(
                    f"its file loads as a {type(from_file).__name__}, not as a {type(baseline).__name__}: "
                    "give the class a type of its own and decorate it with @register"
                )
            from_file.save(path)
            if path.read_text(encoding="utf-8") != text:
                raise Failed(f"saving what was loaded gives another file ({state})")
        from_state = type(baseline)(**_copy_settings_of(baseline))
        from_state.load_state_dict(json.loads(json.dumps(baseline.state_dict())))
        for step, batch in enumerate(future):
            want = baseline.predict(batch).baseline_B
            for how, other in (("loaded from its file", from_file), ("rebuilt from its state_dict", from_state)):
                got = other.predict(batch).baseline_B
                if not np.array_equal(want, got):
                    i = int(np.flatnonzero(want != got)[0])
                    raise Failed(f"{how} {state}, {step} steps later, b_{i} is {got[i]!r} instead of {want[i]!r}")
                other.observe(batch)
            baseline.observe(batch)
    return "its file and its state_dict give the same bits, at once and some steps later"


def response_length(s: Subject) -> str:
    """The lengths of responses move nothing; of a baseline that reads them, the own one does not move the own b."""
    reads, inclusive = s.template.tags.uses_lengths, s.template.tags.self_inclusive
    for state, baseline in s.iterate_audit_states():
        for kind in (0, 1):
            batch = s.samples.draw_rollout_batch(kind)
            straight = baseline.predict(batch).baseline_B
            assert batch.response_lengths_B is not None
            for i in range(0 if reads and inclusive else len(batch)):
                for length in (1.0, 5000.0, *([np.nan, 0.0] if reads else [])):
                    lengths = batch.response_lengths_B.copy()
                    old, lengths[i] = lengths[i], length
                    moved = baseline.predict(replace(batch, response_lengths_B=lengths)).baseline_B
                    rows = np.array([i]) if reads else np.arange(len(batch))
                    if (j := first_difference(straight[rows], moved[rows])) is not None:
                        j = int(rows[j])
                        whose = "its own baseline" if j == i else f"the baseline of rollout {j}"
                        raise Failed(
                            f"the response length leaks: rollout {i}'s, changed from {old:.0f} to {length:.0f}, moved "
                            f"{whose} from {straight[j]:.6g} to {moved[j]:.6g} ({state})"
                        )
            if reads:
                _predict_and_check_finite(
                    baseline, replace(batch, response_lengths_B=None), f"a batch without lengths {state}"
                )
                unknown = np.full(len(batch), np.nan)
                _predict_and_check_finite(
                    baseline, replace(batch, response_lengths_B=unknown), f"a batch of unknown lengths {state}"
                )
    if reads:
        return "it includes the own length by definition" if inclusive else "no response's length moves its own b"
    return "no response's length moves any b"


def own_log_prob(s: Subject) -> str:
    """A response's own log-probability never moves its b, directly or through anything fitted; without any it works
    too."""
    for state, baseline in s.iterate_audit_states():
        for kind in (0, 1):
            batch = s.samples.draw_rollout_batch(kind)
            straight = baseline.predict(batch).baseline_B
            assert batch.log_probs_B is not None
            for i, old in enumerate(batch.log_probs_B):
                others = np.delete(batch.log_probs_B, i)
                for new in (0.0, -5000.0, float(others.min()), np.nan):
                    log_probs = batch.log_probs_B.copy()
                    log_probs[i] = new
                    moved = baseline.predict(replace(batch, log_probs_B=log_probs)).baseline_B
                    if first_difference(straight[i : i + 1], moved[i : i + 1]) is not None:
                        raise Failed(
                            f"the own log-probability leaks: changing rollout {i}'s from {old:.4g} to {new:.4g} moved "
                            f"its own baseline from {straight[i]:.6g} to {moved[i]:.6g} ({state})"
                        )
            _predict_and_check_finite(
                baseline, replace(batch, log_probs_B=None), f"a batch without log-probabilities {state}"
            )
    return "no response's log-probability moves its own b"


def _copy_settings_of(baseline: Baseline) -> dict:
    """Its settings with fresh copies of nested components, as `from_config` would build them."""
    return {f.name: copy.deepcopy(getattr(baseline, f.name)) for f in dataclasses.fields(baseline) if f.init}  # type: ignore[arg-type]


def _predict_and_check_finite(baseline: Baseline, batch: Batch, what: str) -> Prediction:
    """What it predicts, with the shapes, types and finite numbers that a trainer relies on."""
    said = baseline.predict(batch)
    if not isinstance(said, Prediction):
        raise Failed(f"predict gave {type(said).__name__} for {what}; return Prediction.of(batch, b)")
    n = len(batch)
    numbers = {"baseline_B": (said.baseline_B, np.float64), "advantages_B": (said.advantages_B, np.float64)}
    for name, (array, dtype) in {**numbers, "only_prior_B": (said.only_prior_B, np.bool_)}.items():
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (n,):
            given = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise Failed(
                f"predict gave {given} as {name} for {what}; an array of {np.dtype(dtype).name} and shape ({n},) was "
                "expected"
            )
    for name, (array, _) in numbers.items():
        if not np.isfinite(array).all():
            i = int(np.flatnonzero(~np.isfinite(array))[0])
            prompt = batch.tasks.prompts[i]
            shown = ascii(prompt[:40]) + ("..." if len(prompt) > 40 else "")
            raise Failed(
                f"{'b' if name == 'baseline_B' else 'the advantage'}_{i} is {array[i]} for {what} (its prompt is "
                f"{shown}, reward {batch.rewards_B[i]:g})"
            )
    return said
