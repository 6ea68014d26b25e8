"""Procedural tasks of reasoning-gym, one dataset or a weighted mixture, in splits that share no prompt.

Source: Stojanovski et al., "Reasoning Gym" (2025), https://github.com/open-thought/reasoning-gym.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollonce.errors import InputError, MissingExtraError
from rollonce.prompts import normalise_prompt
from rollonce.tasks.base import SPLITS, Task, TaskSet, TaskSplits, split_of
from rollonce.tasks.grading import extract_final_answer
from rollonce.tasks.source import Source, TaskRequest

_BLOCK = 500  # items made by one dataset object, after which it is seeded anew
_GIVE_UP = 40  # blocks in a row without a prompt that is new and wanted: the dataset has run dry


@dataclass(frozen=True)
class ReasoningGymSource:
    """One component of a mixture.

    Attributes:
        dataset: reasoning-gym's name, as ``chain_sum``.
        config: Its configuration (``{"max_terms": 3}``); what is left out keeps reasoning-gym's default.
        weight: Share of the mixture, relative to the other components.
        family: Column ``family`` of its tasks, default the dataset's name.
        level: Column ``level`` of its tasks, default ``""``.
    """

    dataset: str
    config: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    family: str = ""
    level: str = ""

    @property
    def label(self) -> str:
        """``family/level``, or the family alone."""
        family = self.family or self.dataset
        return f"{family}/{self.level}" if self.level else family


def _import_reasoning_gym() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise MissingExtraError("tasks from reasoning-gym", "reasoning-gym", "train") from error
    return reasoning_gym


def _create_gym_dataset(source: ReasoningGymSource, seed: int, size: int) -> Any:
    module = _import_reasoning_gym()
    try:
        return module.create_dataset(source.dataset, seed=seed, size=size, **source.config)
    except (ValueError, TypeError, AssertionError) as error:
        from reasoning_gym.factory import DATASETS

        if source.dataset not in DATASETS:
            close = [n for n in sorted(DATASETS) if source.dataset[:4] in n] or sorted(DATASETS)[:8]
            raise InputError(
                f"reasoning-gym has no dataset {source.dataset!r}; there are, among others, {', '.join(close)}"
            ) from error
        raise InputError(
            f"reasoning-gym's {source.dataset!r} refuses the configuration {dict(source.config)}: {error}"
        ) from error


@functools.lru_cache(maxsize=256)
def _load_scoring_dataset(dataset: str, config_json: str) -> Any:
    return _create_gym_dataset(ReasoningGymSource(dataset, json.loads(config_json)), seed=0, size=1)


@dataclass(frozen=True)
class ReasoningGymGrader:
    """The dataset's own ``score_answer`` on the extracted final answer, as 0 or 1.

    reasoning-gym gives part marks (0.01 for a wrong answer in the right form): they make groups that are all wrong look
    informative, so only a full score counts, unless ``partial`` is set.
    """

    dataset: str
    config_json: str
    entry_json: str
    partial: bool = False

    def warm_up(self) -> None:
        """Load reasoning-gym and the dataset, outside any time limit."""
        _load_scoring_dataset(self.dataset, self.config_json)

    def __call__(self, response: str, reference: str) -> float:
        """The reward of a response; ``reference`` is in the entry already."""
        entry = json.loads(self.entry_json)
        score = float(
            _load_scoring_dataset(self.dataset, self.config_json).score_answer(extract_final_answer(response), entry)
        )
        return score if self.partial else float(score >= 1.0 - 1e-9)


def generate_entries(source: ReasoningGymSource, seed: int, position: int) -> Iterator[dict[str, Any] | None]:
    """Entries for ever, ``None`` after each block. Equal arguments, equal items."""
    block = 0
    while True:
        block_seed = int(np.random.SeedSequence([seed, position, block]).generate_state(1)[0] >> 1)
        dataset = _create_gym_dataset(source, block_seed, _BLOCK)
        for i in range(_BLOCK):
            yield dataset[i]
        yield None
        block += 1


def _make_gym_task(source: ReasoningGymSource, config_json: str, entry: dict[str, Any], partial: bool) -> Task:
    digest = hashlib.blake2b(normalise_prompt(entry["question"]).encode(), digest_size=6).hexdigest()
    # Metadata that is no JSON (sets, numpy numbers, enums) is turned into text: a scorer that needs the object itself
    # is not supported.
    entry_json = json.dumps(
        {"question": entry["question"], "answer": entry["answer"], "metadata": entry["metadata"]},
        default=lambda o: o.tolist() if hasattr(o, "tolist") else sorted(o) if isinstance(o, set) else str(o),
    )
    grader = ReasoningGymGrader(source.dataset, config_json, entry_json, partial)
    columns = {"family": source.family or source.dataset, "level": source.level}
    return Task(f"{source.label}/{digest}", entry["question"], str(entry["answer"]), grader, columns)


def _share_out_by_weight(weights: Sequence[float], n: int) -> list[int]:
    """``n`` shared out by weight: each to the largest ``weight / (2 count + 1)``, the first in a tie (Webster,
    Sainte-Lague).

    No component of a larger set has fewer tasks than it has in a smaller one, as by largest remainders it may: a set
    that grows keeps its tasks.
    """
    counts = [0] * len(weights)
    waiting = [(-weight, i) for i, weight in enumerate(weights)]
    heapq.heapify(waiting)
    for _ in range(n):
        _, i = waiting[0]
        counts[i] += 1
        heapq.heapreplace(waiting, (-weights[i] / (2 * counts[i] + 1), i))
    return counts


def draw_reasoning_gym_tasks(
    sources: Sequence[ReasoningGymSource],
    *,
    train: int = 0,
    holdout: int = 0,
    test: int = 0,
    seed: int = 0,
    partial: bool = False,
    name: str = "reasoning-gym",
) -> TaskSplits:
    """Draw a mixture. Every prompt is there once; which split it may be in is decided by its content
    (`rollonce.tasks.split_of`).

    Args:
        sources: The components.
        train, holdout, test: How many tasks of each split, shared out among the components by weight.
        seed: Which tasks are drawn, and the order in which components are interleaved. Never which split a prompt
            belongs to.
        partial: Keep reasoning-gym's part marks instead of 0 or 1.
        name: What the sets are called.

    Raises:
        InputError: an unknown dataset or configuration, or a component with too few different prompts.
        MissingExtraError: reasoning-gym is not installed.

    >>> splits = draw_reasoning_gym_tasks([ReasoningGymSource("chain_sum", {"max_terms": 2})], train=8, test=4)
    >>> len(splits.train), len(splits.test)
    (8, 4)
    """
    if not sources:
        raise InputError("a mixture of reasoning-gym tasks needs at least one dataset")
    for source in sources:
        if not (np.isfinite(source.weight) and source.weight > 0):
            raise InputError(f"the weight of {source.label!r} must be a positive number, not {source.weight}")
    wanted = dict(zip(SPLITS, (train, holdout, test), strict=True))
    if min(wanted.values()) < 0:
        raise InputError(f"numbers of tasks must not be negative: {wanted}")
    counts = {split: _share_out_by_weight([s.weight for s in sources], n) for split, n in wanted.items()}
    drawn: dict[str, list[Task]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for position, source in enumerate(sources):
        need = {split: counts[split][position] for split in SPLITS}
        config_json = json.dumps(dict(source.config), sort_keys=True)
        idle = 0
        for entry in generate_entries(source, seed, position):
            if not any(need.values()):
                break
            if entry is None:
                idle += 1
                if idle > _GIVE_UP:
                    raise InputError(
                        f"{source.label!r} with {dict(source.config)} has too few different prompts: still missing "
                        f"{need}; ask for fewer tasks, give it less weight, or widen its configuration"
                    )
                continue
            split = split_of(entry["question"])
            key = normalise_prompt(entry["question"])
            # An entry without an answer (some logic puzzles have many) cannot be told right from wrong by its text, yet
            # its scorer may: keep it.
            if need[split] and key not in seen:
                seen.add(key)
                need[split] -= 1
                drawn[split].append(_make_gym_task(source, config_json, entry, partial))
                idle = 0
    rng = np.random.default_rng([seed, len(sources)])
    return TaskSplits(*(TaskSet([drawn[s][i] for i in rng.permutation(len(drawn[s]))], f"{name}/{s}") for s in SPLITS))


def parse_mixture(text: str) -> list[ReasoningGymSource]:
    """``chain_sum(min_terms=2, max_terms=3)*2 + gcd`` -> sources: a configuration in brackets, a weight after ``*``.

    Two entries of one dataset get the levels ``1``, ``2`` ... in their order.

    >>> [(s.dataset, dict(s.config), s.weight) for s in parse_mixture("chain_sum(max_terms=3)*2 + gcd")]
    [('chain_sum', {'max_terms': 3}, 2.0), ('gcd', {}, 1.0)]
    """
    wrong = InputError(
        f"{text!r} is no mixture of reasoning-gym datasets; write it as chain_sum(max_terms=3)*2 + gcd, values as in "
        "Python"
    )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise wrong from error
    components: list[tuple[str, dict[str, Any], float]] = []

    def collect_components(node: ast.expr, weight: float) -> None:
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                collect_components(left, weight)
                collect_components(right, weight)
            case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int() | float() as factor)):
                collect_components(left, weight * factor)
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if all(k.arg for k in keywords):
                components.append((name, {str(k.arg): ast.literal_eval(k.value) for k in keywords}, weight))
            case ast.Name(id=name):
                components.append((name, {}, weight))
            case _:
                raise wrong

    try:
        collect_components(tree, 1.0)
    except ValueError as error:
        raise wrong from error
    names = [name for name, _, _ in components]
    level = lambda i: str(names[: i + 1].count(names[i])) if names.count(names[i]) > 1 else ""  # noqa: E731
    return [
        ReasoningGymSource(name, config, float(weight), level=level(i))
        for i, (name, config, weight) in enumerate(components)
    ]


def _load_mixture_splits(place: str, request: TaskRequest) -> TaskSplits:
    numbers = request.numbers_with_defaults(train=1024, holdout=128, test=256)
    return draw_reasoning_gym_tasks(
        parse_mixture(place),
        train=numbers["train"],
        holdout=numbers["holdout"],
        test=numbers["test"],
        seed=request.seed,
    )


REASONING_GYM = Source("reasoning-gym", _load_mixture_splits, place="MIXTURE", is_endless=True)
