"""The baseline under audit: fresh copies of it, copies that have lived through some steps, and how close two answers
must be."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollonce.baselines.base import Baseline, LinearSmoother, copy_without_history
from rollonce.baselines.batch import Batch
from rollonce.baselines.own import FunctionBaseline, baseline_from_object
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray
from rollonce.testing.callables import CallableBaseline
from rollonce.testing.samples import Samples

TOLERANCE = 1e-9  # of the largest number involved: rounding passes, the smallest real leak does not
STEPS = 7  # of history; 70 rows or more, so that critics with a smallest number of rows do learn


class Failed(AssertionError):
    """A check's verdict, as a sentence."""


@dataclass
class Subject:
    """What is being audited.

    Attributes:
        template: A fitted copy without history.
        samples: Where its batches come from.
    """

    template: Baseline
    samples: Samples
    _lived: Baseline | None = field(default=None, init=False)
    _past: list[Batch] = field(default_factory=list, init=False)

    @property
    def is_plain_function(self) -> bool:
        """A plain function, of which less is asked."""
        return isinstance(self.template, CallableBaseline)

    @property
    def is_linear_smoother(self) -> bool:
        """Whether it gives weights, as every `LinearSmoother` does."""
        return isinstance(self.template, LinearSmoother)

    @property
    def remembers_earlier_steps(self) -> bool:
        """Earlier steps count, by its tags or by what it keeps."""
        t = self.template.tags
        return not self.is_plain_function and (
            t.windowed or t.needs_history or t.needs_repeats or self.template.keep_rows > 0
        )

    def make_fresh_copy(self) -> Baseline:
        """A copy of its own, fitted and without history."""
        return copy.deepcopy(self.template)

    @property
    def observed_batches(self) -> list[Batch]:
        """The batches that `copy_with_history` has observed."""
        if not self._past:
            self._past = [self.samples.draw_rollout_batch(kind) for kind in range(STEPS)]
        return self._past

    def copy_after_batches(self, past: list[Batch]) -> Baseline:
        """A fresh copy that has predicted and observed these batches."""
        baseline = self.make_fresh_copy()
        for batch in past:
            baseline.predict(batch)
            baseline.observe(batch)
        return baseline

    def copy_with_history(self) -> Baseline:
        """A copy of its own that has observed `past`."""
        if self._lived is None:
            self._lived = self.copy_after_batches(self.observed_batches)
        return copy.deepcopy(self._lived)

    def iterate_audit_states(self) -> Iterator[tuple[str, Baseline]]:
        """The states it is audited in: with no history and, where earlier steps count, with some."""
        yield "without history", self.make_fresh_copy()
        if self.remembers_earlier_steps:
            yield f"after {STEPS} steps", self.copy_with_history()


def prepare_audit_subject(baseline: Any, prompts: Any, columns: Any, seed: int) -> Subject:
    """The subject from a baseline, a class or function that makes one, or a plain function.

    Raises:
        InputError: if it is none of these.
    """
    made, is_new = _instantiate_baseline(baseline)
    samples = Samples.draw_for_baseline(made, prompts, columns, seed)
    template = copy.deepcopy(made)
    if not isinstance(made, CallableBaseline):
        template = copy_without_history(made)
        if is_new or _needs_fitting(template, samples):
            template.fit(samples.all_drawable_tasks())
    return Subject(template, samples)


def _instantiate_baseline(baseline: Any) -> tuple[Baseline, bool]:
    if isinstance(baseline, FunctionBaseline):
        baseline = baseline.function
    made = baseline_from_object(baseline, of_function=CallableBaseline)
    return made, not (made is baseline or isinstance(made, CallableBaseline))


def _needs_fitting(baseline: Baseline, samples: Samples) -> bool:
    if not baseline.state_dict():
        return True
    try:
        copy.deepcopy(baseline).predict(samples.draw_rollout_batch())
    except InputError:
        return True
    return False


def first_difference(a: FloatArray, b: FloatArray, *sizes: Any) -> int | None:
    """The first place where a and b differ by more than rounding of the numbers in ``sizes`` (and their own), or
    None."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    largest = max([1.0] + [float(np.abs(np.asarray(s, np.float64)).max(initial=0.0)) for s in (a, b, *sizes)])
    bad = ~(np.abs(a - b) <= TOLERANCE * largest)
    return int(np.flatnonzero(bad.ravel())[0]) if bad.any() else None
