"""The mixture that the embedded policy was made for: reasoning-gym (dataset x level) types of widely different
difficulty."""

from __future__ import annotations

from rollonce.errors import InputError
from rollonce.tasks.base import TaskSplits
from rollonce.tasks.reasoning_gym import ReasoningGymSource, draw_reasoning_gym_tasks
from rollonce.tasks.source import Source, TaskRequest


def _make_type_source(label: str, dataset: str, **config: object) -> ReasoningGymSource:
    return ReasoningGymSource(dataset, config, family=dataset, level=label)


EMBEDDED_SOURCES: tuple[ReasoningGymSource, ...] = (
    _make_type_source("1", "chain_sum", min_terms=2, max_terms=3, min_digits=1, max_digits=1),
    _make_type_source("2", "chain_sum", min_terms=2, max_terms=2, min_digits=2, max_digits=2),
    _make_type_source("3", "chain_sum", min_terms=4, max_terms=4, min_digits=2, max_digits=3),
    _make_type_source("2", "products", min_digits=2, max_digits=2),
    _make_type_source("1", "gcd", min_value=2, max_value=40),
    _make_type_source("2", "gcd", min_value=40, max_value=400),
    _make_type_source("1", "letter_counting", min_words=1, max_words=2),
    _make_type_source("2", "letter_counting", min_words=4, max_words=6),
    _make_type_source("1", "spell_backward", min_word_len=3, max_word_len=4),
    _make_type_source("2", "spell_backward", min_word_len=7, max_word_len=9),
    _make_type_source("1", "simple_equations", min_terms=2, max_terms=2, min_value=1, max_value=10),
    _make_type_source("1", "number_sorting", min_numbers=3, max_numbers=3, min_decimals=0, max_decimals=0),
    _make_type_source(
        "1",
        "number_filtering",
        min_numbers=3,
        max_numbers=3,
        min_decimals=0,
        max_decimals=0,
        min_value=-30.0,
        max_value=30.0,
    ),
    _make_type_source("1", "leg_counting", min_animals=2, max_animals=2, min_instances=1, max_instances=9),
    _make_type_source("1", "count_bits", min_n=1, max_n=4095),
)


def draw_embedded_tasks(*, train: int = 0, holdout: int = 0, test: int = 0, seed: int = 0) -> TaskSplits:
    """Tasks of the embedded policy's mixture, every type alike in number.

    Args:
        train, holdout, test: How many tasks of each split.
        seed: Which tasks are drawn.

    Raises:
        InputError: more tasks than the smallest type has different prompts for.
        MissingExtraError: reasoning-gym is not installed.
    """
    return draw_reasoning_gym_tasks(
        EMBEDDED_SOURCES, train=train, holdout=holdout, test=test, seed=seed, name="embedded"
    )


def _load_embedded_splits(place: str, request: TaskRequest) -> TaskSplits:
    if place:
        raise InputError(f"the source 'embedded' takes nothing after it, not {place!r}")
    return draw_embedded_tasks(**request.numbers_with_defaults(train=6000, holdout=600, test=900), seed=request.seed)


EMBEDDED = Source("embedded", _load_embedded_splits, is_endless=True, usual_place="")
