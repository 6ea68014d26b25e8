"""What can be had beside a search."""

from __future__ import annotations

import pytest

from rollonce.rollouts import Rollouts
from rollonce.tuning.reach import self_tuning_reaches, window_that_tasks_allow

from .planted import planted


@pytest.mark.parametrize(
    ("n_tasks", "batch_size", "window"),
    [(300, 32, 193), (60, 32, 0), (85, 32, 0), (86, 32, 32), (5000, 32, 512)],
)
def test_the_window_is_what_three_quarters_of_the_tasks_leave(n_tasks: int, batch_size: int, window: int) -> None:
    assert window_that_tasks_allow(n_tasks, batch_size) == window


def test_self_tuning_finds_the_planted_families_and_says_nothing_of_too_few_prompts() -> None:
    score = self_tuning_reaches(planted(90), batch_size=16, window=32)
    assert score is not None
    assert score.ratio.value > 1.02
    assert score.window == 32
    assert self_tuning_reaches(Rollouts.from_groups([[0.0, 1.0]] * 4, list("abcd")), 2, 0) is None
