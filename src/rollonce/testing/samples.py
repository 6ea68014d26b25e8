"""What the audit feeds to a baseline: prompts in its own words where it has any, columns that it asks for, streams of
batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollonce.baselines.base import Baseline
from rollonce.baselines.batch import Batch
from rollonce.baselines.tags import Tags
from rollonce.component import Component
from rollonce.features import CategoryColumn, NumberColumn, Tfidf
from rollonce.rollouts import FloatArray, IntArray, Tasks

_TOPICS = [
    "add the numbers {a} and {b} and give the sum",
    "what is {a} times {b}, written in words",
    "sort this list in ascending order: {a} {b} {c}",
    "reverse the string '{w}{v}' and count its letters",
    "prove that the group of order {a} is abelian when it has {b} generators, or give a counterexample of small order",
    "write a function {w}_{v}(x) that returns x plus {a}",
    "a farmer has {a} sheep and {b} goats; all but {c} {w} run away, how many animals are left on the farm",
    "übersetze den Satz ins Deutsche: the {w} is in the {v}",
    "{w} {v}?",
]
_WORDS = ["river", "apple", "carriage", "naïve", "quantum", "ledger", "window", "Σίσυφος", "东京", "bridge"]

ODD_PROMPTS = [
    "",
    " \n\t ",
    "a",
    "?!...",
    "zzyzx qwxrtl vbnmgh",  # words that no vocabulary has
    "привет, мир: 你好，世界 🌍🏳️‍🌈 naïve café ｆｕｌｌ ﬁn",
    "\u202eright to left\u202c \x00 null \ufeff bom",
    "half of a pair \ud83d",  # a lone surrogate, as broken JSON escapes leave behind
    "very long " * 3_000,
    "x" * 30_000,
]


def walk_component_parts(component: Component) -> Iterator[Component]:
    """A component and all that it is made of."""
    yield component
    for child in component.nested_components().values():
        yield from walk_component_parts(child)


@dataclass
class Samples:
    """Batches for an audit, drawn from prompts and columns.

    Attributes:
        prompts: N prompts.
        task_ids: N ids.
        columns: Declared columns of N values.
        tags: Of the baseline: groups are drawn where it needs them.
        rng: Where everything random comes from.
    """

    prompts: list[str]
    task_ids: list[str]
    columns: dict[str, list[Any]]
    tags: Tags
    rng: np.random.Generator

    @classmethod
    def draw_for_baseline(
        cls, baseline: Baseline, prompts: Sequence[str] | None, columns: Mapping[str, Sequence[Any]] | None, seed: int
    ) -> Samples:
        """Prompts as given, or made up: of the words that the baseline knows if it was fitted. Columns that it reads
        are made up too."""
        rng = np.random.default_rng(seed)
        parts = list(walk_component_parts(baseline))
        texts = (
            list(prompts)
            if prompts
            else _make_up_prompts(rng, next((p for p in parts if isinstance(p, Tfidf) and p.vocabulary_), None))
        )
        values = {name: list(column) for name, column in (columns or {}).items()}
        at = np.arange(max(len(texts), 24)) % len(texts)  # a few prompts are used again and again
        texts, values = [texts[i] for i in at], {name: [column[i] for i in at] for name, column in values.items()}
        for part in parts:
            if isinstance(part, CategoryColumn):
                values.setdefault(part.name, [f"kind {k}" for k in rng.integers(0, 4, len(texts))])
            elif isinstance(part, NumberColumn):
                values.setdefault(part.name, (part.center_ + part.scale_ * rng.normal(size=len(texts))).tolist())
        known = list(getattr(baseline, "means", None) or [])  # an oracle knows its own task ids only
        ids = [known[i % len(known)] for i in range(len(texts))] if known else [f"task {i}" for i in range(len(texts))]
        return cls(texts, ids, values, baseline.tags, rng)

    def tasks_at_positions(self, at: Sequence[int] | IntArray) -> Tasks:
        """The tasks at these positions, sharing nothing with earlier ones."""
        return Tasks(
            [self.prompts[i] for i in at],
            [self.task_ids[i] for i in at],
            {c: np.asarray([v[i] for i in at]) for c, v in self.columns.items()},
        )

    def all_drawable_tasks(self) -> Tasks:
        """All tasks that batches are drawn from, to fit a baseline on."""
        return self.tasks_at_positions(range(len(self.prompts)))

    def draw_unequal_rewards(self, n: int, kind: int) -> FloatArray:
        """n rewards in [0, 1], not all equal: zeros and ones for even ``kind``, anything between for odd."""
        r = self.rng.random(n) if kind % 2 else (self.rng.random(n) < 0.4).astype(np.float64)
        if n > 1 and (r == r[0]).all():
            r[self.rng.integers(n)] = 1.0 - r[0]
        return r

    def draw_rollout_batch(self, kind: int = 0, n: int = 10) -> Batch:
        """About n rollouts: of distinct tasks, or in groups of three where the baseline needs them."""
        at = self.rng.choice(len(self.prompts), size=min(n, len(self.prompts)), replace=False)
        if self.tags.needs_groups:
            at = self.rng.permutation(np.repeat(at[:4], 3))
        rewards, lengths = (
            self.draw_unequal_rewards(len(at), kind),
            self.rng.integers(1, 400, len(at)).astype(np.float64),
        )
        return Batch(self.tasks_at_positions(at), rewards, lengths, self.draw_response_log_probs(len(at)))

    def draw_response_log_probs(self, n: int) -> FloatArray:
        """What a sampler reports of n responses, tens to hundreds of nats each."""
        return -100.0 * self.rng.random(n) ** 2

    def batch_with_prompts(self, prompts: Sequence[str], kind: int = 0) -> Batch:
        """A batch of these prompts, with ids and columns of any tasks; a group each where groups are needed."""
        repeats = 3 if self.tags.needs_groups else 1
        at = np.arange(len(prompts)) % len(self.prompts)
        columns = {c: np.repeat(np.asarray([v[i] for i in at]), repeats) for c, v in self.columns.items()}
        ids = [self.task_ids[i] for i in at for _ in range(repeats)]
        texts = [p for p in prompts for _ in range(repeats)]
        n = len(texts)
        return Batch(
            Tasks(texts, ids, columns),
            self.draw_unequal_rewards(n, kind),
            np.full(n, 50.0),
            self.draw_response_log_probs(n),
        )

    def batch_of_identical_prompts(self, n: int = 9) -> Batch:
        """n rollouts of one prompt: one group where groups are needed, tasks with ids of their own otherwise."""
        at = self.rng.choice(len(self.prompts), size=n, replace=False)
        first = int(at[0])
        ids = [self.task_ids[first if self.tags.needs_groups else i] for i in at]
        columns = {c: np.asarray([v[first]] * n) for c, v in self.columns.items()}
        return Batch(Tasks([self.prompts[first]] * n, ids, columns), self.draw_unequal_rewards(n, 1))


def permute_rollouts(batch: Batch, order: IntArray) -> Batch:
    """The same rollouts in another order, as tasks of their own (no cached features)."""
    columns = {c: batch.tasks.column(c)[order] for c in batch.tasks.column_names}
    prompts = batch.tasks.prompts
    tasks = Tasks([prompts[i] for i in order], batch.tasks.task_ids[order], columns)
    lengths = None if batch.response_lengths_B is None else batch.response_lengths_B[order]
    log_probs = None if batch.log_probs_B is None else batch.log_probs_B[order]
    return Batch(tasks, batch.rewards_B[order], lengths, log_probs)


def replace_rewards(batch: Batch, rewards_B: FloatArray) -> Batch:
    """The same tasks with other rewards."""
    return replace(batch, rewards_B=np.asarray(rewards_B, dtype=np.float64))


def _make_up_prompts(rng: np.random.Generator, fitted: Tfidf | None) -> list[str]:
    if fitted is not None:
        terms = list(fitted.vocabulary_)
        glue = " " if fitted.analyzer == "word" else ""
        return [glue.join(rng.choice(terms, size=int(rng.integers(3, 30)))) for _ in range(40)]
    out: list[str] = []
    while len(out) < 40:
        a, b, c = (int(n) for n in rng.integers(2, 100, 3))
        w, v = (str(s) for s in rng.choice(_WORDS, 2))
        text = _TOPICS[len(out) % len(_TOPICS)].format(a=a, b=b, c=c, w=w, v=v)
        if text not in out:
            out.append(text)
    return out
